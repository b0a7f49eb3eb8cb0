"""Streams that emit memory events for their operations and waits, and for the completions that the host sees."""

from collections.abc import Callable

from kvcuda.memory_events import Emit, Listener, Uses
from kvcuda.streams import Event, Stream, Streams
from kvspec.events import Config
from kvspec.memory import events


class ObservedStream:
    """A stream that emits an event at each use."""

    def __init__(self, name: str, stream: Stream, emit: Emit) -> None:
        """Pass everything on to `stream`."""
        self._name, self._stream, self._emit = name, stream, emit
        self._begun = self._seen = 0

    def run(self, work: Callable[[], object], uses: Uses | None = None) -> None:
        """Append an operation."""
        self._begun += 1
        self._emit(events.Begin(self._id(self._begun), self._name, *(uses or Uses([], []))))
        self._stream.run(work)

    def record(self, event: Event) -> None:
        """The event comes after the operations so far."""
        assert isinstance(event, ObservedEvent)
        event.stream, event.number = self, self._begun
        self._stream.record(event.event)

    def wait(self, event: Event) -> None:
        """Operations appended from now on come after the event."""
        assert isinstance(event, ObservedEvent)
        if event.stream is not None:
            self._emit(events.Wait(self._name, event.stream._id(event.number)))
        self._stream.wait(event.event)

    def see(self, number: int | None = None) -> None:
        """The host has seen an operation complete, or all of them."""
        number = self._begun if number is None else number
        if number > self._seen:
            self._seen = number
            self._emit(events.End(self._id(number)))

    def _id(self, number: int) -> str:
        return f"{self._name} {number}"


class ObservedEvent:
    """An event: once the host finds it passed, it has seen the operations before it complete."""

    def __init__(self, event: Event) -> None:
        """An event that is recorded nowhere."""
        self.event = event
        self.stream: ObservedStream | None = None
        self.number = 0

    def query(self) -> bool:
        """Whether the stream has passed it."""
        passed = self.event.query()
        if passed and self.stream is not None:
            self.stream.see(self.number)
        return passed

    def synchronize(self) -> None:
        """Let the host wait until the stream has passed it."""
        self.event.synchronize()
        if self.stream is not None:
            self.stream.see(self.number)


class ObservedStreams:
    """Both streams of a `DeviceManager`, and a listener for its other memory operations.

    `emit` may be `step` of a memory checker that was made with `memory_events.pools(config)`.
    """

    def __init__(self, streams: Streams, config: Config, emit: Emit) -> None:
        """Emit the events of `streams`, in the memory of a manager of these sizes."""
        self._streams = streams
        self.scheduler = ObservedStream("scheduler", streams.scheduler, emit)
        self.forward = ObservedStream("forward", streams.forward, emit)
        self.listener: Listener | None = Listener(config, emit)

    def event(self) -> Event:
        """A new event, recorded nowhere."""
        return ObservedEvent(self._streams.event())

    def synchronize(self) -> None:
        """Let the host wait until both streams are empty."""
        self._streams.synchronize()
        self.scheduler.see()
        self.forward.see()
