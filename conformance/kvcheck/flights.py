"""Operations in flight and their uses: by page and table, then by stream, and by slots where there are many."""

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from itertools import chain, islice
from typing import Any, Literal

from kvcheck.finding import Writer
from kvcheck.moments import START, moment
from kvspec.memory.events import Begin, Page

_MANY = 16
"""So many operations that use a page or a table, or spans of slots of it, are looked at one by one."""


class Stream:
    """A stream: its operations in flight, and the moments before its next operation."""

    __slots__ = ("clock", "flights", "host", "index", "is_host", "last", "name", "ordered")

    def __init__(self, name: str, index: int, *, is_host: bool = False) -> None:
        """Nothing is queued, and it comes after nothing."""
        self.name, self.index, self.is_host = name, index, is_host
        self.last = 0
        """The moment at which its last operation is done."""
        self.clock = START
        """The moments of other streams that lie before its next operation."""
        self.host = START
        """The clock of a host that it has joined last."""
        self.flights: deque[Flight] = deque()
        """Its operations in flight, oldest first."""
        self.ordered = 1
        """Each operation in flight with a smaller number is its own, or one that it comes after."""


class Flight:
    """A queued operation and its uses."""

    __slots__ = (
        "by",
        "clock",
        "delivered",
        "ended",
        "event",
        "moment",
        "number",
        "ordered",
        "queue",
        "rivals",
        "seen",
        "spans",
        "stream",
        "touched",
        "uses",
        "written",
    )

    def __init__(self, event: Begin, queue: Stream, number: int, *, rivals: bool) -> None:
        """The operation `number`, the last one on its stream; with `rivals` not ordered after all that is in flight."""
        self.event, self.queue, self.number, self.rivals = event, queue, number, rivals
        self.stream = queue.name
        self.clock, self.ordered = queue.clock, queue.ordered
        """The moments of other streams that lie before it, and before what its own stream has queued."""
        self.seen = queue.clock is queue.host
        """Whether its host has seen all of this."""
        self.ended: tuple[str | None, ...] = ()
        """Hosts that have reported its end, or need not."""
        self.by: Writer = event.id, 0
        """Its name, and the number of the event that queued it."""
        self.delivered: str | None = None
        """The holder whose result was delivered before it was known whether ends are reported on this stream."""
        self.moment = queue.last
        """When it is done; it has read at the moment before."""
        self.written: defaultdict[tuple[str, Page], list[Any]] | None = None
        """The content that its writes leave in each page, once two of them differ."""
        self.uses: list[tuple[Hashable, int, int, bool]] = []
        """Its uses of pages: the page, slots from, to, and whether it writes them. Its event has those of tables."""
        self.spans: dict[Hashable, dict[tuple[int, int, bool], None]] = {}
        """Its uses by table or page, once an operation that has rivals has asked (`Clocks.sort`)."""
        self.touched: Touched | None = None
        """The same with holders, once one failed whose slots it uses."""

    def known(self, queue: Stream) -> int:
        """The last moment of a stream that lies before it."""
        return self.moment - 2 if queue is self.queue else moment(self.clock, queue.index)

    def is_after(self, earlier: "Flight", part: Literal["all", "reads"] = "all") -> bool:
        """Whether it comes after an earlier operation, or after its reads."""
        return self.known(earlier.queue) >= earlier.moment - (part == "reads")


class Touched:
    """The uses of an operation: slots of pages and positions of tables."""

    def __init__(self) -> None:
        """Nothing."""
        self.pages: dict[tuple[str, Page], list[tuple[int, int, str | None, bool]]] = {}
        """Pool and page -> from, to, for whom, and whether it writes them."""
        self.written: dict[str | None, list[tuple[tuple[str, Page], int, int]]] = {}
        """Holder -> the pages that it writes for it, from, to."""
        self.tables: dict[str, list[tuple[int, int, bool]]] = {}
        """Table -> from, to, and whether it writes them."""


class StreamFlights(list[Flight]):
    """Operations of one stream, oldest first, that use the same page or table."""

    def __init__(self) -> None:
        """None yet."""
        super().__init__()
        self.quiet: dict[int, int] = {}
        """Operation -> the last of the operations from it on that only read, for holders with tainted results."""


ByStream = dict[str, StreamFlights]
"""Stream -> operations in flight there, oldest first."""
Span = tuple[int, int]
"""Slots of a page, or positions of a table: from, to."""


class Users:
    """The operations in flight that use a page or a table, or write there."""

    def __init__(self, place: Hashable, *, writing: bool) -> None:
        """None yet."""
        self.by_stream: ByStream = {}
        self._place, self._writing, self._count = place, writing, 0
        self._spans: dict[Span, ByStream] | None = None
        """Those that use just these slots, once there have been many."""
        self._by_size: dict[int, list[Span]] = {}
        """Bits of a length -> the spans that are so long, in order."""

    def add(self, flight: Flight, span: Span) -> None:
        """An operation, later than all of its stream here, uses some slots."""
        self._count += _enter(self.by_stream, flight)
        if self._spans is not None:
            self._add(flight, span)
        elif self._count > _MANY:
            self._spans = {}
            for one in chain.from_iterable(self.by_stream.values()):
                for first, last, writes in one.spans[self._place]:
                    if writes or not self._writing:
                        self._add(one, (first, last))

    def _add(self, flight: Flight, span: Span) -> None:
        assert self._spans is not None
        if span not in self._spans:
            self._spans[span] = {}
            insort(self._by_size.setdefault((span[1] - span[0]).bit_length(), []), span)
        _enter(self._spans[span], flight)

    def remove(self, flight: Flight) -> None:
        """The oldest operation of its stream here is in flight no longer."""
        self._count -= _leave(self.by_stream, flight)
        for first, last, _ in () if self._spans is None else flight.spans[self._place]:
            by_stream = self._spans.get((first, last)) if self._spans else None
            if by_stream is not None and _leave(by_stream, flight) and not by_stream and self._spans is not None:
                del self._spans[first, last]
                spans = self._by_size[(last - first).bit_length()]
                del spans[bisect_left(spans, (first, last))]

    def near(self, first: int, last: int) -> Iterable[StreamFlights]:
        """Operations, those of a stream together, among which are all that use slots from `first` to `last`."""
        if self._spans is None:
            return self.by_stream.values()
        near = [*islice(self._overlapping(first, last), _MANY + 1)]
        every = self.by_stream.values()
        return every if len(near) > _MANY else [flights for by_stream in near for flights in by_stream.values()]

    def _overlapping(self, first: int, last: int) -> Iterable[ByStream]:
        for bits, spans in self._by_size.items():
            low, high = bisect_left(spans, (first - (1 << bits), 0)), bisect_left(spans, (last, 0))
            for span in islice(spans, low, high):
                if self._spans is not None and first < span[1]:
                    yield self._spans[span]


def _enter(by_stream: ByStream, flight: Flight) -> bool:
    flights = by_stream.get(flight.queue.name)
    if flights is None:
        flights = by_stream[flight.queue.name] = StreamFlights()
    new = not (flights and flights[-1] is flight)
    if new:
        flights.append(flight)
    return new


def _leave(by_stream: ByStream, flight: Flight) -> bool:
    flights = by_stream.get(flight.queue.name)
    if not (flights and flights[0] is flight):
        return False
    del flights[0]
    flights.quiet.pop(flight.number, None)
    if not flights:
        del by_stream[flight.queue.name]
    return True
