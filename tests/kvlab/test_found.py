"""Defects of real releases: each one's shortest trace shows what its page says."""

from pathlib import Path

import pytest

from kvcheck import Checker
from kvconform.traces.memory import MemoryReader, open_trace
from kvlab.drives import shows
from kvlab.vllm.issues import KNOWN
from kvspec.rules import rule_of
from tests.spec.memory.once import Once

FOUND = Path(__file__).parents[2] / "conformance" / "found"
TRACES = sorted((FOUND / "vllm").glob("*.jsonl"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_the_last_event_of_a_trace_breaks_the_rule_and_no_earlier_one_does(path: Path) -> None:
    (known,) = [known for known in KNOWN if known.name == path.stem]
    with open_trace(path) as trace:
        assert isinstance(trace, MemoryReader)
        checker = Checker(trace.header.pools)
        steps = [checker.step(event) for _, event in trace]
    assert {finding.rule for finding in steps[-1]} == {rule_of(known.rule)}
    assert any(shows(finding, known.rule, known.where) for finding in steps[-1])
    assert {finding.rule for found in steps[:-1] for finding in found} <= {"MEM-WRITTEN"}


@pytest.mark.parametrize("path", sorted(FOUND.rglob("*.jsonl")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_both_laws_find_the_same_in_a_trace(path: Path) -> None:
    with open_trace(path) as trace:
        if not isinstance(trace, MemoryReader):
            pytest.skip("of the level of requests")
        checker, fast = Once(trace.header.pools), Checker(trace.header.pools)
        for _, event in trace:
            due, found = (
                {(one.rule, one.pool, one.page) for one in watching.step(event)} for watching in (checker, fast)
            )
            again = {(one.rule, one.pool, one.page) for one in checker.repeated}
            assert due <= found <= due | again


SGLANG_JAX = {
    "cache-loc-reused": "MEM-RACE",
    "chunk-forgotten": "MEM-WRITTEN",
    "freed-in-flight": "MEM-USE",
    "mixed-room": "MEM-FAILED",
    "negative-chunk": "MEM-LEAK",
    "pause-forgets": "MEM-LEAK",
    "pause-forgets-chunk": "MEM-LEAK",
    "pause-stays-full": "MEM-FAILED",
    "unaligned-protected": "MEM-USE",
}
"""Trace -> the rule that its last event breaks, and no earlier one does."""


@pytest.mark.parametrize(("name", "rule"), SGLANG_JAX.items())
def test_a_trace_of_sglang_jax_breaks_one_rule_at_its_end(name: str, rule: str) -> None:
    with open_trace(FOUND / "sglang-jax" / f"{name}.jsonl") as trace:
        assert isinstance(trace, MemoryReader)
        checker = Checker(trace.header.pools)
        *before, last = [checker.step(event) for _, event in trace]
    assert not any(before)
    assert [finding.rule for finding in last] == [rule]


def test_the_page_of_sglang_jax_speaks_of_every_trace() -> None:
    page = (FOUND / "sglang-jax.md").read_text(encoding="utf-8")
    assert {path.stem for path in (FOUND / "sglang-jax").glob("*.jsonl")} == SGLANG_JAX.keys()
    assert all(f"(sglang-jax/{name}.jsonl)" in page for name in SGLANG_JAX)


def test_the_page_speaks_of_every_known_defect_and_every_trace() -> None:
    page = (FOUND / "vllm.md").read_text(encoding="utf-8")
    assert all(f"| `{known.name}` |" in page for known in KNOWN)
    assert all(f"(vllm/{path.name})" in page for path in TRACES)
