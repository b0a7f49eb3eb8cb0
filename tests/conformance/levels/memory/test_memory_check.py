"""`kvspec check` on memory-level traces: to the end, in groups, each with its shortest part; bad input in one line."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard

from kvcheck import Checker, Finding
from kvcli.main import run_command
from kvconform.console import FAULTY
from kvconform.findings.baseline import Baseline
from kvconform.levels import minimising
from kvconform.levels.memory import minimise as shrink
from kvconform.levels.memory import rendering
from kvconform.levels.memory.grouping import Group, Grouping
from kvconform.levels.memory.minimise import Cut, shortest_cuts
from kvconform.traces.memory import MemoryReader, open_trace
from kvconform.vectors.files import memory_vector_files
from kvspec.memory import Pool
from kvspec.memory import events as e
from kvspec.rules import MEMORY_RULES

HEADER: dict[str, Any] = {
    "kvspec": 2,
    "level": "memory",
    "producer": "test",
    "pools": {"kv": {"page_size": 4, "num_pages": 64}},
}


def on(holder: str, *pages: Any, op: str = "take", **more: Any) -> dict[str, Any]:
    return {"op": op, "holder": holder, "pool": "kv", "pages": list(pages)} | more


def life(name: str, *pages: int) -> list[dict[str, Any]]:
    """A request that comes and goes."""
    return [
        on(name, *pages),
        {"op": "map", "table": name, "holder": name, "pool": "kv", "pages": list(pages)},
        {"op": "begin", "id": name, "stream": "compute", "writes": [{"table": name}]},
        {"op": "end", "id": name},
        {"op": "unmap", "table": name},
        on(name, *pages, op="release"),
        {"op": "end_holder", "holder": name},
    ]


def trace(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in (HEADER, *lines)))
    return path


TWICE = [on("a", 1, at="free_group_end"), on("a", 1, op="release", at="free"), on("a", 1, op="release", at="free")]
"""A double free."""
RACE: list[dict[str, Any]] = [
    on("b", 2),
    {"op": "begin", "id": 1, "stream": "compute", "writes": [{"pool": "kv", "pages": [2], "holder": "b"}]},
    {"op": "begin", "id": 2, "stream": "load", "writes": [{"pool": "kv", "pages": [2], "holder": "b"}], "at": "load"},
]


def on_stream(id: str, **uses: Any) -> dict[str, Any]:
    return {"op": "begin", "id": id, "stream": "s", **uses}


def checked(path: Path) -> Grouping:
    with open_trace(path) as opened:
        assert isinstance(opened, MemoryReader)
        grouping = Grouping(Checker(opened.header.pools), Baseline())
        for line, event in opened:
            grouping.step(line, event)
        return grouping


def groups_of(path: Path) -> list[Group]:
    return checked(path).outcome().groups


def shortest(path: Path, group: Group, seconds: float = 60) -> Cut | None:
    (found,) = shortest_cuts(path, [group], checked(path).identities, seconds)
    return found


# Findings


def test_a_trace_that_conforms_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path / "t.jsonl", *life("r", 1, 2), {"op": "idle"})
    assert run_command(["check", str(path)]) == 0
    out = capsys.readouterr().out
    assert f"{path}: conforms, 8 events checked." in out and "take (1)" in out


def test_checking_goes_on_and_reports_each_kind_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path / "t.jsonl", *TWICE, *life("r", 5), *RACE, on("c", 3), *TWICE[1:2])
    assert run_command(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert f"1. MEM-RELEASE is broken at {path}:4, release (free), 2 times" in out
    assert f"2. MEM-RACE is broken at {path}:14, begin (load)" in out
    assert out.count("is broken") == 2
    assert "Of two uses of a slot" in out and "A reference is taken back" in out
    assert "(3 of 3 events)" in out
    assert out.endswith(f"{path}: does not conform, 15 events checked.\n")


def test_what_may_follow_says_so_and_a_race_has_no_cause(tmp_path: Path) -> None:
    stolen = [on("a", 2), on("thief", 2, at="alloc"), on("a", 2, op="release"), on("a", 2, op="release", at="again")]
    race = [line | {"writes": [{"pool": "kv", "pages": [2], "holder": "thief"}]} for line in RACE[1:]]
    path = trace(tmp_path / "t.jsonl", *stolen, *race)
    take, release, last = groups_of(path)
    assert take.finding.rule == "MEM-TAKE" and take.cause is None
    assert release.finding.rule == "MEM-RELEASE" and release.cause is take
    assert last.finding.rule == "MEM-RACE" and last.cause is None


def test_findings_on_owners_follow_neither_from_contents_nor_from_the_race_beside_them(tmp_path: Path) -> None:
    """One operation races, uses a page for a stranger, and reads what was never written there."""
    pages = [{"pool": "kv", "pages": [page], "holder": "b"} for page in (2, 3)]
    load = {"op": "begin", "id": 8, "stream": "u", "writes": pages[:1]}
    step = {"op": "begin", "id": 9, "stream": "s", "reads": pages}
    path = trace(tmp_path / "t.jsonl", on("b", 2), on("a", 3), load, step, on("c", 3), step | {"id": 10})
    race, use, written, take = groups_of(path)[:4]
    rules = [one.finding.rule for one in (race, use, written, take)]
    assert rules == ["MEM-RACE", "MEM-USE", "MEM-WRITTEN", "MEM-TAKE"]
    assert (race.cause, use.cause, written.cause, take.cause) == (None, None, use, use)
    path = trace(tmp_path / "u.jsonl", on("b", 3), step | {"reads": pages[1:]}, on("c", 3), on("b", 3, op="release"))
    written, take = groups_of(path)
    assert (written.cause, take.finding.rule, take.cause) == (None, "MEM-TAKE", None)


def test_the_writer_of_a_wrong_page_is_reported_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use = {"pool": "kv", "pages": [2], "holder": "a"}
    lines = [{"op": "begin", "id": id, "stream": "s", "writes": [use | {"labels": [id]}]} for id in "xy"]
    path = trace(tmp_path / "t.jsonl", on("a", 2), *lines, {"op": "begin", "id": 3, "reads": [use | {"labels": ["x"]}]})
    assert run_command(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "Page 2 was last written by operation y for a (line 4)." in out
    assert run_command(["check", str(trace(tmp_path / "u.jsonl", *RACE))]) == 1
    assert "The other use is that of operation 1 for b (line 3)." in capsys.readouterr().out


@pytest.mark.parametrize("longest", [shrink.LONGEST, 15], ids=["short", "long"])
def test_the_last_holder_of_a_page_without_one_is_reported(
    longest: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shrink, "LONGEST", longest)
    use = {"op": "begin", "id": 1, "stream": "s", "writes": [{"pool": "kv", "pages": [2], "holder": "b"}]}
    shared, released = on("b", 2, op="share"), [on(one, 2, op="release", at="abort") for one in "ab"]
    path = trace(tmp_path / "t.jsonl", *life("r", 1, 2), on("a", 1, 2), shared, *released, *life("s", 3), use)
    (group,) = groups_of(path)
    cut = shortest(path, group)
    assert cut is not None and [step.line for step in cut.steps] == [9, 10, 11, 12, 20]
    assert run_command(["check", str(path)]) == 1
    reported = "- line 12: given back by b: it has none left (abort)"
    assert reported in " ".join(capsys.readouterr().out.split())


def test_other_pages_that_the_holder_of_a_leak_released_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    released = [on("r", page, op="release", at=f"free {page}") for page in (1, 2)]
    other = on("s", 4), on("s", 4, op="release")
    path = trace(tmp_path / "t.jsonl", on("r", 1, 2, 3), *released, *other, {"op": "end_holder", "holder": "r"})
    assert run_command(["check", str(path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "(2 of 6 events)" in out
    assert "history r released last on line 4: r gives back a reference to page 2 of kv (free 2)." in out


def test_the_same_on_the_same_page_again_is_no_consequence(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", on("a", 1), *[on("thief", 1, at="alloc")] * 5)
    (group,) = groups_of(path)
    assert group.count == 5 and group.cause is None


def test_who_is_there_at_the_end_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path / "t.jsonl", on("a", 1), on("b", 2), on("c", 3), on("c", 3, op="release"))
    assert run_command(["check", str(path)]) == 0
    assert "Still with pages at the end, which no idle event checks: a, b.\n" in capsys.readouterr().out
    path = trace(tmp_path / "t.jsonl", *life("r", 1))
    assert run_command(["check", str(path)]) == 0
    assert "Still with pages" not in capsys.readouterr().out


def test_consequences_are_reported_whole_if_asked_and_not_at_all_without_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = trace(tmp_path / "t.jsonl", on("a", 2), on("thief", 2), *[on("a", 2, op="release")] * 2)

    def reported(*options: str) -> str:
        assert run_command(["check", str(path), *options]) == 1
        return capsys.readouterr().out

    assert reported().count("The shortest part") == 1
    asked = reported("-v")
    assert asked.count("The shortest part") == 2 and "It may follow from 1." in asked
    monkeypatch.setattr(rendering, "shortest_cuts", lambda *_: 1 / 0)
    assert reported("-q") == f"{path}: does not conform, 4 events checked.\n"
    page = tmp_path / "t.html"
    assert run_command(["check", str(path), "-q", "--html", str(page)]) == FAULTY, "here a report is read"


def test_of_several_traces_it_is_said_which_show_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces = [trace(tmp_path / f"{number}.jsonl", *lines) for number, lines in enumerate((life("r", 1), RACE, TWICE))]
    both = trace(tmp_path / "both.jsonl", *TWICE, *TWICE[1:], *RACE)
    assert run_command(["check", *map(str, traces), str(both), "-j", "1"]) == 1
    reported = " ".join(capsys.readouterr().out.split())
    assert reported.endswith(
        f"MEM-RACE is broken at begin (load) in 2 of 4 traces, 2 times; first at {traces[1]}:4. "
        f"MEM-RELEASE is broken at release (free) in 2 of 4 traces, 4 times; first at {traces[2]}:4."
    )


def test_unreported_values_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read = {"op": "begin", "id": 7, "stream": "compute", "reads": [{"pool": "kv", "pages": [1], "holder": "r"}]}
    path = trace(tmp_path / "t.jsonl", *life("r", 1)[:4], read)
    assert run_command(["check", str(path)]) == 0
    assert "Not reported, so not checked: labels (MEM-CONTENT, 2 times)." in " ".join(capsys.readouterr().out.split())


def test_unreported_values_are_named_by_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(HEADER, "pools", {"kv": {"page_size": 4}, "rows": {}, "host": {}})
    uses = [{"pool": pool, "pages": [1], "holder": "r"} for pool in ("kv", "host", "host")]
    begin = {"op": "begin", "id": 7, "stream": "compute", "writes": uses, "reads": uses}
    path = trace(tmp_path / "t.jsonl", *[on("r", 1, pool=pool) for pool in ("kv", "host")], begin)
    assert run_command(["check", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unchecked"] == {"MEM-CONTENT": 3}
    assert run_command(["check", str(path)]) == 0
    reported = "Not reported, so not checked: labels (MEM-CONTENT in host, 2 times; MEM-CONTENT in kv, 1 time)."
    assert reported in " ".join(capsys.readouterr().out.split())


def test_more_kinds_than_are_kept_apart_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvconform.levels.memory.grouping.GROUPS", 2)
    grouping = Grouping(Checker({"kv": Pool()}), Baseline())
    for number in range(5):
        grouping.step(number, e.Release("a", "kv", [number], at=f"site {number}"))
    outcome = grouping.outcome()
    assert len(outcome.groups) == 2 and outcome.beyond + sum(group.count for group in outcome.groups) == 5


# The shortest part


@pytest.mark.parametrize("stem", [path.stem for path in memory_vector_files() if path.stem.startswith("wrong_")])
def test_the_scenario_of_each_wrong_protocol_is_found_among_others(tmp_path: Path, stem: str) -> None:
    source = next(path for path in memory_vector_files() if path.stem == stem)
    header, *lines = [json.loads(line) for line in source.read_text().splitlines()]
    scenario = [line for line in lines if line["op"] != "expect"]
    noise = [line for number in range(10) for line in life(f"noise {number}", 8)]
    path = tmp_path / "t.jsonl"
    kept = {name: value for name, value in header.items() if name not in ("description", "rules", "source")}
    kept["pools"]["noise"] = {"page_size": 4, "num_pages": 64}
    noise = [line | {"pool": "noise"} if "pool" in line else line for line in noise]
    half = len(noise) // 2
    path.write_text("".join(json.dumps(line) + "\n" for line in [kept, *noise[:half], *scenario, *noise[half:]]))
    groups = groups_of(path)
    assert groups
    for group in groups:
        cut = shortest(path, group)
        assert cut is not None and cut.complete, group.finding
        assert len(cut.steps) <= len(scenario)
        assert not any("noise" in str(step.event) for step in cut.steps)
        assert cut.steps[-1].line == group.line


def test_the_shortest_part_is_of_the_page_and_makes_no_findings_of_its_own(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", *life("r", 1, 2), *RACE[:2], on("s", 5), *RACE[2:])
    (group,) = groups_of(path)
    cut = shortest(path, group)
    assert cut is not None and [step.line for step in cut.steps] == [9, 10, 12]


def test_a_batch_is_narrowed_to_what_shows_it(tmp_path: Path) -> None:
    uses = [{"pool": "kv", "pages": [page], "holder": f"r{page}"} for page in range(1, 17)]
    path = trace(
        tmp_path / "t.jsonl",
        *(on(f"r{page}", page) for page in range(1, 17)),
        {"op": "begin", "id": 1, "stream": "compute", "writes": uses},
        {"op": "begin", "id": 2, "stream": "load", "writes": uses[4:5]},
    )
    (group,) = groups_of(path)
    cut = shortest(path, group)
    assert cut is not None
    take, begin, _ = [step.event for step in cut.steps]
    assert isinstance(take, e.Take) and take.holder == "r5"
    assert isinstance(begin, e.Begin) and [use.holder for use in begin.writes] == ["r5"]


def test_a_use_of_a_table_is_narrowed_to_the_page(tmp_path: Path) -> None:
    path = trace(
        tmp_path / "t.jsonl",
        on("r", 1, 2, 3),
        {"op": "map", "table": "r", "holder": "r", "pool": "kv", "pages": [1, 2, 3], "labels": ["a", "b", "c"]},
        {
            "op": "begin",
            "id": 1,
            "stream": "compute",
            "writes": [{"table": "r", "stop": 12, "labels": ["a", "b", "c"]}],
        },
        {"op": "deliver", "id": 1, "holder": "r"},
        {"op": "begin", "id": 2, "stream": "load", "writes": [{"pool": "kv", "pages": [2], "stop": 1, "holder": "r"}]},
    )
    (group,) = groups_of(path)
    cut = shortest(path, group)
    assert cut is not None
    take, mapped, begin, _ = [step.event for step in cut.steps]
    assert take == e.Take("r", "kv", [2]) and isinstance(mapped, e.Map)
    assert isinstance(begin, e.Begin) and begin.writes == [e.Use(table="r", start=4, stop=8, labels=["b"])]


def test_uses_that_do_not_matter_are_left_out(tmp_path: Path) -> None:
    read = [{"pool": "kv", "pages": [page], "holder": "r"} for page in (1, 2, 3)]
    path = trace(
        tmp_path / "t.jsonl",
        on("r", 1, 2, 3),
        {"op": "begin", "id": 1, "stream": "compute", "writes": read[:2]},
        {"op": "begin", "id": 2, "stream": "compute", "reads": read},
        {"op": "deliver", "id": 2, "holder": "r"},
    )
    _, group = groups_of(path)
    assert group.finding.rule == "MEM-DELIVER"
    cut = shortest(path, group)
    assert cut is not None
    take, begin, _ = [step.event for step in cut.steps]
    assert take == e.Take("r", "kv", [3])
    assert isinstance(begin, e.Begin) and [use.pages for use in begin.reads] == [[3]]


def test_a_part_keeps_what_took_something_back(tmp_path: Path) -> None:
    use = {"pool": "kv", "pages": [2], "holder": "b"}
    first, second = (
        {"op": "begin", "id": label, "stream": "s", "writes": [{**use, "labels": [label]}]} for label in ("one", "two")
    )
    name = {"op": "publish", "pool": "kv", "pages": [2], "keys": ["k"], "labels": ["one"]}
    drop = {"op": "drop", "pool": "kv", "pages": [2], "keys": ["k"]}
    shared = [on("c", 2, op="share"), on("c", 2, op="release")]
    path = trace(tmp_path / "t.jsonl", on("b", 2), first, name, *shared, drop, {"op": "end", "id": "one"}, name, second)
    group = groups_of(path)[-1]
    assert group.finding.rule == "MEM-OVERWRITE"
    cut = shortest(path, group)
    assert cut is not None
    assert [step.line for step in cut.steps] == [2, 3, 8, 9, 10], "not the name that was withdrawn"


def test_a_part_about_a_page_begins_where_it_was_handed_out(tmp_path: Path) -> None:
    pages = [{"pool": "kv", "pages": [number]} for number in range(4)]
    name = {"op": "publish", "pool": "kv", "pages": [2], "keys": ["k"], "labels": ["one"]}
    events = [
        *life("old", 2),
        {"op": "take", "holder": "b", "pool": "kv", "pages": [1, 2, 3]},
        on_stream("elsewhere", writes=[{**pages[1], "labels": ["other"]}]),
        on_stream("one", writes=[{**pages[2], "labels": ["one"]}]),
        on_stream("away", copies=[[pages[2], pages[3]]]),
        {"op": "end", "id": "elsewhere"},
        {"op": "transfer", "old": "b", "new": "c", "pool": "kv", "pages": [1, 2]},
        name,
        on_stream("two", writes=[{**pages[2], "labels": ["two"]}]),
    ]
    path = trace(tmp_path / "t.jsonl", *events)
    (group,) = groups_of(path)
    cut = shortest(path, group)
    assert cut is not None and cut.complete
    reported = [type(step.event).__name__ for step in cut.steps]
    assert reported == ["Take", "Begin", "Transfer", "Publish", "Begin"]
    assert all(getattr(step.event, "pages", [2]) == [2] for step in cut.steps)


class Counting(Checker):
    """Counts the events that all checkers of its kind have checked."""

    count = 0

    def step(self, event: e.Event) -> list[Finding]:
        Counting.count += 1
        return super().step(event)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> type[Counting]:
    monkeypatch.setattr(shrink, "Checker", Counting)
    Counting.count = 0
    return Counting


def test_few_events_are_checked_again_to_find_it(tmp_path: Path, counting: type[Counting]) -> None:
    lives = [life(f"r{number}", 1 + number % 60) for number in range(200)]
    for lines in lives:
        # The end of an operation comes long after its begin.
        lines[3], lines[6] = lines[6], lines[3]
    mixed = [lines.pop(0) for start in range(0, 200, 10) for _ in range(6) for lines in lives[start : start + 10]]
    mixed = [line for line in mixed if line["op"] != "end_holder"]
    read = {"op": "begin", "id": "z", "stream": "load", "reads": [{"pool": "kv", "pages": [63], "holder": "x"}]}
    path = trace(tmp_path / "t.jsonl", on("x", 63), *mixed, read, {"op": "deliver", "id": "z", "holder": "x"})
    _, group = groups_of(path)
    said = checked(path).identities
    (cut,) = shortest_cuts(path, [group], said, 60)
    assert cut is not None and cut.complete and len(cut.steps) == 3
    assert counting.count < 10 * len(mixed)


def test_of_a_batch_only_the_uses_of_the_page_are_checked_again(tmp_path: Path, counting: type[Counting]) -> None:
    batch = range(1, 30)
    uses = [{"pool": "kv", "pages": [page], "holder": f"r{page}"} for page in batch]
    events: list[dict[str, Any]] = [on(f"r{page}", page) for page in batch]
    for step in range(60):
        events += [on_stream(f"s{step}", writes=uses, reads=uses), {"op": "end", "id": f"s{step}"}]
    events += [on_stream("load", writes=uses[:1]) | {"stream": "load"}, on_stream("last", reads=uses)]
    path = trace(tmp_path / "t.jsonl", *events)
    (group,) = groups_of(path)
    said = checked(path).identities
    (cut,) = shortest_cuts(path, [group], said, 60)
    assert cut is not None and cut.complete and len(cut.steps) == 3
    assert counting.count < 10 * len(events)


def test_of_a_long_trace_the_holders_of_the_page_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shrink, "LONGEST", 50)
    before = [line for number in range(30) for line in life(f"n{number}", 9)]
    path = trace(tmp_path / "t.jsonl", *before, *RACE)
    (group,) = groups_of(path)
    cut = shortest(path, group)
    assert cut is not None and len(cut.steps) == 3 and cut.total == 213


def test_what_was_copied_into_the_page_is_followed_and_nothing_else(tmp_path: Path) -> None:
    def use(page: int, holder: str, **more: Any) -> dict[str, Any]:
        return {"pool": "kv", "pages": [page], "holder": holder, **more}

    def lives(first: int) -> list[dict[str, Any]]:
        """Requests that use pages 1 to 3 by turns, counted now and then."""
        count = {"op": "count", "pool": "kv", "free": 60, "references": {"9": 1}}
        return [line for n in range(first, first + 10) for line in (*life(f"r{n}", 1 + n % 3), count)]

    passes = [on_stream(f"{n}", reads=[use(2, "b")], writes=[use(2, "b", labels=[f"{n}"])]) for n in range(20)]
    copy = on_stream("copy", copies=[[{"pool": "kv", "pages": [8, 2]}, {"pool": "kv", "pages": [10, 11]}]])
    name = {"op": "publish", "pool": "kv", "pages": [11], "keys": ["k"], "labels": ["18"]}
    head = [on("x", 9), on("y", 63, 62, 61), *lives(0), on("b", 2), on("z", 8)]
    path = trace(tmp_path / "t.jsonl", *head, *passes, on("keep", 10, 11), copy, name)
    group = groups_of(path)[-1]
    assert group.finding.rule == "MEM-NAME"
    cut = shortest(path, group)
    assert cut is not None and cut.is_shortest
    take, write, kept, copied, published = [step.event for step in cut.steps]
    assert (take, kept) == (e.Take("b", "kv", [2]), e.Take("keep", "kv", [11]))
    assert isinstance(write, e.Begin) and not write.reads and write.writes[0].labels == ["19"]
    assert isinstance(copied, e.Begin) and [[one.pages for one in pair] for pair in copied.copies] == [[[2], [11]]]
    assert isinstance(published, e.Publish)


def test_a_hole_in_a_table_is_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = {"op": "map", "table": "r", "holder": "r", "pool": "kv", "pages": [1, 2, 3]}
    hole = {"op": "unmap", "table": "r", "index": 1, "stop": 2}
    fill, late = (on_stream(name, writes=[{"table": "r", "start": 4 * index}]) for index, name in enumerate("ab"))
    path = trace(tmp_path / "t.jsonl", *life("q", 2), on("r", 1, 2, 3), table, fill, *life("q", 9), hole, late)
    (group,) = groups_of(path)
    cut = shortest(path, group)
    assert cut is not None and cut.is_shortest
    assert [type(step.event).__name__ for step in cut.steps] == ["Take", "Map", "Unmap", "Begin"]
    assert run_command(["show", str(path)]) == 0
    assert re.search(r" 1  2  3  9 +what happens\n", capsys.readouterr().out)


def test_of_pages_that_were_handed_out_often_only_the_last_time_counts(tmp_path: Path) -> None:
    turns = [on("keep", 1 + n % 7, op=op) for n in range(70) for op in ("take", "release")]
    path = trace(tmp_path / "t.jsonl", *turns, on("keep", 3, 4, 5), {"op": "end_holder", "holder": "keep"})
    (group,) = groups_of(path)
    cut = shortest(path, group)
    assert cut is not None and cut.is_shortest and [step.line for step in cut.steps] == [142, 143]


def test_what_can_only_go_together_goes_together(tmp_path: Path) -> None:
    write, read = ({"pool": "kv", "pages": [1], "holder": holder, "labels": [holder]} for holder in "wr")
    shared = [on("r", 1, op="share"), on("r", 1, op="release")]
    events = on("w", 1), *shared, on_stream("1", writes=[write]), shared[0], on_stream("2", reads=[read])
    path = trace(tmp_path / "t.jsonl", *events)
    (group,) = groups_of(path)
    cut = shortest(path, group)
    assert cut is not None and [step.line for step in cut.steps] == [2, 5, 6, 7]


def test_the_search_ends_by_what_it_tried_and_not_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = [on(f"r{number}", number) for number in range(1, 31)]
    path = trace(tmp_path / "t.jsonl", *held, {"op": "count", "pool": "kv", "free": 6, "held": 31})

    def reported(seconds: float) -> str:
        moments = count(step=seconds)
        monkeypatch.setattr(minimising, "time", SimpleNamespace(monotonic=lambda: next(moments)))
        assert run_command(["check", str(path)]) == 1
        return capsys.readouterr().out

    monkeypatch.setattr(shrink, "LEAST", 0)
    fast, slow = reported(1e-6), reported(1e-3)
    assert "the search was stopped" in fast and fast == slow
    monkeypatch.undo()
    assert "the search was stopped" not in reported(1e-6)


def test_the_search_ends_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = trace(tmp_path / "t.jsonl", *life("r", 1), *RACE)
    (group,) = groups_of(path)
    moments = count(step=0.1)
    monkeypatch.setattr(minimising, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    assert shortest(path, group, seconds=-1) is None, "there is no time to try the whole"
    cut = shortest(path, group, seconds=0.3)
    assert cut is not None and not cut.complete


# Known findings


def baseline_file(path: Path, **entry: str) -> str:
    path.write_text("[[known]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in entry.items()))
    return str(path)


def test_what_is_accepted_is_counted_and_not_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path / "t.jsonl", *TWICE)
    known = baseline_file(tmp_path / "k.toml", rule="MEM-RELEASE/not-held", event="release", reason="known")
    assert run_command(["check", str(path), "--baseline", known]) == 0
    assert "Known: MEM-RELEASE/not-held at release: 1 time. known" in capsys.readouterr().out


def test_accepted_findings_are_counted_also_where_an_event_has_too_many_to_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace(tmp_path / "t.jsonl", on("a", [1, 2500]), on("b", [1, 2500]))
    known = baseline_file(tmp_path / "k.toml", rule="MEM-TAKE", reason="known")
    assert run_command(["check", str(path), "--baseline", known]) == 0
    # All but those that the first one takes of the pool's 64 pages.
    assert "Known: MEM-TAKE: 4,936 times. known" in capsys.readouterr().out


def test_what_follows_from_what_is_accepted_is_not_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(tmp_path / "t.jsonl", on("a", 2), on("thief", 2), *[on("a", 2, op="release")] * 2)
    known = baseline_file(tmp_path / "k.toml", rule="MEM-TAKE", reason="known")
    assert run_command(["check", str(path), "--baseline", known]) == 1
    out = capsys.readouterr().out
    assert "MEM-RELEASE is broken" in out and "MEM-TAKE is broken" not in out
    assert "It may follow from what was found on line 3 and is accepted." in out


@pytest.mark.parametrize(("holders", "status"), [(["a", "b"], 0), (["a", "other", "b"], 1), (["other"], 1)])
def test_a_leak_is_known_by_where_its_page_was_taken(
    holders: list[str], status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = [
        on(holder, page, at="pool.py:9" if holder == "other" else "cache.py:5")
        for page, holder in enumerate(holders, 1)
    ]
    left = [{"op": "end_holder", "holder": holder, "at": "scheduler.py:70"} for holder in holders]
    path = trace(tmp_path / "t.jsonl", *taken, *left)
    known = baseline_file(tmp_path / "k.toml", rule="MEM-LEAK", at="scheduler", taken="cache.py", reason="known")
    assert run_command(["check", str(path), "--baseline", known]) == status
    out = capsys.readouterr().out
    if "a" in holders:
        assert f"Known: MEM-LEAK (scheduler) taken in cache.py: {len(holders) - status} times. known" in out
    assert ("other has left" in out) == ("other" in holders) and "a has left" not in out
    if status:
        place = 1 + len(holders) + 1 + holders.index("other")
        assert f"t.jsonl:{place}" in out


def two_pools(path: Path) -> Path:
    """Page 3 of two pools, each read before it was written, at places of their own."""
    lines: list[dict[str, Any]] = [HEADER | {"pools": {"kv": {"page_size": 4}, "state": {"page_size": 1}}}]
    for pool in ("kv", "state"):
        lines.append({"op": "take", "holder": pool[0], "pool": pool, "pages": [3]})
        read = {"pool": pool, "pages": [3], "holder": pool[0]}
        lines.append({"op": "begin", "id": pool, "stream": "s", "reads": [read], "at": f"{pool}.py:7"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_where_there_are_several_pools_it_is_said_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, sarif = two_pools(tmp_path / "t.jsonl"), tmp_path / "t.sarif"
    assert run_command(["check", str(path), "--follow", "--exitfirst", "--sarif", str(sarif)]) == 1
    out = capsys.readouterr().out
    assert f"{path}:3: MEM-WRITTEN/unwritten in pool kv: operation kv reads" in out
    assert f"1. MEM-WRITTEN is broken in pool kv at {path}:3" in out
    (result,) = json.loads(sarif.read_text())["runs"][0]["results"]
    assert result["message"]["text"].startswith("MEM-WRITTEN is broken in pool kv at begin: ")
    assert run_command(["check", str(path), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [finding["pool"] for finding in report["findings"]] == ["kv", "state"]
    assert run_command(["check", str(trace(path, *TWICE))]) == 1
    assert "MEM-RELEASE is broken at" in capsys.readouterr().out, "with one pool there is no other"


@pytest.mark.parametrize(
    ("entry", "expected"),
    [({"pool": "state"}, "in pool state"), ({"at": "state.py"}, "(state.py)"), ({"at": "x"}, "(x)")],
)
def test_what_is_accepted_may_be_of_one_pool_and_one_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: dict[str, str], expected: str
) -> None:
    path = two_pools(tmp_path / "t.jsonl")
    known = baseline_file(tmp_path / "k.toml", **{"rule": "MEM-WRITTEN", "reason": "known"} | entry)
    assert run_command(["check", str(path), "--baseline", known]) == 1
    out, times = capsys.readouterr().out, "never, so it can go from the file" if expected == "(x)" else "1 time"
    assert f"Known: MEM-WRITTEN {expected}: {times}. known" in out
    assert re.findall("broken in pool (.*) at", out) == (["kv", "state"] if expected == "(x)" else ["kv"])


@pytest.mark.parametrize("entry", [{"event": "take"}, {"rule": "MEM-RELEASE/transfer"}, {"rule": "MEM-TAKE"}])
def test_an_entry_that_does_not_fit_is_reported_and_accepts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: dict[str, str]
) -> None:
    path = trace(tmp_path / "t.jsonl", *TWICE)
    known = baseline_file(tmp_path / "k.toml", **{"rule": "MEM-RELEASE", "reason": "known", "link": "there"} | entry)
    assert run_command(["check", str(path), "--baseline", known]) == 1
    assert "never, so it can go from the file. known (there)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("known", "k.toml: "),
        ('[[known]]\nrule = "MEM-TAKE"', "missing required field `reason`"),
        ('[[known]]\nrule = "MEM-TAKE"\nreason = " "', "entry 1: MEM-TAKE has no reason"),
        ('[[known]]\nrule = "MEM-TAKE"\nevent = "tke"\nreason = "r"', "entry 1: unknown event 'tke'"),
        ('[[known]]\nrule = "MEM-NONE"\nreason = "r"', "entry 1: unknown rule or code 'MEM-NONE'"),
        ('[[known]]\nrule = "MEM-TAKE"\nreason = "r"\nsince = 1', "unknown field `since`"),
    ],
)
def test_a_file_of_accepted_findings_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str
) -> None:
    (tmp_path / "k.toml").write_text(text)
    path = trace(tmp_path / "t.jsonl", *TWICE)
    assert run_command(["check", str(path), "--baseline", str(tmp_path / "k.toml")]) == 2
    complaint = capsys.readouterr().err
    assert expected in complaint and complaint.count("\n") == 1


# Bad input


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (on("r", 1) | {"pool": "gpu"}, "there is no pool gpu"),
        ({"op": "steal"}, "unknown operation 'steal'"),
        (on("r", 1) | {"extra": 1}, "unknown field `extra`"),
        ({"op": "publish", "pool": "kv", "pages": [1, 2], "keys": ["a"]}, "1 keys for 2 pages"),
        ({"op": "publish", "pool": "kv", "pages": [1], "keys": ["a"], "labels": ["x", "y"]}, "2 labels"),
        ({"op": "publish", "pool": "kv", "pages": [1], "keys": ["a"], "slots": -1}, "slots is -1, less than 0"),
        ({"op": "map", "table": "t", "holder": "r", "pool": "kv", "index": -1, "pages": [1]}, "index is -1"),
        ({"op": "unmap", "table": "t", "index": -2}, "index is -2, less than 0"),
        ({"op": "unify", "label": "a", "same": "b", "slots": -3}, "slots is -3, less than 0"),
        ({"op": "reserve", "holder": "r", "pool": "kv", "pages": -1}, "-1 pages are reserved"),
        ({"op": "begin", "id": 1, "writes": [{"pool": "kv", "pages": [1], "start": 2, "stop": 1}]}, "a use of slots 2"),
        ({"op": "unmap", "table": "t", "index": 2, "stop": 1}, "page indices 2 to 1 of table t are gone"),
        ({"op": "unmap", "table": "t", "stop": -1}, "stop is -1, less than 0"),
        ({"op": "begin", "id": 1, "writes": [{"stop": 1}]}, "neither a table nor a pool"),
        (on("r", [1, -5]), "a run of -5 pages"),
        (on("r", [1, 1 << 40]), "1,099,511,627,776 pages or labels are named without being written out"),
        (on("r", "key"), "pages are named by numbers"),
        ({"op": "expect", "rule": "MEM-TAKE"}, "an expect line belongs in a vector"),
    ],
)
def test_a_line_that_no_engine_can_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: dict[str, Any], expected: str
) -> None:
    path = trace(tmp_path / "t.jsonl", on("q", 7), line)
    assert run_command(["check", str(path)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"kvspec: {path}:3: ") and expected in complaint and complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"level": "page"}, "Invalid enum value 'page'"),
        ({"kvspec": 3}, "format version 3"),
        ({"config": {}}, "unknown field `config`"),
        ({"pools": {"kv": {"page_size": 0}}}, "pool kv: sizes must be whole"),
        ({"pools": {"kv": {"page_size": 4, "label_size": 3}}}, "label_size divide page_size"),
        ({"rules": ["MEM-NONE"]}, "unknown rule 'MEM-NONE'"),
    ],
)
def test_a_header_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], expected: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(HEADER | change) + "\n" + json.dumps(on("r", 1)) + "\n")
    assert run_command(["check", str(path)]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"kvspec: {path}:1: ") and expected in complaint


def test_what_an_engine_can_do_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trace(
        tmp_path / "t.jsonl",
        on("r", 1),
        {"op": "begin", "id": 1, "writes": [{"pool": "kv", "pages": [1], "stop": 9, "holder": "r"}]},
        {"op": "end", "id": 1},
        {"op": "end", "id": 1},
        on("r", 65),
    )
    assert run_command(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert re.findall(r"(MEM-\w+) is broken", out) == ["MEM-USE", "MEM-ORDER", "MEM-TAKE"]


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_a_file_that_was_cut_off_is_checked_up_to_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    whole = trace(tmp_path / "t.jsonl", *life("r", 1), *TWICE).read_bytes()
    for cut, status in ((len(whole) - 10, 2), (whole.index(b'"map"'), 2)):
        path = tmp_path / f"cut.jsonl{suffix}"
        path.write_bytes(zstandard.ZstdCompressor().compress(whole[:cut]) if suffix else whole[:cut])
        assert run_command(["check", str(path)]) == status
        assert "truncated last line" in capsys.readouterr().err
    path = tmp_path / f"found.jsonl{suffix}"
    whole += b'{"op": "tak'
    path.write_bytes(zstandard.ZstdCompressor().compress(whole) if suffix else whole)
    assert run_command(["check", str(path)]) == 1
    reported = capsys.readouterr()
    assert "MEM-RELEASE is broken" in reported.out and "12: truncated last line" in reported.err


def test_a_file_without_events_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", str(trace(tmp_path / "t.jsonl"))]) == 2
    assert "no event follows the header" in capsys.readouterr().err


# Long traces, and such that grow


@pytest.mark.slow
def test_memory_does_not_grow_with_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    grouping = Grouping(Checker({"kv": Pool(page_size=4, num_pages=64)}), Baseline())

    def lives(first: int, count: int) -> Iterator[e.MemoryEvent]:
        for number in range(first, first + count):
            name = f"r{number}"
            yield e.Take(name, "kv", [1 + number % 8])
            yield e.Map(name, name, "kv", 0, [1 + number % 8], [name])
            yield e.Begin(number, "compute", writes=[e.Use(table=name, stop=4)])
            yield e.End(number)
            yield e.Unmap(name)
            yield e.Release(name, "kv", [1 + number % 8])
            yield e.Release(name, "kv", [1 + number % 8], at="again")
            yield e.EndHolder(name)

    def held(first: int, count: int) -> int:
        for event in lives(first, count):
            grouping.step(1, event)
        return tracemalloc.get_traced_memory()[0]

    monkeypatch.setattr("kvconform.levels.memory.grouping.REMEMBERED", 100)
    monkeypatch.setattr("kvcheck.state.MARKS", 100)
    tracemalloc.start()
    try:
        start = held(0, 500)
        assert held(500, 4000) - start < 500_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_growing_compressed_trace_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.zst"
    whole = trace(tmp_path / "t.jsonl", *TWICE).read_bytes()
    half = whole.index(b"free_group_end")
    path.write_bytes(zstandard.ZstdCompressor().compress(whole[:half]))
    process = following(path)
    with path.open("ab") as more:
        time.sleep(1)
        more.write(zstandard.ZstdCompressor().compress(whole[half:]))
        more.flush()
        assert process.stdout is not None
        printed = process.stdout.readline()
        assert printed == f"{path}:4: MEM-RELEASE/not-held: page 1 is released by a, but it has no holder\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 1


def following(path: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", "from kvcli.main import main; main()", "check", "--follow", str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.slow
def test_a_growing_trace_is_followed(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.jsonl", *life("r", 1))
    process = following(path)
    assert process.stdout is not None
    with path.open("a") as more:
        time.sleep(1.5)
        for line in TWICE[:2]:
            more.write(json.dumps(line) + "\n")
        half = json.dumps(TWICE[2])
        more.write(half[:10])
        more.flush()
        time.sleep(0.5)
        more.write(half[10:] + "\n")
        more.flush()
        printed = process.stdout.readline()
        assert printed == f"{path}:11: MEM-RELEASE/not-held: page 1 is released by a, but it has no holder\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "1. MEM-RELEASE is broken" in out and "does not conform, 10 events checked." in out


def test_the_rules_of_the_memory_model_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["rules"]) == 0
    out = capsys.readouterr().out
    assert all(f"{rule.id} {rule.name}\n" in out for rule in MEMORY_RULES.values())


def test_a_hole_is_no_page_in_a_description(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (vector,) = (path for path in memory_vector_files() if path.stem == "wrong_window_moves_on_too_early")
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(line for line in vector.open() if '"expect"' not in line))
    assert run_command(["check", str(trace)]) == 1
    said = capsys.readouterr().out
    assert "The table r has a hole from now on, at page index 0." in said and "position 3 of r has no page" in said
    assert "  1  2   what happens" in said
