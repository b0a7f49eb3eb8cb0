"""A report names the cause: its line and its place in the engine stand in the first 25 lines of `kvspec check`."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvcli.main import run_command
from kvspec.memory.events import EndHolder, MemoryEvent, Release, Share, Take, Transfer
from kvtrace.writer import TraceWriter
from tests.conformance.levels.memory.causes import FAULTS, POOLS, WAYS, Fault, injected

SIZE = int(os.environ.get("KVSPEC_CAUSES_EVENTS", "2000"))
"""Events of a trace; `make causes` has 100,000."""

CASES = [(fault, way) for fault in FAULTS for way in WAYS]


def _written(folder: Path, events: Sequence[MemoryEvent]) -> Path:
    writer = TraceWriter(folder / "trace.jsonl")
    writer.header("causes", POOLS)
    for event in events:
        writer.emit(event)
    writer.close()
    (written,) = folder.glob("trace*")
    return written


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "way"), CASES, ids=[f"{fault.__name__}-{way}" for fault, way in CASES])
def test_the_cause_is_in_the_first_lines(
    fault: Fault, way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    trace = injected(fault, way, SIZE, seed=1)
    written = _written(tmp_path, trace.events)
    line = trace.events.index(trace.cause) + 2
    assert run_command(["check", str(written)]) == 1
    head = capsys.readouterr().out.splitlines()[:25]
    assert any(f"line {line}:" in one and f"({trace.cause.at})" in one for one in head), "\n".join(head)
    assert trace.rule in "\n".join(head)


def _leaks() -> list[MemoryEvent]:
    """Two holders lock twice and unlock once, a third forgets its page."""
    events: list[MemoryEvent] = []
    for holder in ("a", "b"):
        events += [Take(holder, "kv", [1 + ord(holder)], at="alloc"), Share(holder, "kv", [1 + ord(holder)], at="lock")]
        events += [Release(holder, "kv", [1 + ord(holder)], at="free"), EndHolder(holder)]
    return [*events, Take("c", "kv", [7], at="alloc"), EndHolder("c")]


def test_leaks_are_distinguished_by_where_their_pages_were_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["check", str(_written(tmp_path, _leaks()))]) == 1
    assert "2 of 3: +alloc +lock -free; 1 of 3: +alloc" in capsys.readouterr().out


def test_the_ledger_is_in_every_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written, sarif, page = _written(tmp_path, _leaks()), tmp_path / "found.sarif", tmp_path / "found.html"
    assert run_command(["check", str(written), "--json", "--sarif", str(sarif), "--html", str(page)]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["sign"], one["line"], one["site"]) for one in finding["ledger"]] == [
        ("+", 2, "alloc"),
        ("+", 3, "lock"),
        ("-", 4, "free"),
    ]
    (result,) = json.loads(sarif.read_text())["runs"][0]["results"]
    related = [
        (one["physicalLocation"]["region"]["startLine"], one["message"]["text"]) for one in result["relatedLocations"]
    ]
    assert related == [
        (2, "+ taken by a: it has 1 reference (alloc)"),
        (3, "+ shared by a: it has 2 references (lock)"),
        (4, "- given back by a: it has 1 reference left (free)"),
    ]
    assert "- line 4: given back by a: it has 1 reference left (free)" in page.read_text()


def test_the_shortest_part_keeps_the_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", str(_written(tmp_path, _leaks())), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert [moment["line"] for moment in finding["trace"]["moments"]] == [2, 3, 4, 5]


def test_a_page_that_changes_hands_keeps_its_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[MemoryEvent] = [
        Take("admission", "kv", [3], at="alloc"),
        Transfer("admission", "a", "kv", [3]),
        EndHolder("a"),
    ]
    assert run_command(["check", str(_written(tmp_path, events)), "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert [one["says"] for one in finding["ledger"]] == [
        "taken by admission: it has 1 reference",
        "passed from admission to a",
    ]
