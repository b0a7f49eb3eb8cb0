"""Observes streams and events: their waits, and the operations that the host has seen complete.

On a CPU an operation is done at once, on the stream of the host, and no stream is observed.

An event stands for the entries of its stream when it was recorded. If the last entry was an operation, the event stands
for it; if it was a wait, an operation without uses is emitted in its place.
"""

from threading import RLock
from typing import Any, NamedTuple

from kvattach.hooks import Hooks
from kvspec.memory.events import Begin, End, OpId, Use, Wait

HOST = "host"
"""The stream of the host, whose operations are done at once."""


class Queued(NamedTuple):
    """An operation on its stream."""

    id: OpId
    stream: str
    place: int
    """The number of operations that were queued until then, on all streams."""

    def up_to(self, other: "Queued") -> bool:
        """Whether it is the other one, or before it on its stream."""
        return self.stream == other.stream and self.place <= other.place


class Streams:
    """The streams of one process, and what its hooks have queued on them."""

    def __init__(self, hooks: Hooks, stream: Any = None, event: Any = None) -> None:
        """Hook into the classes `stream` and `event`: those of `torch.cuda`, or of a device that stands in.

        `None`: the device is a CPU.
        """
        self._hooks = hooks
        self.event = event
        """The observed class of events."""
        self._cuda: Any = None
        self._called: dict[str, str] = {}
        """Handle of a stream -> the name that it has in the trace, if that is another one."""
        self._last: dict[str, Queued | None] = {}
        """Stream -> the operation that was queued last; `None`: a wait."""
        self._complete: dict[str, int] = {}
        """Stream -> the place of the last operation that was seen complete."""
        self._elsewhere: dict[OpId, Queued] = {}
        """The operations in flight that are emitted elsewhere."""
        self._over: dict[OpId, Queued] = {}
        """Those that the host has waited for, but whose end was not reported."""
        self._queued = self._places = self._cleared = 0
        self._lock = RLock()
        self.on_host = stream is None
        """Whether operations are done at once."""
        if self.on_host:
            return
        hooks.hook(stream, "wait_stream", after=lambda _, __, waits, other: self._waits(waits, other))
        hooks.hook(stream, "wait_event", after=lambda _, __, waits, event: self._waits_for(waits, event))
        hooks.hook(stream, "synchronize", after=lambda _, __, stream: self.synchronized(stream))
        hooks.hook(event, "record", after=lambda _, __, event, stream=None: self._records(event, stream))
        hooks.hook(event, "wait", after=lambda _, __, event, stream=None: self._waits_for(stream, event))
        hooks.hook(event, "synchronize", after=lambda _, __, event: self._seen(_recorded(event)))
        hooks.hook(event, "query", after=self._queried)

    def clear(self, cuda: Any) -> None:
        """A new trace begins; `cuda` is the module that knows the current stream; `None`: streams are not observed."""
        self._cuda = cuda
        for kept in (self._last, self._complete, self._elsewhere, self._over, self._called):
            kept.clear()
        self._cleared = self._places

    @property
    def observed(self) -> bool:
        """Whether this trace has streams."""
        return self._cuda is not None

    def name(self, stream: Any = None) -> str:
        """A stream's name; of the current one if none is given."""
        if self.on_host:
            return HOST
        if stream is None and not self.observed:
            return ""
        handle = _handle(self._cuda.current_stream() if stream is None else stream)
        return self._called.get(handle, handle)

    def call_current(self, name: str) -> None:
        """The current stream has this name from now on, and no other stream has it."""
        if self.observed:
            self._called = {_handle(self._cuda.current_stream()): name}

    def begin(
        self,
        what: str,
        reads: list[Use],
        writes: list[Use],
        copies: list[tuple[Use, Use]] | None = None,
        stream: Any = None,
        *,
        reads_own_writes: bool = True,
    ) -> int:
        """Emit that an operation is queued, on the current stream if none is given; its id."""
        on = self.name(stream)
        with self._hooks.order, self._lock:
            self._queued += 1
            queued = self._queued
            self._hooks.emit(
                Begin(
                    queued,
                    on,
                    reads,
                    writes,
                    [] if copies is None else copies,
                    reads_own_writes=reads_own_writes,
                    at=what,
                )
            )
            if not self.on_host:
                self._places += 1
                self._last[on] = Queued(queued, on, self._places)
        return queued

    def queued(self, operation: OpId, stream: str) -> None:
        """An operation that is emitted elsewhere was queued on the stream of that name."""
        with self._hooks.order, self._lock:
            self._places += 1
            self._last[stream] = self._elsewhere[operation] = Queued(operation, stream, self._places)

    def ended(self, operation: OpId) -> bool:
        """An operation was seen complete: earlier ones of its stream are complete. Returns whether its end is new.

        The caller emits the end if it is new, and does not if the host has waited for the operation before.
        """
        with self._hooks.order, self._lock:
            over = self._over.get(operation)
            queued = over or self._elsewhere.get(operation)
            if queued is not None:
                if over is None:
                    self._completes(queued)
                self._over = {id: one for id, one in self._over.items() if not one.up_to(queued)}
            return over is None

    def _completes(self, queued: Queued) -> None:
        self._complete[queued.stream] = queued.place
        if self._elsewhere:
            for known in [known for known in self._elsewhere.values() if not self._flies(known)]:
                del self._elsewhere[known.id]

    def _flies(self, queued: Queued) -> bool:
        """Whether an operation is in flight."""
        return queued.place > self._complete.get(queued.stream, self._cleared)

    def synchronized(self, stream: Any = None) -> None:
        """The host has waited for all that a stream holds; for the current one if none is given."""
        self._seen(self._last.get(self.name(stream)))

    def _waits(self, stream: Any, other: Any) -> None:
        waits, on = self.name(stream), self.name(other)
        if waits != on and self.observed:
            with self._hooks.order, self._lock:
                self._hooks.emit(Wait(waits, on=on))
                self._last[waits] = None

    def _waits_for(self, stream: Any, event: Any) -> None:
        waits, recorded = self.name(stream), _recorded(event)
        if not self.observed or recorded is None or recorded.stream == waits:
            return
        with self._hooks.order, self._lock:
            if self._flies(recorded):
                self._hooks.emit(Wait(waits, id=recorded.id))
                self._last[waits] = None

    def _records(self, event: Any, stream: Any) -> None:
        on = self.name(stream)
        if on in self._last and self._last[on] is None:
            self.begin("record", [], [], stream=stream)
        event.kvspec_recorded = self._last.get(on)

    def _queried(self, _: None, happened: bool, event: Any) -> None:
        if happened:
            self._seen(_recorded(event))

    def _seen(self, queued: Queued | None) -> None:
        with self._hooks.order, self._lock:
            if queued is not None and self._flies(queued):
                self._hooks.emit(End(queued.id))
                self._over |= {id: one for id, one in self._elsewhere.items() if one.up_to(queued)}
                self._completes(queued)


def _recorded(event: Any) -> Queued | None:
    """The operation that an event stands for; `None` if it was never recorded, or its stream was empty."""
    return getattr(event, "kvspec_recorded", None)


def _handle(stream: Any) -> str:
    """The device's own name of a stream, the same for every object that stands for it."""
    return str(getattr(stream, "cuda_stream", id(stream)))
