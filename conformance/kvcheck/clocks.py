"""Happens-before, as vector clocks.

An operation is ordered after what its stream queued earlier, after what its stream waits for, and after what the host
had seen complete when it queued it; and after all that these are ordered after. A *moment* is a stream and a number:
operation `k` of a stream has read at moment `2k - 1` and is done at moment `2k`. A clock maps streams to the last
moment that lies before.
"""

from collections.abc import Hashable, Iterator
from operator import attrgetter

from kvcheck.finding import Writer
from kvspec.contracts import ensure
from kvspec.memory.events import Begin, OpId

Clock = dict[str, int]
HOST = "host"
"""The host's own stream: what is done there is done at once."""
_END = 1 << 62
"""No position lies there: a use without an end goes up to it."""
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


class Flight:
    """An operation that is queued, and what it uses."""

    __slots__ = ("by", "clock", "delivered", "event", "moment", "number", "rivals", "spans", "stream", "uses")

    def __init__(self, event: Begin, stream: str, clock: Clock, rivals: "set[Flight]", number: int) -> None:
        """The operation `number`, ordered after `clock`, itself included, and not after its `rivals`."""
        self.event, self.stream, self.clock, self.rivals, self.number = event, stream, clock, rivals, number
        self.by: Writer = event.id, 0
        """Its name, and the number of the event that queued it."""
        self.delivered: str | None = None
        """For whom what it computed left the engine, when it was not known yet whether its end would be told."""
        self.moment = clock[stream]
        """When it is done; it has read at the moment before."""
        self.uses: list[tuple[Hashable, int, int, bool]] = []
        """Of pages, by pool and number: slots from, to; and whether it writes them. Uses of tables its event tells."""
        self.spans: dict[Hashable, dict[tuple[int, int, bool], None]] = {}
        """Its uses by table or page, once an operation that is its rival has asked (`Clocks.sort`)."""

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
        self.lanes: dict[str, list[Flight]] = {}
        """Stream -> its operations in flight, oldest first."""
        self.begun = 0
        self.latest = 0
        """The largest name of an operation that is a number: one with a larger name was never begun."""
        self.oldest = 1
        """The number of the oldest operation in flight, or of the next one."""
        self.users: dict[Hashable, dict[Flight, None]] = {}
        """Table, or page -> the operations in flight that use it, of those that an unordered one has asked for."""
        self.writers: dict[Hashable, dict[Flight, None]] = {}
        """The same for those that write there."""
        self.told: set[str | None] = set()
        """Streams of which it is told when their operations end; operations without one count as one."""
        self._seen: dict[OpId, int] = {}
        """Operations that are complete because a later one is, and which events queued them; their own end may come."""
        self._free: list[str] = []
        """Streams of operations that have none: free again once the host has seen the last operation there."""

    def begin(self, event: Begin) -> Flight:
        """Queue an operation."""
        stream = event.stream
        if stream is None:
            stream = self._free.pop() if self._free else f"(alone {len(self.streams)})"
        clock = self.streams.setdefault(stream, {})
        if clock is not self.host:
            join(clock, self.host)
        for earlier in event.after:
            if earlier in self.flights:
                join(clock, self.flights[earlier].clock)
        clock[stream] = clock.get(stream, 0) + 2
        rivals: set[Flight] = set()
        for other, lane in self.lanes.items():
            if lane and other != stream and lane[-1].moment > (known := clock.get(other, 0)):
                rivals.update(flight for flight in lane if flight.moment > known)
        for rival in sorted(rivals, key=attrgetter("number")):
            self.sort(rival)
        self.begun += 1
        if isinstance(event.id, int) and event.id > self.latest:
            self.latest = event.id
        if not self.flights:
            self.oldest = self.begun + (clock is self.host)
        flight = Flight(event, stream, clock.copy(), rivals, self.begun)
        if clock is not self.host:
            self.flights[event.id] = flight
            self.lanes.setdefault(stream, []).append(flight)
            self._seen.pop(event.id, None)
        elif event.after:
            self._forget()
        return flight

    def pass_by(self, id: OpId, stream: str) -> None:
        """An operation is queued and seen complete while nothing else is in flight: `begin` and `end`, in short."""
        clock = self.streams.setdefault(stream, {})
        join(clock, self.host)
        clock[stream] = clock.get(stream, 0) + 2
        join(self.host, clock)
        self.begun += 1
        self.oldest = self.begun + 1
        if isinstance(id, int) and id > self.latest:
            self.latest = id
        self.lanes.setdefault(stream, [])
        self.told.add(stream)
        self._seen.pop(id, None)

    def sort(self, flight: Flight) -> None:
        """Sort the uses of an operation. It is done only where a rival asks: most operations have none."""
        if not flight.spans:
            for uses, writes in ((flight.event.writes, True), (flight.event.reads, False)):
                flight.uses += [(use.table, use.start, use.stop or _END, writes) for use in uses if use.table]
        for place, first, last, writes in flight.uses:
            flight.spans.setdefault(place, {})[first, last, writes] = None
            self.users.setdefault(place, {})[flight] = None
            if writes:
                self.writers.setdefault(place, {})[flight] = None
        flight.uses.clear()

    def rivals_at(self, flight: Flight, place: Hashable, *, writing: bool) -> Iterator[Flight]:
        """The rivals of an operation that use a table or page, or that write there; the oldest first."""
        users = (self.writers if writing else self.users).get(place, ())
        return (user for user in users if user in flight.rivals)

    def wait(self, stream: str, id: OpId | None, on: str | None, part: str) -> None:
        """Order what `stream` queues from now on. To wait for what has ended, or for nothing, orders nothing."""
        clock = self.streams.setdefault(stream, {})
        if id is not None and id in self.flights:
            join(clock, self.flights[id].at(part))
        if on is not None and on in self.streams:
            join(clock, self.streams[on])
        if clock is self.host:
            self._forget()

    def end(self, id: OpId, part: str) -> int | None:
        """The host has seen it, and all that is ordered before it: which event queued it, if it is in flight."""
        flight = self.flights.get(id)
        if flight is None:
            return self._seen.pop(id, None) if part == "all" else self._seen.get(id)
        join(self.host, flight.at(part))
        self.told.add(flight.event.stream)
        self._forget()
        if part == "all":
            del self._seen[id]
        return flight.by[1]

    def _forget(self) -> None:
        """What the host knows to be complete is in flight no longer."""
        for stream, lane in self.lanes.items():
            while lane and lane[0].moment <= self.host.get(stream, 0):
                flight = lane.pop(0)
                flight.rivals.clear()
                self._forget_uses(flight)
                if self.flights.get(flight.event.id) is flight:
                    del self.flights[flight.event.id]
                    self._seen[flight.event.id] = flight.by[1]
                if flight.event.stream is None:
                    self._free.append(stream)
        self.oldest = min((lane[0].number for lane in self.lanes.values() if lane), default=self.begun + 1)
        while len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def _forget_uses(self, flight: Flight) -> None:
        """Nothing can be unordered with an operation any more."""
        for place in flight.spans:
            for index in (self.users, self.writers):
                users = index.get(place)
                if users is not None and flight in users:
                    del users[flight]
                    if not users:
                        del index[place]
