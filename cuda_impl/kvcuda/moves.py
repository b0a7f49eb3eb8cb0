"""Moves of whole pages: queued when they happen, and carried out together before the next batch needs their result."""

from collections.abc import Sequence

import numpy as np

from kvcuda import kernels
from kvcuda.arena import Run
from kvcuda.arrays import Ints, Words
from kvcuda.staging import Slot
from kvcuda.streams import Event, Streams
from kvcuda.tensors import MAX_BLOCKS, MAX_JOBS, MOVE_BLOCK, DeviceTensors
from kvcuda.words import FIELDS, OF_ARENA, REWRITES, Move
from kvspec.events import Config

_RETURNS_PAGES = frozenset({Move.FREE, Move.EVICT, Move.REPLACE, Move.REVIVE})
_RETURNS_SIDES = frozenset({Move.FREE, Move.EVICT, Move.REPLACE, Move.SHED, Move.DROP})
_OF_WINDOWS = frozenset({Move.REVIVE, Move.SHED, Move.DROP})
_WAITS_FOR = {
    Move.EVICT: {Move.PUBLISH, Move.REVIVE},
    Move.DROP: {Move.PUBLISH, Move.REVIVE},
    Move.PUBLISH: {Move.EVICT},
    Move.REVIVE: {Move.DROP},
}
"""A move on the left is not in one launch with those on the right: one writes the arena's entry or the window side that
the other reads."""


