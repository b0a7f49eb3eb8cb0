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
"""Up to so many operations that use a page or a table, or spans of its slots, are searched one by one."""


class Stream:
    """A stream: its operations in flight, and the moments before its next operation."""

    __slots__ = ("clock", "flights", "host", "index", "is_host", "last", "name", "ordered")

    def __init__(self, name: str, index: int, *, is_host: bool = False) -> None:
        """No operation is queued, and none comes before the stream."""
        self.name, self.index, self.is_host = name, index, is_host
        self.last = 0
        """The moment at which its last operation is done."""
        self.clock = START
        """The moments of other streams that lie before its next operation."""
        self.host = START
        """The clock of a host that the stream joined last."""
        self.flights: deque[Flight] = deque()
        """Its operations in flight, oldest first."""
        self.ordered = 1
        """Each operation in flight with a smaller number is on this stream, or comes before its next operation."""


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
        """The operation `number`, the last one on its stream. `rivals`: not all others in flight are before it."""
        self.event, self.queue, self.number, self.rivals = event, queue, number, rivals
        self.stream = queue.name
        self.clock, self.ordered = queue.clock, queue.ordered
        """Those of its stream when it was queued."""
        self.seen = queue.clock is queue.host
        """Whether its host has seen everything that comes before it complete."""
        self.ended: tuple[str | None, ...] = ()
        """Hosts that have reported its end, or need not report it."""
        self.by: Writer = event.id, 0
        """Its name, and the number of the event that queued it."""
        self.delivered: str | None = None
        """The holder of a result that was delivered while it was unknown whether this stream reports ends."""
        self.moment = queue.last
        """The moment at which it is done. Its reads are done one moment earlier."""
        self.written: defaultdict[tuple[str, Page], list[Any]] | None = None
        """The content that its writes leave in each page, once two of them differ."""
        self.uses: list[tuple[Hashable, int, int, bool]] = []
        """Its uses of pages: the page, first slot, end slot, and whether it writes. Uses of tables are in `event`."""
        self.spans: dict[Hashable, dict[tuple[int, int, bool], None]] = {}
        """Its uses by table or page, collected when an operation with rivals needs them (`Clocks.sort`)."""
        self.touched: Touched | None = None
        """The same with holders, collected when an operation fails whose slots it uses."""

    def known(self, queue: Stream) -> int:
        """The last moment of a stream that comes before this operation."""
        return self.moment - 2 if queue is self.queue else moment(self.clock, queue.index)

    def is_after(self, earlier: "Flight", part: Literal["all", "reads"] = "all") -> bool:
        """Whether it comes after an earlier operation, or after its reads."""
        return self.known(earlier.queue) >= earlier.moment - (part == "reads")


class Touched:
    """The uses of an operation: slots of pages and positions of tables."""

    def __init__(self) -> None:
        """No uses yet."""
        self.pages: dict[tuple[str, Page], list[tuple[int, int, str | None, bool]]] = {}
        """Pool and page -> first slot, end slot, holder, and whether it writes."""
        self.written: dict[str | None, list[tuple[tuple[str, Page], int, int]]] = {}
        """Holder -> the pages written for it, each with first slot and end slot."""
        self.tables: dict[str, list[tuple[int, int, bool]]] = {}
        """Table -> first position, end position, and whether it writes."""


class StreamFlights(list[Flight]):
    """Operations of one stream, oldest first, that use the same page or table."""

    def __init__(self) -> None:
        """No operations yet."""
        super().__init__()
        self.quiet: dict[int, int] = {}
        """Operation -> the last of the operations from it on that only read, for holders with tainted results."""


ByStream = dict[str, StreamFlights]
"""Stream -> operations in flight there, oldest first."""
Span = tuple[int, int]
"""Slots of a page, or positions of a table: start, stop."""


class Users:
    """The operations in flight that use a page or a table, or write there."""

    def __init__(self, place: Hashable, *, writing: bool) -> None:
        """No operations yet."""
        self.by_stream: ByStream = {}
        self._place, self._writing, self._count = place, writing, 0
        self._spans: dict[Span, ByStream] | None = None
        """Span -> operations that use exactly these slots; `None` until there are more operations than `_MANY`."""
        self._by_size: dict[int, list[Span]] = {}
        """Bits in a span's length -> the spans of such a length, in order."""

    def add(self, flight: Flight, span: Span) -> None:
        """Add an operation that uses a span. It is later than all others of its stream here."""
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
        """Remove the oldest operation of its stream here: it is in flight no longer."""
        self._count -= _leave(self.by_stream, flight)
        for first, last, _ in () if self._spans is None else flight.spans[self._place]:
            by_stream = self._spans.get((first, last)) if self._spans else None
            if by_stream is not None and _leave(by_stream, flight) and not by_stream and self._spans is not None:
                del self._spans[first, last]
                spans = self._by_size[(last - first).bit_length()]
                del spans[bisect_left(spans, (first, last))]

    def near(self, first: int, last: int) -> Iterable[StreamFlights]:
        """At least the operations that use slots from `first` to `last`, perhaps others too, grouped by stream."""
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
