"""The memory vectors: each has its expected result, and each rule is broken in one and holds in another."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvcli.main import run_command
from kvconform.levels.memory.vectors import run_memory_vector
from kvconform.traces.memory import MemoryVector, read_memory_vector
from kvconform.vectors.files import memory_vector_files
from kvspec.rules import MEMORY_RULES
from tests.spec.memory import scenario_vectors
from tests.spec.memory.changes import rules_of
from tests.spec.memory.once import Once

PATHS = memory_vector_files()
VECTORS = [read_memory_vector(path) for path in PATHS]
RIGHT = [vector for vector in VECTORS if not any(step.expects for step in vector.steps)]
OWN_WORD = "MEM-FAILED"
"""The engine's own word, which no other event can bring about."""


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_it_comes_out_as_expected(vector: MemoryVector) -> None:
    result = run_memory_vector(vector)
    assert result.mismatch is None
    assert result.events == len(vector.steps)
    expected = {expect.rule for step in vector.steps for expect in step.expects}
    assert result.found == expected and expected <= set(vector.header.rules)
    assert all(result.checked.get(rule) or rule in result.found for rule in vector.header.rules)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_the_plain_checker_finds_the_same(vector: MemoryVector) -> None:
    plain = Once(vector.header.pools)
    for step in vector.steps:
        findings = plain.step(step.event)
        assert {finding.rule for finding in findings} == {expect.rule for expect in step.expects}
        for expect in step.expects:
            first = next(finding for finding in findings if finding.rule == expect.rule)
            assert expect.page in (None, first.page) or first.code == "MEM-COUNT/missing", "it does not say which"
            assert expect.code in (None, first.code)
            assert expect.holder in (None, first.holder)


def test_each_scenario_is_a_vector(tmp_path: Path) -> None:
    scenario_vectors.main(tmp_path)
    written, stored = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (tmp_path, scenario_vectors.SCENARIOS)
    )
    assert written == stored, "run `python -m tests.spec.memory.scenario_vectors`, and read the difference"


@pytest.mark.parametrize("rule", MEMORY_RULES)
def test_each_rule_is_found_in_a_vector(rule: str) -> None:
    assert [
        vector for vector in VECTORS if any(expect.rule == rule for step in vector.steps for expect in step.expects)
    ]


@pytest.mark.parametrize("rule", [rule for rule in MEMORY_RULES if rule != OWN_WORD])
def test_each_rule_holds_in_a_vector(rule: str) -> None:
    assert [vector for vector in RIGHT if rule in vector.header.rules]


@pytest.mark.parametrize("vector", RIGHT, ids=lambda vector: vector.name)
def test_each_rule_that_a_right_protocol_names_is_checked_there(vector: MemoryVector) -> None:
    """It is found as soon as an event is left out, done twice, too early, on another stream, or with other content."""
    assert set(vector.header.rules) <= rules_of(vector.header.pools, [step.event for step in vector.steps])


def test_the_command_runs_them_with_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", *map(str, PATHS), "-v"]) == 0
    out = capsys.readouterr().out
    assert f"the memory checker: {len(PATHS)} passed" in out
    assert "wrong_double_free" in out


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: [*lines, {"op": "expect", "rule": "MEM-RACE"}], "MEM-RACE is expected to be broken, and is not"),
        (lambda lines: [*lines, {"op": "end_holder", "holder": "r3"}], "MEM-LEAK is not expected to be broken"),
        (lambda lines: [*lines[:-1], lines[-1] | {"page": 7}], "expected to be broken at page 7, not 1"),
        (
            lambda lines: [*lines[:-1], lines[-1] | {"code": "MEM-TAKE/padding"}],
            "expected to be broken as MEM-TAKE/padding, not MEM-TAKE/held",
        ),
        (lambda lines: [*lines[:-1], lines[-1] | {"holder": "r7"}], "expected to be broken by holder r7, not r3"),
    ],
)
def test_what_is_not_as_expected_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, expected: str
) -> None:
    wrong = next(path for path in PATHS if path.stem == "wrong_double_free")
    lines = [json.loads(line) for line in wrong.read_text().splitlines()]
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))
    assert run_command(["run", str(path)]) == 1
    out = capsys.readouterr().out
    assert expected in " ".join(out.split()) and f"{path}:" in out, "wherever the line of a long path is wrapped"
    assert "the memory checker: 1 failed, 0 passed" in out
