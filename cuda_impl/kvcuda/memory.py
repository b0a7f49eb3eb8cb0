"""The device's memory: room for tokens in rows, taken from the ring of free pages, and the launches that write it.

Nothing here waits for the device, reads from it, or allocates, except `check` and a batch that is larger than any
before.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from kvcuda import kernels
from kvcuda.arrays import Ints
from kvcuda.backend import DEVICE
from kvcuda.moves import PageMoves
from kvcuda.staging import Slot
from kvcuda.streams import Event, Streams
from kvcuda.tensors import EXTEND_BLOCK, MAX_JOBS
from kvcuda.words import FIELDS, Fault
from kvspec.events import Config, Refusal

OUT_BUFFERS = 4
"""Prepared batches whose part of `out_cache_loc` is kept at a time."""

JOB_BLOCK = 256


class Copy(NamedTuple):
    """Write positions [start, end) of a fresh row from the arena; both are at page borders."""

    row: int
    start: int
    end: int
    place: int


class DeviceFault(Exception):
    """The debug mode found a fault in the device's memory."""


class DeviceMemory(PageMoves):
    """The memory of one manager: the operations on its tensors, and the slots of new tokens."""

    def __init__(self, config: Config, streams: Streams, *, debug: bool = False, out_tokens: int = 1 << 18) -> None:
        """Everything is free.

        `out_tokens` bounds the new tokens of a batch; for a larger one `out_cache_loc` is allocated anew.

        Raises:
            ValueError: sizes that the device's 32-bit slot indices and job words cannot express.
        """
        super().__init__(config, streams, debug=debug)
        self.batches = 0
        """Batches prepared since the start."""
        self._outs: list[torch.Tensor] = []
        self._make_out(min(out_tokens, config.num_pages * config.page_size))

    def _make_out(self, tokens: int) -> None:
        self.out_tokens = tokens
        self.out_cache_loc: torch.Tensor = torch.zeros(OUT_BUFFERS * tokens, dtype=torch.int32, device=DEVICE)
        """int32 [OUT_BUFFERS * out_tokens]: slot index of each new token, a buffer for each of the last batches."""
        self._outs.append(self.out_cache_loc)  # for good: a forward pass may still read an outgrown one
        self._out_since = self.batches
        self._out_readers: list[Event | None] = [None] * OUT_BUFFERS

    @property
    def oldest_batch(self) -> int:
        """The first batch, as `batches` counts, that `out_cache_loc` still has."""
        return max(self._out_since, self.batches - OUT_BUFFERS)

    def extend(self, rows: Ints, starts: Ints, ends: Ints, copies: Sequence[Copy] = ()) -> int:
        """Give slots to positions [start, end) of each row, and write the matched prefixes of fresh rows.

        All arguments are int64 [batch]. Returns where in `out_cache_loc` the slots of the new tokens begin, request
        after request.

        Raises:
            Refusal: CAP-1, pages or window pages are short; nothing has changed.
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
        entries[:, 3] = pages.cumsum() - pages
        entries[:, 4] = lengths.cumsum() - lengths
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
            kernels.extend_kernel[grid](
                slot.pinned,
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
                config.page_size,
                EXTEND_BLOCK,
                self.debug,
            )

        listener = self.streams.listener
        self._run(slot, work, None if listener is None else listener.extend(slot, self.out_cache_loc))

    def stage_decode(self, rows: Ints, starts: Ints, allocated: Ints, n: int) -> tuple[Ints, int, Slot]:
        """Plan room for the `n` positions of each row from `starts` on; `run_decode` carries the plan out.

        All arrays are int64 [batch]. Returns the new allocated lengths, the index into `out_cache_loc` where the slots
        of the `n` positions of each request begin, and the slot with the kernel's words.

        Raises:
            Refusal: CAP-1, pages or window pages are short; nothing has changed.
            ValueError: a row or a length is out of range; nothing has changed.
        """
        page_size, max_context_len, batch = self.config.page_size, self.config.max_context_len, len(rows)
        self._check_rows(rows)
        ends = starts + n
        if int(starts.min()) < 0 or int(ends.max()) > max_context_len or int(allocated.max()) > max_context_len:
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
        entries[:, 1] = starts
        entries[:, 2] = allocated
        entries[:, 3] = pages
        self.popped += needed
        return grown, out, slot

    def run_decode(self, slot: Slot, batch: int) -> None:
        """Carry a staged decode step out."""

        def work() -> None:
            self.enqueue_decode(slot.pinned, batch)

        listener = self.streams.listener
        self._run(slot, work, None if listener is None else listener.decode(slot, self.out_cache_loc))

    def enqueue_decode(self, words: torch.Tensor, batch: int) -> None:
        """Enqueue the decode kernel on the current stream; `words` is on the device. A CUDA graph captures this."""
        config = self.config
        kernels.decode_kernel[(-(-batch // JOB_BLOCK),)](
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
            config.page_size,
            JOB_BLOCK,
            self.debug,
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

    def _next_out(self, tokens: int) -> int:
        """The index into `out_cache_loc` for the next batch of new tokens."""
        if tokens > self.out_tokens:
            self._make_out(1 << (tokens - 1).bit_length())
        buffer = self.batches % OUT_BUFFERS
        self.batches += 1
        reader = self._out_readers[buffer]
        if reader is not None:
            self.streams.scheduler.wait(reader)
            self._out_readers[buffer] = None
        return buffer * self.out_tokens

    def out_is_read(self, batches: set[int], until: Event) -> None:
        """Note that a launch reads rows, and the slots of these batches, as `batches` counts them, until an event."""
        for batch in batches:
            self._out_readers[batch % OUT_BUFFERS] = until
        self._last_pass = until

    # Debug mode

    def check(self) -> None:
        """Read the fault word. Waits for the device: for the debug mode and for tests.

        Raises:
            DeviceFault: a page was freed twice, handed out twice, or is out of bounds; names the row and the page.
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
