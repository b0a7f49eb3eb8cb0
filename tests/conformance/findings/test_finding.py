"""The parts of a report are held against each other: the operations that it shows give what it says of them."""

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from kvcheck import Checker
from kvcheck.words import describe
from kvconform.features import lacks, needs
from kvconform.findings.baseline import Baseline
from kvconform.findings.finding import Finding
from kvconform.findings.text import show_finding, value
from kvconform.gallery.mutants import BUGS
from kvconform.implementations import load
from kvconform.levels.memory.grouping import Grouping
from kvconform.levels.memory.ledger import keep_ledgers
from kvconform.levels.memory.rendering import findings_of_groups
from kvconform.levels.requests.minimise import Shortest, effort_for, shortest_of_trace
from kvconform.levels.requests.recovery import check_whole
from kvconform.levels.requests.rendering import finding_of, place_of
from kvconform.levels.requests.vectors import finding_of_run
from kvconform.oracle import Model
from kvconform.proxy import RuleBroken
from kvconform.traces.codec import TraceReader, read_vector
from kvconform.traces.memory import MemoryReader, open_trace
from kvconform.vectors.files import memory_vector_files, read_vectors, vector_file
from kvconform.vectors.runner import ExpectationFailed, Factory, check_again, run_vector, try_out, unanswered
from kvspec.events import EVENTS, Config, Operation, Snapshot
from kvspec.memory import Pool
from kvspec.memory.events import MemoryEvent
from kvtrace.operations import compressed
from tests.conformance.helpers import HEADER, LIFE, RECORDED, VECTOR, KeepsPages, Raises, lines, write

ROOT = Path(__file__).parents[3]
SHOWN_BY_VECTORS = (
    "retract-tail-orphaned",
    "row-freed-between-chunks",
    "protected-from-unaligned-prefix",
    "stale-row-index",
    "slots-counted-on",
    "publish-frees-the-shared-page",
)


def operations(finding: Finding) -> list[Operation[Any]]:
    """The operations of a report, read again as a trace."""
    reported = []
    for moment in finding.trace.moments:
        line = dict(moment.event)
        line |= {} if moment.answer is None else {"obs": moment.answer}
        line |= {} if moment.refused is None else {"refused": moment.refused}
        reported.append(msgspec.json.decode(json.dumps(line), type=EVENTS))
    return reported


def plain(value: object) -> Any:
    return json.loads(msgspec.json.encode(value, enc_hook=repr))


def text_of(finding: Finding) -> str:
    console = Console(width=80, file=io.StringIO(), record=True)
    show_finding(console, finding)
    printed = console.export_text()
    wrapped = [line for line in printed.splitlines()[1:] if not line.startswith("  more  ")]
    assert all(len(line) <= 80 for line in wrapped), printed
    return printed


def check_the_state_shown_at_each_step(finding: Finding) -> None:
    """Holders, pages and sentences are those of a fresh model with the same operations."""
    config = msgspec.convert(finding.trace.sizes, Config)
    model = Model(config)
    *before, last = operations(finding)
    assert [moment.step for moment in finding.trace.moments] == list(range(1, finding.trace.total + 1))
    for op, moment in zip(before, finding.trace.moments, strict=False):
        model.step(op)
        held = {page: cell for page, cell in moment.cells.get("pages", {}).items() if cell.kind != "free"}
        assert held.keys() == {str(page) for page in model.state.owner}
        taken = {row for row, cell in moment.cells.get("rows", {}).items() if cell.kind != "free"}
        assert taken == {str(row) for row in model.state.rows}
        assert not moment.breaks
    look = Snapshot()
    model.step(look)
    assert look.obs is not None
    views = {**(look.obs.requests or {}), **(look.obs.sessions or {})}
    reported = {line.split(":")[0].partition(" ")[2]: line for line in finding.before}
    assert finding.last is not None
    about = set(finding.last.about) or views.keys()
    assert reported.keys() == views.keys() & about
    for name, line in reported.items():
        view = views[name]
        lengths = f"protected {view.protected_len}, committed {view.committed_len}, allocated {view.allocated_len}"
        assert f"{lengths}, row {view.row}, pages" in line
    assert finding.last.event == plain(unanswered(last))
    assert finding.last.breaks == finding.what


def hold_text(finding: Finding) -> None:
    """All of it is printed, and nothing of another trace."""
    text = " ".join(text_of(finding).split())
    assert finding.last is not None
    parts = [finding.what, finding.note, *finding.before, *finding.known]
    parts += [] if finding.rule is None else [finding.rule.statement, finding.rule.reason]
    parts += [
        f"at {finding.place}, ",
        f"expected {value(finding.expected)} observed {value(finding.observed)}" * finding.compared,
    ]
    for part in parts:
        assert " ".join(part.split()) in text
    assert f"{finding.trace.total} " in text


