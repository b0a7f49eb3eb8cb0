"""`kvspec show`: a trace of either level as a description, whole or in part."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvcli.main import run_command
from kvconform.levels.memory.sentences import use_of
from kvconform.vectors.files import memory_vector_files, vector_files
from kvspec.memory.events import Use
from tests.conformance.helpers import HEADER, LIFE, RECORDED, VECTOR, write

MEMORY: dict[str, Any] = {"kvspec": 2, "level": "memory", "producer": "test", "pools": {"kv": {"num_pages": 300}}}


def lives(number: int) -> list[dict[str, Any]]:
    """The recorded life of requests with other tokens, one after the other, each publishing a page."""
    found = []
    for one in range(1, number + 1):
        text = json.dumps(RECORDED).replace('"r"', f'"r{one}"').replace('"launch": 1', f'"launch": {one}')
        reported: list[dict[str, Any]] = json.loads(text)
        reported[0]["tokens"] = [100 * one + token for token in range(6)]
        reported[2]["obs"]["pages"] = {f"r{one}": [one, 1000]}
        reported[5]["obs"] = {"freed": [1000]}
        found += reported
    return found


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> str:
    assert run_command(["show", str(path), *arguments]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines() if str(path) not in line)
    return out


def numbers(out: str) -> list[int]:
    return [int(number) for number in re.findall(r"^ +(\d+)  .*[a-zA-Z]{3}", out, re.MULTILINE)]


def test_a_trace_without_a_finding_is_shown_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, write(tmp_path / "t.jsonl", HEADER, *RECORDED))
    assert "6 operations, no rule is broken, in a memory of 16 pages of 4 tokens, 2 rows." in " ".join(out.split())
    assert numbers(out) == [2, 3, 4, 5, 6, 7]
    assert "     4  [A][A]  [A]   A prefill is prepared, of r up to 6" in out
    assert "     7   * [.]   .    r is finished; page 2 goes back to the free pages." in out
    assert "A request r" in out and "* the prefix store's" in out


def test_a_finding_is_shown_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, write(tmp_path / "t.jsonl", HEADER, *RECORDED[:5], RECORDED[5] | {"obs": {"freed": []}}))
    assert "6 operations, a rule is broken" in " ".join(out.split())
    assert "!! page(s) 2 were not freed" in out


def test_a_vector_is_shown_with_the_models_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, write(tmp_path / "v.jsonl", VECTOR, *LIFE))
    assert "A request lives." in out and numbers(out) == [2, 3, 4, 5, 6, 7]
    assert "r has row 0 and gets pages 1..2." in " ".join(out.split())


@pytest.mark.slow
@pytest.mark.parametrize("path", [*vector_files()[::12], *memory_vector_files()[::9]], ids=lambda path: path.stem)
def test_vectors_of_both_levels_can_be_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert numbers(shown(capsys, path))


def test_a_page_a_request_and_a_line_can_be_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = HEADER["config"] | {"num_pages": 1000}
    path = write(tmp_path / "t.jsonl", HEADER | {"config": config}, *lives(3))
    assert numbers(shown(capsys, path, "--request", "r2")) == [8, 9, 10, 11, 12, 13]
    out = shown(capsys, path, "--page", "2")
    assert numbers(out) == [10, 13] and re.search(r"line +2 +what happens", out), "and no other page"
    assert numbers(shown(capsys, path, "--page", "1000")) == [4, 7, 10, 13, 16, 19]
    out = shown(capsys, path, "--line", "10")
    assert numbers(out) == list(range(5, 16))
    assert "after it   request r2: protected 0, committed 6, allocated 6, row 0, pages 2" in out


@pytest.mark.slow
def test_of_a_long_trace_the_operations_that_lead_to_the_finding_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = HEADER["config"] | {"num_pages": 1000}
    events = lives(400)
    events[1199] = events[1199] | {"obs": {"freed": []}}
    out = shown(capsys, write(tmp_path / "t.jsonl", HEADER | {"config": config}, *events))
    assert "2,400 operations, a rule is broken" in " ".join(out.split())
    reported = numbers(out)
    assert reported[0] == 1022 and reported[-1] == 1221 and "... 1,020 events before these ..." in out
    assert "page(s) 1000 were not freed" in out
    assert re.search(r"[\d,]+ more pages are in use", " ".join(out.split()))


def test_memory_events_are_followed_by_page_and_holder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = [{"op": "take", "holder": f"h{number}", "pool": "kv", "pages": [number]} for number in (1, 2, 3)] + [
        {"op": "release", "holder": "h2", "pool": "kv", "pages": [2]}
    ]
    path = write(tmp_path / "t.jsonl", MEMORY, *events)
    assert numbers(shown(capsys, path)) == [2, 3, 4, 5]
    assert numbers(shown(capsys, path, "--page", "2")) == [3, 5]
    assert numbers(shown(capsys, path, "--page", "kv:3")) == [4]
    assert numbers(shown(capsys, path, "--request", "h1")) == [2]
    assert "after it   h3: page 3 of kv" in shown(capsys, path, "--line", "5")


def test_who_holds_a_page_has_one_letter_in_whatever_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lines(*names: str, page: int) -> list[dict[str, Any]]:
        ops = "take", *["share"] * (len(names) - 1)
        return [{"op": op, "holder": name, "pool": "kv", "pages": [page]} for op, name in zip(ops, names, strict=True)]

    path = write(tmp_path / "t.jsonl", MEMORY, *lines("r", "trie", page=1), *lines("trie", "r", page=2))
    assert "A r   B r, trie   C trie" in shown(capsys, path)
    one_by_one = [
        {"op": op, "holder": f"h{number}", "pool": "kv", "pages": [1]}
        for number in range(54)
        for op in ("take", "release")
    ]
    path = write(tmp_path / "t.jsonl", MEMORY, *one_by_one)
    assert "? one of 2 further holders" in shown(capsys, path)


def test_only_the_page_that_is_followed_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pools = {"pools": {name: {"page_size": 1, "num_pages": 1} for name in ("kv", "state")}}
    events = [{"op": "take", "holder": name, "pool": name, "pages": [1]} for name in ("kv", "state")]
    beside = {"op": "take", "holder": "x", "pool": "kv", "pages": [7, 1]}
    path = write(tmp_path / "t.jsonl", MEMORY | pools, *events, beside)
    out = shown(capsys, path, "--page", "state:1")
    assert re.search(r"\n +state\n +line +1 +what happens\n", out) and "in use" not in out
    out = shown(capsys, path, "--page", "1")
    assert re.search(r"\n +kv +state\n +line +1 +1 +what happens\n", out)
    assert "kv: 1 page of 1 slot; state: 1 page of 1 slot" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--line", "8"], "no event stands on line 8: they end on line 7"),
        (["--line", "1"], "no event stands on line 1: they end on line 7"),
        (["--page", "9"], "no event is about page 9"),
        (["--request", "x"], "no event is about 'x'"),
    ],
)
def test_a_missing_line_is_reported_in_one_line(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "t.jsonl", HEADER, *RECORDED)
    assert run_command(["show", str(path), *arguments]) == 2
    reported = capsys.readouterr()
    assert reported.err == f"kvspec: {path}: {reason}\n" and reported.out == ""


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (Use(None, "kv", [1, 2]), "pages 1..2 of kv"),
        (Use(None, "kv", [1], 0, 4), "page 1 of kv, slots 0..3"),
        (Use(None, "kv", [1], 3, 4), "page 1 of kv, slot 3"),
        (Use(None, "kv", [1], 3), "page 1 of kv, slots 3 on"),
        (Use("t", stop=4), "positions 0..3 of table t"),
        (Use("t", start=4, stop=5), "position 4 of table t"),
        (Use("t"), "positions 0 on of table t"),
    ],
)
def test_of_slots_and_positions_the_last_one_is_shown_as_of_pages(use: Use, words: str) -> None:
    assert use_of(use) == words


def test_of_a_batch_a_requests_own_part_is_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reqs = ["r", "s", "t"]
    batch: list[dict[str, Any]] = [
        *({"op": "submit", "req": req, "tokens": [1 + place, 2, 3], "obs": {}} for place, req in enumerate(reqs)),
        *({"op": "match_prefix", "req": req, "obs": {"prefix_len": 0}} for req in reqs),
        {
            "op": "extend",
            "reqs": [[req, 3] for req in reqs],
            "obs": {"rows": {"r": 0, "s": 1, "t": 2}, "pages": {"r": [1], "s": [2], "t": [3]}},
        },
        {"op": "launch", "launch": 1, "reqs": reqs, "obs": {}},
        {"op": "complete", "launch": 1, "tokens": dict.fromkeys(reqs, 9), "obs": {}},
    ]
    path = write(tmp_path / "t.jsonl", HEADER | {"config": HEADER["config"] | {"num_rows": 3}}, *batch)
    out = " ".join(shown(capsys, path, "--request", "s").split())
    assert "A prefill is prepared, of s up to 3: s has row 1 and gets page 2 (and 2 others)." in out
    assert "Launch 1 goes to the device, with s (and 2 others)." in out
    assert "Launch 1 completes and brings a token for s (and 2 others)." in out
    begin: dict[str, Any] = {
        "op": "begin",
        "id": 1,
        "stream": "f",
        "reads": [{"table": "t1", "stop": 4}, {"table": "t2", "stop": 3}, {"pool": "kv", "pages": [3], "holder": "h3"}],
    }
    memory: list[dict[str, Any]] = [
        *({"op": "take", "holder": f"h{one}", "pool": "kv", "pages": [one]} for one in (1, 2, 3)),
        *({"op": "map", "table": f"t{one}", "holder": f"h{one}", "pool": "kv", "pages": [one]} for one in (1, 2)),
        begin,
        {"op": "end", "id": 1},
        {"op": "unmap", "table": "t2"},
        {"op": "unmap", "table": "t1"},
    ]
    path = write(tmp_path / "m.jsonl", MEMORY, *memory)
    out = " ".join(shown(capsys, path, "--request", "h2").split())
    assert "Operation 1 is seen complete." in out and "t2 is emptied" in out and "t1 is emptied" not in out
    assert "Operation 1 is queued on stream f: reads positions 0..2 of table t2 (and 2 others)." in out


def test_steps_that_repeat_are_folded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    each = [
        ({"op": name, "holder": "h", "pool": "kv", "pages": [page]})
        for page in range(1, 11)
        for name in ("take", "release")
    ]
    out = shown(capsys, write(tmp_path / "t.jsonl", MEMORY, *each))
    assert numbers(out) == [2, 3, 20, 21]
    assert "... these 2 lines 8 more times, with other numbers ..." in out


def test_a_page_is_followed_to_its_own_first_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def on(page: int, op: str = "take") -> dict[str, Any]:
        return {"op": op, "holder": f"h{page}", "pool": "kv", "pages": [page]}

    gone = {"op": "end_holder", "holder": "h2"}
    later = [on(2, "release"), on(2)] * 110
    events = [on(1), on(1), on(2), gone, *later]
    out = shown(capsys, write(tmp_path / "t.jsonl", MEMORY, *events), "--page", "2")
    assert "MEM-LEAK" in out and numbers(out)[:2] == [4, 5], "the event that names no page shows it, too"
