"""Happens-before, as vector clocks.

An operation is ordered after what its stream queued earlier, after what its stream waits for, and after what the host
had seen complete when it queued it; and after all that these are ordered after. A *moment* is a stream and a number:
operation `k` of a stream has read at moment `2k - 1` and is done at moment `2k`. A clock maps streams to the last
moment that lies before.
"""

from typing import NamedTuple

from kvspec.contracts import ensure
from kvspec.memory.events import Begin, OpId

Clock = dict[str, int]
HOST = "host"
"""The host's own stream: what is done there is done at once."""
_REMEMBERED = 10_000
"""Operations that the host knows to be complete and has not been told to have ended."""


def covers(clock: Clock, earlier: Clock) -> bool:
    """Whether `clock` comes after all that `earlier` comes after."""
    return all(clock.get(stream, 0) >= moment for stream, moment in earlier.items())


@ensure(covers)
def join(clock: Clock, earlier: Clock) -> None:
    """Let `clock` come after all that `earlier` comes after."""
    for stream, moment in earlier.items():
        if clock.get(stream, 0) < moment:
            clock[stream] = moment


class Flight(NamedTuple):
    """An operation in flight."""

    event: Begin
    stream: str
    moment: int
    """When it is done; it has read at the moment before."""
    clock: Clock
    """What it is ordered after, itself included."""

    def at(self, part: str) -> Clock:
        """What is known once it is done, or once its reads are."""
        return self.clock if part == "all" else {**self.clock, self.stream: self.moment - 1}


class Clocks:
    """The streams, what the host has seen, and the operations in flight, oldest first."""

    def __init__(self) -> None:
        """Nothing is queued."""
        self.host: Clock = {}
        self.streams: dict[str, Clock] = {HOST: self.host}
        self.flights: dict[OpId, Flight] = {}
        self._seen: dict[OpId, None] = {}
        """Operations that are complete because a later one is; their own end may still be told."""
        self._lanes: list[str] = []
        """Streams of operations that have none: free again once the host has seen the last operation there."""
        self._made = 0

    def begin(self, event: Begin) -> Flight:
        """Queue an operation."""
        stream = event.stream
        if stream is None:
            self._made += not self._lanes
            stream = self._lanes.pop() if self._lanes else f"(alone {self._made})"
        clock = self.streams.setdefault(stream, {})
        if clock is not self.host:
            join(clock, self.host)
        for earlier in event.after:
            if earlier in self.flights:
                join(clock, self.flights[earlier].clock)
        moment = clock[stream] = clock.get(stream, 0) + 2
        flight = Flight(event, stream, moment, clock.copy())
        if clock is not self.host:
            self.flights[event.id] = flight
            self._seen.pop(event.id, None)
        return flight

    def wait(self, stream: str, id: OpId | None, on: str | None, part: str) -> None:
        """Order what `stream` queues from now on. To wait for what has ended, or for nothing, orders nothing."""
        clock = self.streams.setdefault(stream, {})
        if id is not None and id in self.flights:
            join(clock, self.flights[id].at(part))
        if on is not None and on in self.streams:
            join(clock, self.streams[on])
        if clock is self.host:
            self._forget()

    def end(self, id: OpId, part: str) -> bool:
        """The host has seen it, and all that is ordered before it; false if it is not in flight."""
        flight = self.flights.get(id)
        if flight is None:
            complete = id in self._seen
            if part == "all":
                self._seen.pop(id, None)
            return complete
        join(self.host, flight.at(part))
        self._forget()
        if part == "all":
            del self._seen[id]
        return True

    def _forget(self) -> None:
        """What the host knows to be complete is in flight no longer."""
        for id, flight in list(self.flights.items()):
            if self.host.get(flight.stream, 0) >= flight.moment:
                del self.flights[id]
                self._seen[id] = None
                if flight.event.stream is None:
                    self._lanes.append(flight.stream)
        while len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
