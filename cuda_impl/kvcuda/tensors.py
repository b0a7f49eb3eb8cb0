"""The tensors of the device's memory, and the counters that the host keeps of them.

The host knows every *number* of pages by arithmetic, and where on the ring and in the arena they lie; which pages
they are only the device knows.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from kvcuda.backend import DEVICE
from kvcuda.lanes import Lanes
from kvcuda.staging import Slot, Staging
from kvcuda.telling import Uses
from kvcuda.window_pool import WindowPool
from kvcuda.words import FIELDS
from kvspec.events import Config

Ints: TypeAlias = Any
"""A numpy array of int64. Types of numpy, torch and triton are not checked: they need not be installed."""

MAX_PAGE_SIZE = 256
MAX_JOBS = 2048
"""Jobs a launch; what needs more is carried out in several."""


class DeviceTensors:
    """Rows, the ring of free pages, the arena of cached ones, and how far the rings have been turned."""

    def __init__(self, config: Config, lanes: Lanes, *, debug: bool = False) -> None:
        """Everything is free.

        Raises:
            ValueError: sizes that the device's 32-bit slot indices and job words cannot express.
        """
        page_size, num_pages = config.page_size, config.num_pages
        num_rows, max_context_len = config.num_rows, config.max_context_len
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
        self._staging = Staging((1 + MAX_JOBS) * FIELDS, DEVICE, lanes)

    @property
    def available(self) -> int:
        """Free pages."""
        return self.config.num_pages + self.pushed - self.popped

    def _check_rows(self, rows: Ints) -> None:
        # A negative row is a large one without its sign, so one comparison finds both.
        if not len(rows) or int(rows.view(np.uint64).max()) >= self.config.num_rows:
            raise ValueError(f"rows {rows.tolist()} are not in 0..{self.config.num_rows - 1}")

    def _run(self, slot: Slot, work: Callable[[], object], uses: Uses | None) -> None:
        lane = self.lanes.scheduler
        lane.run(work, uses)
        lane.record(slot.passed)
