"""Reduces a trace to smaller traces: to some holders or operations, or to parts of its events.

If an operation is left out, so are its end, the waits for it and its deliveries. A page without a holder in the part
gets no name there.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from kvcheck import Finding
from kvcheck.finding import OWNERS
from kvspec.memory import events as e
from kvspec.memory.events import MemoryEvent, OpId, Page, Use

Moves = e.Take | e.Share | e.Release | e.Transfer | e.Publish | e.Drop
"""Events that change the holders or names of pages."""


class About:
    """Reduces events one by one to those of some holders."""

    def __init__(self, holders: Collection[str], keyed: Collection[str]) -> None:
        """Keep `holders`, and all pages of the pools in `keyed`, which need no holder."""
        self._holders, self._keyed = holders, keyed
        self._tables: set[str] = set()
        self._given: set[tuple[str, Page]] = set()
        self._begun: set[OpId] = set()

    def __call__(self, event: MemoryEvent) -> MemoryEvent | None:
        """The event, narrowed; `None` if nothing of it is left."""
        match event:
            case e.Take():
                return self._take(event)
            case e.Share() | e.Release() | e.Reserve() | e.EndHolder():
                return event if event.holder in self._holders else None
            case e.Transfer():
                return event if {event.old, event.new} <= {*self._holders} else None
            case e.Publish() | e.Drop():
                numbers = singly(event.pages)
                kept = [index for index, page in enumerate(numbers) if self._known(event.pool, page)]
                return narrowed(event, "pages", kept) if kept else None
            case e.Map():
                (self._tables.add if event.holder in self._holders else self._tables.discard)(event.table)
                return event if event.holder in self._holders else None
            case e.Unmap():
                return event if event.table in self._tables else None
            case e.Begin():
                return self._begin(event)
            case e.Wait():
                return event if event.id is None or event.id in self._begun else None
            case e.End():
                if event.id not in self._begun:
                    return None
                return replace(event, unwritten=[use for use in event.unwritten if self._uses(use)])
            case e.Deliver():
                return event if event.id in self._begun and event.holder in self._holders else None
        return event

    def _take(self, event: e.Take) -> e.Take | None:
        kept = event.holder in self._holders
        for page in singly(event.pages):
            (self._given.add if kept else self._given.discard)((event.pool, page))
        return event if kept else None

    def _begin(self, event: e.Begin) -> e.Begin | None:
        reads = [use for use in event.reads if self._uses(use)]
        writes = [use for use in event.writes if self._uses(use)]
        copies = [pair for pair in event.copies if all(map(self._uses, pair))]
        empty = not (reads or writes or copies) and (event.reads or event.writes or event.copies)
        (self._begun.discard if empty else self._begun.add)(event.id)
        if empty:
            return None
        after = [id for id in event.after if id in self._begun]
        return replace(event, reads=reads, writes=writes, copies=copies, after=after)

    def _uses(self, use: Use) -> bool:
        if use.table is not None:
            return use.table in self._tables
        if use.holder is not None:
            return use.holder in self._holders
        return any(self._known(use.pool or "", page) for page in singly(use.pages))

    def _known(self, pool: str, page: Page) -> bool:
        return pool in self._keyed or (pool, page) in self._given


class Operations:
    """Reduces events one by one to those of some operations."""

    def __init__(self, kept: Iterable[OpId]) -> None:
        """Keep these operations."""
        self._kept = set(kept)

    def __call__(self, event: MemoryEvent) -> MemoryEvent | None:
        """The event, or `None`."""
        if isinstance(event, e.Begin | e.End | e.Wait | e.Deliver) and event.id is not None:
            return event if event.id in self._kept else None
        return event


def operations_in(steps: Iterable[tuple[int, MemoryEvent]]) -> list[OpId]:
    """The queued operations, in order."""
    return list(dict.fromkeys(event.id for _, event in steps if isinstance(event, e.Begin)))


def standing(steps: Iterable[tuple[int, MemoryEvent]], pool: str | None, page: Page | None) -> set[tuple[object, int]]:
    """One page's names and references, and the operations in flight, after events: each with the line of its event.

    If a part of a trace gives other lines than the whole, it lacks an event that ended one of them. It then shows a
    state that never existed.
    """
    names: dict[object, int] = {}
    flying: dict[object, int] = {}
    references: dict[str, list[int]] = {}
    for line, event in steps:
        match event:
            case e.Begin():
                flying["operation", event.id] = line
            case e.End():
                flying.pop(("operation", event.id), None)
            case e.Take() | e.Share() | e.Release() | e.Transfer():
                _refer(references, line, event, pool, page)
            case e.Publish() if (at := _at(event, pool, page)) is not None:
                names["name", event.keys[at]] = line
            case e.Drop() if (at := _at(event, pool, page)) is not None:
                if event.keys is None:
                    names.clear()
                else:
                    names.pop(("name", event.keys[at]), None)
    held = {(("holder", holder), line) for holder, lines in references.items() for line in lines}
    return held | set(names.items()) | set(flying.items())


def _refer(
    references: dict[str, list[int]],
    line: int,
    event: e.Take | e.Share | e.Release | e.Transfer,
    pool: str | None,
    page: Page | None,
) -> None:
    """Update the references to a page, each kept as the line of the event that made it."""
    everything = isinstance(event, e.Transfer) and event.pages is None
    if not everything and _at(event, pool, page) is None:
        return
    match event:
        case e.Take() | e.Share():
            references.setdefault(event.holder, []).append(line)
        case e.Release() if references.get(event.holder):
            references[event.holder].pop()
        case e.Transfer():
            had = references.pop(event.old, [])
            stays = 0 if everything else max(0, len(had) - 1)
            references[event.old] = had[:stays]
            references.setdefault(event.new, []).extend(had[stays:])


def last_release(steps: Iterable[tuple[int, MemoryEvent]], finding: Finding) -> tuple[int, MemoryEvent] | None:
    """The last release of the page of a finding on owners; for a leak the last release by its holder.

    `steps` are the events before the finding. `None`: there is no such event, or the page has a holder.
    """
    last: tuple[int, MemoryEvent] | None = None
    references: dict[str, list[int]] = {}
    for line, event in steps if finding.about == OWNERS else ():
        if finding.rule == "MEM-LEAK":
            mine = isinstance(event, e.Release) and (event.holder, event.pool) == (finding.holder, finding.pool)
            last = (line, event) if mine else last
        elif isinstance(event, e.Take | e.Share | e.Release | e.Transfer):
            had = any(references.values())
            _refer(references, line, event, finding.pool, finding.page)
            last = None if any(references.values()) else (line, event) if had else last
    return last


def _at(event: Moves, pool: str | None, page: Page | None) -> int | None:
    """The place of the page in the event's pages; `None` if it is not among them."""
    before = 0
    for run in event.pages or () if event.pool == pool else ():
        first, count = run if isinstance(run, tuple) else (run, 1)
        if first == page:
            return before
        if isinstance(first, int) and isinstance(page, int) and first <= page < first + count:
            return before + page - first
        before += count
    return None


