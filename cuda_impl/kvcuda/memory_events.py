"""A manager's memory operations as events of `kvspec.memory`, for the memory checker.

The reads and writes of an operation are taken from its kernel's words, so a wrong word is found too.

    pool      one page of it
    rows      a row of `req_to_token`; its slots are positions. It changes hands once the queued moves of its pages are
              on their stream
    tensors   the ring, the arena, `window_of`: one slot each, which counts as written at the start
    buffers   a staged slot's words, `out_cache_loc`, a forward pass's own: written before they are read

K/V pages have no events here: only forward passes use them, on one stream, and only the device knows their numbers.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from kvcuda.arrays import Ints, Words
from kvcuda.words import FIELDS, OF_ARENA, REWRITES, Move
from kvspec.events import Config
from kvspec.memory.events import Begin, Event, Pool, Release, Take, Use

ROWS, TENSORS, BUFFERS = "rows", "tensors", "buffers"
NO_HOLDER = "no holder"
"""Stands for the holder of a row without one: an error that the memory checker reports."""
_SLOTS = 1 << 40
"""A length greater than any buffer's: events do not give a buffer's length."""

Emit = Callable[[Event], object]
"""Takes each event as it happens, such as `step` of a memory checker."""


def pools(config: Config) -> dict[str, Pool]:
    """The pools of a manager's events."""
    return {
        ROWS: Pool(config.max_context_len, config.num_rows, first_page=0),
        TENSORS: Pool(keyed=True, writes_reported=False),
        BUFFERS: Pool(_SLOTS, keyed=True),
    }


class Staged(Protocol):
    """Words that the host writes, and that the device reads as a copy."""

    @property
    def words(self) -> Words:
        """The host's side."""
        ...


class Uses(NamedTuple):
    """The memory that an operation reads and writes."""

    reads: list[Use]
    writes: list[Use]

    def joined(self, *others: "Uses") -> "Uses":
        """The uses of both."""
        both = (self, *others)
        return Uses([use for uses in both for use in uses.reads], [use for uses in both for use in uses.writes])


_TENSORS = Use(None, TENSORS, ["ring", "arena", "window_of"])


