"""`kvspec show`: a trace or vector of either level, event by event, whether it has a finding or not."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from kvcheck import Malformed
from kvcheck import state as checker
from kvconform.console import progress_bar
from kvconform.errors import InputError
from kvconform.findings.finding import FREE, Trace
from kvconform.findings.map import show_trace
from kvconform.findings.page import page_of_trace
from kvconform.findings.wording import filled, printable
from kvconform.levels.memory import rendering as memory
from kvconform.levels.requests.rendering import KEPT, Renderer, disputed, holders, named
from kvconform.traces.codec import TraceReader, read_vector
from kvconform.traces.memory import MemoryReader, open_trace, read_memory_vector
from kvconform.vectors.runner import names_in
from kvspec.events import Operation
from kvspec.memory.events import MemoryEvent
from kvspec.model.state import State

AROUND = 5
"""Events shown before and after a requested line."""
AFTER = 20
"""Events shown after the first finding of a long trace."""


class Wanted(NamedTuple):
    """The part of a trace to show: each field that is not `None` narrows it."""

    line: int | None = None
    page: str | None = None
    """A page's number, at the memory level its key too; `POOL:PAGE` names the pool."""
    request: str | None = None
    """A request, session, or holder."""

    def part(self) -> tuple[str | None, str] | None:
        """The pool and the page that are followed."""
        if self.page is None:
            return None
        pool, colon, page = self.page.rpartition(":")
        return (pool, page) if colon else (None, self.page)


class Shown(NamedTuple):
    """The selected part of a trace, with figures about the whole."""

    trace: Trace
    events: int
    """In all."""
    findings: int
    after: list[str]
    """The holders and their pages after the requested line."""
    description: str
    wanted: Wanted


def show(out: Console, path: Path, wanted: Wanted, html: Path | None = None) -> None:
    """Print a trace or vector event by event, and write it as HTML if `html` is given.

    Raises:
        InputError: the file cannot be used, or has no such line, page or request.
    """
    shown = read(path, wanted)
    count = f"{shown.events:,} {'operations' if shown.trace.level == 'request' else 'events'}"
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
        InputError: the file cannot be used, or has no such line, page or request.
    """
    if not path.is_file():
        raise InputError(path, 0, "a trace that is shown is read twice: it has to be a file")
    with open_trace(path) as opened:
        header = opened.header
    is_memory = not hasattr(header, "config")
    pass_over = _Memory(path) if is_memory else _Requests(path)
    checked = _checked(path, pass_over, wanted)
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
    trace, after = pass_over.rendered(wanted, centre, last)
    if not trace.moments:
        what = f"page {wanted.page}" if wanted.page is not None else repr(wanted.request)
        raise InputError(path, 0, f"no event is about {what}")
    if part := wanted.part():
        _leave_only(trace, *part)
    return Shown(trace, events, checked.broken, after, header.description or "", wanted)


def _leave_only(trace: Trace, pool: str | None, page: str) -> None:
    """Draw one page and nothing else; without a pool that of each pool, and not the row of that number."""
    pools = [name for name in trace.moments[-1].cells if pool in (None, name)]
    for moment in trace.moments:
        drawn = pools[:1] if trace.level == "request" else [name for name in pools if page in moment.cells[name]]
        moment.cells = {name: {page: moment.cells[name].get(page, FREE)} for name in drawn}
    trace.undrawn = {}


class _Checked(NamedTuple):
    """The result of a first pass over a trace; events are identified by number."""

    events: int
    broken: int
    """Events that break a rule."""
    finding: int | None
    """The first of them; with a selected page the first about that page."""
    wanted: int | None
    """The event on the requested line."""
    last_line: int


def _checked(path: Path, levels: "_Requests | _Memory", wanted: Wanted) -> _Checked:
    part, broken, number, line = wanted.part(), 0, 0, 0
    finding = at = None
    with progress_bar() as progress:
        task = progress.add_task(path.name, total=None)
        for number, (line, found) in enumerate(levels.checked(), start=1):
            if found is not None:
                broken += 1
                about = part is None or any(part[0] in (None, pool) and page == part[1] for pool, page in found)
                finding = number if finding is None and about else finding
            at = number if line == wanted.line else at
            if number % 1000 == 0:
                progress.update(task, description=f"{path.name}: {number:,}")
    return _Checked(number, broken, finding, at, line)


def _near(wanted: Wanted, centre: int | None, last: int, number: int) -> bool:
    """Whether an event is in the part that is shown, whatever it is about."""
    if wanted.line is not None:
        return abs(number - (centre or 0)) <= AROUND
    return wanted.page is not None or wanted.request is not None or number > last - KEPT


_Found = list[tuple[str, str]] | None
"""The pages that an event is wrong about, by pool; `None`: it breaks no rule."""


class _Requests:
    """A trace or vector of the request level."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with TraceReader(path) as trace:
            self._config = trace.header.config
            self._is_vector = trace.header.description is not None

    def _operations(self) -> Iterator[tuple[int, Operation[Any]]]:
        if self._is_vector:
            yield from ((step.line, step.op) for step in read_vector(self._path).steps)
            return
        with TraceReader(self._path) as trace:
            yield from trace

    def checked(self) -> Iterator[tuple[int, _Found]]:
        renderer = Renderer(self._config, lambda *_: False)
        for line, op in self._operations():
            violation = renderer.step(line, op)
            pages = {*disputed(violation).get("pages", ()), *named(op, "pages")} if violation is not None else ()
            yield line, None if violation is None else [("pages", str(page)) for page in pages]
            if renderer.recovery.lost is not None:
                return

    def rendered(self, wanted: Wanted, centre: int | None, last: int) -> tuple[Trace, list[str]]:
        renderer = Renderer(self._config, _chosen(wanted, centre, last), wanted.request)
        after: list[str] = []
        for number, (line, op) in enumerate(self._operations(), start=1):
            renderer.step(line, op)
            if number == centre and wanted.line is not None:
                after = list(holders(renderer.recovery.model))
            if number == last:
                break
        return renderer.trace(), after


