"""A tape whose thread is the engine's own, and that lags at random; and what late hooks have emitted."""

import random
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from kvattach.tape import Tape
from kvspec.memory.events import MemoryEvent, Pool


class Seen(NamedTuple):
    """Runs of random servers, each at once and late."""

    events: int
    different: list[int]
    """The seeds of those whose late events are others."""
    most: int
    """The most captures that waited."""
    waits: dict[str, int]


class Events:
    """Keeps all events."""

    def __init__(self) -> None:
        self.all: list[MemoryEvent] = []

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """The pools follow from the shape."""

    def emit(self, *events: MemoryEvent) -> None:
        self.all += events


class Lagging(Tape):
    """Resolves captures in order, each after a random number of further ones."""

    def __init__(self, rng: random.Random, *, copies: bool = True) -> None:
        """Without `copies` a resolution reads the tensors of the engine as they are by then."""
        super().__init__()
        self._rng, self.copies = rng, copies
        self._eager = rng.choice([0.3, 0.48, 0.5])
        self.most = 0
        """The most captures that waited."""

    def put(self, resolve: Callable[..., object], *tensors: Any) -> None:
        """Take a capture, and resolve some of the oldest."""
        super().put(resolve, *tensors)
        self.most = max(self.most, self._queue.qsize())
        while not self._queue.empty() and self._rng.random() < self._eager:
            self._resolve(*self._queue.get())

    def _copied(self, tensor: Any) -> Any:
        return super()._copied(tensor) if self.copies else tensor

    def drain(self, seconds: float | None = None) -> None:
        """Resolve everything."""
        while not self._queue.empty():
            self._resolve(*self._queue.get())
