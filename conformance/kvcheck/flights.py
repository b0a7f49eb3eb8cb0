"""Operations in flight, and what they use: of each page and table by stream, and by slots where there are many."""

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
    """A stream: what was queued there, and what the next operation there comes after."""

    __slots__ = ("clock", "host", "index", "is_host", "lane", "last", "name", "ordered")

    def __init__(self, name: str, index: int, *, is_host: bool = False) -> None:
        """Nothing is queued, and it comes after nothing."""
        self.name, self.index, self.is_host = name, index, is_host
        self.last = 0
        """The moment at which its last operation is done."""
        self.clock = START
        """The moments of other streams that lie before its next operation."""
        self.host = START
        """The clock of a host that it has joined last."""
        self.lane: deque[Flight] = deque()
        """Its operations in flight, oldest first."""
        self.ordered = 1
        """Each operation in flight with a smaller number is its own, or one that it comes after."""


class Flight:
    """An operation that is queued, and what it uses."""

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
        """Hosts that were told of its end, or are not to be told."""
        self.by: Writer = event.id, 0
        """Its name, and the number of the event that queued it."""
        self.delivered: str | None = None
        """For whom what it computed left the engine, when it was not known yet whether its end would be told."""
        self.moment = queue.last
        """When it is done; it has read at the moment before."""
        self.written: defaultdict[tuple[str, Page], list[Any]] | None = None
        """The content that its writes leave in each page, once two of them differ."""
        self.uses: list[tuple[Hashable, int, int, bool]] = []
        """Of pages, by pool and number: slots from, to; and whether it writes them. Uses of tables its event tells."""
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


class Lane(list[Flight]):
    """Operations of one stream, oldest first, that use the same."""

    def __init__(self) -> None:
        """None yet."""
        super().__init__()
        self.quiet: dict[int, int] = {}
        """The number of one -> up to which number they only read it, for whom their results are worthless."""


Lanes = dict[str, Lane]
"""Stream -> operations in flight there, oldest first."""
Span = tuple[int, int]
"""Slots of a page, or positions of a table: from, to."""


class Users:
    """The operations in flight that use a page or a table, or write there."""

    def __init__(self, place: Hashable, *, writing: bool) -> None:
        """None yet."""
        self.lanes: Lanes = {}
        self._place, self._writing, self._count = place, writing, 0
        self._spans: dict[Span, Lanes] | None = None
        """Those that use just these slots, once there have been many."""
        self._by_size: dict[int, list[Span]] = {}
        """Bits of a length -> the spans that are so long, in order."""

    def add(self, flight: Flight, span: Span) -> None:
        """An operation, later than all of its stream here, uses some slots."""
        self._count += _enter(self.lanes, flight)
        if self._spans is not None:
            self._add(flight, span)
        elif self._count > _MANY:
            self._spans = {}
            for one in chain.from_iterable(self.lanes.values()):
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
        self._count -= _leave(self.lanes, flight)
        for first, last, _ in () if self._spans is None else flight.spans[self._place]:
            lanes = self._spans.get((first, last)) if self._spans else None
            if lanes is not None and _leave(lanes, flight) and not lanes and self._spans is not None:
                del self._spans[first, last]
                spans = self._by_size[(last - first).bit_length()]
                del spans[bisect_left(spans, (first, last))]

    def near(self, first: int, last: int) -> Iterable[Lane]:
        """Operations, those of a stream together, among which are all that use slots from `first` to `last`."""
        if self._spans is None:
            return self.lanes.values()
        near = [*islice(self._overlapping(first, last), _MANY + 1)]
        return self.lanes.values() if len(near) > _MANY else [lane for lanes in near for lane in lanes.values()]

    def _overlapping(self, first: int, last: int) -> Iterable[Lanes]:
        for bits, spans in self._by_size.items():
            low, high = bisect_left(spans, (first - (1 << bits), 0)), bisect_left(spans, (last, 0))
            for span in islice(spans, low, high):
                if self._spans is not None and first < span[1]:
                    yield self._spans[span]


def _enter(lanes: Lanes, flight: Flight) -> bool:
    lane = lanes.get(flight.queue.name)
    if lane is None:
        lane = lanes[flight.queue.name] = Lane()
    new = not (lane and lane[-1] is flight)
    if new:
        lane.append(flight)
    return new


def _leave(lanes: Lanes, flight: Flight) -> bool:
    lane = lanes.get(flight.queue.name)
    if not (lane and lane[0] is flight):
        return False
    del lane[0]
    lane.quiet.pop(flight.number, None)
    if not lane:
        del lanes[flight.queue.name]
    return True
