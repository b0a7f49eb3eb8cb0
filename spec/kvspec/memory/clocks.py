"""Happens-before, as vector clocks.

An operation is ordered after what its stream queued earlier, after what its stream waits for, and after what the host
had seen complete when it queued it; and after all that these are ordered after. A *moment* is a stream and a number:
operation `k` of a stream has read at moment `2k - 1` and is done at moment `2k`. A clock maps streams to the last
moment that lies before.
"""

from typing import NamedTuple

from kvspec.contracts import ensure
from kvspec.memory.events import OpId

Clock = dict[str, int]
HOST = "host"
"""The host's own stream: what is done there is done at once."""


@ensure(
    lambda clock, earlier, result: result == (earlier != clock and any(clock.get(s, 0) < n for s, n in earlier.items()))
)
def lacks(clock: Clock, earlier: Clock) -> bool:
    """Whether `earlier` knows a moment that `clock` does not."""
    return any(clock.get(stream, 0) < moment for stream, moment in earlier.items())


@ensure(lambda clock, earlier: not lacks(clock, earlier))
def join(clock: Clock, earlier: Clock) -> None:
    """Let `clock` come after all that `earlier` comes after."""
    for stream, moment in earlier.items():
        if clock.get(stream, 0) < moment:
            clock[stream] = moment


class Flight(NamedTuple):
    """An operation in flight."""

    id: OpId
    stream: str
    moment: int
    """When it is done; it has read at the moment before."""
    clock: Clock
    """What it is ordered after, itself included."""

    def at(self, part: str) -> Clock:
        """What is known once it is done, or once its reads are."""
        return self.clock if part == "all" else {**self.clock, self.stream: self.moment - 1}


class Clocks:
    """The streams, what the host has seen, and the operations in flight."""

    def __init__(self) -> None:
        """Nothing is queued."""
        self.host: Clock = {}
        self.streams: dict[str, Clock] = {HOST: self.host}
        self.flights: dict[OpId, Flight] = {}
        self._lanes: list[str] = []
        """Streams of operations that have none: free again once the host has seen the last operation there."""
        self._made = 0

    def begin(self, id: OpId, stream: str | None, after: list[OpId]) -> Flight:
        """Queue an operation."""
        if stream is None:
            if not self._lanes:
                self._made += 1
                self._lanes.append(f"(alone {self._made})")
            stream = self._lanes.pop()
        clock = self.streams.get(stream)
        if clock is None:
            clock = self.streams[stream] = {}
        if clock is not self.host:
            join(clock, self.host)
        for earlier in after:
            if earlier in self.flights:
                join(clock, self.flights[earlier].clock)
        moment = clock.get(stream, 0) + 2
        clock[stream] = moment
        flight = Flight(id, stream, moment, clock if stream == HOST else clock.copy())
        if stream != HOST:
            self.flights[id] = flight
        return flight

    def wait(self, stream: str, id: OpId | None, on: str | None, part: str) -> None:
        """Order what `stream` queues from now on. To wait for what has ended, or for nothing, orders nothing."""
        clock = self.streams.setdefault(stream, {})
        if id is not None and id in self.flights:
            join(clock, self.flights[id].at(part))
        if on is not None and on in self.streams:
            join(clock, self.streams[on])

    def end(self, id: OpId, part: str) -> Flight | None:
        """The host has seen it; `None` if it is not in flight."""
        flight = self.flights.get(id)
        if flight is None:
            return None
        join(self.host, flight.at(part))
        if part == "all":
            del self.flights[id]
            if flight.stream.startswith("(alone"):
                self._lanes.append(flight.stream)
        return flight

    def seen(self, stream: str, moment: int) -> bool:
        """Whether the host knows of this moment: whatever is queued from now on comes after it."""
        return self.host.get(stream, 0) >= moment
