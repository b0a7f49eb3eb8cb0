"""The device's memory: rows, the ring of free pages, the arena of cached ones, and the launches that change them.

The host knows every *number* of pages by arithmetic, and where on the ring and in the arena they lie; which pages
they are only the device knows. Nothing here waits for the device, reads from it, or allocates.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from kvcuda import kernels
from kvcuda.arena import Run
from kvcuda.backend import DEVICE
from kvcuda.lanes import Event, Lanes
from kvcuda.staging import Slot, Staging
from kvcuda.window_pool import WindowPool
from kvcuda.words import FIELDS, Fault, Move
from kvspec.events import Config, Refusal

Ints: TypeAlias = Any
"""A numpy array of int64. Types of numpy, torch and triton are not checked: they need not be installed."""

_OF_ARENA = frozenset({Move.EVICT, Move.DROP})
_RETURNS_PAGES = frozenset({Move.FREE, Move.EVICT, Move.REPLACE, Move.REVIVE})
_RETURNS_SIDES = frozenset({Move.FREE, Move.EVICT, Move.REPLACE, Move.SHED, Move.DROP})
_OF_WINDOWS = frozenset({Move.REVIVE, Move.SHED, Move.DROP})
_REWRITES = frozenset({Move.REPLACE, Move.REVIVE})
_WAITS_FOR = {
    Move.EVICT: {Move.PUBLISH, Move.REVIVE},
    Move.DROP: {Move.PUBLISH, Move.REVIVE},
    Move.PUBLISH: {Move.EVICT},
    Move.REVIVE: {Move.DROP},
}
"""A move on the left is not carried out in one launch with those on the right: one writes what the other reads, the
place of a page in the arena or the window side behind it."""

MAX_PAGE_SIZE = 256
MAX_JOBS = 2048
"""Jobs a launch; what needs more is carried out in several."""
OUT_BUFFERS = 4
"""Prepared batches whose `out_cache_loc` is there at a time."""
EXTEND_BLOCK = 1024
MOVE_BLOCK = 512
LANES = 256


class Copy(NamedTuple):
    """Positions [start, end) of a fresh row are written from the arena; both are at page borders."""

    row: int
    start: int
    end: int
    place: int


class DeviceFault(Exception):
    """The debug mode found that the device's memory is corrupt."""


