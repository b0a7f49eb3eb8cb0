"""Shows a trace or vector of operations."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvconform.findings.finding import Trace
from kvconform.levels.level import Wanted, Wrong
from kvconform.levels.requests.rendering import Renderer, disputed, holders, named
from kvconform.traces.codec import TraceReader, read_vector
from kvconform.vectors.runner import names_in
from kvspec.events import Operation
from kvspec.model.state import State


class Replay:
    """A trace or vector of the request level."""

    def __init__(self, path: Path) -> None:
        """Read the header."""
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

    def checked(self) -> Iterator[tuple[int, Wrong]]:
        """Each line with an event, until the state is lost."""
        renderer = Renderer(self._config, lambda *_: False)
        for line, op in self._operations():
            violation = renderer.step(line, op)
            pages = {*disputed(violation).get("pages", ()), *named(op, "pages")} if violation is not None else ()
            yield line, None if violation is None else [("pages", str(page)) for page in pages]
            if renderer.recovery.lost is not None:
                return

    def rendered(self, wanted: Wanted, centre: int | None, last: int) -> tuple[Trace, list[str]]:
        """The wanted events, and the holders after a wanted line."""
        renderer = Renderer(self._config, _chosen(wanted, centre, last), wanted.request)
        after: list[str] = []
        for number, (line, op) in enumerate(self._operations(), start=1):
            renderer.step(line, op)
            if number == centre and wanted.line is not None:
                after = list(holders(renderer.recovery.model))
            if number == last:
                break
        return renderer.trace(), after

    def drawn(self, cells: dict[str, Any], pool: str | None, page: str) -> list[str]:
        """The first pool: the page, and not the row, of that number."""
        return [name for name in cells if pool in (None, name)][:1]


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
        return about and wanted.near(centre, last, number)

    return chosen