class PageMoves(DeviceTensors):
    """The queue of moves between rows, ring and arena, and the launch that carries it out."""

    def __init__(self, config: Config, streams: Streams, *, debug: bool = False) -> None:
        """Everything is free, and nothing is queued.

        Raises:
            ValueError: sizes that the device's 32-bit slot indices and job words cannot express.
        """
        super().__init__(config, streams, debug=debug)
        self.epoch = 1
        """Counts launches of moves: the queued moves will be carried out in the launch of this number."""
        self._moves: Slot | None = None
        self._num_moves = self._widest_move = 0
        self._queued: set[Move] = set()
        self._shed: set[int] = set()
        """Rows that the queued moves take window sides from."""
        self._last_pass: Event | None = None
        """The end of the last launched forward pass."""

    def free(self, row: int, first: int, last: int, cursor: int = 0) -> None:
        """Put pages `first..last - 1` of a row back on the ring; those before page `cursor` have no window side."""
        self._move(Move.FREE, row, first, last - first, 0, cursor - first)

    def free_all(self, rows: Ints, firsts: Ints, lasts: Ints, cursors: Ints | None = None) -> None:
        """Put pages `first..last - 1` of each row back on the ring; int64 [rows] each.

        Pages of a row before its page `cursor` have no window side.
        """
        for begin in range(0, len(rows), MAX_JOBS):
            part = slice(begin, begin + MAX_JOBS)
            if self._num_moves + len(rows[part]) > MAX_JOBS:
                self.flush()
            self._free_part(rows[part], firsts[part], lasts[part], None if cursors is None else cursors[part])

    def _free_part(self, rows: Ints, firsts: Ints, lasts: Ints, cursors: Ints | None) -> None:
        config = self.config
        counts = lasts - firsts
        self._check_rows(rows)
        if (
            int(firsts.min()) < 0
            or int(counts.min()) < 0
            or int(lasts.max()) * config.page_size >= (config.max_context_len + config.page_size)
        ):
            raise ValueError(f"pages are not in 0..{config.max_context_len // config.page_size}")
        ends = np.cumsum(counts)
        self._check_return(int(ends[-1]))
        first = 1 + self._num_moves
        entries = self._open_moves()[first : first + len(rows)]
        if self.windows.size:
            bare = counts * 0 if cursors is None else np.clip(cursors - firsts, 0, counts)
            side_ends = np.cumsum(counts - bare)
            entries[:, 6] = bare
            tail = self.windows.take_back(int(side_ends[-1]))
            entries[:, 7] = (tail + side_ends - (counts - bare)) % self.windows.size
        if self.streams.listener is not None:
            self.streams.listener.queue_moves(rows.tolist())
        entries[:, 0] = Move.FREE
        entries[:, 1] = rows
        entries[:, 2] = firsts
        entries[:, 3] = counts
        entries[:, 4] = (self.pushed + ends - counts) % config.num_pages
        entries[:, 5] = 0
        self._num_moves += len(rows)
        self._widest_move = max(self._widest_move, int(counts.max()))
        self.pushed += int(ends[-1])

    def publish(self, row: int, first: int, runs: Sequence[Run]) -> None:
        """List a row's pages from page `first` on in the arena, at `runs`: they become the store's."""
        for place, count in runs:
            self._move(Move.PUBLISH, row, first, count, place)
            first += count

    def replace(self, row: int, first: int, runs: Sequence[Run], cursor: int = 0) -> None:
        """Put a row's pages from page `first` on back on the ring; the row lists the arena's pages at `runs` instead.

        Those before page `cursor` have no window side. The arena's entries there must not be queued themselves, because
        the jobs of one launch have no order.
        """
        for place, count in runs:
            self._move(Move.REPLACE, row, first, count, place, cursor - first)
            first += count

    def revive(self, row: int, first: int, runs: Sequence[Run]) -> None:
        """As `replace`, but the window sides of the row's pages move behind the arena's pages, which have none."""
        for place, count in runs:
            self._move(Move.REVIVE, row, first, count, place)
            first += count

    def shed(self, row: int, first: int, last: int) -> None:
        """Put the window sides of pages `first..last - 1` of a row back on their ring; the row keeps the pages."""
        self._move(Move.SHED, row, first, last - first, 0)

    def evict(self, runs: Sequence[Run], *, sided: bool = True) -> None:
        """Put the arena's pages at `runs` back on the ring, with their window sides if they are `sided`."""
        for place, count in runs:
            self._move(Move.EVICT, 0, 0, count, place, 0 if sided else count)

    def drop(self, runs: Sequence[Run]) -> None:
        """Put the window sides of the arena's pages at `runs` back on their ring; the arena keeps the pages."""
        for place, count in runs:
            self._move(Move.DROP, 0, 0, count, place)

    def _move(self, kind: Move, row: int, first: int, count: int, place: int, bare: int = 0) -> None:
        config = self.config
        if count <= 0:
            return
        if not 0 <= row < config.num_rows:
            raise ValueError(f"row {row} is not in 0..{config.num_rows - 1}")
        if first < 0 or (kind not in OF_ARENA and (first + count - 1) * config.page_size >= config.max_context_len):
            raise ValueError(f"pages {first}..{first + count - 1} of row {row} are past its {config.max_context_len}")
        if place < 0 or place + count > config.num_pages:
            raise ValueError(f"places {place}..{place + count - 1} are not in the arena")
        if count > MAX_BLOCKS * MOVE_BLOCK:
            raise ValueError(f"{count} pages are more than a launch's {MAX_BLOCKS * MOVE_BLOCK} of a job")
        returned = count if kind in _RETURNS_PAGES else 0
        if returned:
            self._check_return(count)
        window_at = 0
        if self.windows.size:
            bare = min(max(bare, 0), count)
            window_at = self.windows.take_back(count - bare if kind in _RETURNS_SIDES else 0)
        elif kind in _OF_WINDOWS:
            raise ValueError("there is no sliding window")
        if (
            self._num_moves == MAX_JOBS
            or (kind in _WAITS_FOR and not self._queued.isdisjoint(_WAITS_FOR[kind]))
            or (self._shed and kind in REWRITES and row in self._shed)
        ):
            self.flush()
        if self.streams.listener is not None and kind not in OF_ARENA:
            self.streams.listener.queue_moves([row])
        words = self._open_moves()
        self._queued.add(kind)
        if kind == Move.SHED:
            self._shed.add(row)
        self._num_moves += 1
        words[self._num_moves] = kind, row, first, count, self.pushed % config.num_pages, place, bare, window_at
        if count > self._widest_move:
            self._widest_move = count
        self.pushed += returned

    def _check_return(self, count: int) -> None:
        if self.available + count > self.config.num_pages:
            raise ValueError(f"{count} pages go back, but only {self.config.num_pages - self.available} are in use")

    def _open_moves(self) -> Words:
        if self._moves is None:
            self._moves = self._staging.take()
        return self._moves.words.reshape(-1, FIELDS)

    def flush(self) -> None:
        """Carry out the queued moves, in one launch."""
        slot, jobs = self._moves, self._num_moves
        if slot is None or not jobs:
            return
        if self._last_pass is not None and not self._queued.isdisjoint(REWRITES):
            self.streams.scheduler.wait(self._last_pass)
            self._last_pass = None
        grid = (jobs, -(-self._widest_move // MOVE_BLOCK))
        self._moves = None
        self._num_moves = self._widest_move = 0
        self._queued.clear()
        self._shed.clear()
        self.epoch += 1
        config = self.config

        def work() -> None:
            kernels.move_kernel[grid](
                slot.pinned,
                self.req_to_token,
                self.ring,
                self.arena,
                self._page_used,
                self._fault,
                *self.windows.tensors,
                config.num_pages,
                self.windows.size,
                config.max_context_len,
                config.page_size,
                MOVE_BLOCK,
                self.debug,
            )

        listener = self.streams.listener
        self._run(slot, work, None if listener is None else listener.moves(slot, jobs))
        if listener is not None:
            listener.carried_out()
