"""A request-level trace is checked to its end, as far as its state is known; known findings fail no check."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvcli.main import run_command
from kvconform.findings.baseline import Baseline, Entry
from kvconform.levels.requests.recovery import Whole, check_whole
from kvconform.traces.codec import TraceReader
from tests.conformance.helpers import HEADER, LIFE, RECORDED, VECTOR, write


def another(number: int, **changed: Any) -> list[dict[str, Any]]:
    """The same life once more, of a request with other tokens and pages."""
    text = json.dumps(RECORDED).replace('"r"', f'"r{number}"').replace('"launch": 1', f'"launch": {number}')
    lines: list[dict[str, Any]] = json.loads(text)
    lines[0]["tokens"] = [100 * number + token for token in range(6)]
    lines[2]["obs"]["pages"] = {f"r{number}": [number + 1, 2]}
    return [line | changed.get(line["op"], {}) for line in lines]


def checked(path: Path, *entries: Entry) -> Whole:
    with TraceReader(path) as trace:
        return check_whole(trace.header.config, trace, Baseline(list(entries)))


LEFT: dict[str, Any] = {"finish": {"obs": {"freed": []}}}
"""A finish that leaves the last page."""


def test_operations_after_a_finding_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = {"match_prefix": {"obs": {"prefix_len": 4, "protected_len": 4, "freed": []}}}
    path = write(tmp_path / "t.jsonl", HEADER, *RECORDED[:5], RECORDED[5] | LEFT["finish"], *another(2, **late))
    whole = checked(path)
    assert whole.operations == 12 and whole.lost is None and whole.problem is None
    left, later = whole.found
    assert (left.finding.rule.id, left.line, left.count) == ("PAGE-1", 7, 1) and later.line == 9
    assert run_command(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"PAGE-1 is broken at {path}:7, finish" in out
    assert f"is broken at {path}:9, match_prefix" in out
    assert out.count("It may follow from the first finding") == 1
    assert "does not conform, 12 operations checked." in out


def test_the_same_again_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path / "t.jsonl", HEADER, *RECORDED, *(line for number in (2, 3, 4) for line in another(number, **LEFT))
    )
    (found,) = checked(path).found
    assert found.count == 3 and found.line == 13
    assert run_command(["check", str(path)]) == 1
    assert f"PAGE-1 is broken at {path}:13, finish, 3 times" in capsys.readouterr().out


def test_a_wrong_refusal_changes_nothing(tmp_path: Path) -> None:
    refused = {key: value for key, value in RECORDED[2].items() if key != "obs"} | {"refused": {"reason": "no"}}
    path = write(tmp_path / "t.jsonl", HEADER, *RECORDED[:2], refused, *RECORDED[2:])
    whole = checked(path)
    assert [one.finding.rule.id for one in whole.found] == ["OP-1"]
    assert whole.operations == 7


def test_where_the_state_is_lost_checking_ends_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.jsonl", HEADER, *RECORDED, RECORDED[5], *another(2))
    whole = checked(path)
    assert whole.operations == 7
    assert whole.lost == "line 8: it was carried out, and what came of it is not known"
    assert run_command(["check", str(path)]) == 1
    assert "checking ends at line 8: it was carried out" in capsys.readouterr().out


def test_a_wrong_eviction_loses_the_store(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", HEADER, *RECORDED, {"op": "evict", "n": 1, "obs": {"evicted": [9]}})
    whole = checked(path)
    assert whole.lost is not None and "published" in whole.lost


def test_accepted_findings_are_counted_and_the_rest_is_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", HEADER, *RECORDED, *another(2, **LEFT), *another(3, **LEFT))
    entry = Entry("PAGE-1", "known", event="finish")
    baseline = Baseline([entry])
    with TraceReader(path) as trace:
        assert check_whole(trace.header.config, trace, baseline).found == []
    assert baseline.count[entry] == 2


def test_check_takes_what_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "t.jsonl", HEADER, *RECORDED, *another(2, **LEFT))
    known = tmp_path / "known.toml"
    known.write_text('[[known]]\nrule = "PAGE-1"\nreason = "known"\n')
    assert run_command(["check", str(path), "--baseline", str(known)]) == 0
    assert "Known: PAGE-1: 1 time. known" in capsys.readouterr().out


def test_run_takes_what_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = write(tmp_path / "life.jsonl", VECTOR, *LIFE)
    known = tmp_path / "known.toml"
    known.write_text('[[known]]\nrule = "PAGE-1"\nevent = "finish"\nreason = "known"\n')
    keeps = ["run", str(vector), "--impl", "tests.conformance.helpers:KeepsPages"]
    assert run_command(keeps) == 1
    assert run_command([*keeps, "--baseline", str(known)]) == 0
    out = capsys.readouterr().out
    assert "0 passed, 1 failed as known (1 finding)" in out
    assert run_command(["run", str(vector), "--baseline", str(known)]) == 0
    assert "never, so it can go from the file" in capsys.readouterr().out
