"""Two streams that carry their work out as late, or as soon, as events allow: a GPU's races, repeatable.

One stream is eager: it goes as far as it can after each call. The other one is lazy: it moves only when the host or the
other stream waits for it. These are the two extreme orders; `DrawnStreams` tries some between. A `deaf` stream ignores
the events that it should wait for. On a GPU each piece of work is over before the next one begins.
"""

import random
from collections import deque
from collections.abc import Callable

import torch

from kvcuda.backend import DEVICE
from kvcuda.memory_events import Listener
from kvcuda.streams import Event


class Point:
    """A place in a stream that an event was recorded at."""

    def __init__(self, stream: "SimulatedStream") -> None:
        self.stream = stream
        self.passed = False


class SimulatedEvent:
    """An event; before it is recorded it has passed."""

    def __init__(self) -> None:
        self.point: Point | None = None

    def query(self) -> bool:
        return self.point is None or self.point.passed

    def synchronize(self) -> None:
        while self.point is not None and not self.point.passed:
            self.point.stream.step()


class SimulatedStream:
    """Work, points and waits, in order."""

    def __init__(self, *, eager: bool = False, deaf: bool = False) -> None:
        self._eager = eager
        self._deaf = deaf
        self._items: deque[Callable[[], object]] = deque()

    def run(self, work: Callable[[], object], uses: object = None) -> None:
        self._append(work)

    def record(self, event: Event) -> None:
        assert isinstance(event, SimulatedEvent)
        event.point = point = Point(self)
        self._append(lambda: setattr(point, "passed", True))

    def wait(self, event: Event) -> None:
        assert isinstance(event, SimulatedEvent)
        point = event.point
        if point is not None and not self._deaf:
            reached = SimulatedEvent()
            reached.point = point
            self._append(reached.synchronize)

    def _append(self, item: Callable[[], object]) -> None:
        self._items.append(item)
        self.go_on()

    def go_on(self) -> None:
        """Make progress after an append."""
        if self._eager:
            self.drain()

    def step(self) -> None:
        """Do the oldest thing; a wait makes the other stream go on until it is over."""
        self._items.popleft()()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    def drain(self) -> None:
        while self._items:
            self.step()


class SimulatedStreams:
    """A scheduler's stream and a forward stream, one of them lazy."""

    listener: Listener | None = None

    def __init__(self, *, lazy: str, deaf: str = "") -> None:
        self.scheduler = SimulatedStream(eager=lazy != "scheduler", deaf=deaf == "scheduler")
        self.forward = SimulatedStream(eager=lazy != "forward", deaf=deaf == "forward")

    def event(self) -> SimulatedEvent:
        return SimulatedEvent()

    def synchronize(self) -> None:
        self.scheduler.drain()
        self.forward.drain()


class DrawnStream(SimulatedStream):
    """A stream that goes on by a number of steps that is drawn, often none."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw

    def go_on(self) -> None:
        while self._items and self._draw.random() < 0.5:
            self.step()


class DrawnStreams(SimulatedStreams):
    """Both streams go on now and then, whenever something is appended to them."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.scheduler = DrawnStream(draw)
        self.forward = DrawnStream(draw)
