"""`kvspec show`: a trace or vector of either level, event by event, with or without a finding."""

from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from kvconform.console import progress_bar
from kvconform.errors import InputError
from kvconform.findings.finding import FREE, Trace
from kvconform.findings.map import show_trace
from kvconform.findings.page import page_of_trace
from kvconform.findings.wording import counted, filled, printable
from kvconform.levels.both import LEVELS
from kvconform.levels.drawing import KEPT
from kvconform.levels.level import AROUND, Replay, Wanted
from kvconform.traces.memory import open_trace

AFTER = 20
"""The most events shown after the first finding of a long trace."""


class Shown(NamedTuple):
    """The selected part of a trace, with figures of the whole."""

    trace: Trace
    events: int
    """The total number of events."""
    findings: int
    after: list[str]
    """The holders and their pages after the requested line."""
    description: str
    wanted: Wanted


def show(out: Console, path: Path, wanted: Wanted, html: Path | None = None) -> None:
    """Print a trace or vector event by event, and write it as HTML if `html` is given.

    Raises:
        InputError: the file is invalid, or has no such line, page or request.
    """
    shown = read(path, wanted)
    count = counted(shown.events, LEVELS[shown.trace.level].unit)
    summary = f"{count}, {_often(shown.findings)}, in a memory of {shown.trace.memory}."
    if html is not None:
        text = " ".join(filter(None, [summary, shown.description]))
        html.write_text(page_of_trace(str(path), text, shown.trace), encoding="utf-8")
    head = f"{path}: {summary}"
    out.print(Text(filled(printable(head), out.width)), soft_wrap=True)
    if shown.description:
        out.print(Text(filled(printable(shown.description), out.width)), soft_wrap=True)
    out.print()
    show_trace(out, shown.trace, KEPT)
    for line in shown.after:
        out.print(Text(filled(printable(line), out.width, "  after it   ", " " * 13)), soft_wrap=True)


def _often(findings: int) -> str:
    return "a rule is broken" + ("" if findings == 1 else f" {findings:,} times") if findings else "no rule is broken"


def read(path: Path, wanted: Wanted) -> Shown:
    """Select the part of a trace or vector to show. A long trace is read twice, and only a part is kept.

    Raises:
        InputError: the file is invalid, or has no such line, page or request.
    """
    if not path.is_file():
        raise InputError(path, 0, "a trace that is shown is read twice: it has to be a file")
    with open_trace(path) as opened:
        header, level = opened.header, opened.level
    replay = LEVELS[level].replay(path)
    checked = _checked(path, replay, wanted)
    events, centre = checked.events, checked.finding
    if wanted.line is not None:
        centre = checked.wanted
        if centre is None:
            raise InputError(path, 0, f"no event stands on line {wanted.line}: they end on line {checked.last_line:,}")
    last = events
    if wanted.line is not None and centre is not None:
        last = min(events, centre + AROUND)
    elif centre is not None and wanted.request is None:
        last = min(events, max(centre + AFTER, KEPT))
    trace, after = replay.rendered(wanted, centre, last)
    if not trace.moments:
        what = f"page {wanted.page}" if wanted.page is not None else repr(wanted.request)
        raise InputError(path, 0, f"no event is about {what}")
    if part := wanted.part():
        _leave_only(trace, replay, *part)
    return Shown(trace, events, checked.broken, after, header.description or "", wanted)


def _leave_only(trace: Trace, replay: Replay, pool: str | None, page: str) -> None:
    """Draw only one page."""
    for moment in trace.moments:
        cells = moment.cells
        moment.cells = {name: {page: cells[name].get(page, FREE)} for name in replay.drawn(cells, pool, page)}
    trace.undrawn = {}


class _Checked(NamedTuple):
    """The result of a first pass over a trace; events are identified by number."""

    events: int
    broken: int
    """The number of events that break a rule."""
    finding: int | None
    """The first such event; with a selected page the first about that page."""
    wanted: int | None
    """The event on the requested line."""
    last_line: int


def _checked(path: Path, replay: Replay, wanted: Wanted) -> _Checked:
    part, broken, number, line = wanted.part(), 0, 0, 0
    finding = at = None
    with progress_bar() as progress:
        task = progress.add_task(path.name, total=None)
        for number, (line, found) in enumerate(replay.checked(), start=1):
            if found is not None:
                broken += 1
                about = part is None or any(part[0] in (None, pool) and page == part[1] for pool, page in found)
                finding = number if finding is None and about else finding
            at = number if line == wanted.line else at
            if number % 1000 == 0:
                progress.update(task, description=f"{path.name}: {number:,}")
    return _Checked(number, broken, finding, at, line)
