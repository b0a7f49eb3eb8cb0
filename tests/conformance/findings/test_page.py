"""A page of HTML: one file, with all that the finding says."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from kvcli.main import run_command
from kvconform.findings.finding import Moment, Trace
from kvconform.findings.page import MOST, page_of_trace
from tests.conformance.helpers import HEADER, LIFE, RECORDED, VECTOR, write

LEFT = [*RECORDED[:5], RECORDED[5] | {"obs": {"freed": []}}]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "left.jsonl", HEADER, *LEFT)
    write(tmp_path / "life.jsonl", VECTOR, *LIFE)
    memory = {"kvspec": 2, "level": "memory", "producer": "test", "pools": {"kv": {"num_pages": 4}}}
    release = {"op": "release", "holder": "</script><b>", "pool": "kv", "pages": [1]}
    write(tmp_path / "twice.jsonl", memory, release | {"op": "take"}, release, release)
    return tmp_path


def text_of(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


def steps(page: str) -> list[dict[str, object]]:
    found = re.search(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    reported: list[dict[str, object]] = json.loads(found[1])
    return reported


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["run", "life.jsonl", "--impl", "tests.conformance.helpers:KeepsPages"], 1),
        (["check", "left.jsonl", "twice.jsonl"], 1),
        (["show", "left.jsonl"], 0),
        (["show", "twice.jsonl"], 0),
    ],
    ids=["run", "check", "show", "show memory"],
)
def test_a_page_needs_nothing_besides_it(folder: Path, command: list[str], status: int) -> None:
    assert run_command([*command, "--html", "out.html"]) == status
    page = (folder / "out.html").read_text()
    assert not re.search(r"<link|<img|<iframe|\bsrc=|@import|url\(|fetch\(|{{", page)
    assert all(target.startswith("#") or "/pull/" in target for target in re.findall(r'href="([^"]*)"', page))
    assert page.count("<script") == page.count("</script>")


def test_a_page_says_what_the_report_says(folder: Path) -> None:
    assert run_command(["check", "left.jsonl", "--html", "out.html"]) == 1
    page = (folder / "out.html").read_text()
    text = text_of(page)
    for part in (
        "PAGE-1 is broken",
        "page(s) 2 were not freed and have no holder",
        "Met at left.jsonl:7, finish",
        "expected [2]",
        "observed []",
        "The shortest operations that still show it (5 of 6).",
        "r is finished; nothing is freed.",
        "request r: protected 0, committed 6, allocated 6, row 0, pages 1..2",
        "Page 2 belongs to request r, since line 4.",
        "SGLang pull request 22862",
    ):
        assert part in text
    reported = steps(page)
    assert [step["line"] for step in reported] == [2, 3, 4, 5, 6]
    assert reported[-1] == {
        "line": 6,
        "event": '{"op": "finish", "req": "r"}',
        "answer": '{"freed": []}',
        "breaks": "page(s) 2 were not freed and have no holder",
    }
    assert len(re.findall(r'<rect [^>]*class="kv-wrong"', page)) == 2, "the page, and the legend"


def test_names_from_files_end_no_script_and_open_no_tag(folder: Path) -> None:
    assert run_command(["check", "twice.jsonl", "--html", "out.html"]) == 1
    page = (folder / "out.html").read_text()
    assert "</script><b>" not in page
    assert any("</script><b>" in str(step["event"]) for step in steps(page))
    assert "&lt;/script&gt;&lt;b&gt;" in page


def test_of_a_long_trace_only_the_end_is_drawn() -> None:
    moments = [Moment(step, 0, {"op": "x"}, f"Step {step}.") for step in range(1, 1001)]
    page = page_of_trace("t", "s", Trace("memory", {}, "", 1000, moments))
    assert len(steps(page)) == MOST and "800 events before these are not drawn." in text_of(page)
    assert "Step 800." not in page and "Step 801." in page


def test_the_last_forty_events_are_seen_first() -> None:
    moments = [Moment(step, step + 1, {"op": "x"}, f"Step {'i' * step}.") for step in range(1, 132)]
    page = page_of_trace("t", "", Trace("memory", {}, "", 131, moments))
    assert "... 91 earlier events ..." in text_of(page)
    assert page.count('class="kv-folded"') == 91 and len(steps(page)) == 131
