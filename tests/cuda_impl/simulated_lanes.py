"""Two lanes on the CPU that carry their work out as late, or as soon, as events allow: a GPU's races, repeatable.

One lane is eager: it goes as far as it can after each call. The other one is lazy: it moves only when somebody waits
for it. Two orders are so tried, the ones farthest apart; `DrawnLanes` tries some between. `deaf` lanes ignore the
events they should wait for.
"""

import random
from collections import deque
from collections.abc import Callable

from kvcuda.telling import Listener


class Point:
    """A place in a lane that an event was recorded at."""

    def __init__(self, lane: "SimulatedLane") -> None:
        self.lane = lane
        self.passed = False


class SimulatedEvent:
    """An event; before it is recorded it has passed."""

    def __init__(self) -> None:
        self.point: Point | None = None

    def query(self) -> bool:
        return self.point is None or self.point.passed

    def synchronize(self) -> None:
        while self.point is not None and not self.point.passed:
            self.point.lane.step()


class SimulatedLane:
    """Work, points and waits, in order."""

    def __init__(self, *, eager: bool = False, deaf: bool = False) -> None:
        self._eager = eager
        self._deaf = deaf
        self._items: deque[Callable[[], object]] = deque()

    def run(self, work: Callable[[], object], uses: object = None) -> None:
        self._append(work)

    def record(self, event: SimulatedEvent) -> None:
        event.point = point = Point(self)
        self._append(lambda: setattr(point, "passed", True))

    def wait(self, event: SimulatedEvent) -> None:
        point = event.point
        if point is not None and not self._deaf:
            reached = SimulatedEvent()
            reached.point = point
            self._append(reached.synchronize)

    def _append(self, item: Callable[[], object]) -> None:
        self._items.append(item)
        self.go_on()

    def go_on(self) -> None:
        """What happens by itself whenever something was appended."""
        if self._eager:
            self.drain()

    def step(self) -> None:
        """Do the oldest thing; a wait makes the other lane go on until it is over."""
        self._items.popleft()()

    def drain(self) -> None:
        while self._items:
            self.step()


class SimulatedLanes:
    """A scheduler's lane and a forward lane, one of them lazy."""

    listener: Listener | None = None

    def __init__(self, *, lazy: str, deaf: str = "") -> None:
        self.scheduler = SimulatedLane(eager=lazy != "scheduler", deaf=deaf == "scheduler")
        self.forward = SimulatedLane(eager=lazy != "forward", deaf=deaf == "forward")

    def event(self) -> SimulatedEvent:
        return SimulatedEvent()

    def synchronize(self) -> None:
        self.scheduler.drain()
        self.forward.drain()


class DrawnLane(SimulatedLane):
    """A lane that goes on by a number of steps that is drawn, often none."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self._draw = draw

    def go_on(self) -> None:
        while self._items and self._draw.random() < 0.5:
            self.step()


class DrawnLanes(SimulatedLanes):
    """Both lanes go on now and then, whenever something is appended to them."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.scheduler = DrawnLane(draw)
        self.forward = DrawnLane(draw)
