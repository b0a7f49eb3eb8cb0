"""Happens-before, as vector clocks.

An operation is ordered after the earlier operations of its stream, after those that its stream waits for, after those
that its host had seen complete when it queued the operation, and after everything that these are ordered after. A
message joins two hosts' clocks.

A *moment* is a stream and a number: operation `k` of a stream has read at moment `2k - 1` and is done at moment `2k`. A
clock has for each stream the last moment that is ordered before.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterable, Iterator
from functools import reduce
from heapq import merge
from operator import attrgetter

from kvcheck.finding import Malformed
from kvcheck.flights import Flight, Stream, Users
from kvcheck.moments import START, Clock, after, join, later, meet, moment
from kvspec.memory.events import Begin, End, OpId, Receive, Send, Wait
from kvspec.memory.order import numbered

HOST = "host"
"""The name of a host's own stream: an operation there is complete at once."""
HOSTS = 256
"""Limit on the hosts of a trace."""
_END = 1 << 62
"""A position past all others: a use without an end extends to it."""
_REMEMBERED = 10_000
"""Limit on complete operations whose end may still be reported, and on messages."""

_NUMBER, _MOMENT = attrgetter("number"), attrgetter("moment")


class Clocks:
    """The streams, what each host has seen, and the operations in flight: those that a host has not seen complete."""

    def __init__(self) -> None:
        """Begin without operations."""
        self.hosts: dict[str | None, Stream] = {}
        """Host -> its own stream."""
        self.streams: dict[str, Stream] = {}
        """Name -> any other stream."""
        self._streams: list[Stream] = []
        """All streams, by number."""
        self._messages: dict[str, Clock] = {}
        """Message -> the moments before its receipt."""
        self.flights: dict[OpId, Flight] = {}
        self.begun = 0
        self.latest = 0
        """The largest number that names an operation: operations with larger numbers were never begun."""
        self._latest_of: dict[str | None, int] = {}
        """Host -> the same for names with this host before the number."""
        self.oldest = 1
        """The number of the oldest operation in flight; if there is none, of the next operation."""
        self.flying: list[Flight] = []
        """The operations in flight, oldest first."""
        self._sorted = 0
        """The uses of operations up to this number are sorted."""
        self.users: dict[Hashable, Users] = {}
        """Table or page -> the sorted operations in flight that use it."""
        self.writers: dict[Hashable, Users] = {}
        """Table or page -> the sorted operations in flight that write it."""
        self.ends_reported: set[str | None] = set()
        """Streams whose operations have reported ends; operations without a stream count as one."""
        self._seen: dict[tuple[str | None, OpId], int] = {}
        """Host and operation -> the event that queued it. The operation is complete because a later one is; the host
        may still report its end."""
        self._free: list[Stream] = []
        """Free streams for operations without a stream: every host has seen the last operation there."""

    def _host(self, name: str | None) -> Stream:
        """A host's own stream. A new host's stream is ordered after everything that all other hosts have seen."""
        host = self.hosts.get(name)
        if host is None:
            if len(self.hosts) == HOSTS:
                raise Malformed(f"a trace of more than {HOSTS} hosts")
            host = Stream(HOST if name is None else f"host of {name}", len(self._streams), is_host=True)
            host.clock = reduce(meet, [one.clock for one in self.hosts.values()] or [START])
            self.hosts[name] = host
            self._streams.append(host)
        return host

    def has_seen(self, name: str | None, flight: Flight, part: str = "all") -> bool:
        """Whether a host knows that an operation is complete, or that it has read."""
        return moment(self._host(name).clock, flight.queue.index) >= flight.moment - (part == "reads")

    def in_flight(self, id: OpId, host: str | None) -> Flight | None:
        """The operation with this name, unless the host knows that it is complete."""
        flight = self.flights.get(id)
        if len(self.hosts) == 1 and host in self.hosts:
            return flight
        seen = self._host(host).clock
        return None if flight is None or moment(seen, flight.queue.index) >= flight.moment else flight

    def was_begun(self, id: OpId) -> bool:
        """Whether an operation was begun, as far as its name shows."""
        if isinstance(id, int):
            return id <= self.latest
        name = numbered(id, self.hosts)
        return name is None or name[1] <= self._latest_of.get(name[0], 0)

    def _stream(self, name: str, host: str | None) -> Stream:
        """The stream to which a host gives this name."""
        if name == HOST:
            return self._host(host)
        stream = self.streams.get(name)
        if stream is None:
            stream = self.streams[name] = Stream(name, len(self._streams))
            self._streams.append(stream)
        return stream

    def begin(self, event: Begin) -> Flight:
        """Queue an operation."""
        name, host = event.stream, self._host(event.host)
        if name is not None:
            stream = self._stream(name, event.host)
        else:
            stream = self._free.pop() if self._free else self._stream(f"(alone {len(self._streams)})", event.host)
        self._see_host(stream, host)
        for earlier in event.after:
            if earlier in self.flights:
                self._order(stream, self.flights[earlier], "all")
        stream.last += 2
        rivals = self._has_rivals(stream)
        if rivals:
            self.sort_all()
        self.begun += 1
        if isinstance(event.id, int):
            if event.id > self.latest:
                self.latest = event.id
        elif event.host is not None and (numbers := numbered(event.id, {event.host})):
            self._latest_of[event.host] = max(numbers[1], self._latest_of.get(event.host, 0))
        flight = Flight(event, stream, self.begun, rivals=rivals)
        if stream.is_host and len(self.hosts) == 1:
            stream.clock = after(stream.clock, stream.index, stream.last)
        else:
            self.flights[event.id] = flight
            stream.flights.append(flight)
            self.flying.append(flight)
            for one in self.hosts:
                self._seen.pop((one, event.id), None)
            if stream.is_host:
                flight.ended = (event.host,)
                self._host_sees(stream, after(stream.clock, stream.index, stream.last))
        self._note_oldest()
        return flight

    def _see_host(self, stream: Stream, host: Stream) -> None:
        """Order a stream after everything that a host has seen."""
        seen = host.clock
        if stream.host is not seen:
            nothing_else = stream.clock is stream.host and len(self.hosts) == 1
            stream.clock = seen if nothing_else else join(stream.clock, seen)
            stream.host = seen

    def _order(self, stream: Stream, earlier: Flight, part: str) -> None:
        """Order a stream after an operation, or after its reads."""
        known = earlier.moment - (part == "reads")
        nothing_else = earlier.clock is stream.clock or (earlier.seen and stream.is_host and len(self.hosts) == 1)
        clock = stream.clock if nothing_else else join(stream.clock, earlier.clock)
        clock = after(clock, earlier.queue.index, known)
        if earlier.ordered > stream.ordered:
            stream.ordered = earlier.ordered
        if stream.is_host:
            self._host_sees(stream, clock, (earlier.queue.index,) if nothing_else else None)
        else:
            stream.clock = clock

    def _has_rivals(self, stream: Stream) -> bool:
        """Whether some operation in flight is not ordered before the next operation of a stream."""
        flying = self.flying
        if len(flying) == len(stream.flights):
            stream.ordered = self.begun + 1
            return False
        if self._is_rival(stream, flying[-1]):
            return True
        for place in range(bisect_left(flying, stream.ordered, key=_NUMBER), len(flying)):
            if self._is_rival(stream, flying[place]):
                stream.ordered = flying[place].number
                return True
        stream.ordered = self.begun + 1
        return False

    def _is_rival(self, stream: Stream, other: Flight) -> bool:
        """Whether an operation is not ordered before the next operation of a stream."""
        return other.queue is not stream and other.moment > moment(stream.clock, other.queue.index)

    def pass_by(self, id: OpId, name: str) -> None:
        """Queue an operation and see it complete, with nothing else in flight: `begin` and `end` in one call."""
        stream, (host,) = self._stream(name, None), self.hosts.values()
        self._see_host(stream, host)
        stream.last += 2
        stream.ordered = self.begun + 1
        host.clock = after(stream.clock, stream.index, stream.last)
        host.ordered = max(host.ordered, stream.ordered)
        self.begun += 1
        self.oldest = self.begun + 1
        if isinstance(id, int) and id > self.latest:
            self.latest = id
        self.ends_reported.add(name)
        for one in self.hosts:
            self._seen.pop((one, id), None)

    def sort_all(self) -> None:
        """Sort the uses of operations in flight. Only an operation with rivals, or a failed one, needs this."""
        for flight in self.flying[bisect_right(self.flying, self._sorted, key=_NUMBER) :]:
            self.sort(flight)
        self._sorted = self.begun

    def sort(self, flight: Flight) -> None:
        """Sort the uses of an operation."""
        if not flight.spans:
            for uses, writes in ((flight.event.writes, True), (flight.event.reads, False)):
                flight.uses += [(use.table, use.start, use.stop or _END, writes) for use in uses if use.table]
        for place, first, last, writes in flight.uses:
            flight.spans.setdefault(place, {})[first, last, writes] = None
            for index in (self.users, self.writers) if writes else (self.users,):
                if place not in index:
                    index[place] = Users(place, writing=index is self.writers)
                index[place].add(flight, (first, last))
        flight.uses.clear()

    def rivals_at(self, flight: Flight, place: Hashable, first: int, last: int, *, writing: bool) -> Iterable[Flight]:
        """An operation's rivals that use, or write, positions of a table or page in a span, the oldest first."""
        found, there = [], (self.writers if writing else self.users).get(place)
        for users in there.near(first, last) if there else ():
            stream = users[-1].queue
            if stream is not flight.queue and users[-1].moment > (known := flight.known(stream)):
                found.append(self._since(users, known))
        return found[0] if len(found) == 1 else merge(*found, key=_NUMBER)

    def _since(self, users: list[Flight], known: int) -> Iterator[Flight]:
        """Operations of a stream after one of its moments."""
        for place in range(bisect_right(users, known, key=_MOMENT), len(users)):
            yield users[place]

    def wait(self, event: Wait) -> None:
        """Order all later operations of a stream. A wait for an ended or unknown operation orders nothing."""
        stream = self._stream(event.stream, event.host)
        if event.id is not None and event.id in self.flights:
            self._order(stream, self.flights[event.id], event.part)
        other = None if event.on is None else self._stream(event.on, event.host)
        if other is not None and other is not stream:
            clock = after(join(stream.clock, other.clock), other.index, other.last)
            stream.ordered = max(stream.ordered, other.ordered)
            if stream.is_host:
                self._host_sees(stream, clock)
            else:
                stream.clock = clock

    def send(self, event: Send) -> None:
        """A message is sent, after some operations or at once."""
        clock = self._host(event.host).clock
        for flight in (self.flights[id] for id in event.after if id in self.flights):
            clock = after(join(clock, flight.clock), flight.queue.index, flight.moment)
        self._messages[event.id] = clock
        if len(self._messages) > _REMEMBERED:
            del self._messages[next(iter(self._messages))]

    def receive(self, event: Receive) -> None:
        """A host learns all moments that the sender of a message knew."""
        host = self._host(event.host)
        self._host_sees(host, join(host.clock, self._messages.get(event.id, START)))

    def end(self, event: End) -> int | None:
        """A host has seen an operation end, and with it all operations ordered before.

        Returns the event that queued it; `None` if there is none, or if its end was already reported.
        """
        host, flight = self._host(event.host), self.flights.get(event.id)
        if flight is None:
            key = event.host, event.id
            return self._seen.pop(key, None) if event.part == "all" else self._seen.get(key)
        if event.host in flight.ended:
            return None
        if event.part == "all":
            flight.ended += (event.host,)
        if len(self.hosts) == 1 or not self.has_seen(event.host, flight):
            self.ends_reported.add(flight.event.stream)
        self._order(host, flight, event.part)
        return flight.by[1]

    def _host_sees(self, host: Stream, clock: Clock, news: Iterable[int] | None = None) -> None:
        """Advance a host's clock. Operations that every host knows as complete are no longer in flight.

        `news` are the streams on which the clock advances.
        """
        before, host.clock = host.clock, clock
        for index in later(before, clock) if news is None else news:
            flights, known = self._streams[index].flights, moment(clock, index)
            if len(self.hosts) > 1:
                known = min(moment(one.clock, index) for one in self.hosts.values())
            while flights and flights[0].moment <= known:
                self._forget(flights.popleft())
        self._note_oldest()
        while len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]

    def _note_oldest(self) -> None:
        self.oldest = self.flying[0].number if self.flying else self.begun + 1

    def _forget(self, flight: Flight) -> None:
        """Drop an operation that is ordered before every later one."""
        oldest = self.flying[0] is flight
        del self.flying[0 if oldest else bisect_left(self.flying, flight.number, key=_NUMBER)]
        if self.flights.get(flight.event.id) is flight:
            del self.flights[flight.event.id]
            for host in self.hosts:
                if host not in flight.ended:
                    self._seen[host, flight.event.id] = flight.by[1]
        if flight.event.stream is None:
            self._free.append(flight.queue)
        for place in flight.spans:
            for index in (self.users, self.writers):
                users = index.get(place)
                if users is not None:
                    users.remove(flight)
                    if not users.by_stream:
                        del index[place]