def found_by_a_vector(bug: str) -> tuple[Finding, Factory]:
    factory = BUGS[bug].factory
    for vector in read_vectors():
        if not needs(vector) & lacks(factory):
            outcome = run_vector(vector, factory)
            if outcome.finding is not None and not isinstance(outcome.finding, ExpectationFailed):
                return finding_of_run(vector, outcome, factory), factory
    raise AssertionError(bug)


@pytest.mark.slow
@pytest.mark.parametrize("bug", SHOWN_BY_VECTORS)
def test_the_shown_operations_carried_out_again_give_the_shown_states(bug: str) -> None:
    finding, factory = found_by_a_vector(bug)
    asked = [unanswered(op) for op in operations(finding)]
    looks = isinstance(asked[-1], Snapshot)
    again = try_out(asked[:-1] if looks else asked, msgspec.convert(finding.trace.sizes, Config), factory)
    assert again is not None
    assert [plain(compressed(op)) for op in again.operations] == [plain(compressed(op)) for op in operations(finding)]
    assert isinstance(again.finding, RuleBroken)
    assert (again.finding.rule.id, again.finding.what) == (finding.rule and finding.rule.id, finding.what)
    assert plain(again.finding.expected) == plain(finding.expected)
    assert plain(again.finding.observed) == plain(finding.observed)
    size = re.search(r"\((\d+) of (\d+)\)", finding.note)
    assert size is not None and int(size[1]) == finding.trace.total
    assert int(size[2]) == finding.place.step + looks
    check_the_state_shown_at_each_step(finding)
    hold_text(finding)


def test_the_shown_part_of_a_trace_checked_again_gives_the_same_finding(tmp_path: Path) -> None:
    other = [json.loads(json.dumps(line).replace('"r"', '"q"')) for line in RECORDED[:2]]
    path = write(tmp_path / "t.jsonl", HEADER, *other, *RECORDED[:5], RECORDED[5] | {"obs": {"freed": []}})
    with TraceReader(path) as trace:
        (found,) = check_whole(trace.header.config, trace, Baseline()).found
        config = trace.header.config
    shortest = shortest_of_trace(path, 8, effort_for(path))
    finding = finding_of(found.finding, config, place_of(found.finding, path, found.line), shortest)
    again = check_again(operations(finding), config)
    assert again is not None and len(again.operations) == finding.trace.total < 8
    assert (again.finding.what, again.finding.expected) == (finding.what, finding.expected)  # type: ignore[union-attr]
    assert str(finding.place) == f"{path}:9" and finding.place.step == 8
    check_the_state_shown_at_each_step(finding)
    hold_text(finding)


def test_without_a_shorter_trace_the_trace_itself_is_shown() -> None:
    config = msgspec.convert(HEADER["config"], Config)
    reported = [msgspec.convert(line, EVENTS) for line in [*RECORDED[:5], RECORDED[5] | {"obs": {"freed": []}}]]
    again = check_again(reported, config)
    assert again is not None
    place = place_of(again.finding, "t.jsonl", 7)
    finding = finding_of(again.finding, config, place, Shortest(None, "None."), enumerate(reported, start=2))
    assert [moment.line for moment in finding.trace.moments] == [2, 3, 4, 5, 6, 7]
    check_the_state_shown_at_each_step(finding)
    hold_text(finding)


def test_a_failing_implementation_is_reported_with_its_own_line(tmp_path: Path) -> None:
    vector = read_vector(write(tmp_path / "v.jsonl", VECTOR, *LIFE))
    finding = finding_of_run(vector, run_vector(vector, Raises), Raises)
    assert finding.kind == "failure" and finding.what == "raised KeyError: 'lost r'"
    assert finding.raised[-1].split(" in ")[1] == 'finish: raise KeyError(f"lost {req}")'
    assert finding.last is not None and finding.last.answer is None
    check_the_state_shown_at_each_step(finding)
    hold_text(finding)


def test_an_expectation_that_fails_is_reported_with_the_whole_vector(tmp_path: Path) -> None:
    expect = {"op": "expect", "answer": {"freed": 2}}
    vector = read_vector(write(tmp_path / "v.jsonl", VECTOR, *LIFE, expect))
    factory = BUGS["retract-tail-orphaned"].factory
    finding = finding_of_run(vector, run_vector(vector, factory), factory)
    assert finding.kind == "expectation" and (finding.expected, finding.observed) == (2, 1)
    assert [moment.line for moment in finding.trace.moments] == [2, 3, 4, 5, 6, 7]
    assert all(moment.answer is not None for moment in finding.trace.moments)
    check_the_state_shown_at_each_step(finding)
    hold_text(finding)


