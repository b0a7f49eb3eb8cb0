"""The memory events of each operation, and the memory checker that follows them.

A `WatchedState` (`notes`) has a `Memory`. Each change of the state (take pages, release them, publish, drop, lend, ...)
calls the method of the same name here, which emits the memory events of the change. A step that conforms at the request
level never breaks the memory model: the explorer, the fuzzer and all other users of the oracle check that.

    pool      a page of it                          held by
    pages     a page of tokens                      the record; the owner of a lock holds all pages of its prefix
    rows      a row; its slots are positions,       the record, or pinned for the launches that read it still
              which name pages
    window    a window page                         the record, or the owner of a window lock on it
    sides     one page: slot p - 1 names the        the engine
              window page behind page p
    states    a slot for a recurrent state          the record or the waiting request; a lock on its prefix pins it

A holder is a record, until a request hands it to a session slot or the other way round. Forward passes are operations
of one stream. Rows and the sides are written by operations of that stream, too, so no write has to wait for a launch in
flight that reads them; with `writes_on` set to "host" the memory checker shows which writes would have to. Numbers
that no answer reported are negative, and are pages like others.
"""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from kvspec.events import Config
from kvspec.memory import Finding
from kvspec.memory.events import (
    Begin,
    Drop,
    End,
    EndHolder,
    Event,
    Idle,
    Map,
    MemoryEvent,
    Page,
    Pages,
    Pool,
    Publish,
    Release,
    Share,
    Take,
    Transfer,
    Unify,
    Unmap,
    Use,
)
from kvspec.model.state import State
from kvspec.pages import ceil_align, ceil_pages
from kvspec.rules import Violation
from kvspec.store import ROOT, Publication
from kvspec.tokens import PrefixKey
from kvspec.window import attended_from

FORWARD = "forward"
"""The stream of the forward passes."""
ENGINE = "engine"
LAUNCHES = "launches in flight"
_NONE: Pages = []
_INVENTED = 1 << 40
"""Negative numbers down to this one stand for pages that were not reported."""


class Watching(Protocol):
    """A memory checker of some pools. It can be pickled, because exploring continues from copies."""

    def step(self, event: Event, /) -> Sequence[Finding]:
        """Check one event and apply it. Returns its findings, usually none."""

    def names(self, pool: str) -> dict[str, Page]:
        """Name -> the page of a pool that is published under it."""


MakeChecker = Callable[[Mapping[str, Pool]], Watching]
"""Makes a memory checker of free pools."""

Computed = tuple[int, int, int]
"""A record, and the first and end position that a launch computes."""


def pools(config: Config) -> dict[str, Pool]:
    """The pools of a memory manager of the given sizes."""

    def pool(first: int, count: int, page_size: int = 1, label_size: int = 0) -> Pool:
        padding = [0] if first else []
        return Pool(page_size, _INVENTED + first + count, -_INVENTED, label_size, padding)

    size = config.page_size
    made = {
        "pages": pool(1, config.num_pages, size),
        "rows": pool(0, config.num_rows, ceil_align(config.max_context_len, size), size),
    }
    if config.sliding_window:
        made["window"] = pool(1, config.num_window_pages, size)
        made["sides"] = Pool(config.num_pages, 1, label_size=1)
    if config.num_states:
        made["states"] = pool(1, config.num_states)
    return made


class Names(NamedTuple):
    """The names of a record in memory events."""

    holder: str
    table: str
    row: str
    """The table that is its row."""


