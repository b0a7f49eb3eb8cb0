"""Lanes that tell what happens on them: operations, waits, and what the host sees complete."""

from collections.abc import Callable
from typing import Any

from kvcuda.lanes import Event, Lane, Lanes
from kvcuda.telling import Listener, Tell, Uses
from kvspec.events import Config
from kvspec.memory import events


class ToldLane:
    """A lane, told as it is used."""

    def __init__(self, name: str, lane: Lane, tell: Tell) -> None:
        """Pass everything on to `lane`."""
        self._name, self._lane, self._tell = name, lane, tell
        self._begun = self._seen = 0

    def run(self, work: Callable[[], object], uses: Uses | None = None) -> None:
        """Append an operation."""
        self._begun += 1
        self._tell(events.Begin(self._id(self._begun), self._name, *(uses or Uses([], []))))
        self._lane.run(work)

    def record(self, event: "ToldEvent") -> None:
        """The event comes after the operations so far."""
        event.lane, event.number = self, self._begun
        self._lane.record(event.event)

    def wait(self, event: "ToldEvent") -> None:
        """What is appended from now on comes after the event."""
        if event.lane is not None:
            self._tell(events.Wait(self._name, event.lane._id(event.number)))
        self._lane.wait(event.event)

    def see(self, number: int | None = None) -> None:
        """The host has seen an operation complete, or all of them."""
        number = self._begun if number is None else number
        if number > self._seen:
            self._seen = number
            self._tell(events.End(self._id(number)))

    def _id(self, number: int) -> str:
        return f"{self._name} {number}"


class ToldEvent:
    """An event; to find that a lane has passed it is to see its operations complete."""

    def __init__(self, event: Event) -> None:
        """An event that is recorded nowhere."""
        self.event = event
        self.lane: ToldLane | None = None
        self.number = 0

    def query(self) -> bool:
        """Whether the lane has passed it."""
        passed = self.event.query()
        if passed and self.lane is not None:
            self.lane.see(self.number)
        return passed

    def synchronize(self) -> None:
        """Let the host wait until the lane has passed it."""
        self.event.synchronize()
        if self.lane is not None:
            self.lane.see(self.number)


class ToldLanes:
    """Both lanes, and a listener for everything else that a manager does to memory.

    Give them to a `DeviceManager`. The law judges it with `Law(telling.pools(config)).step` for `tell`.
    """

    def __init__(self, lanes: Lanes, config: Config, tell: Tell) -> None:
        """Tell `tell` what happens on `lanes`, in the memory of a manager of these sizes."""
        self._lanes = lanes
        self.scheduler = ToldLane("scheduler", lanes.scheduler, tell)
        self.forward = ToldLane("forward", lanes.forward, tell)
        self.listener: Listener | None = Listener(config, tell)

    def event(self) -> Any:
        """A new event, recorded nowhere."""
        return ToldEvent(self._lanes.event())

    def synchronize(self) -> None:
        """Let the host wait until both lanes are empty."""
        self._lanes.synchronize()
        self.scheduler.see()
        self.forward.see()
