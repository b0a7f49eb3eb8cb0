"""The report of a drive: findings by code and place, and the known issue that a finding looks like."""

from io import StringIO

from rich.console import Console

from kvattach.hooks import Hooks
from kvlab import trial
from kvlab.drives import CheckedTrace, Known, Trial
from kvlab.issues import Issue
from kvspec.memory.events import Pool, Release, Take


def driven(*events: Release | Take, known: tuple[Issue, ...] = ()) -> tuple[int, str]:
    """The status and the report of one run that emits these events."""
    made: list[Hooks] = []

    def attach(trace: CheckedTrace) -> Hooks:
        made.append(Hooks(trace))
        trace.header("stub", {"kv": Pool(page_size=4, num_pages=8)})
        return made[-1]

    def run(_: int) -> None:
        for event in events:
            made[-1].emit(event)

    console = Console(file=StringIO(), record=True, width=200)
    stub = Trial("stub", attach, run, [], known=[Known(issue) for issue in known])
    status = trial.drive(console, stub, 1, without_known=False)
    return status, console.export_text()


def test_a_finding_is_reported_with_the_known_issue_that_it_looks_like() -> None:
    twice = Issue(id="freed-twice", title="", level="memory", rule="MEM-RELEASE", code="MEM-RELEASE/not-held")
    leak = Issue(id="leak", title="", level="memory", rule="MEM-LEAK", code="MEM-LEAK/idle")
    status, report = driven(Take("a", "kv", [1]), Release("b", "kv", [1]), known=(leak, twice))
    assert status == 1
    assert "1 finding, seeds from 0" in report
    assert "page 1 is released by b, but a holds it (as in known issue freed-twice)" in report


def test_a_finding_without_a_known_issue_names_none() -> None:
    rule_alone = Issue(id="release", title="", level="memory", rule="MEM-RELEASE")
    _, report = driven(Take("a", "kv", [1]), Release("b", "kv", [1]), known=(rule_alone,))
    assert "known issue" not in report
