"""The tensors of the device's memory, and the counters that the host keeps of them.

The host knows every *count* of pages by arithmetic, and their positions on the ring and in the arena. Only the device
knows their numbers.
"""

from collections.abc import Callable

import numpy as np
import torch

from kvcuda.arrays import Ints
from kvcuda.backend import DEVICE
from kvcuda.memory_events import Uses
from kvcuda.staging import Slot, Staging
from kvcuda.streams import Streams
from kvcuda.window_pool import WindowPool
from kvcuda.words import FIELDS
from kvspec.events import Config

MAX_PAGE_SIZE = 256
MAX_JOBS = 2048
"""Jobs of a launch; more jobs take several launches."""
EXTEND_BLOCK = 1024
"""Tokens of a block of an extend or copy job."""
MOVE_BLOCK = 512
"""Pages of a block of a move."""
MAX_BLOCKS = 65_535
"""Blocks of a job: CUDA's limit on `gridDim.y`."""
MAX_RING = 1 << 30
"""Pages of a ring: an index before it wraps is less than twice that, in 32 bits."""


def check_sizes(config: Config) -> None:
    """Check the sizes of a memory.

    Raises:
        ValueError: a size exceeds the kernels' 32-bit indices or grids.
    """
    page_size, max_context_len = config.page_size, config.max_context_len
    if not 1 <= page_size <= MAX_PAGE_SIZE:
        raise ValueError(f"page_size {page_size} is not in 1..{MAX_PAGE_SIZE}")
    for pages, name in ((config.num_pages, "pages"), (config.num_window_pages, "window pages")):
        if (pages + 1) * page_size > 2**31:
            raise ValueError(f"{pages} {name} of {page_size} tokens have slot indices past 2^31")
        if pages > MAX_RING:
            raise ValueError(f"{pages} {name} are more than a ring of {MAX_RING}")
    longest = min(MAX_BLOCKS * EXTEND_BLOCK, MAX_BLOCKS * MOVE_BLOCK * page_size)
    if max_context_len > longest:
        raise ValueError(f"max_context_len {max_context_len} is more than a launch's {longest} tokens of a job")
    if config.sliding_window and config.num_states:
        raise ValueError("a sliding window and recurrent states exclude each other")


class DeviceTensors:
    """Rows, the ring of free pages, the arena of cached pages, and the counters of the ring."""

    def __init__(self, config: Config, streams: Streams, *, debug: bool = False) -> None:
        """Everything is free.

        Raises:
            ValueError: a size exceeds the kernels' 32-bit indices or grids.
        """
        check_sizes(config)
        num_pages, num_rows, max_context_len = config.num_pages, config.num_rows, config.max_context_len
        self.config = config
        self.streams = streams
        self.debug = debug
        self.popped = 0
        """Pages that were taken off the ring since the start."""
        self.pushed = 0
        """Pages that were put back on the ring since the start."""

        self.req_to_token: torch.Tensor = torch.zeros((num_rows, max_context_len), dtype=torch.int32, device=DEVICE)
        """int32 [num_rows, max_context_len]: position -> slot index. Zeroed, so even a stray read finds a slot."""
        self.ring: torch.Tensor = torch.arange(1, num_pages + 1, dtype=torch.int32, device=DEVICE)
        """int32 [num_pages]: the free pages are the `available` ones from `popped % num_pages` on."""
        self.arena: torch.Tensor = torch.zeros(num_pages, dtype=torch.int32, device=DEVICE)
        """int32 [num_pages]: the prefix store's pages, at the places of the host's tree."""
        self._page_used: torch.Tensor = torch.zeros(num_pages + 1 if debug else 1, dtype=torch.int32, device=DEVICE)
        self._fault: torch.Tensor = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.windows = WindowPool(config, debug=debug)
        self._staging = Staging((1 + MAX_JOBS) * FIELDS, DEVICE, streams)

    @property
    def available(self) -> int:
        """Free pages."""
        return self.config.num_pages + self.pushed - self.popped

    def _check_rows(self, rows: Ints) -> None:
        # A negative row is a large one without its sign, so one comparison finds both.
        if not len(rows) or int(rows.view(np.uint64).max()) >= self.config.num_rows:
            raise ValueError(f"rows {rows.tolist()} are not in 0..{self.config.num_rows - 1}")

    def _run(self, slot: Slot, work: Callable[[], object], uses: Uses | None) -> None:
        stream = self.streams.scheduler
        stream.run(work, uses)
        stream.record(slot.passed)