MEMORY = [path for path in memory_vector_files() if path.stem.startswith("wrong_")]


@pytest.mark.parametrize("path", MEMORY, ids=lambda path: path.stem)
def test_the_shown_memory_events_checked_again_give_the_same_finding(path: Path, tmp_path: Path) -> None:
    header, *rest = [json.loads(line) for line in path.read_text().splitlines()]
    kept = {key: value for key, value in header.items() if key not in ("description", "rules", "source")}
    trace = tmp_path / "t.jsonl"
    trace.write_bytes(lines(kept, *(line for line in rest if line["op"] != "expect")))
    with open_trace(trace) as opened:
        assert isinstance(opened, MemoryReader)
        grouping = Grouping(Checker(opened.header.pools), Baseline())
        for line, event in opened:
            grouping.step(line, event)
        keep_ledgers(trace, grouping.outcome().groups, Baseline())
        findings = findings_of_groups(trace, opened.header.pools, grouping.outcome(), grouping.identities, 60)
    assert findings
    for finding in findings:
        if not finding.note:
            continue
        checker = Checker(msgspec.convert(finding.trace.sizes, dict[str, Pool]))
        found = []
        for moment in finding.trace.moments:
            found = checker.step(msgspec.convert(moment.event, MemoryEvent))
            pages = {(pool, page) for pool, cells in moment.cells.items() for page in cells}
            reported = {(pool, page) for pool, page in pages if moment.cells[pool][page].kind == "held"}
            holds = {
                (name, str(page))
                for name, pool in checker.state.pools.items()
                for page in pool.pages
                if pool.pages[page].holders
            }
            assert reported == holds & pages
        assert (finding.rule and finding.rule.id, finding.what) in {(one.rule, describe(one)) for one in found}
        assert finding.last is not None and finding.last.line == finding.place.line
        assert finding.what in finding.last.breaks
        hold_text(finding)


def test_a_description_holds_the_implementation_to_its_own_answer(tmp_path: Path) -> None:
    """The answer that is shown is the one of the trace that is shown, not the one that was met first."""
    noise = [json.loads(json.dumps(line).replace('"r"', '"q"').replace('"launch": 1', '"launch": 9')) for line in LIFE]
    vector = read_vector(write(tmp_path / "v.jsonl", VECTOR, *noise[:5], *LIFE))
    finding = finding_of_run(vector, run_vector(vector, KeepsPages), KeepsPages)
    assert finding.place.step == 11 and finding.trace.total == 5
    assert finding.expected == [2] and "pages 1..2" in finding.before[0]
    check_the_state_shown_at_each_step(finding)


def marked(finding: Finding) -> dict[str, list[str]]:
    """The cells that are wrong at the end of a trace, by pool."""
    assert finding.last is not None
    cells = finding.last.cells.items()
    found = {pool: [number for number, cell in parts.items() if cell.wrong] for pool, parts in cells}
    return {pool: numbers for pool, numbers in found.items() if numbers}


def test_a_row_that_names_a_freed_page_is_marked_and_so_is_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "conformance/kvconform/templates/adapter")
    engine = load("toy_engine:Adapter")
    vector = read_vector(vector_file("duplicate_publish_p4"))
    assert marked(finding_of_run(vector, run_vector(vector, engine), engine)) == {"pages": ["1", "4"], "rows": ["1"]}


def test_a_request_whose_length_is_wrong_is_marked_by_its_row() -> None:
    bug = BUGS["protected-from-unaligned-prefix"]
    vector = next(one for one in read_vectors() if isinstance(run_vector(one, bug.factory).finding, RuleBroken))
    assert "rows" in marked(finding_of_run(vector, run_vector(vector, bug.factory), bug.factory))


def test_the_ledger_of_a_page_says_who_had_it_and_passed_it_on() -> None:
    bug = BUGS["retract-tail-orphaned"]
    vector = read_vector(vector_file("tail_freed_after_retract_p1"))
    finding = finding_of_run(vector, run_vector(vector, bug.factory), bug.factory)
    assert [(one.sign, one.event, one.says) for one in finding.ledger] == [
        ("+", "extend", "page 2 given to request t1"),
        (">", "retract", "page 2 passed from request t1 to the slot of session s"),
    ]
    lines = {moment.number: moment.event["op"] for moment in finding.trace.moments}
    assert all(lines[one.line] == one.event for one in finding.ledger)