class Memory:
    """The memory below a model: the events of the current step, and the checker that has followed all steps."""

    def __init__(self, config: Config, checker: MakeChecker, writes_on: str = FORWARD) -> None:
        """Begin with free pools. `writes_on` is the stream on which rows and window sides are written."""
        self.config = config
        self.checker = checker(pools(config))
        self.pending: list[MemoryEvent] = []
        """The events of the current step so far."""
        self.writes_on = writes_on
        self._writes: list[Use] = []
        """The writes of rows and window sides in the current step."""
        self._made = 0
        self.names: dict[int, Names] = {}
        """Record -> its names."""
        self._labels: dict[int, str] = {}
        """Page -> its content: the record and page index for which it was taken. A published page keeps it."""
        self._packed = b""
        """The whole memory as bytes, until the first change after a copy: exploring copies a state often."""
        if config.sliding_window:
            self.pending.append(Take(ENGINE, "sides", [1]))

    def copy(self) -> "Memory":
        """An independent copy."""
        self._packed = self._packed or pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
        copied: Memory = pickle.loads(self._packed)
        return copied

    def check(self) -> None:
        """Check the pending events by the memory model.

        Raises:
            Violation: a rule of the memory model is broken.
        """
        self._flush()
        self._packed = b""
        pending, self.pending = self.pending, []
        for event in pending:
            for finding in self.checker.step(event):
                where = ", ".join(
                    part for part in (finding.pool, finding.page is not None and f"page {finding.page}") if part
                )
                raise Violation(finding.code, where or "the engine", observed=event, finding=finding)

    def _flush(self) -> None:
        """Queue the writes to rows and window sides as one operation."""
        if self._writes:
            self._queue(self._writes, stream=self.writes_on)
            self._writes = []

    def _queue(self, writes: list[Use], reads: list[Use] | None = None, stream: str = FORWARD) -> None:
        """Queue an operation that is no launch. Later launches complete after it."""
        self._made += 1
        self.pending.append(Begin(f"op {self._made}", stream, reads or [], writes, reads_own_writes=False))

    def _write_row(self, record: int, index: int, pages: list[int]) -> None:
        size = self.config.page_size
        start, stop = index * size, (index + len(pages)) * size
        self._writes.append(Use(self.names[record].row, start=start, stop=stop, labels=list(map(str, pages))))

    def _side(self, page: int, side: int) -> Use:
        return Use(None, "sides", [1], page - 1, page, [str(side)], ENGINE)

    def _write_sides(self, sides: Iterable[tuple[int, int]]) -> None:
        self._writes += [self._side(page, side) for page, side in sides if page > 0]

    def take(self, holder: str, pool: str, pages: list[int]) -> None:
        """Free pages of a pool are handed out."""
        if pages:
            self.pending.append(Take(holder, pool, [*pages]))

    def release(self, holder: str, pool: str, pages: Iterable[int]) -> None:
        """A holder releases pages."""
        listed: Pages = [*pages]
        if listed:
            self.pending.append(Release(holder, pool, listed))

    def _share(self, holder: str, pool: str, found: dict[int, PrefixKey], *, pin: bool = False) -> None:
        if found:
            self.pending.append(Share(holder, pool, [*found], [key.hex() for key in found.values()], pin))

    def begin(self, state: State, record: int, row: int, locked: PrefixKey) -> None:
        """A record begins with a row and a locked prefix."""
        self.names[record] = names = Names(f"{record}.1", f"table {record}", f"row {record}")
        self.take(names.holder, "rows", [row])
        self.pending.append(Map(names.row, names.holder, "rows", 0, [row]))
        path = {state.store.pages[key]: key for key in state.store.keys(locked)}
        self._share(names.holder, "pages", path)
        self.pending.append(Map(names.table, names.holder, "pages", 0, [*path], self._labels_of(path)))
        if path:
            self._write_row(record, 0, list(path))
        self._lock(state, names.holder, ROOT, locked)

    def _lock(self, state: State, holder: str, old: PrefixKey, new: PrefixKey, own: Iterable[int] = ()) -> None:
        """A lock moves, with the window pages and states that it covers. `own` are window pages that were private."""
        if not (self.config.sliding_window or self.config.num_states):
            return
        before, after = reach(state, old) | dict.fromkeys(own, ROOT), reach(state, new)
        self._share(holder, "window", {side: key for side, key in after.items() if side not in before})
        self.release(holder, "window", [side for side in before if side not in after])
        states = state.store.states
        self.release(holder, "states", [states[old]] if old in states else ())
        self._share(holder, "states", {states[new]: new} if new in states else {}, pin=True)

    def take_pages(self, record: int, index: int, pages: list[int], sides: list[int]) -> None:
        """Free pages, and their window sides, become a record's, from page index `index` on."""
        holder, table, _ = self.names[record]
        taken_for = f"{record}/"
        labels = [f"{taken_for}{number}" for number in range(index, index + len(pages))]
        self._labels.update(zip(pages, labels, strict=True))
        listed: Pages = [*pages]
        self.pending += (Take(holder, "pages", listed), Map(table, holder, "pages", index, listed, labels))
        self._write_row(record, index, pages)
        if sides:
            self.take(holder, "window", sides)
            self._write_sides(zip(pages, sides, strict=True))

    def release_pages(self, record: int, pages: list[int], sides: dict[int, int]) -> None:
        """A record's private pages, and the window sides that some of them have, become free."""
        self.release(self.names[record].holder, "pages", pages)
        self.release_sides(record, sides)

    def release_sides(self, record: int, sides: dict[int, int]) -> None:
        """The window pages of a record's pages become free."""
        self.release(self.names[record].holder, "window", sides.values())
        self._write_sides((page, 0) for page in sides)

    def cut(self, record: int, index: int) -> None:
        """A record's block table ends before page index `index`."""
        self.pending.append(Unmap(self.names[record].table, index))

    def transfer(self, record: int) -> None:
        """A request hands its record to the session slot, or the other way round."""
        holder, table, row = self.names[record]
        name, _, stretch = holder.partition(".")
        self.names[record] = names = Names(f"{name}.{int(stretch) + 1}", table, row)
        self.pending.append(Transfer(holder, names.holder))

    def take_states(self, state: State, record: int, early: Mapping[int, object], new: list[int]) -> None:
        """A record gets its state slots, `early` from its waiting request, and begins from a cached state or none."""
        holder, found = self.names[record].holder, state.store.states.get(state.records[record].locked)
        for slot, req in early.items():
            self.pending.append(Transfer(waiting(str(req)), holder, "states", [slot]))
        self.take(holder, "states", new)
        reads = [] if found is None else [Use(None, "states", [found], holder=holder)]
        self._queue([Use(None, "states", [*early, *new], holder=holder)], reads)

    def publish_state(self, state: State, record: int, key: PrefixKey, slot: int, new: int | None) -> None:
        """The store takes a state slot of a record; `new` is the free one that the record gets in exchange."""
        holder = self.names[record].holder
        if new is not None:
            self.take(holder, "states", [new])
            self._queue([Use(None, "states", [new], holder=holder)])
        self.pending.append(Publish("states", [slot], [key.hex()]))
        self.release(holder, "states", [slot])
        for other, found in state.records.items():
            if found.locked == key:
                self._share(self.names[other].holder, "states", {slot: key}, pin=True)

    def launch(self, state: State, launch: int, parts: list[Computed]) -> None:
        """A forward pass computes positions `start` to `end` of some records, and reads all before them."""
        *copies, (reads, writes) = self.passes(parts)
        for rows, _ in copies:
            self._queue([], rows, self.writes_on)
        if self.config.sliding_window:
            for record, start, end in parts:
                self._window(state, record, start, end, reads, writes)
        if self.config.num_states:
            held = [(state.records[record].states, self.names[record].holder) for record, _, _ in parts]
            states = [Use(None, "states", [*slots], holder=holder) for slots, holder in held]
            self._queue(states, states)
        self.pending.append(Begin(launch, FORWARD, reads, writes))

    def passes(self, parts: list[Computed]) -> list[tuple[list[Use], list[Use]]]:
        """The reads and writes of a launch through tables: for its copy of rows, if any, and for the launch itself."""
        size = self.config.page_size  # the entries of a page are written together, and so are read
        rows = [Use(self.names[record].row, stop=ceil_align(end, size)) for record, _, end in parts]
        tables = [self.names[record].table for record, _, _ in parts]
        reads = [Use(table, None, _NONE, 0, end) for table, (_, _, end) in zip(tables, parts, strict=True)]
        writes = [Use(table, None, _NONE, start, end) for table, (_, start, end) in zip(tables, parts, strict=True)]
        if self.config.rows_read == "at_launch" or not self.config.num_rows:
            return [(rows, []), (reads, writes)]
        return [(rows + reads, writes)]

    def _window(self, state: State, record: int, start: int, end: int, reads: list[Use], writes: list[Use]) -> None:
        size, holder = self.config.page_size, self.names[record].holder
        nearest = attended_from(start, self.config.sliding_window)
        indices = range(nearest // size, ceil_pages(end, size))
        pages = [state.tables[record][index] for index in indices]
        sides = [state.window_of.get(page, 0) for page in pages]
        labels = self._labels_of(pages)
        base = indices.start * size
        reads.append(Use(None, "window", [*sides], nearest - base, end - base, labels, holder))
        reads += [self._side(page, side) for page, side in zip(pages, sides, strict=True) if page > 0]
        first = start // size - indices.start
        writes.append(
            Use(None, "window", [*sides[first:]], start % size, end - start // size * size, labels[first:], holder)
        )

    def _labels_of(self, pages: Iterable[int]) -> list[str]:
        return [self._labels[page] for page in pages]

    def complete(self, launch: int, rows: list[int]) -> None:
        """The host has seen a launch and all earlier operations complete; withheld `rows` are freed."""
        self.pending.append(End(launch))
        self.release(LAUNCHES, "rows", rows)

    def publish(
        self, state: State, record: int, first: int, plan: Publication, old: PrefixKey, tombstones: list[int]
    ) -> None:
        """A record's pages from page index `first` on became the store's, or the store's pages replace them."""
        holder, table, _ = self.names[record]
        keys = plan.keys
        if not keys:
            return
        pages = state.tables[record][first : first + len(keys)]
        self.pending += [Unify(self._labels[own], self._labels[page]) for page, own in plan.revived]
        for (key, _), tombstone in zip(plan.exchanged, tombstones, strict=True):
            self.pending.append(Drop("pages", [tombstone], [key.hex()]))
        taken = dict([*plan.exchanged, *zip(keys[len(plan.shared) :], plan.inserted, strict=True)])
        self._publish("pages", taken, self._labels_of(taken.values()))
        known = {page: key for page, key in zip(plan.shared, keys, strict=False) if taken.get(key) != page}
        self._share(holder, "pages", known)
        if known:
            self.pending.append(Map(table, holder, "pages", first, [*plan.shared], self._labels_of(plan.shared)))
            self._write_row(record, first, plan.shared)
        revived = dict(plan.revived)
        sides = {
            key: state.window_of[page]
            for key, page in zip(keys, pages, strict=True)
            if page in state.window_of and (key in taken or page in revived)
        }
        self._publish("window", sides, self._labels_of(state.window_owner[side] for side in sides.values()))
        for key, side in sides.items():
            tombstone = state.window_owner[side]
            if tombstone in revived:
                self._write_sides([(revived[tombstone], 0), (tombstone, side)])
                for other, found in state.records.items():  # records with window locks that reach it
                    if other != record and key in set(state.store.in_reach(found.locked)):
                        self._share(self.names[other].holder, "window", {side: key})
        self._lock(state, holder, old, state.records[record].locked, sides.values())

    def _publish(self, pool: str, taken: dict[PrefixKey, int], labels: list[str]) -> None:
        if taken:
            self.pending.append(Publish(pool, [*taken.values()], [key.hex() for key in taken], labels))

    def drop(self, pool: str, keys: Mapping[PrefixKey, int]) -> None:
        """Pages leave the store."""
        if keys:
            self.pending.append(Drop(pool, [*keys.values()], [key.hex() for key in keys]))

    def drop_sides(self, pages: Mapping[object, int], sides: Mapping[int, int]) -> None:
        """Pages of the store, by their prefixes, lose their window sides."""
        self.drop("window", {key: sides[page] for key, page in pages.items() if isinstance(key, bytes)})
        self._write_sides((page, 0) for page in pages.values())

    def forget(
        self, state: State, record: int, row: int, locked: PrefixKey, states: tuple[int, ...], sides: dict[int, int]
    ) -> None:
        """A record ends: its tables, its pages, its lock, its row, its state slots; `sides` of its private pages."""
        self.release_sides(record, sides)
        holder, table, own_row = self.names.pop(record)
        self._flush()
        self.pending += (Unmap(table), Unmap(own_row))
        self.release(holder, "pages", state.tables[record])
        self._lock(state, holder, locked, ROOT)
        self.release(holder, "states", states)
        if row in state.readers:
            self.pending.append(Share(LAUNCHES, "rows", [row], pin=True))
        self.release(holder, "rows", [row])
        self.pending.append(EndHolder(holder))

    def idle(self, state: State) -> None:
        """No request has a record."""
        keepers = [ENGINE, LAUNCHES, *map(waiting, state.requests)]
        self.pending.append(Idle(keepers + [self.names[record].holder for record in state.records]))


def waiting(req: str) -> str:
    """The holder name of a request without a record."""
    return f"waiting {req}"


def reach(state: State, locked: PrefixKey) -> dict[int, PrefixKey]:
    """The window pages that a lock covers."""
    sides = ((state.window_of.get(state.store.pages[key]), key) for key in state.store.in_reach(locked))
    return {side: key for side, key in sides if side is not None}
