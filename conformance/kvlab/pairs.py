"""Pairs: an event on a page, and the next event on it. A driver never checks two events that it never brings together.

The number of pairs that its runs reach measures how much of an engine a driver covers, regardless of findings.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kvspec.memory.events import (
    Begin,
    Drop,
    End,
    Map,
    MemoryEvent,
    OpId,
    Page,
    Pages,
    Pool,
    Publish,
    Referring,
    Release,
    Share,
    Take,
    Transfer,
    Unmap,
    Use,
)


class Pair(NamedTuple):
    """Two successive events on one page of a pool."""

    pool: str
    first: str
    """The kind of event; for an operation its kind of use, and its place in the engine."""
    in_flight: bool
    """Whether the first event is an operation that the host has not seen complete."""
    second: str
    same_holder: bool
    same_stream: bool
    """Whether both are on one stream. The host is a stream for all events that are not operations."""


_Event = tuple[str, str | None, str | int | None, int]
"""The last event on a page: its kind, its holder, its stream, and the operation's number."""


class Pairs:
    """The pairs that runs have reached."""

    def __init__(self) -> None:
        """Begin without pairs."""
        self.reached: set[Pair] = set()
        self.header({})
        self._steps: dict[type[MemoryEvent], Callable[[Any], None]] = {
            **dict.fromkeys((Take, Share, Release), self._refer),
            **dict.fromkeys((Publish, Drop), self._name),
            Transfer: self._transfer,
            Map: self._map,
            Unmap: self._unmap,
            Begin: self._begin,
            End: self._end,
        }

    def header(self, pools: Mapping[str, Pool]) -> None:
        """Begin with another memory, all of it free."""
        self._sizes = {name: pool.page_size for name, pool in pools.items()}
        self._last: dict[str, dict[Page, _Event]] = {}
        self._tables: dict[str, tuple[str, str, list[Page]]] = {}
        """Table -> its holder, its pool and its pages."""
        self._flying: dict[OpId, tuple[int, str | int]] = {}
        """Operation -> its number, and its stream; without a stream its number again."""
        self._done: dict[str | int | None, int] = {}
        """Stream -> the number of the last operation seen complete."""
        self._begun = 0

    def step(self, event: MemoryEvent) -> None:
        """Note one more event."""
        step = self._steps.get(type(event))
        if step is not None:
            step(event)

    def _refer(self, event: Referring) -> None:
        kind = "pin" if isinstance(event, Share) and event.pin else type(event).__name__
        self._touch(event.pool, _each(event.pages), (kind, event.holder, None, 0))

    def _name(self, event: Publish | Drop) -> None:
        self._touch(event.pool, _each(event.pages), (type(event).__name__, None, None, 0))

    def _transfer(self, event: Transfer) -> None:
        if event.pool is not None and event.pages is not None:
            self._touch(event.pool, _each(event.pages), ("Transfer", event.new, None, 0))
            return
        for name, (holder, pool, pages) in self._tables.items():
            if holder == event.old and event.pool in (None, pool):
                self._tables[name] = event.new, pool, pages

    def _map(self, event: Map) -> None:
        _, _, pages = self._tables.get(event.table, ("", "", []))
        mapped = _each(event.pages)
        pages[event.index : event.index + len(mapped)] = mapped
        self._tables[event.table] = event.holder, event.pool, pages
        self._touch(event.pool, mapped, ("Map", event.holder, None, 0))

    def _unmap(self, event: Unmap) -> None:
        holder, pool, pages = self._tables.get(event.table, ("", "", []))
        gone = pages[event.index : event.stop or None]
        if gone:
            self._touch(pool, gone, ("Unmap", holder, None, 0))
        if not event.stop:
            del pages[event.index :]

    def _begin(self, event: Begin) -> None:
        self._begun = number = self._begun + 1
        stream = number if event.stream is None else event.stream
        self._flying[event.id] = number, stream
        for use in event.reads:
            self._use(use, f"{event.at} reads", stream)
        for use in event.writes:
            self._use(use, f"{event.at} writes", stream)
        for source, target in event.copies:
            self._use(source, f"{event.at} copies", stream)
            self._use(target, f"{event.at} fills", stream)

    def _use(self, use: Use, does: str, stream: str | int) -> None:
        if use.table is None:
            holder, pool, pages = use.holder, use.pool or "", _each(use.pages)
        else:
            holder, pool, pages = self._tables.get(use.table, ("", "", []))
        size = self._sizes.get(pool, 1)
        if use.start or use.stop:
            pages = pages[use.start // size : -(-use.stop // size) if use.stop else None]
        self._touch(pool, pages, (does, holder, stream, self._begun))

    def _end(self, event: End) -> None:
        if event.part == "all" and event.id in self._flying:
            number, stream = self._flying.pop(event.id)
            self._done[stream] = max(number, self._done.get(stream, 0))

    def _touch(self, pool: str, pages: Iterable[Page], event: _Event) -> None:
        """Note the next event on these pages."""
        last, before = self._last.setdefault(pool, {}), None
        for page in pages:
            first = last.get(page)
            last[page] = event
            if first is not None and first is not before:
                before = first
                kind, holder, stream, number = first
                flies = number > self._done.get(stream, 0)
                pair = pool, kind, flies, event[0], holder == event[1], stream == event[2]
                if pair not in self.reached:
                    self.reached.add(Pair(*pair))


def _each(pages: Pages) -> Sequence[Page]:
    """Pages one by one."""
    plain = [page for page in pages if not isinstance(page, tuple)]
    if len(plain) == len(pages):
        return plain
    return [one for page in pages for one in (range(page[0], sum(page)) if isinstance(page, tuple) else (page,))]
