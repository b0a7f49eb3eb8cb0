"""The second pool of a sliding window: each page of the first pool has a window page behind it, until that is freed."""

from typing import Any

import torch

from kvcuda.backend import DEVICE
from kvspec.events import Config


class WindowPool:
    """The device's tensors of the window pool, and the host's counters. Empty without a sliding window."""

    def __init__(self, config: Config, *, debug: bool) -> None:
        """Every window page is free.

        Raises:
            ValueError: a window without a pool, or a pool without a window.
        """
        self.size = config.num_window_pages
        if bool(config.sliding_window) != bool(self.size):
            raise ValueError(f"a sliding window of {config.sliding_window} tokens with {self.size} window pages")

        self.popped = 0
        """Window pages that were taken off the ring since the start."""
        self.pushed = 0
        """Window pages that were put back on the ring since the start."""
        self.window_of: Any = None
        """int32 [num_pages + 1]: the window page behind each page; 0 if there is none."""
        self.ring: Any = None
        """int32 [num_window_pages]: the free ones are the `available` ones from `popped % num_window_pages` on."""
        self._used: Any = None
        if self.size:
            self.window_of = torch.zeros(config.num_pages + 1, dtype=torch.int32, device=DEVICE)
            self.ring = torch.arange(1, self.size + 1, dtype=torch.int32, device=DEVICE)
            self._used = torch.zeros(self.size + 1 if debug else 1, dtype=torch.int32, device=DEVICE)

    @property
    def available(self) -> int:
        """Free window pages."""
        return self.size + self.pushed - self.popped

    @property
    def tensors(self) -> tuple[Any, Any, Any]:
        """The arguments of each kernel for the window pool."""
        return self.window_of, self.ring, self._used

    def short(self, needed: int) -> int:
        """The window pages that `needed` new pages lack."""
        return max(0, needed - self.available) if self.size else 0

    def give(self, pages: int) -> int:
        """Take a window side for each of so many pages. Returns their first index on the ring."""
        if not self.size:
            return 0
        head = self.popped % self.size
        self.popped += pages
        return head

    def take_back(self, sides: int) -> int:
        """Put so many window sides back. Returns their first index on the ring.

        Raises:
            ValueError: fewer are in use; nothing has changed.
        """
        if not self.size:
            return 0
        if self.available + sides > self.size:
            raise ValueError(f"{sides} window pages go back, but only {self.size - self.available} are in use")
        tail = self.pushed % self.size
        self.pushed += sides
        return tail
