"""A simulated device: streams and events whose progress the driver of an engine decides.

A queued entry takes effect at once, so that the engine's own code goes on as usual. An entry that is queued with an
`effect` is the exception: the effect is called when the stream reaches the entry. An entry is *complete* only when the
driver lets the stream reach it, or when the engine waits for it. The order is that of CUDA: the entries of a stream run
one after the other, an event completes with the entries before it on its stream, and a wait holds back later entries.

The progress of streams is drawn evenly, or follows from priorities (`Priorities`); the seed of the run says which.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from kvattach.patches import Patches


@dataclass(frozen=True)
class Point:
    """A place in a stream: its first `entries` entries."""

    stream: "Stream"
    entries: int

    @property
    def reached(self) -> bool:
        """Whether the stream has got there."""
        return self.stream.done >= self.entries


class Stream:
    """Stands in for `torch.cuda.Stream`."""

    current: ClassVar["Stream"]
    all: ClassVar[list["Stream"]] = []
    order: ClassVar["Priorities | None"] = None
    """The order in which streams make progress; `None`: any."""
    _numbers: ClassVar[Iterator[int]] = count()

    def __init__(self, *_: object, **__: object) -> None:
        """A stream with nothing in it."""
        self.cuda_stream: int | str = next(Stream._numbers)
        self.done = 0
        self._entries: list[Point | Callable[[], None] | None] = []
        Stream.all.append(self)

    @property
    def end(self) -> Point:
        """Everything that was queued so far."""
        return Point(self, len(self._entries))

    def queue(self, effect: Callable[[], None] | None = None) -> None:
        """Queue some work. Its `effect`, if any, is called when the stream reaches it."""
        self._entries.append(effect)

    def wait_stream(self, stream: "Stream") -> None:
        """Hold back later entries until `stream` has completed all entries that it has now."""
        self._entries.append(stream.end)

    def wait_event(self, event: "Event") -> None:
        """Hold back later entries until the event has happened."""
        if event.point is not None:
            self._entries.append(event.point)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """An event that stands for everything so far."""
        event = event or Event()
        event.record(self)
        return event

    @property
    def ready(self) -> bool:
        """Whether there is a next entry that nothing holds back."""
        if self.done == len(self._entries):
            return False
        entry = self._entries[self.done]
        return not isinstance(entry, Point) or entry.reached

    def step(self) -> bool:
        """Complete one entry, if nothing holds it back."""
        ready = self.ready
        if ready:
            self._take(self._entries[self.done])
        return ready

    def finish(self, entries: int) -> None:
        """Complete the first `entries` entries, and everything that they wait for."""
        while self.done < entries:
            entry = self._entries[self.done]
            if isinstance(entry, Point):
                entry.stream.finish(entry.entries)
            self._take(entry)

    def _take(self, entry: Point | Callable[[], None] | None) -> None:
        """The next entry is done."""
        self._entries[self.done] = None
        self.done += 1
        if callable(entry):
            entry()

    def synchronize(self) -> None:
        """Wait for everything so far."""
        self.finish(len(self._entries))

    def query(self) -> bool:
        """Whether everything so far is done."""
        return self.end.reached


class Event:
    """Stands in for `torch.cuda.Event`."""

    def __init__(self, *_: object, **__: object) -> None:
        """An event that was never recorded has happened."""
        self.point: Point | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Stand for everything that the stream holds now."""
        self.point = (stream or Stream.current).end

    def wait(self, stream: Stream | None = None) -> None:
        """Hold the stream back until this has happened."""
        (stream or Stream.current).wait_event(self)

    def synchronize(self) -> None:
        """Wait for it."""
        if self.point is not None:
            self.point.stream.finish(self.point.entries)

    def query(self) -> bool:
        """Whether it has happened."""
        return self.point is None or self.point.reached

    def elapsed_time(self, other: "Event") -> float:
        """Milliseconds between two events: always 0."""
        return 0.0


class Priorities:
    """The host and the streams run by priorities, and some priorities change (PCT: Burckhardt et al., ASPLOS 2010).

    At each step, the runnable one with the highest priority runs: one entry of a stream, or one turn of the host. Each
    `SPAN` steps the priorities are drawn anew, so that no stream waits for ever. At `CHANGES` of these steps, drawn
    too, the one due to run gets the lowest priority. So if a defect needs `CHANGES` + 1 steps of a span in a certain
    order, a span in which `n` run, the host included, shows it with a probability of at least
    1 / (n * SPAN ** CHANGES).
    """

    SPAN = 50
    CHANGES = 1

    def __init__(self, seed: int) -> None:
        """The first span begins."""
        self._rng = random.Random(f"{seed} priorities")
        self._left = 0
        """Steps of this span."""
        self._changes: set[int] = set()
        self._of: dict[Stream | None, float] = {}
        """Stream, or `None` for the host -> its priority; a lower one than any that is drawn is negative."""

    def advance(self) -> None:
        """Let the streams get on until it is the host's turn."""
        while True:
            if not self._left:
                self._left = self.SPAN
                self._changes = set(self._rng.choices(range(self.SPAN), k=self.CHANGES))
                self._of.clear()
            for one in (None, *Stream.all):
                if one not in self._of:
                    self._of[one] = self._rng.random()
            first = max((None, *(stream for stream in Stream.all if stream.ready)), key=self._of.__getitem__)
            self._left -= 1
            if self._left in self._changes:
                self._of[first] = -float(self.SPAN - self._left)
            elif first is None:
                return
            else:
                first.step()


class Entered:
    """Stands in for `torch.cuda.stream`: the current stream, for a while; it can be entered again."""

    def __init__(self, stream: Stream | None) -> None:
        self._stream = stream
        self._before: list[Stream] = []

    def __enter__(self) -> None:
        self._before.append(Stream.current)
        Stream.current = self._stream or Stream.current

    def __exit__(self, *_: object) -> None:
        Stream.current = self._before.pop()


HUNDRED = 100
"""So many seeds in a row draw the progress of streams evenly; as many more use priorities, and so on."""


@contextmanager
def stood_in(torch: Any, seed: int = 0) -> Iterator[None]:
    """Replace `torch.cuda` by this device, and pinned memory by ordinary memory, while an engine is driven."""

    def set_stream(stream: Stream) -> None:
        Stream.current = stream

    def synchronize(*_: object) -> None:
        for stream in list(Stream.all):
            stream.synchronize()

    def unpinned(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
            return make(*args, **kwargs)

        return made

    @contextmanager
    def nothing(*_: object) -> Iterator[None]:
        yield

    Stream.all.clear()
    Stream.current = Stream()
    Stream.order = Priorities(seed) if seed // HUNDRED % 2 else None
    with Patches() as patches:
        for name, value in {
            "Stream": Stream,
            "Event": Event,
            "stream": Entered,
            "set_stream": set_stream,
            "current_stream": lambda *_: Stream.current,
            "synchronize": synchronize,
        }.items():
            patches.set(torch.cuda, name, value)
        patches.set(torch, "Event", Event)
        patches.set(torch.cuda.nvtx, "range", nothing)
        for name in ("empty", "tensor", "zeros"):
            patches.set(torch, name, unpinned(getattr(torch, name)))
        patches.set(torch.Tensor, "pin_memory", lambda self, *_: self)
        yield


def advance(rng: random.Random, most: int) -> None:
    """Let the streams complete up to `most` entries, in any order that their waits allow, or by their priorities."""
    if Stream.order is not None:
        Stream.order.advance()
        return
    for _ in range(rng.randint(0, most)):
        rng.choice(Stream.all).step()
