"""What operations do to slots: begin, wait, end, deliver, and the tables through which slots are named.

Each read is held against holders, writes before it, and content; each write against holders, names, and the reads and
writes before it. What is read through a table is checked once a stream, and again only where something changed, so a
decode step costs what it adds and not what it attends to.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from kvspec.memory import events
from kvspec.memory.clocks import Clock, Flight
from kvspec.memory.events import Begin, Label, Page, Use
from kvspec.memory.holding import check_plans, whose
from kvspec.memory.state import Content, Malformed, PageState, PoolState, Span, State, Table, View

_REMEMBERED = 10_000
"""Operations with worthless results that may still be delivered."""


class Slots(NamedTuple):
    """Slots `start` to `stop` of one page."""

    page: Page
    start: int
    stop: int
    position: int
    """Of slot 0 of the page: in the table, or in the use's pages one after the other."""


class Target(NamedTuple):
    """A use, resolved."""

    pool: PoolState
    slots: list[Slots]
    holder: str | None
    labels: list[Label | None] | list[Label] | None
    first: int
    """Which unit of the positions the first label is for."""

    def meant(self, slots: Slots) -> list[Content]:
        """What these slots are meant to hold."""
        return self.pool.meant(self.labels, slots.start, slots.stop, slots.position, self.first)


def map_table(state: State, event: events.Map) -> None:
    """A holder's table names these pages from page index `index` on."""
    pool = state.pool(event.pool)
    table = state.tables.setdefault(event.table, Table(event.table, event.holder, pool))
    numbers, units, labels = pool.expand(event.pages), pool.size // pool.unit, event.labels or []
    if table.pool is not pool or not 0 <= event.index <= len(table.pages) or len(labels) > len(numbers) * units:
        raise Malformed(f"table {event.table} of pool {table.pool.name} has {len(table.pages)} pages of {units} labels")
    if table.holder != event.holder:
        table.holder = event.holder
        table.views.clear()
    for index, number in enumerate(numbers, event.index):
        if index < len(table.pages):
            _unlink(state, table, index)
            table.pages[index] = number
        else:
            table.pages.append(number)
        if number not in pool.sinks:
            page = pool.page(number)
            page.tables[table.name] = index
            state.changed(page)
    start = event.index * units
    table.labels[start : start + len(numbers) * units] = [*labels, *[None] * (len(numbers) * units - len(labels))]


