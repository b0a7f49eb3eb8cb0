"""Checks a trace of memory events: judged to its end, and told."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kvconform.console import BROKEN, CONFORMS, complain
from kvconform.errors import InputError
from kvconform.findings.accepted import Accepted
from kvconform.findings.text import show_finding
from kvconform.findings.wording import printable
from kvconform.memory.judge import Group, Judge, Judged
from kvconform.memory.telling import tell_judged
from kvconform.traces.memory import MemoryReader
from kvspec.memory import Law, Malformed

SECONDS = 5.0
"""Time spent on the shortest part of a trace for one group of findings."""


def check(
    console: Console,
    path: Path,
    trace: MemoryReader,
    accepted: Accepted,
    progress: Callable[[], object],
    *,
    follow: bool = False,
) -> int:
    """Check one trace and print what was found; the exit status. `follow`: each kind is told when it is met, too.

    Raises:
        InputError: a line cannot be used, and nothing was found before it.
    """

    def met(group: Group) -> None:
        what = f"{path}:{group.line}: {group.finding.rule}: {group.finding.what}"
        console.print(Text(printable(what)), soft_wrap=True)

    judging = Judge(Law(trace.header.pools), accepted, met if follow else None)
    problem: InputError | None = None
    try:
        _read(trace, judging, progress)
    except InputError as error:
        problem = error
    except KeyboardInterrupt:
        if not follow:
            raise
    outcome = judging.outcome()
    if problem is not None:
        if not outcome.groups:
            raise problem
        complain(str(problem))

    _show_judged(console, path, outcome)
    for number, finding in enumerate(tell_judged(path, trace.header.pools, outcome, judging.said, SECONDS), start=1):
        show_finding(console, finding, number)
    if outcome.beyond:
        console.print(f"{outcome.beyond:,} further findings are of still other kinds.")
    broken = bool(outcome.groups)
    verdict = "does not conform" if broken else "conforms"
    console.print(Text(printable(f"{path}: {verdict}, {outcome.events.total():,} events checked.")), soft_wrap=True)
    return BROKEN if broken else CONFORMS


def _show_judged(console: Console, path: Path, judged: Judged) -> None:
    """What was judged, and what was not."""
    kinds = ", ".join(f"{kind} ({count:,})" for kind, count in judged.events.most_common())
    told = f"{path}: {judged.events.total():,} events: {kinds or 'none'}."
    console.print(Text(printable(told)), soft_wrap=True)
    if judged.unjudged:
        silent = ", ".join(f"{rule} ({count:,} times)" for rule, count in sorted(judged.unjudged.items()))
        console.print(Text(f"Not told, and so not judged: {silent}."), soft_wrap=True)
    if judged.groups:
        console.print()


def _read(trace: MemoryReader, judging: Judge, progress: Callable[[], object]) -> None:
    for number, (line, event) in enumerate(trace, start=1):
        try:
            judging.step(line, event)
        except Malformed as error:
            raise InputError(trace.lines.path, line, str(error)) from error
        if number % 1000 == 0:
            progress()