def holders_in(event: MemoryEvent) -> list[str]:
    """The holders that an event names; a use of a table names none."""
    match event:
        case e.Transfer():
            return [event.old, event.new]
        case e.Begin():
            uses = [*event.reads, *event.writes, *(use for pair in event.copies for use in pair)]
            return [use.holder for use in uses if use.holder is not None]
    holder = getattr(event, "holder", None)
    return [] if holder is None else [holder]


def pages_in(event: MemoryEvent) -> list[tuple[str, Page]]:
    """The pages that an event names, except those of uses and of lists of figures."""
    match event:
        case e.Take() | e.Share() | e.Release() | e.Publish() | e.Drop() | e.Map():
            return [(event.pool, page) for page in singly(event.pages)]
    return []


def singly(pages: e.Pages) -> list[Page]:
    """Pages one by one."""
    return [
        page
        for run in pages
        for page in (range(run[0], run[0] + min(run[1], 1 << 20)) if isinstance(run, tuple) else (run,))
    ]


PARTS = ("pages", "reads", "writes", "copies", "unwritten", "after", "keepers", "references", "stored", "removed")
"""Fields that can be narrowed."""


def parts(event: MemoryEvent, field: str) -> int:
    """The number of parts of a field; 0 if the event lacks the field, or it cannot be narrowed."""
    value = getattr(event, field, None)
    if field == "pages" and isinstance(value, list):
        if isinstance(event, e.Map) or len(value) > 4096:
            return 0  # positions depend on the order of pages
        return len(singly(value))
    return len(value) if isinstance(value, (list, dict)) else 0


def narrowed(event: Any, field: str, kept: Sequence[int]) -> Any:
    """The event with only some parts of a field. Names of pages are narrowed together with the pages."""
    value = getattr(event, field)
    if isinstance(value, dict):
        items = list(value.items())
        return replace(event, **{field: dict(items[index] for index in kept)})
    if field not in ("pages", "stored"):
        return replace(event, **{field: [value[index] for index in kept]})
    numbers = singly(value)
    changed: dict[str, object] = {field: [numbers[index] for index in kept]}
    keys, labels = getattr(event, "keys", None), getattr(event, "labels", None)
    if keys is not None and len(keys) == len(numbers):
        changed["keys"] = [keys[index] for index in kept]
    if labels and len(labels) % len(numbers) == 0:
        each = len(labels) // len(numbers)
        changed["labels"] = [label for index in kept for label in labels[index * each : (index + 1) * each]]
    return replace(event, **changed)
