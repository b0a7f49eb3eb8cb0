"""The two streams of work on the device: the scheduler's (the manager's kernels) and the forward pass's.

On a GPU they are CUDA streams. Only events order them, in five places of the manager:

    forward waits for scheduler     at a launch: the rows that it reads are written
    scheduler waits for forward     at a completion: rows withheld for the launch may be written again
    scheduler waits for forward     before the duplicates of a row that a launch reads are replaced
    scheduler waits for forward     before the part of `out_cache_loc` that a launch reads is overwritten
    host waits for scheduler        before staged words that a kernel has not read yet are overwritten

The last two are back-pressure: they happen only if the host is many steps ahead.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from kvcuda.memory_events import Listener, Uses


class Event(Protocol):
    """A point in a stream."""

    def query(self) -> bool:
        """Whether the stream has passed it; never waits."""
        ...

    def synchronize(self) -> None:
        """Let the host wait until the stream has passed it."""
        ...


class Stream(Protocol):
    """Work that is carried out in order."""

    def run(self, work: Callable[[], object], uses: Uses | None = None, /) -> None:
        """Append work, which may be carried out later. `uses`: the memory that it reads and writes, for a listener."""
        ...

    def record(self, event: Event, /) -> None:
        """Put an event, which the same streams made, behind all work so far."""
        ...

    def wait(self, event: Event, /) -> None:
        """Hold the stream until another one has passed the event."""
        ...


class Streams(Protocol):
    """Both streams."""

    @property
    def listener(self) -> Listener | None:
        """The listener for memory events; most often `None`."""
        ...

    @property
    def scheduler(self) -> Stream:
        """The manager's own kernels."""
        ...

    @property
    def forward(self) -> Stream:
        """The forward passes."""
        ...

    def event(self) -> Event:
        """A new event, recorded nowhere."""
        ...

    def synchronize(self) -> None:
        """Let the host wait until both streams are empty: for tests, and before the device is read."""
        ...


class _PastEvent:
    """An event of a stream that carries everything out at once: it has always passed."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class EagerStream:
    """A stream that carries everything out at once: the CPU's."""

    def run(self, work: Callable[[], object], uses: Uses | None = None) -> None:
        """Carry the work out."""
        work()

    def record(self, event: object) -> None:
        """Everything is done already."""

    def wait(self, event: object) -> None:
        """Everything is done already."""


class EagerStreams:
    """Two streams on the CPU, which never wait."""

    listener: Listener | None = None

    def __init__(self) -> None:
        """Make both."""
        self.scheduler = EagerStream()
        self.forward = EagerStream()

    def event(self) -> Event:
        """An event that has passed."""
        return _PastEvent()

    def synchronize(self) -> None:
        """Everything is done already."""


class CudaStream:
    """A CUDA stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        """Wrap one of torch's."""
        self.stream = stream

    def run(self, work: Callable[[], object], uses: Uses | None = None) -> None:
        """Enqueue work on the stream."""
        with torch.cuda.stream(self.stream):
            work()

    def record(self, event: Event) -> None:
        """Record on the stream."""
        assert isinstance(event, torch.cuda.Event)
        event.record(self.stream)

    def wait(self, event: Event) -> None:
        """Let the stream wait; the host goes on."""
        assert isinstance(event, torch.cuda.Event)
        self.stream.wait_event(event)


class CurrentStream(CudaStream):
    """The stream that is current at each call of the manager, so it needs no context."""

    def run(self, work: Callable[[], object], uses: Uses | None = None) -> None:
        """Enqueue work on the current stream."""
        work()


class CudaStreams:
    """The caller's current stream for the manager's kernels, and another one for forward passes."""

    listener: Listener | None = None

    def __init__(self) -> None:
        """Take the current stream. It must be current at every call of the manager."""
        self.scheduler = CurrentStream(torch.cuda.current_stream())
        self.forward = CudaStream(torch.cuda.Stream())

    def event(self) -> Event:
        """A CUDA event without timing."""
        return torch.cuda.Event()

    def synchronize(self) -> None:
        """Wait for the whole device."""
        torch.cuda.synchronize()


def default_streams(device: str) -> Streams:
    """The streams of a device."""
    return CudaStreams() if device == "cuda" else EagerStreams()