def _chosen(wanted: Wanted, centre: int | None, last: int) -> Callable[[int, Operation[Any], State], bool]:
    part = wanted.part()
    page = int(part[1]) if part is not None and part[1].isdigit() else None
    owner: list[object] = [None]

    def chosen(number: int, op: Operation[Any], state: State) -> bool:
        about = wanted.request is None or wanted.request in names_in(op)
        if about and wanted.request is None and part is not None:
            now = None if page is None else state.owner.get(page)
            about = now != owner[0] or page in named(op, "pages") or number == centre
            owner[0] = now
        return about and _near(wanted, centre, last, number)

    return chosen


class _Memory:
    """A trace or vector of the memory level."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with open_trace(path) as trace:
            assert isinstance(trace, MemoryReader)
            self._pools = trace.header.pools
            self._is_vector = trace.header.description is not None

    def _events(self) -> Iterator[tuple[int, MemoryEvent]]:
        if self._is_vector:
            yield from ((step.line, step.event) for step in read_memory_vector(self._path).steps)
            return
        with open_trace(self._path) as trace:
            assert isinstance(trace, MemoryReader)
            yield from trace

    def _check(
        self, renderer: memory.Renderer, events: Iterable[tuple[int, MemoryEvent]]
    ) -> Iterator[tuple[int, _Found]]:
        for line, event in events:
            try:
                found = renderer.step(line, event)
                yield line, [(one.pool or "", str(one.page)) for one in found] if found else None
            except Malformed as error:
                raise InputError(self._path, line, str(error)) from error

    def checked(self) -> Iterator[tuple[int, _Found]]:
        return self._check(memory.Renderer(self._pools, lambda *_: False), self._events())

    def rendered(self, wanted: Wanted, centre: int | None, last: int) -> tuple[Trace, list[str]]:
        part = wanted.part()

        def chosen(number: int, event: MemoryEvent, state: checker.State, about: list[str]) -> bool:
            if wanted.request is not None and wanted.request not in about:
                return False
            if (
                part is not None
                and number != centre
                and not any(
                    part[0] in (None, pool) and str(page) == part[1] for pool, page in memory.named_in(event, state)
                )
            ):
                return False
            return _near(wanted, centre, last, number)

        renderer = memory.Renderer(self._pools, chosen, wanted.request)
        after: list[str] = []
        for number, _ in enumerate(self._check(renderer, self._events()), start=1):
            if number == centre and wanted.line is not None:
                after = list(memory.holdings(renderer.checker.state))
            if number == last:
                break
        return renderer.trace(), after
