"""What a manager does to memory, in the events of `kvspec.memory`: for the law to judge, if somebody listens.

What an operation reads and writes is taken from the words that its kernel is given, so a wrong word shows, too.

    pool      a page of it
    rows      a row of `req_to_token`; its slots are positions. It changes hands once the moves of its pages are on
              their lane, which are queued before
    tensors   the ring, the arena, what is behind pages: each one slot, and what is there at first counts as written
    buffers   a staged slot's words, `out_cache_loc`, a forward pass's own: written before they are read

Pages themselves are used by forward passes alone, on one lane, and only the device knows which these are.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kvcuda.words import FIELDS, OF_ARENA, REWRITES, Move
from kvspec.events import Config
from kvspec.memory.events import Begin, Event, Pool, Release, Take, Use

ROWS, TENSORS, BUFFERS = "rows", "tensors", "buffers"
_SLOTS = 1 << 40
"""A buffer's length is not told."""

Tell = Callable[[Event], object]


def pools(config: Config) -> dict[str, Pool]:
    """The pools of a manager's events."""
    return {
        ROWS: Pool(config.max_context_len, config.num_rows, first_page=0),
        TENSORS: Pool(keyed=True, writes_told=False),
        BUFFERS: Pool(_SLOTS, keyed=True),
    }


class Uses(NamedTuple):
    """What an operation reads and writes."""

    reads: list[Use]
    writes: list[Use]

    def joined(self, *others: "Uses") -> "Uses":
        """These and others."""
        both = (self, *others)
        return Uses([use for uses in both for use in uses.reads], [use for uses in both for use in uses.writes])


_TENSORS = Use(None, TENSORS, ["ring", "arena", "window_of"])


class Listener:
    """Tells rows as they come and go, words as they are staged, and what each operation uses."""

    def __init__(self, config: Config, tell: Tell) -> None:
        """Everything is free; `tell` is given each event as it happens."""
        self.tell = tell
        self._page_size = config.page_size
        self._stretches = 0
        self._holder: dict[int, str] = {}
        """Who holds each row that is not free."""
        self._moving: set[int] = set()
        """Rows whose pages are queued to be moved."""
        self._handed_on: list[Callable[[], object]] = []
        """What is to be told of them afterwards."""
        self._names: dict[int, str] = {}
        self._staged = 0

    # Events

    def take_row(self, row: int) -> None:
        """A free row is handed out."""

        def take() -> None:
            self._stretches += 1
            self._holder[row] = f"stretch {self._stretches}"
            self.tell(Take(self._holder[row], ROWS, [row]))

        self._hand_on(row, take)

    def free_row(self, row: int) -> None:
        """A row is free again."""
        self._hand_on(row, lambda: self.tell(Release(self._holder.pop(row, "nobody"), ROWS, [row])))

    def _hand_on(self, row: int, tell: Callable[[], object]) -> None:
        if row in self._moving:
            self._handed_on.append(tell)
        else:
            tell()

    def queue_moves(self, rows: Iterable[int]) -> None:
        """Pages of rows are queued to be moved."""
        self._moving.update(rows)

    def carried_out(self) -> None:
        """The moves are on their lane."""
        told, self._handed_on = self._handed_on, []
        self._moving.clear()
        for tell in told:
            tell()

    def stage(self, slot: Any) -> None:
        """The host writes a staged slot's words."""
        self._staged += 1
        self.tell(Begin(f"staged {self._staged}", "host", writes=[self._buffer("words", slot)]))

    # Uses

    def words(self, *slots: Any) -> Uses:
        """An operation reads the words of staged slots."""
        return Uses([self._buffer("words", slot) for slot in slots], [])

    def extend(self, slot: Any, out_cache_loc: Any) -> Uses:
        """Rows of a prefill batch are written: fresh ones from the arena, all of them from the ring."""
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

    def decode(self, slot: Any, out_cache_loc: Any) -> Uses:
        """Rows of a decode batch are written past what is allocated; the slots of all new positions are noted."""
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

    def moves(self, slot: Any, count: int) -> Uses:
        """Pages of rows and of the arena change places; rows are read, and some of them written."""
        uses = self.words(slot).joined(Uses([_TENSORS], [_TENSORS]))
        size = self._page_size
        for kind, row, first, pages, *_ in _entries(slot)[1 : 1 + count]:
            if Move(kind) not in OF_ARENA:
                uses.reads.append(self._row(row, first * size, (first + pages - 1) * size + 1))
            if Move(kind) in REWRITES:
                uses.writes.append(self._row(row, first * size, (first + pages) * size))
        return uses

    def forward(self, rows: Any, starts: Any, ends: Any, outs: Any, out_cache_loc: Any) -> Uses:
        """A forward pass reads rows up to where its requests end, and the slots of their new positions."""
        uses = Uses([], [])
        for row, start, end, out in zip(*map(_ints, (rows, starts, ends, outs)), strict=True):
            uses.reads.append(self._row(row, 0, end))
            uses.reads.append(self._buffer("out", out_cache_loc, out, out + end - start))
        return uses

    def noted(self, loc: Any, starts: Any, lengths: Any) -> list[Use]:
        """Spans of a forward pass's own buffer, where the window slots of its positions are noted."""
        pairs = zip(_ints(starts), _ints(lengths), strict=True)
        return [self._buffer("window_loc", loc, start, start + length) for start, length in pairs if length]

    def look_up(self, slot: Any, rows: Any, ends: Any, noted: list[Use]) -> Uses:
        """What is behind the pages of a forward pass is noted."""
        reads = [self._row(row, 0, end) for row, end in zip(_ints(rows), _ints(ends), strict=True)]
        return self.words(slot).joined(Uses([_TENSORS, *reads], noted))

    def _row(self, row: int, start: int, stop: int) -> Use:
        return Use(None, ROWS, [row], start, stop, holder=self._holder.get(row, "nobody"))

    def _cut(self, row: int, position: int) -> list[Use]:
        """The first slot of the page that a position cuts."""
        first = position - position % self._page_size
        return [self._row(row, first, first + 1)] if first < position else []

    def _buffer(self, kind: str, thing: Any, start: int = 0, stop: int = 0) -> Use:
        """Slots of a buffer, all of them if none are named. Buffers stay for good, so each has a name."""
        name = self._names.setdefault(id(thing), f"{kind} {len(self._names) + 1}")
        return Use(None, BUFFERS, [name], start, stop)


def _ints(numbers: Any) -> list[int]:
    listed: list[int] = numbers.tolist()
    return listed


def _entries(slot: Any) -> list[list[int]]:
    entries: list[list[int]] = slot.words.reshape(-1, FIELDS).tolist()
    return entries
