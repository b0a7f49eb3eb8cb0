"""The two lanes of work on the device: the scheduler's (this manager's kernels) and the forward pass's.

On a GPU a lane is a stream. Lanes know nothing of each other but events, and the manager orders them in five places:

    forward waits for scheduler     at a launch: the rows that it reads are written
    scheduler waits for forward     at a completion: rows withheld for the launch may be written again
    scheduler waits for forward     before a row's duplicates are replaced that a launch reads
    scheduler waits for forward     before `out_cache_loc` is written over that a launch reads
    host waits for scheduler        before staged words are written over that a kernel has not read yet

The last two are back-pressure: they happen only when the host is many steps ahead.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from kvcuda.telling import Listener, Uses


class Event(Protocol):
    """A point in a lane."""

    def query(self) -> bool:
        """Whether the lane has passed it; never waits."""
        ...

    def synchronize(self) -> None:
        """Let the host wait until the lane has passed it."""
        ...


class Lane(Protocol):
    """Work that is carried out in order."""

    def run(self, work: Callable[[], object], uses: Uses | None = None, /) -> None:
        """Append work to the lane; it may be carried out later. `uses`: what it reads and writes, if that is told."""
        ...

    def record(self, event: Any, /) -> None:
        """Put an event behind all work so far."""
        ...

    def wait(self, event: Any, /) -> None:
        """Hold the lane until another one has passed the event."""
        ...


class Lanes(Protocol):
    """Both lanes."""

    @property
    def listener(self) -> Listener | None:
        """Whoever is told what happens to memory; most often nobody."""
        ...

    @property
    def scheduler(self) -> Lane:
        """The manager's own kernels."""
        ...

    @property
    def forward(self) -> Lane:
        """The forward passes."""
        ...

    def event(self) -> Event:
        """A new event, recorded nowhere."""
        ...

    def synchronize(self) -> None:
        """Let the host wait until both lanes are empty: for tests, and before the device is read."""
        ...


class _PastEvent:
    """An event of a lane that does everything at once: it has always passed."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class EagerLane:
    """A lane that does everything at once: what the CPU has."""

    def run(self, work: Callable[[], object], uses: Uses | None = None) -> None:
        """Do it."""
        work()

    def record(self, event: object) -> None:
        """Everything is done already."""

    def wait(self, event: object) -> None:
        """Everything is done already."""


class EagerLanes:
    """Two lanes on the CPU, where there is nothing to wait for."""

    listener: Listener | None = None

    def __init__(self) -> None:
        """Make both."""
        self.scheduler = EagerLane()
        self.forward = EagerLane()

    def event(self) -> Event:
        """An event that has passed."""
        return _PastEvent()

    def synchronize(self) -> None:
        """Everything is done already."""


class CudaLane:
    """A CUDA stream."""

    def __init__(self, stream: Any) -> None:
        """Wrap a `torch.cuda.Stream`."""
        self.stream = stream

    def run(self, work: Callable[[], object], uses: Uses | None = None) -> None:
        """Enqueue work on the stream."""
        with torch.cuda.stream(self.stream):
            work()

    def record(self, event: Any) -> None:
        """Record on the stream."""
        event.record(self.stream)

    def wait(self, event: Any) -> None:
        """Let the stream wait; the host goes on."""
        self.stream.wait_event(event)


class CurrentLane(CudaLane):
    """The stream that is current whenever the manager is called: there is no context to enter."""

    def run(self, work: Callable[[], object], uses: Uses | None = None) -> None:
        """Enqueue work on the current stream."""
        work()


class CudaLanes:
    """The caller's current stream for the manager's kernels, and another one for forward passes."""

    listener: Listener | None = None

    def __init__(self) -> None:
        """Take the stream that is current now; every call of the manager must be made with it current."""
        self.scheduler = CurrentLane(torch.cuda.current_stream())
        self.forward = CudaLane(torch.cuda.Stream())

    def event(self) -> Any:
        """A CUDA event without timing."""
        return torch.cuda.Event()

    def synchronize(self) -> None:
        """Wait for the whole device."""
        torch.cuda.synchronize()


def default_lanes(device: str) -> Lanes:
    """The lanes of a device."""
    return CudaLanes() if device == "cuda" else EagerLanes()