class DeviceMemory:
    """The tensors of one manager, and the counters that the host keeps of them."""

    def __init__(self, config: Config, lanes: Lanes, *, debug: bool = False, out_tokens: int = 1 << 18) -> None:
        """Everything is free.

        `out_tokens` is how many new tokens a batch may have before `out_cache_loc` is allocated anew.

        Raises:
            ValueError: sizes that the device's 32-bit slot indices and job words cannot express.
        """
        page_size, num_pages, num_rows, max_context_len, _ = _sizes(config)
        if not 1 <= page_size <= MAX_PAGE_SIZE:
            raise ValueError(f"page_size {page_size} is not in 1..{MAX_PAGE_SIZE}")
        if (num_pages + 1) * page_size > 2**31:
            raise ValueError(f"{num_pages} pages of {page_size} tokens have slot indices past 2^31")
        if max_context_len > 2**30:
            raise ValueError(f"max_context_len {max_context_len} is past 2^30")
        if config.sliding_window and config.num_states:
            raise ValueError("a sliding window and recurrent states exclude each other")
        self.config = config
        self.lanes = lanes
        self.debug = debug
        self.popped = 0
        """Pages that were taken off the ring since the start."""
        self.pushed = 0
        """Pages that were put back on it."""

        self.req_to_token: Any = torch.zeros((num_rows, max_context_len), dtype=torch.int32, device=DEVICE)
        """int32 [num_rows, max_context_len]: position -> slot index. Zeroed, so that even a stray read is of a slot."""
        self.ring: Any = torch.arange(1, num_pages + 1, dtype=torch.int32, device=DEVICE)
        """int32 [num_pages]: the free pages are the `available` ones from `popped % num_pages` on."""
        self.arena: Any = torch.zeros(num_pages, dtype=torch.int32, device=DEVICE)
        """int32 [num_pages]: the prefix store's pages, at the places that the host's tree names."""
        self._page_used: Any = torch.zeros(num_pages + 1 if debug else 1, dtype=torch.int32, device=DEVICE)
        self._fault: Any = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.windows = WindowPool(config, debug=debug)
        self.batches = 0
        """Batches prepared since the start."""
        self._outs: list[Any] = []
        self._make_out(min(out_tokens, num_pages * page_size))

        self._staging = Staging((1 + MAX_JOBS) * FIELDS, DEVICE, lanes)
        self.epoch = 1
        """Counts launches of moves: what is queued now will be carried out in the launch of this number."""
        self._moves: Slot | None = None
        self._num_moves = self._widest_move = 0
        self._queued: set[Move] = set()
        self._shed: set[int] = set()
        """Rows that the queued moves take window sides from."""

    def _make_out(self, tokens: int) -> None:
        self.out_tokens = tokens
        self.out_cache_loc: Any = torch.zeros(OUT_BUFFERS * tokens, dtype=torch.int32, device=DEVICE)
        """int32 [OUT_BUFFERS * out_tokens]: slot index of each new token, a buffer for each of the last batches."""
        self._outs.append(self.out_cache_loc)  # for good: a forward pass may still read an outgrown one
        self._out_since = self.batches
        self._out_readers: list[Event | None] = [None] * OUT_BUFFERS

    @property
    def oldest_batch(self) -> int:
        """The first batch, as `batches` counts, that `out_cache_loc` still has."""
        return max(self._out_since, self.batches - OUT_BUFFERS)

    @property
    def available(self) -> int:
        """Free pages."""
        return self.config.num_pages + self.pushed - self.popped

    # Room for tokens

    def extend(self, rows: Ints, starts: Ints, ends: Ints, copies: Sequence[Copy] = ()) -> int:
        """Give slots to positions [start, end) of each row, and write what fresh rows matched.

        All arguments are int64 [batch]. Returns where in `out_cache_loc` the slots of the new tokens begin, request
        after request.

        Raises:
            Refusal: CAP-1, so many pages and window pages are short; nothing has changed.
            ValueError: a row or a length is out of range; nothing has changed.
        """
        page_size = self.config.page_size
        self._check_rows(rows)
        lengths = ends - starts
        if int(starts.min()) < 0 or int(lengths.min()) < 1 or int(ends.max()) > self.config.max_context_len:
            raise ValueError(f"positions are not in 0..{self.config.max_context_len}, or none")
        pages = -(-ends // page_size) + (-starts // page_size)
        needed, tokens, batch = int(pages.sum()), int(lengths.sum()), len(rows)
        if batch > MAX_JOBS:
            raise ValueError(f"{batch} requests are more than a batch of {MAX_JOBS}")
        self._check_room(needed)
        self.flush()
        out = self._next_out(tokens)

        split = max(0, MAX_JOBS - batch)
        for first in range(split, len(copies), MAX_JOBS):
            part = copies[first : first + MAX_JOBS]
            slot = self._staging.take()
            words = slot.words.reshape(-1, FIELDS)
            words[0, :4] = 0, len(part), 0, 0
            words[1 : 1 + len(part), :4] = part
            self._launch_extend(slot, len(part), max(copy.end - copy.start for copy in part))
        copies = copies[:split]
        slot = self._staging.take()
        words = slot.words.reshape(-1, FIELDS)
        jobs = batch + len(copies)
        words[0, :5] = self.popped % self.config.num_pages, jobs, batch, out, self.windows.give(needed)
        entries = words[1 : 1 + batch]
        entries[:, 0] = rows
        entries[:, 1] = starts
        entries[:, 2] = ends
        entries[:, 3] = pages
        longest = int(lengths.max())
        if copies:
            words[1 + batch : 1 + jobs, :4] = copies
            longest = max(longest, *(copy.end - copy.start for copy in copies))
        self._launch_extend(slot, jobs, longest)
        self.popped += needed
        return out

    def _launch_extend(self, slot: Slot, jobs: int, longest: int) -> None:
        config = self.config
        grid = (jobs, -(-longest // EXTEND_BLOCK))

        def work() -> None:
            slot.upload((1 + jobs) * FIELDS)
            kernels.extend_kernel[grid](
                slot.device,
                self.req_to_token,
                self.ring,
                self.arena,
                self.out_cache_loc,
                self._page_used,
                self._fault,
                *self.windows.tensors,
                config.num_pages,
                self.windows.size,
                config.max_context_len,
                P=config.page_size,
                LANES=LANES,
                BLOCK=EXTEND_BLOCK,
                DEBUG=self.debug,
            )

        self._run(slot, work)

    def stage_decode(self, rows: Ints, committed: Ints, allocated: Ints, n: int) -> tuple[Ints, int, Slot]:
        """Plan to make room for `n` positions past the committed ones of each row, for `run_decode` to carry out.

        All arrays are int64 [batch]. Returns the new allocated lengths, where in `out_cache_loc` the slots of the `n`
        positions of each request begin, and the slot that has the kernel's words.

        Raises:
            Refusal: CAP-1, so many pages and window pages are short; nothing has changed.
            ValueError: a row or a length is out of range; nothing has changed.
        """
        page_size, max_context_len, batch = self.config.page_size, self.config.max_context_len, len(rows)
        self._check_rows(rows)
        ends = committed + n
        if int(committed.min()) < 0 or int(ends.max()) > max_context_len or int(allocated.max()) > max_context_len:
            raise ValueError(f"positions are not in 0..{max_context_len}")
        if batch > MAX_JOBS:
            raise ValueError(f"{batch} requests are more than a batch of {MAX_JOBS}")
        grown = np.maximum(allocated, ends)
        pages = -(-grown // page_size) + (-allocated // page_size)
        needed = int(pages.sum())
        self._check_room(needed)
        self.flush()
        out = self._next_out(batch * n)
        slot = self._staging.take()
        words = slot.words.reshape(-1, FIELDS)
        words[0, :5] = self.popped % self.config.num_pages, batch, n, out, self.windows.give(needed)
        entries = words[1 : 1 + batch]
        entries[:, 0] = rows
        entries[:, 1] = committed
        entries[:, 2] = allocated
        entries[:, 3] = pages
        self.popped += needed
        return grown, out, slot

    def run_decode(self, slot: Slot, batch: int) -> None:
        """Carry a staged decode step out."""

        def work() -> None:
            slot.upload((1 + batch) * FIELDS)
            self.enqueue_decode(slot.device, batch)

        self._run(slot, work)

    def enqueue_decode(self, words: Any, batch: int) -> None:
        """Enqueue the decode kernel on the current stream; `words` is on the device. A CUDA graph captures this."""
        config = self.config
        kernels.decode_kernel[(-(-batch // LANES),)](
            words,
            self.req_to_token,
            self.ring,
            self.out_cache_loc,
            self._page_used,
            self._fault,
            *self.windows.tensors,
            config.num_pages,
            self.windows.size,
            config.max_context_len,
            P=config.page_size,
            LANES=LANES,
            DEBUG=self.debug,
        )

    def _check_room(self, needed: int) -> None:
        windows = self.windows
        if needed > self.available or (windows.size and needed > windows.available):
            raise Refusal(
                "CAP-1",
                f"{needed} pages are needed, {self.available} pages and {windows.available} window pages are free",
                pages_short=max(0, needed - self.available),
                window_short=windows.short(needed),
            )

    def _check_rows(self, rows: Ints) -> None:
        # A negative row is a large one without its sign, so one comparison finds both.
        if not len(rows) or int(rows.view(np.uint64).max()) >= self.config.num_rows:
            raise ValueError(f"rows {rows.tolist()} are not in 0..{self.config.num_rows - 1}")

    def _next_out(self, tokens: int) -> int:
        """Where in `out_cache_loc` the next batch of new tokens goes."""
        if tokens > self.out_tokens:
            self._make_out(1 << (tokens - 1).bit_length())
        buffer = self.batches % OUT_BUFFERS
        self.batches += 1
        reader = self._out_readers[buffer]
        if reader is not None:
            self.lanes.scheduler.wait(reader)
            self._out_readers[buffer] = None
        return buffer * self.out_tokens

    def out_is_read(self, batches: set[int], until: Event) -> None:
        """The slots of these batches, counted as `batches` counts, are read by a launch until an event."""
        for batch in batches:
            self._out_readers[batch % OUT_BUFFERS] = until

    # Moves of whole pages: queued, and carried out together before the next batch needs their outcome

    def free(self, row: int, first: int, last: int, cursor: int = 0) -> None:
        """Pages `first..last - 1` of a row go back to the ring; those before page `cursor` have no window side."""
        self._move(Move.FREE, row, first, last - first, 0, cursor - first)

    def free_all(self, rows: Ints, firsts: Ints, lasts: Ints, cursors: Ints | None = None) -> None:
        """Pages `first..last - 1` of each row go back to the ring; int64 [rows] each.

        Those of a row before its page `cursor` have no window side any more.
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
        """The store takes over a row's pages from page `first` on: the arena lists them at `runs`."""
        for place, count in runs:
            self._move(Move.PUBLISH, row, first, count, place)
            first += count

    def replace(self, row: int, first: int, runs: Sequence[Run], cursor: int = 0) -> None:
        """A row's pages from page `first` on go back to the ring; the row names the arena's pages at `runs` instead.

        Those before page `cursor` have no window side. What the arena lists there must not be queued itself: the jobs
        of one launch run in no order.
        """
        for place, count in runs:
            self._move(Move.REPLACE, row, first, count, place, cursor - first)
            first += count

    def revive(self, row: int, first: int, runs: Sequence[Run]) -> None:
        """As `replace`; the window sides of the row's pages move behind the arena's, which have none."""
        for place, count in runs:
            self._move(Move.REVIVE, row, first, count, place)
            first += count

    def shed(self, row: int, first: int, last: int) -> None:
        """The window sides of pages `first..last - 1` of a row go back to their ring; the pages stay."""
        self._move(Move.SHED, row, first, last - first, 0)

    def evict(self, runs: Sequence[Run], *, sided: bool = True) -> None:
        """The arena's pages at `runs` go back to the ring; `sided` tells whether they have window sides."""
        for place, count in runs:
            self._move(Move.EVICT, 0, 0, count, place, 0 if sided else count)

    def drop(self, runs: Sequence[Run]) -> None:
        """The window sides of the arena's pages at `runs` go back to their ring; the pages stay."""
        for place, count in runs:
            self._move(Move.DROP, 0, 0, count, place)

    def _move(self, kind: Move, row: int, first: int, count: int, place: int, bare: int = 0) -> None:
        config = self.config
        if count <= 0:
            return
        if not 0 <= row < config.num_rows:
            raise ValueError(f"row {row} is not in 0..{config.num_rows - 1}")
        if first < 0 or (kind not in _OF_ARENA and (first + count - 1) * config.page_size >= config.max_context_len):
            raise ValueError(f"pages {first}..{first + count - 1} of row {row} are past its {config.max_context_len}")
        if place < 0 or place + count > config.num_pages:
            raise ValueError(f"places {place}..{place + count - 1} are not in the arena")
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
            or (self._shed and kind in _REWRITES and row in self._shed)
        ):
            self.flush()
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

    def _open_moves(self) -> Any:
        if self._moves is None:
            self._moves = self._staging.take()
        return self._moves.words.reshape(-1, FIELDS)

    def flush(self) -> None:
        """Carry the queued moves out, in one launch."""
        slot, jobs = self._moves, self._num_moves
        if slot is None or not jobs:
            return
        grid = (jobs, -(-self._widest_move // MOVE_BLOCK))
        self._moves = None
        self._num_moves = self._widest_move = 0
        self._queued.clear()
        self._shed.clear()
        self.epoch += 1
        config = self.config

        def work() -> None:
            slot.upload((1 + jobs) * FIELDS)
            kernels.move_kernel[grid](
                slot.device,
                self.req_to_token,
                self.ring,
                self.arena,
                self._page_used,
                self._fault,
                *self.windows.tensors,
                config.num_pages,
                self.windows.size,
                config.max_context_len,
                P=config.page_size,
                BLOCK=MOVE_BLOCK,
                DEBUG=self.debug,
            )

        self._run(slot, work)

    def _run(self, slot: Slot, work: Any) -> None:
        lane = self.lanes.scheduler
        lane.run(work)
        lane.record(slot.passed)

    # Debug mode

    def check(self) -> None:
        """Read the fault word. Waits for the device: for the debug mode and for tests.

        Raises:
            DeviceFault: a page was freed twice, handed out twice, or is no page; names the row and the page.
        """
        self.flush()
        word = int(self._fault.item())
        if not word:
            return
        kind, row, page = Fault(word >> 60), (word >> 32 & 0xFFFFFFF) - 1, word & 0xFFFFFFFF
        what = {
            Fault.DOUBLE_FREE: "was freed, but is free already",
            Fault.DOUBLE_USE: "was handed out, but is in use",
            Fault.PAGE_BOUNDS: f"is not in 1..{self.config.num_pages}",
            Fault.WINDOW_DOUBLE_FREE: "was freed, but is free already",
            Fault.WINDOW_DOUBLE_USE: "was handed out, but is in use",
            Fault.WINDOW_BOUNDS: f"is not in 1..{self.windows.size}",
            Fault.WINDOW_KEPT: "was given a window side, but still has one",
        }[kind]
        of_window = kind in (Fault.WINDOW_DOUBLE_FREE, Fault.WINDOW_DOUBLE_USE, Fault.WINDOW_BOUNDS)
        name = "window page" if of_window else "page"
        raise DeviceFault(f"{name} {page - (page >> 31 << 32)} of row {row} {what}")


def _sizes(config: Config) -> tuple[int, int, int, int, bool]:
    return config.page_size, config.num_pages, config.num_rows, config.max_context_len, config.prefix_cache
