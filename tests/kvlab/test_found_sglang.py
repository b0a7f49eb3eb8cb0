"""The shortest traces of what was found in mini-sglang and SGLang break their rule, and nothing before it."""

from pathlib import Path

import pytest

from kvcheck import Checker
from kvconform.traces.memory import MemoryReader, open_trace

FOUND = Path(__file__).parents[2] / "conformance" / "found"

RULES = {
    "mini-sglang/freed-duplicates": "MEM-USE",
    "mini-sglang/abort-in-flight": "MEM-RELEASE",
    "mini-sglang/row-handed-on": "MEM-RACE",
    "mini-sglang/room-in-tokens": "MEM-FAILED",
    "sglang-jax/mixed-room": "MEM-FAILED",
    "sglang-jax/pause-forgets": "MEM-LEAK",
    "sglang-jax/pause-stays-full": "MEM-FAILED",
    "sglang-jax/cache-loc-reused": "MEM-RACE",
    "sglang-jax/freed-in-flight": "MEM-USE",
    "sglang-jax/chunk-forgotten": "MEM-WRITTEN",
    "sglang-jax/negative-chunk": "MEM-LEAK",
    "sglang-jax/pause-forgets-chunk": "MEM-LEAK",
    "sglang-jax/unaligned-protected": "MEM-USE",
    "sglang/write-through-unfenced-0.5.10": "MEM-RACE",
    "sglang/write-through-unfenced-0.5.22": "MEM-RACE",
    "sglang/load-back-unfenced-0.5.10": "MEM-RACE",
    "sglang/parent-before-child-0.5.10": "MEM-FAILED",
    "sglang/chunk-without-room-0.5.23": "MEM-FAILED",
    "sglang/state-overwritten-0.5.23": "MEM-NAME",
    "sglang/mixed-state-dropped-0.5.22": "MEM-NAME",
    "sglang/state-off-page-0.5.23": "MEM-NAME",
    "sglang/chunk-forgotten-0.5.23": "MEM-USE",
    "sglang/window-within-page-0.5.22": "MEM-USE",
    "sglang/session-rejected-0.5.23": "MEM-FAILED",
    "sglang/session-retracted-0.5.23": "MEM-RACE",
    "sglang/session-unclosed-0.5.23": "MEM-LEAK",
    "sglang/session-last-token-0.5.23": "MEM-CONTENT",
    "sglang/session-empty-slot-0.5.23": "MEM-FAILED",
    "sglang/session-order-0.5.23": "MEM-FAILED",
    "sglang/session-without-cache-0.5.23": "MEM-FAILED",
    "sglang/session-rows-0.5.23": "MEM-FAILED",
    "sglang/session-preempted-0.5.23": "MEM-FAILED",
    "sglang/session-state-ahead-0.5.23": "MEM-CONTENT",
}


@pytest.mark.parametrize("name", RULES)
def test_a_trace_breaks_its_rule_with_its_last_event(name: str) -> None:
    with open_trace(FOUND / f"{name}.jsonl") as trace:
        assert isinstance(trace, MemoryReader)
        checker = Checker(trace.header.pools)
        found = [[finding.rule for finding in checker.step(event)] for _, event in trace]
    assert found[-1][0] == RULES[name]
    assert not any(found[:-1])


@pytest.mark.parametrize("engine", ["mini-sglang", "sglang", "sglang-jax"])
def test_every_trace_is_told_of_on_its_page(engine: str) -> None:
    page = (FOUND / f"{engine}.md").read_text()
    for path in (FOUND / engine).iterdir():
        assert f"({engine}/{path.name})" in page
        assert f"{engine}/{path.stem}" in RULES
