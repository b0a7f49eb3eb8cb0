"""The second pool of a sliding window: each page of the first pool has a window page, until that is freed."""

from typing import TypeAlias

import torch

from kvcuda.backend import DEVICE
from kvspec.events import Config

WindowTensors: TypeAlias = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
"""`window_of`, the window ring, and the window pages in use, which only the debug mode needs."""


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
        self.window_of = torch.zeros(config.num_pages + 1 if self.size else 0, dtype=torch.int32, device=DEVICE)
        """int32 [num_pages + 1]: the window page behind each page; 0 if there is none."""
        self.ring = torch.arange(1, self.size + 1, dtype=torch.int32, device=DEVICE)
        """int32 [num_window_pages]: the free ones are the `available` ones from `popped % num_window_pages` on."""
        used = torch.zeros(self.size + 1 if debug else 1, dtype=torch.int32, device=DEVICE)
        self.tensors: WindowTensors = (self.window_of, self.ring, used) if self.size else (None, None, None)
        """The arguments of each kernel for the window pool; without one, its code is not compiled."""

    @property
    def available(self) -> int:
        """Free window pages."""
        return self.size + self.pushed - self.popped

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
