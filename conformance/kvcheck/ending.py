"""The end and the delivery of operations, and the consequences of slots that an operation left unwritten.

Only operations in flight that use missing or tainted slots are visited.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush, merge
from itertools import count
from operator import attrgetter

from msgspec.structs import replace

from kvcheck.flights import Flight, StreamFlights, Touched
from kvcheck.holding import check_plans
from kvcheck.pages import HOLE, NOTHING, Content, PageState
from kvcheck.parts import parts_of, taint
from kvcheck.state import State
from kvspec.memory import events
from kvspec.memory.events import Page

_REMEMBERED = 10_000
"""The most operations with tainted results that are remembered, as they may still be delivered."""
_END = 1 << 62
_NUMBER = attrgetter("number")

Place = tuple[str, Page]
"""A page: its pool, and its number there."""


def end(state: State, event: events.End) -> None:
    """A host has seen an operation complete. Slots that it did not write are missing, and taint all reads of them."""
    state.checked["MEM-ORDER"] += 1
    flight = state.clocks.in_flight(event.id, event.host)
    if flight is not None and flight.delivered is not None:
        state.find("MEM-DELIVER/incomplete", holder=flight.delivered).operation = event.id
        flight.delivered = None
    queued = state.clocks.end(event)
    if queued is None:
        state.find("MEM-ORDER/not-in-flight").operation = event.id
    elif event.unwritten:
        _Failure(state).follow(event, queued)
    while len(state.tainted) > _REMEMBERED:
        del state.tainted[next(iter(state.tainted))]


def deliver(state: State, event: events.Deliver) -> None:
    """The result of an operation for a holder leaves the engine."""
    state.checked["MEM-DELIVER"] += 1
    flight = state.clocks.in_flight(event.id, event.host)
    if not state.clocks.was_begun(event.id):
        state.find("MEM-DELIVER/not-begun", holder=event.holder).operation = event.id
    elif flight is not None and flight.event.stream in state.clocks.ends_reported:
        state.find("MEM-DELIVER/incomplete", holder=event.holder).operation = event.id
    elif flight is not None:
        flight.delivered = event.holder
    causes = state.tainted.get(event.id)
    if causes is None:
        return
    for holder in (event.holder, None):
        if holder in causes:
            found = state.find("MEM-DELIVER/tainted", holder=event.holder)
            found.operation, found.cause = event.id, causes[holder]
            return


class _Failure:
    """A failed operation: the slots that it left unwritten, and those that were computed from them."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._missing = defaultdict[Place, PageState](PageState)
        self._tainted = defaultdict[Place, PageState](PageState)
        """Page -> its missing or tainted slots, kept as contents."""
        self._wrote: set[tuple[Place, events.OpId]] = set()
        self._followed: set[tuple[Place, int, int]] = set()
        self._users: list[tuple[int, int, Flight, Iterator[Flight], tuple[Place, int, int]]] = []
        """For followed slots the next operation that uses them, and the operations after it; the oldest first."""
        self._tie = count()

    def follow(self, event: events.End, queued: int) -> None:
        """Mark the slots that an operation left unwritten as missing, unless a later operation wrote them.

        `queued` is the event that queued the operation. Names of missing slots become plans again. The results of
        operations in flight that read missing slots are tainted, and so are those of operations that read these. The
        checker forgets which slots of a page an operation wrote when it completes, or when its table gets other pages;
        slots of a page that such an operation wrote last are not taken to be missing. An operation's reads of its own
        writes are not followed.
        """
        clocks = self._state.clocks
        clocks.sort_all()
        later = bisect_right(clocks.flying, queued, key=lambda flight: flight.by[1])
        number = clocks.flying[later].number - 1 if later < len(clocks.flying) else _END
        for pool, page, start, stop, *_ in [part for use in event.unwritten for part in parts_of(self._state, use)]:
            self._lose(self._missing, (pool.name, page), start, stop, number)
        while self._users:
            due = [heappop(self._users)]
            while self._users and self._users[0][0] == due[0][0]:
                due.append(heappop(self._users))
            self._look(due[0][2], {slots[0] for *_, slots in due})
            for *_, users, slots in due:
                self._go_on(users, slots)
        self._mark()
        self._leave_out(event.id, queued)

    def _lose(self, gaps: dict[Place, PageState], place: Place, start: int, stop: int, number: int) -> None:
        """Note missing or tainted slots, and follow the operations after `number` that use them."""
        gaps[place].put([Content(start, stop, None)])
        if (place, start, stop) not in self._followed:
            self._followed.add((place, start, stop))
            pool, index, users = self._state.pools[place[0]], self._state.clocks.users, list[Iterator[Flight]]()
            named = pool.page(place[1]).tables.items() if place[1] in pool.individual or place[1] in pool.groups else ()
            bases: dict[str | Place, int] = {place: 0} | {table: link.index * pool.size for table, link in named}
            for where, base in bases.items():
                for flights in index[where].near(base + start, base + stop) if where in index else ():
                    users.append(self._later(flights, number, where))
            self._go_on(merge(*users, key=_NUMBER), (place, start, stop))

    def _later(self, flights: StreamFlights, number: int, where: str | Place) -> Iterator[Flight]:
        """Operations of a stream after a number, without those that cannot taint anything further."""
        passed, at = list[int](), bisect_right(flights, number, key=_NUMBER)
        try:
            while at < len(flights):
                flight = flights[at]
                if flight.number not in flights.quiet:
                    yield flight
                    if not self._is_quiet(flight, where):
                        at += 1
                        flights.quiet |= dict.fromkeys(passed, number)
                        passed.clear()
                        continue
                passed.append(flight.number)
                number = flights.quiet.get(flight.number, flight.number)
                at = bisect_right(flights, number, key=_NUMBER)
        finally:
            flights.quiet |= dict.fromkeys(passed, number)

    def _is_quiet(self, flight: Flight, where: str | Place) -> bool:
        """Whether an operation only reads a page or table, for holders whose results are tainted already."""
        touched, causes = _touched(self._state, flight), self._state.tainted.get(flight.event.id, NOTHING)
        if isinstance(where, str):
            uses = [(self._state.tables[where].holder, use[-1]) for use in touched.tables.get(where, ())]
            return not any(writes or not (holder in causes or None in causes) for holder, writes in uses)
        pages = touched.pages.get(where, ())
        return not any(writes or not (holder in causes or None in causes) for *_, holder, writes in pages)

    def _go_on(self, users: Iterator[Flight], slots: tuple[Place, int, int]) -> None:
        """Note the next operation that uses slots, if one of them is still missing or tainted."""
        following = next(users, None) if self._is_lost(*slots) else None
        if following is None:
            self._followed.discard(slots)
        else:
            heappush(self._users, (following.number, next(self._tie), following, users, slots))

    def _is_lost(self, place: Place, start: int, stop: int) -> bool:
        """Whether one of these slots is missing or tainted."""
        return any(
            isinstance(piece, Content)
            for gaps in (self._missing, self._tainted)
            if place in gaps
            for piece in gaps[place].pieces(start, stop)
        )

    def _look(self, flight: Flight, due: set[Place]) -> None:
        """Apply the reads and writes of an operation to pages with missing or tainted slots."""
        state, touched = self._state, _touched(self._state, flight)
        causes, new = state.tainted.get(flight.event.id, NOTHING), dict[str | None, None]()
        uses = [(place, *use) for place in due for use in self._uses(flight, touched, place)]
        for place, start, stop, holder, writes in uses:
            if not (writes or holder in causes or None in causes) and self._is_lost(place, start, stop):
                new[holder] = None
        for place, start, stop, _, writes in uses:
            if writes:
                self._wrote.add((place, flight.event.id))
                for gaps in (self._missing, self._tainted):
                    if place in gaps:
                        gaps[place].erase(start, stop)
        for holder in new:
            taint(state, flight, holder, None)
            for place, start, stop in self._written(flight, touched, holder):
                self._lose(self._tainted, place, start, stop, flight.number)

    def _uses(self, flight: Flight, touched: Touched, place: Place) -> Iterator[tuple[int, int, str | None, bool]]:
        """An operation's uses of a page: first slot, end slot, holder, and whether it writes."""
        yield from touched.pages.get(place, ())
        pool, number = self._state.pools[place[0]], place[1]
        names = pool.page(number).tables if number in pool.individual or number in pool.groups else NOTHING
        for name in names if len(names) <= len(touched.tables) else touched.tables:
            link = names.get(name)
            if link is not None and link.since < flight.number:
                base, holder = link.index * pool.size, self._state.tables[name].holder
                for start, stop, writes in touched.tables.get(name, ()):
                    if start < base + pool.size and base < stop:
                        yield max(0, start - base), min(pool.size, stop - base), holder, writes

    def _written(self, flight: Flight, touched: Touched, holder: str | None) -> Iterator[tuple[Place, int, int]]:
        """The slots that an operation writes for a holder; `None`: for all."""
        for one in touched.written if holder is None else (holder,):
            yield from touched.written.get(one, ())
        own = self._state.tables if holder is None else self._state.tables_of.get(holder, NOTHING)
        for name in own if len(own) <= len(touched.tables) else touched.tables:
            if name in own and name in touched.tables:
                table = self._state.tables[name]
                pool, size = table.pool, table.pool.size
                for first, last in [(first, last) for first, last, writes in touched.tables[name] if writes]:
                    for index in range(first // size, min(-(-last // size), len(table.pages))):
                        number, base = table.pages[index], index * size
                        link = None if number == HOLE else pool.page(number).tables.get(name)
                        if link is not None and link.since < flight.number:
                            yield (pool.name, number), max(0, first - base), min(size, last - base)

    def _mark(self) -> None:
        """Mark the slots of pages that were computed from missing slots, unless an operation overwrote them."""
        for (name, number), gap in self._tainted.items():
            pool = self._state.pools[name]
            page = pool.page(number)
            for slots in gap.content:
                for piece in [*page.pieces(slots.start, slots.stop)]:
                    if isinstance(piece, Content):
                        page.put([replace(piece, failed=True)])
            self._state.changed(page)

    def _leave_out(self, id: events.OpId, queued: int) -> None:
        """Remove the missing slots from their pages. Names of these slots become plans again."""
        for (name, number), gap in self._missing.items():
            pool = self._state.pools[name]
            known = number in pool.individual or number in pool.groups
            if not (gap.content and known):  # written since, or nothing was ever known of it
                continue
            page = pool.page(number)
            last = page.writer
            if last is None or (last != (id, queued) and ((name, number), last[0]) not in self._wrote):
                continue
            for slots in gap.content:
                page.erase(slots.start, slots.stop)
            for key in page.keys:
                page.unplan(key)
            page.plan(None, page.keys)
            self._state.changed(page)
            check_plans(self._state, pool, number, page)


def _touched(state: State, flight: Flight) -> Touched:
    """The slots that an operation uses, sorted."""
    touched = flight.touched
    if touched is None:
        touched = flight.touched = Touched()
        event = flight.event
        reads = [*event.reads, *(source for source, _ in event.copies)]
        writes = [*event.writes, *(target for _, target in event.copies)]
        for use, written in [*((use, False) for use in reads), *((use, True) for use in writes)]:
            if use.table is not None:
                touched.tables.setdefault(use.table, []).append((use.start, use.stop or _END, written))
                continue
            for pool, number, start, stop, _, holder, _ in parts_of(state, use, check=False):
                if number not in pool.padding:
                    touched.pages.setdefault((pool.name, number), []).append((start, stop, holder, written))
                    if written:
                        touched.written.setdefault(holder, []).append(((pool.name, number), start, stop))
    return touched