class Listener:
    """Emits events for rows and staged words, and describes the memory that each operation uses."""

    def __init__(self, config: Config, emit: Emit) -> None:
        """Everything is free; events go to `emit`."""
        self.emit = emit
        self._page_size = config.page_size
        self._residencies = 0
        self._holder: dict[int, str] = {}
        """Row -> its holder, for rows that are not free."""
        self._moving: set[int] = set()
        """Rows whose pages are queued to be moved."""
        self._pending: list[Callable[[], object]] = []
        """Events of these rows, emitted after the moves."""
        self._names: dict[int, str] = {}
        self._staged = 0

    # Events

    def take_row(self, row: int) -> None:
        """A free row is handed out."""

        def take() -> None:
            self._residencies += 1
            self._holder[row] = f"residency {self._residencies}"
            self.emit(Take(self._holder[row], ROWS, [row]))

        self._hand_on(row, take)

    def free_row(self, row: int) -> None:
        """A row is free again."""
        self._hand_on(row, lambda: self.emit(Release(self._holder.pop(row, NO_HOLDER), ROWS, [row])))

    def _hand_on(self, row: int, emit: Callable[[], object]) -> None:
        if row in self._moving:
            self._pending.append(emit)
        else:
            emit()

    def queue_moves(self, rows: Iterable[int]) -> None:
        """Pages of rows are queued to be moved."""
        self._moving.update(rows)

    def carried_out(self) -> None:
        """The moves are on their stream."""
        pending, self._pending = self._pending, []
        self._moving.clear()
        for emit in pending:
            emit()

    def stage(self, slot: Staged) -> None:
        """The host writes a staged slot's words."""
        self._staged += 1
        self.emit(Begin(f"staged {self._staged}", "host", writes=[self._buffer("words", slot)]))

    # Uses

    def words(self, *slots: Staged) -> Uses:
        """An operation reads the words of staged slots."""
        return Uses([self._buffer("words", slot) for slot in slots], [])

    def extend(self, slot: Staged, out_cache_loc: object) -> Uses:
        """A prefill batch writes its rows: fresh ones from the arena, all of them from the ring."""
        header, *jobs = _entries(slot)
        _, count, extends, out = header[:4]
        uses = self.words(slot).joined(Uses([_TENSORS], [_TENSORS]))
        for number, (row, start, end, *_) in enumerate(jobs[:count]):
            uses.writes.append(self._row(row, start, end))
            if number < extends:
                uses.reads.extend(self._cut(row, start))
                uses.writes.append(self._buffer("out", out_cache_loc, out, out + end - start))
                out += end - start
        return uses

    def decode(self, slot: Staged, out_cache_loc: object) -> Uses:
        """A decode batch writes its rows past the allocated length, and the slots of all new positions to `out`."""
        header, *jobs = _entries(slot)
        _, count, n, out = header[:4]
        uses = self.words(slot).joined(Uses([_TENSORS], [_TENSORS]))
        for row, committed, allocated, *_ in jobs[:count]:
            end = committed + n
            uses.writes.append(self._buffer("out", out_cache_loc, out, out + n))
            out += n
            if committed < allocated:
                uses.reads.append(self._row(row, committed, min(allocated, end)))
            if allocated < end:
                uses.reads.extend(self._cut(row, allocated))
                uses.writes.append(self._row(row, max(committed, allocated), end))
        return uses

    def moves(self, slot: Staged, count: int) -> Uses:
        """Moves read rows, and write some of them."""
        uses = self.words(slot).joined(Uses([_TENSORS], [_TENSORS]))
        size = self._page_size
        for kind, row, first, pages, *_ in _entries(slot)[1 : 1 + count]:
            if Move(kind) not in OF_ARENA:
                uses.reads.append(self._row(row, first * size, (first + pages - 1) * size + 1))
            if Move(kind) in REWRITES:
                uses.writes.append(self._row(row, first * size, (first + pages) * size))
        return uses

    def forward(self, rows: Ints, starts: Ints, ends: Ints, outs: Ints, out_cache_loc: object) -> Uses:
        """A forward pass reads rows up to where its requests end, and the slots of their new positions."""
        uses = Uses([], [])
        for row, start, end, out in zip(*map(_ints, (rows, starts, ends, outs)), strict=True):
            uses.reads.append(self._row(row, 0, end))
            uses.reads.append(self._buffer("out", out_cache_loc, out, out + end - start))
        return uses

    def noted(self, loc: object, starts: Ints | Words, lengths: Ints) -> list[Use]:
        """Spans of a forward pass's own buffer, which keeps the window slots of its positions."""
        pairs = zip(_ints(starts), _ints(lengths), strict=True)
        return [self._buffer("window_loc", loc, start, start + length) for start, length in pairs if length]

    def look_up(self, slot: Staged, rows: Ints, ends: Ints, noted: list[Use]) -> Uses:
        """The window pages behind a forward pass's pages are looked up and written to `noted`."""
        reads = [self._row(row, 0, end) for row, end in zip(_ints(rows), _ints(ends), strict=True)]
        return self.words(slot).joined(Uses([_TENSORS, *reads], noted))

    def _row(self, row: int, start: int, stop: int) -> Use:
        return Use(None, ROWS, [row], start, stop, holder=self._holder.get(row, NO_HOLDER))

    def _cut(self, row: int, position: int) -> list[Use]:
        """The first slot of the page that a position cuts."""
        first = position - position % self._page_size
        return [self._row(row, first, first + 1)] if first < position else []

    def _buffer(self, kind: str, thing: object, start: int = 0, stop: int = 0) -> Use:
        """Slots of a buffer, all of them if none are given. Buffers are never freed, so each has one name."""
        name = self._names.setdefault(id(thing), f"{kind} {len(self._names) + 1}")
        return Use(None, BUFFERS, [name], start, stop)


def _ints(numbers: Ints | Words) -> list[int]:
    listed: list[int] = numbers.tolist()
    return listed


def _entries(slot: Staged) -> list[list[int]]:
    entries: list[list[int]] = slot.words.reshape(-1, FIELDS).tolist()
    return entries