def unmap(state: State, event: events.Unmap) -> None:
    """A table ends before page index `index`; without pages it is forgotten."""
    table = state.tables.get(event.table)
    if table is None:
        return
    for index in range(event.index, len(table.pages)):
        _unlink(state, table, index)
    end = event.index * table.pool.size
    del table.pages[event.index :], table.labels[end // table.pool.unit :]
    for view in table.views.values():
        view.low, view.high = min(view.low, end), min(view.high, end)
        view.changed = {index for index in view.changed if index < event.index}
    if not table.pages:
        del state.tables[event.table]


def _unlink(state: State, table: Table, index: int) -> None:
    """A table names a page no longer: what was read of it through the table is noted on the page instead."""
    number, first, stop = table.pages[index], index * table.pool.size, (index + 1) * table.pool.size
    page = table.pool.pages.get(number)
    linked = page is not None and page.tables.get(table.name) == index
    for stream, spans in table.reads.items():
        kept: list[Span] = []
        for span in state.live(spans):
            parts = (span._replace(stop=min(span.stop, first)), span._replace(start=max(span.start, stop)))
            kept += [part for part in parts if part.start < part.stop]
            here = span._replace(start=max(span.start, first) - first, stop=min(span.stop, stop) - first)
            if page is not None and linked and here.start < here.stop:
                page.reads.append(here)
        table.reads[stream] = kept
    if page is not None and linked:
        del page.tables[table.name]
        state.forget_if_free(table.pool, number, page)


def learn(state: State, event: events.Learn) -> None:
    """Two labels are the same."""
    state.labels.learn(event.label, event.same, event.slots)
    state.sweep_labels()


def begin(state: State, event: Begin) -> None:
    """An operation is queued: each of its uses is judged, and counts from now on."""
    if event.id in state.clocks.flights:
        state.find("MEM-ORDER", f"operation {event.id} is begun again while it is in flight")
    flight = state.clocks.begin(event)
    state.spoilt.pop(event.id, None)
    if event.sees_own:
        for use in event.writes:
            _write(state, flight, use)
    for use in event.reads:
        _read(state, flight, use)
    if not event.sees_own:
        for use in event.writes:
            _write(state, flight, use)
    for source, target in event.copies:
        _copy(state, flight, source, target)
    if event.id in state.spoilt:
        _spoil_writes(state, event)


def wait(state: State, event: events.Wait) -> None:
    """What is queued on a stream from now on comes after something."""
    state.clocks.wait(event.stream, event.id, event.on, event.part)


def end(state: State, event: events.End) -> None:
    """The host has seen an operation complete; what it did not write is missing, and spoils what was computed of it."""
    if not state.clocks.end(event.id, event.part):
        state.find("MEM-ORDER", f"operation {event.id} is taken for complete, but is not in flight")
    elif event.unwritten:
        _fail(state, event)
    while len(state.spoilt) > _REMEMBERED:
        del state.spoilt[next(iter(state.spoilt))]


def deliver(state: State, event: events.Deliver) -> None:
    """What an operation computed for a holder leaves the engine."""
    causes = state.spoilt.get(event.id, {})
    for holder in (event.holder, None):
        if holder in causes:
            what = f"what operation {event.id} computed for {event.holder} is delivered, but what it read was not there"
            state.find("MEM-DELIVER", what, holder=event.holder).cause = causes[holder]
            return


def _resolve(state: State, use: Use, *, judge: bool = True) -> Target:
    """The slots of a use, for whom they are used, and what they are meant to hold; a hole is a finding."""
    holder, labels = use.holder, use.labels
    if use.table is not None:
        table = state.tables.get(use.table)
        if table is None:
            if judge:
                state.find("MEM-USE", f"table {use.table} is used, but it names no page")
            return Target(next(iter(state.pools.values())), [], None, None, 0)
        pool, pages, holder, name = table.pool, table.pages, table.holder, use.table
    elif use.pool is not None:
        pool = state.pool(use.pool)
        pages, name = pool.expand(use.pages), "the pages"
    else:
        raise Malformed("a use names neither a table nor a pool")
    start, stop, room, size = use.start, use.stop or len(pages) * pool.size, len(pages) * pool.size, pool.size
    if start < 0 or stop < start:
        raise Malformed(f"a use of slots {start} to {stop}")
    first = start // pool.unit
    if labels is not None and len(labels) != (-(-stop // pool.unit) - first if stop > start else 0):
        raise Malformed(f"{len(labels)} labels for slots {start} to {stop}, {pool.unit} each")
    if stop > room and judge:
        state.find("MEM-USE", f"position {stop - 1} of {name} has no page", pool, holder=holder)
    stop = min(stop, room)
    indices = range(start // size, -(-stop // size)) if start < stop else ()
    slots = [Slots(pages[i], max(start - i * size, 0), min(stop - i * size, size), i * size) for i in indices]
    if labels is None and use.table is not None:
        return Target(pool, slots, holder, state.tables[use.table].labels, 0)
    return Target(pool, slots, holder, labels, first)


def _read(state: State, flight: Flight, use: Use) -> None:
    """Judge a read and note it, for the writes that come later."""
    table = state.tables.get(use.table or "")
    if table is None or use.labels is not None or use.stop > len(table.pages) * table.pool.size:
        target = _resolve(state, use)
        for slots in target.slots:
            _read_slots(state, flight, target, slots, note=table is None)
    else:
        _read_table(state, flight, table, use)
    if table is not None:
        stop = min(use.stop or (1 << 62), len(table.pages) * table.pool.size)
        known = state.live(table.reads.get(flight.stream, []))
        kept = [span for span in known if span.start < use.start or span.stop > stop]
        kept.append(Span(use.start, stop, flight.stream, flight.moment - 1, state.at))
        table.reads[flight.stream] = kept


def _read_table(state: State, flight: Flight, table: Table, use: Use) -> None:
    """Check what this stream has not checked of a table yet, and what changed since."""
    size, start, stop = table.pool.size, use.start, use.stop or len(table.pages) * table.pool.size
    view = table.views.get(flight.stream)
    if view is None or start > view.high or stop < view.low:
        view = table.views[flight.stream] = View(start)
    if not view.changed and view.low <= start and stop <= view.high:
        return
    parts = [(start, view.low), (max(start, view.high), stop)]
    for index in sorted(view.changed):
        first, last = index * size, (index + 1) * size
        if start < last and first < stop:
            if start <= max(first, view.low) and min(last, view.high) <= stop:
                view.changed.discard(index)
            parts.append((max(start, first), min(stop, last)))
    view.low, view.high = min(view.low, start), max(view.high, stop)
    for first, last in parts:
        if first < last:
            target = _resolve(state, Use(table=table.name, start=first, stop=last))
            for slots in target.slots:
                if _read_slots(state, flight, target, slots):
                    view.changed.add(slots.position // size)


def _read_slots(state: State, flight: Flight, target: Target, slots: Slots, *, note: bool = False) -> bool:
    """Judge the read of slots of one page; whether they hold what was computed from what failed."""
    pool, holder, (number, start, stop, _) = target.pool, target.holder, slots
    id = flight.event.id
    if number in pool.sinks:
        state.find("MEM-USE", f"operation {id} reads padding page {number}", pool, number, holder)
        return False
    page = pool.page(number)
    _check_held(state, pool, number, page, holder, id)
    span = _unordered(page.writes, start, stop, flight.clock)
    if span is not None:
        what = f"operation {id} reads page {number}, which stream {span.stream} writes: nothing orders them"
        state.find("MEM-RACE", what, pool, number, holder).earlier = span.at
    if note:
        page.reads = state.live(page.reads)
        page.reads.append(Span(start, stop, flight.stream, flight.moment - 1, state.at))
    meant, spoilt = target.meant(slots), False
    for piece in page.pieces(start, stop):
        if not isinstance(piece, Content):
            if pool.writes_told:
                what = f"operation {id} reads slot {piece} of page {number}, never written since it was handed out"
                found = state.find("MEM-WRITTEN", what, pool, number, holder)
                _spoil(state, flight, holder, found.cause or found.event)
                break
            continue
        if piece.failed:
            _spoil(state, flight, holder, page.cause)
            spoilt = True
        wants = meant[
            max(bisect_right(meant, piece.start, key=_start) - 1, 0) : bisect_left(meant, piece.stop, key=_start)
        ]
        wrong = next((want for want in wants if state.agree(piece, want) is False), None)
        if wrong is not None:
            what = f"operation {id} means to read {wrong.label} in page {number} and finds {piece.label}"
            found = state.find("MEM-CONTENT", what, pool, number, holder)
            _spoil(state, flight, holder, found.cause or found.event)
            break
        if piece.label is None or meant[0].label is None:
            state.unjudged["MEM-CONTENT"] += 1
    return spoilt


def _start(content: Content) -> int:
    return content.start


def _check_held(
    state: State, pool: PoolState, number: Page, page: PageState, holder: str | None, id: events.OpId
) -> None:
    """Whoever uses a page holds it; if it is not told who, somebody does or a name finds it."""
    if pool.keyed or (page.kind != "free" if holder is None else holder in page.holders or holder in page.pins):
        return
    state.find("MEM-USE", f"operation {id} uses page {number} for {holder}, but {whose(page)}", pool, number, holder)


def _unordered(spans: Iterable[Span], start: int, stop: int, clock: Clock) -> Span | None:
    """An earlier use of some slots that nothing orders before `clock`."""
    for span in spans:
        if span.start < stop and start < span.stop and clock.get(span.stream, 0) < span.moment:
            return span
    return None


def _write(state: State, flight: Flight, use: Use) -> None:
    """Judge a write, and let it take effect."""
    target = _resolve(state, use)
    for slots in target.slots:
        new = [Content(slots.start, slots.stop, None)] if use.may else target.meant(slots)
        _write_slots(state, flight, target, slots, new, use.table)
    if use.table is None or not target.slots:
        return
    table = state.tables[use.table]
    view = table.views.get(flight.stream)
    start, stop = use.start, target.slots[-1].position + target.slots[-1].stop
    if use.labels is not None:
        told, units = use.labels, slice(target.first, target.first + len(use.labels))
        # A unit that is written in part means something else in its other slots, too.
        parts = [(start, told[0], table.labels[units][0]), (stop, told[-1], table.labels[units][-1])]
        if view is not None:
            view.changed.update(at // table.pool.size for at, new, old in parts if at % table.pool.unit and new != old)
        table.labels[units] = told
    if view is not None and view.high == start and not use.may:
        view.high = stop


def _write_slots(
    state: State, flight: Flight, target: Target, slots: Slots, new: list[Content], table: str | None
) -> None:
    """Judge the write of slots of one page, and let it take effect. `table`: through which it is written."""
    pool, (number, start, stop, _) = target.pool, slots
    if number in pool.sinks:
        return
    page = pool.page(number)
    _check_held(state, pool, number, page, target.holder, flight.event.id)
    if page.keys or len(page.holders) > 1 or pool.keyed:
        _check_overwrite(state, flight, pool, slots, page, new)
    span, did = _unordered(page.writes, start, stop, flight.clock), "writes"
    if span is None:
        span, did = _unordered(page.reads, start, stop, flight.clock), "reads"
    for name, index in page.tables.items() if span is None else ():
        first = index * pool.size
        for spans in state.tables[name].reads.values():
            span = span or _unordered(spans, first + start, first + stop, flight.clock)
    if span is not None:
        there = list(page.pieces(start, stop))
        same = all(isinstance(old, Content) and all(state.agree(old, want) for want in new) for old in there)
        what = (
            f"operation {flight.event.id} writes page {number}, which stream {span.stream} {did}: nothing orders them"
        )
        state.find("MEM-REWRITE" if same else "MEM-RACE", what, pool, number, target.holder).earlier = span.at
    for content in new:
        page.put(content)
    page.writes = state.live(page.writes)
    page.writes.append(Span(start, stop, flight.stream, flight.moment, state.at))
    state.changed(page, table, flight.stream)


def _check_overwrite(
    state: State, flight: Flight, pool: PoolState, slots: Slots, page: PageState, new: list[Content]
) -> None:
    """What is published or shared is not overwritten with something else.

    Of what is there a plan protects what it promises: the rest is on the way to it (a copy first, then a pass).
    """
    number, start, stop, _ = slots
    promised = [(want, promise.planned) for promise in page.keys.values() for want in promise.meant]
    shared = (len(page.holders) > 1 or pool.keyed) and not any(promise.planned for promise in page.keys.values())
    for piece in page.pieces(start, stop):
        if not isinstance(piece, Content):
            continue
        parts = [(piece.cut(want.start, want.stop), want, plan) for want, plan in promised if _overlap(piece, want)]
        there = [(part, state.agree(part, want), plan) for part, want, plan in parts]
        guarded = [part for part, agreed, plan in there if agreed or (agreed is None and not plan)]
        if any(state.agree(part, content) is False for part in ([piece] if shared else guarded) for content in new):
            why = f"{next(iter(page.keys))} finds it" if page.keys else whose(page)
            what = f"operation {flight.event.id} overwrites page {number} from slot {piece.start} on, but {why}"
            state.find("MEM-OVERWRITE", what, pool, number)
            return


def _overlap(one: Content, other: Content) -> bool:
    return one.start < other.stop and other.start < one.stop


def _copy(state: State, flight: Flight, source: Use, target: Use) -> None:
    """Read, and write what was read, slot by slot."""
    read, written = _resolve(state, source), _resolve(state, target)
    carried: list[Content] = []
    length = 0
    for slots in read.slots:
        _read_slots(state, flight, read, slots, note=True)
        page = read.pool.page(slots.page)
        found = [piece for piece in page.pieces(slots.start, slots.stop) if isinstance(piece, Content)]
        carried += [piece.shifted(length - slots.start) for piece in found]
        length += slots.stop - slots.start
    if sum(slots.stop - slots.start for slots in written.slots) != length:
        raise Malformed(f"a copy of {length} slots to {sum(slots.stop - slots.start for slots in written.slots)}")
    done = 0
    for slots in written.slots:
        until = done + slots.stop - slots.start
        parts = [piece.cut(done, until) for piece in carried if piece.start < until and done < piece.stop]
        new = written.meant(slots) if target.labels else [part.shifted(slots.start - done) for part in parts]
        _write_slots(state, flight, written, slots, new, target.table)
        done = until


def _spoil(state: State, flight: Flight, holder: str | None, cause: int | None) -> None:
    """What an operation computes for a holder is worthless."""
    state.spoilt.setdefault(flight.event.id, {}).setdefault(holder, cause)


def _written(state: State, event: Begin) -> Iterable[tuple[Target, Slots]]:
    """What an operation wrote for the holders whose results are worthless."""
    holders = state.spoilt[event.id]
    for use in [*event.writes, *(target for _, target in event.copies)]:
        target = _resolve(state, use, judge=False)
        if target.holder in holders or None in holders:
            yield from ((target, slots) for slots in target.slots if slots.page not in target.pool.sinks)


def _spoil_writes(state: State, event: Begin) -> None:
    """What was computed from what is not there is worthless too."""
    for target, (number, start, stop, _) in _written(state, event):
        page = target.pool.page(number)
        for piece in list(page.pieces(start, stop)):
            if isinstance(piece, Content):
                page.put(piece._replace(failed=True))
        state.changed(page)


def _fail(state: State, event: events.End) -> None:
    """What was to be written is missing: names of it are plans again, and what read it meanwhile is worthless."""
    missing: set[tuple[str, Page]] = set()
    for target in [_resolve(state, use) for use in event.unwritten]:
        for number, start, stop, _ in target.slots:
            page = target.pool.page(number)
            page.erase(start, stop)
            page.keys = {key: promise._replace(planned=True) for key, promise in page.keys.items()}
            state.changed(page)
            missing.add((target.pool.name, number))
            if page.kind == "cached":
                check_plans(state, target.pool, number, page)
    for id, flight in state.clocks.flights.items():
        begun = flight.event
        for target in [
            _resolve(state, use, judge=False) for use in [*begun.reads, *(source for source, _ in begun.copies)]
        ]:
            if any((target.pool.name, slots.page) in missing for slots in target.slots):
                _spoil(state, flight, target.holder, None)
        if id in state.spoilt:
            missing.update((target.pool.name, slots.page) for target, slots in _written(state, begun))
            _spoil_writes(state, begun)
