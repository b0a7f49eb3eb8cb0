"""Shows a trace or vector of memory events."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kvcheck import Malformed
from kvcheck.state import State
from kvconform.errors import InputError
from kvconform.findings.finding import Trace
from kvconform.levels.level import Wanted, Wrong
from kvconform.levels.memory.rendering import Renderer, holdings, named_in
from kvconform.traces.memory import MemoryReader, open_trace, read_memory_vector
from kvspec.memory.events import MemoryEvent


class Replay:
    """A trace or vector of the memory level."""

    def __init__(self, path: Path) -> None:
        """Read the header."""
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

    def _check(self, renderer: Renderer, events: Iterable[tuple[int, MemoryEvent]]) -> Iterator[tuple[int, Wrong]]:
        for line, event in events:
            try:
                found = renderer.step(line, event)
                yield line, [(one.pool or "", str(one.page)) for one in found] if found else None
            except Malformed as error:
                raise InputError(self._path, line, str(error)) from error

    def checked(self) -> Iterator[tuple[int, Wrong]]:
        """Each event, with its line."""
        return self._check(Renderer(self._pools, lambda *_: False), self._events())

    def rendered(self, wanted: Wanted, centre: int | None, last: int) -> tuple[Trace, list[str]]:
        """The wanted events, and the holders after a wanted line."""
        part = wanted.part()

        def chosen(number: int, event: MemoryEvent, state: State, about: list[str]) -> bool:
            if wanted.request is not None and wanted.request not in about:
                return False
            if (
                part is not None
                and number != centre
                and not any(part[0] in (None, pool) and str(page) == part[1] for pool, page in named_in(event, state))
            ):
                return False
            return wanted.near(centre, last, number)

        renderer = Renderer(self._pools, chosen, wanted.request)
        after: list[str] = []
        for number, _ in enumerate(self._check(renderer, self._events()), start=1):
            if number == centre and wanted.line is not None:
                after = list(holdings(renderer.checker.state))
            if number == last:
                break
        return renderer.trace(), after

    def drawn(self, cells: dict[str, Any], pool: str | None, page: str) -> list[str]:
        """Each pool that has a page of that number."""
        return [name for name in cells if pool in (None, name) and page in cells[name]]
