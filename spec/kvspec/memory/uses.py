"""What operations do to slots: begin, wait, end, deliver, and the tables through which slots are named.

Each read is held against holders, writes before it, and content; each write against holders, names, and the reads and
writes before it. What is read through a table is checked once a stream, and again only where something changed, so a
decode step costs what it adds and not what it attends to.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvspec.memory.clocks import HOST, Flight
from kvspec.memory.events import Begin, Deliver, End, Label, Learn, Map, Page, Unmap, Use, Wait
from kvspec.memory.holding import check_promise, whose
from kvspec.memory.state import Content, Malformed, PageState, PoolState, Span, State, Table, View

_REMEMBERED = 10_000
"""Spoilt operations that have ended and may still be delivered."""


class Slots(NamedTuple):
    """Slots `start` to `stop` of one page, as one use touches them."""

    pool: PoolState
    page: Page
    start: int
    stop: int
    position: int
    """Of slot 0 of the page: in the table, or in the use's pages one after the other."""


def map_table(state: State, event: Map) -> None:
    """A holder's table names these pages from page index `index` on."""
    pool = state.pool(event.pool)
    table = state.tables.get(event.table)
    if table is None:
        table = state.tables[event.table] = Table(event.table, event.holder, pool)
    if table.pool is not pool:
        raise Malformed(f"table {event.table} is of pool {table.pool.name}")
    if not 0 <= event.index <= len(table.pages):
        raise Malformed(f"page index {event.index} of table {event.table}, which has {len(table.pages)}")
    table.holder = event.holder
    numbers = pool.expand(event.pages)
    units = pool.size // pool.unit
    if event.labels is not None and len(event.labels) > len(numbers) * units:
        raise Malformed(f"{len(event.labels)} labels for {len(numbers)} pages of {units}")
    for index, number in enumerate(numbers, event.index):
        if index < len(table.pages):
            _unlink(state, table, index)
            table.pages[index] = number
        else:
            table.pages.append(number)
            table.labels += [None] * units
        if number not in pool.sinks:
            page = pool.page(number)
            page.tables[table.name] = index
            state.changed(page)
        table.labels[index * units : (index + 1) * units] = [None] * units
    for offset, label in enumerate(event.labels or ()):
        table.labels[event.index * units + offset] = label


def unmap(state: State, event: Unmap) -> None:
    """A table ends before page index `index`; without pages it is forgotten."""
    table = state.tables.get(event.table)
    if table is None:
        return
    for index in range(max(event.index, 0), len(table.pages)):
        _unlink(state, table, index)
    del table.pages[event.index :], table.labels[event.index * (table.pool.size // table.pool.unit) :]
    end = event.index * table.pool.size
    for view in table.views.values():
        view.low, view.high = min(view.low, end), min(view.high, end)
        view.changed = {index for index in view.changed if index < event.index}
    if not table.pages:
        del state.tables[event.table]


def _unlink(state: State, table: Table, index: int) -> None:
    """A table names a page no longer: what was read of it through the table is noted on the page."""
    number = table.pages[index]
    page = table.pool.pages.get(number)
    if page is None or page.tables.get(table.name) != index:
        return
    del page.tables[table.name]
    start = index * table.pool.size
    for spans in table.reads.values():
        for span in state.live(spans):
            first, last = max(span.start - start, 0), min(span.stop - start, table.pool.size)
            if first < last:
                page.reads.append(span._replace(start=first, stop=last))
    state.forget_if_free(table.pool, number, page)


def learn(state: State, event: Learn) -> None:
    """Two labels are the same."""
    state.labels.learn(event.label, event.same, event.slots)
    state.sweep_labels()


def begin(state: State, event: Begin) -> None:
    """An operation is queued: each of its uses is judged, and counts from now on."""
    if event.id in state.clocks.flights:
        state.find("MEM-ORDER", f"{event.id} is begun again while it is in flight")
    flight = state.clocks.begin(event.id, event.stream, event.after)
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
    if flight.stream != HOST:
        state.flying[event.id] = event
    if event.id in state.spoilt:
        _spoil_writes(state, event, state.spoilt[event.id])


def wait(state: State, event: Wait) -> None:
    """What is queued on a stream from now on comes after something."""
    if event.id is not None and event.id not in state.clocks.flights:
        state.unjudged["MEM-RACE"] += 1
    state.clocks.wait(event.stream, event.id, event.on, event.part)


def end(state: State, event: End) -> None:
    """The host has seen an operation complete; what it did not write is missing, and spoils what was computed of it."""
    if state.clocks.end(event.id, event.part) is None:
        state.find("MEM-ORDER", f"{event.id} is taken for complete, but is not in flight")
        return
    if event.unwritten:
        _fail(state, event)
    if event.part == "all":
        del state.flying[event.id]
        if event.id in state.spoilt:
            state.ended.append(event.id)
            if len(state.ended) > _REMEMBERED:
                state.spoilt.pop(state.ended.popleft(), None)


def deliver(state: State, event: Deliver) -> None:
    """What an operation computed for a holder leaves the engine."""
    holders = state.spoilt.get(event.id, {})
    if event.holder in holders or None in holders:
        cause = holders.get(event.holder, holders.get(None))
        what = f"what {event.id} computed for {event.holder} is delivered, but it was computed from what is not there"
        state.find("MEM-DELIVER", what, holder=event.holder)
        state.findings[-1].cause = cause


def _resolve(state: State, use: Use) -> tuple[list[Slots], str | None, list[Label | None] | None, int]:
    """The slots of a use, its holder, its labels, and the number of the unit of position that the first is for."""
    if use.start < 0 or use.stop < 0 or (use.stop and use.stop < use.start):
        raise Malformed(f"a use of {use.start} to {use.stop}")
    holder: str | None
    if use.table is not None:
        table = state.tables.get(use.table)
        if table is None:
            state.find("MEM-USE", f"table {use.table} is used, but it names no page")
            return [], None, None, 0
        pool, pages, holder = table.pool, table.pages, table.holder
    else:
        if use.pool is None:
            raise Malformed("a use names neither a table nor a pool")
        pool, holder = state.pool(use.pool), use.holder
        pages = pool.expand(use.pages)
    room = len(pages) * pool.size
    stop = use.stop or room
    if stop > room:
        where = f"table {use.table}" if use.table else "the pages of a use"
        state.find("MEM-USE", f"position {stop - 1} of {where} has no page", pool, holder=holder)
        stop = room
    labels: list[Label | None] | None = None
    first = 0
    if use.labels is not None:
        labels, first = list(use.labels), use.start // pool.unit
        if stop > use.start and len(labels) != -(-stop // pool.unit) - first:
            raise Malformed(f"{len(labels)} labels for positions {use.start} to {stop}, {pool.unit} each")
    elif use.table is not None:
        labels = state.tables[use.table].labels
    return list(_cut(pool, pages, use.start, stop)), holder, labels, first


def _cut(pool: PoolState, pages: list[Page], start: int, stop: int) -> Iterator[Slots]:
    """Positions, page by page."""
    size = pool.size
    for index in range(start // size, -(-stop // size) if stop > start else 0):
        position = index * size
        yield Slots(pool, pages[index], max(start - position, 0), min(stop - position, size), position)


def _meant(slots: Slots, labels: list[Label | None] | None, first: int) -> list[Content]:
    """What slots are meant to hold."""
    pool, _, start, stop, position = slots
    if labels is None:
        return [Content(start, stop, None)]
    unit = pool.unit
    if unit == pool.size:
        return [Content(start, stop, labels[position // unit - first], start)]
    return [
        Content(max(at, start), min(at + unit, stop), labels[(position + at) // unit - first], max(at, start) - at)
        for at in range(start - start % unit, stop, unit)
    ]


def _agrees(state: State, one: Content, other: Content) -> bool | None:
    """Whether two contents are the same where they overlap; `None`: not told."""
    if one.label is None or other.label is None:
        return None
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    offset = one.offset + start - one.start
    if start >= stop:
        return True
    if offset != other.offset + start - other.start:
        return False
    return one.label == other.label or state.labels.same(one.label, other.label, offset, offset + stop - start)


def _read(state: State, flight: Flight, use: Use) -> None:
    """Judge a read and note it, for the writes that come later."""
    table = None if use.table is None else state.tables.get(use.table)
    if table is None or use.labels is not None:
        slots, holder, labels, first = _resolve(state, use)
        for piece in slots:
            _read_slots(state, flight, piece, _meant(piece, labels, first), holder)
            if table is None:
                page = piece.pool.page(piece.page)
                page.reads = state.live(page.reads)
                page.reads.append(Span(piece.start, piece.stop, flight.stream, flight.moment - 1, state.at))
    else:
        _read_table(state, flight, table, use)
    if table is not None:
        stop = min(use.stop or len(table.pages) * table.pool.size, len(table.pages) * table.pool.size)
        span = Span(use.start, stop, flight.stream, flight.moment - 1, state.at)
        kept = [
            old
            for old in table.reads.get(flight.stream, ())
            if (old.start < span.start or old.stop > span.stop) and not state.clocks.seen(old.stream, old.moment)
        ]
        kept.append(span)
        table.reads[flight.stream] = kept


def _read_table(state: State, flight: Flight, table: Table, use: Use) -> None:
    """Check what this stream has not checked of a table yet, and what changed since."""
    size, start = table.pool.size, use.start
    room = len(table.pages) * size
    stop = use.stop or room
    if stop > room or not 0 <= start <= stop:
        _resolve(state, use)
        start, stop = max(start, 0), min(stop, room)
    view = table.views.get(flight.stream)
    if view is None:
        view = table.views[flight.stream] = View(start)
    fresh: list[tuple[int, int]] = []
    if start < view.low:
        fresh.append((start, min(stop, view.low)))
    if stop > view.high:
        fresh.append((max(start, view.high), stop))
    if view.changed:
        for index in sorted(view.changed):
            first, last = max(start, index * size), min(stop, (index + 1) * size)
            if first < last:
                view.changed.discard(index)
                fresh.append((first, last))
    if start > view.high or stop < view.low:
        view.low, view.high = start, stop
    else:
        view.low, view.high = min(view.low, start), max(view.high, stop)
    for first, last in fresh:
        for piece in _cut(table.pool, table.pages, first, last):
            meant = _meant(piece, table.labels, 0)
            if _read_slots(state, flight, piece, meant, table.holder):
                view.changed.add(piece.position // size)


def _read_slots(state: State, flight: Flight, slots: Slots, meant: list[Content], holder: str | None) -> bool:
    """Judge the read of slots of one page; whether they hold what was computed from what failed."""
    pool, number, start, stop, _ = slots
    if number in pool.sinks:
        state.find("MEM-USE", f"padding page {number} is read for {holder}", pool, number, holder)
        return False
    page = pool.page(number)
    _check_held(state, pool, number, page, holder, "reads")
    clock = flight.clock
    for span in page.writes:
        if span.start < stop and start < span.stop and clock.get(span.stream, 0) < span.moment:
            what = f"{flight.id} reads page {number}, which stream {span.stream} writes: nothing orders them"
            state.find("MEM-RACE", what, pool, number, holder, span)
            break
    failed = False
    for piece in page.pieces(start, stop):
        if not isinstance(piece, Content):
            if pool.pool.writes_told:
                what = f"{flight.id} reads slot {piece[0]} of page {number}, never written since it was handed out"
                _spoil(state, flight, holder, state.find("MEM-WRITTEN", what, pool, number, holder))
                break
            continue
        if piece.failed:
            _spoil(state, flight, holder, None)
            failed = True
        wrong = next((want for want in meant if _agrees(state, piece, want) is False), None)
        if wrong is not None:
            what = f"{flight.id} means to read {wrong.label} in page {number} and finds {piece.label}"
            _spoil(state, flight, holder, state.find("MEM-CONTENT", what, pool, number, holder))
            break
        if piece.label is None or any(want.label is None for want in meant):
            state.unjudged["MEM-CONTENT"] += 1
    return failed


def _check_held(state: State, pool: PoolState, number: Page, page: PageState, holder: str | None, uses: str) -> None:
    if not page.held_by(holder) and not pool.pool.keyed:
        who = holder or "an operation"
        state.find("MEM-USE", f"{who} {uses} page {number}, but {whose(page)}", pool, number, holder)


def _write(state: State, flight: Flight, use: Use) -> None:
    """Judge a write, and let it take effect."""
    slots, holder, labels, first = _resolve(state, use)
    for piece in slots:
        new = [Content(piece.start, piece.stop, None)] if use.may else _meant(piece, labels, first)
        _write_slots(state, flight, piece, new, holder, use.table)
    if use.table is not None and use.labels is not None and slots:
        table = state.tables[use.table]
        table.labels[first : first + len(use.labels)] = use.labels


def _write_slots(
    state: State, flight: Flight, slots: Slots, new: list[Content], holder: str | None, table: str | None
) -> None:
    """Judge the write of slots of one page, and let it take effect. `table`: through which it is written."""
    pool, number, start, stop, _ = slots
    if number in pool.sinks:
        return
    page = pool.page(number)
    _check_held(state, pool, number, page, holder, "writes")
    if page.keys or len(page.holders) > 1 or (pool.pool.keyed and page.content):
        _check_overwrite(state, flight, slots, page, new)
    _check_write_order(state, flight, slots, page, new, holder)
    for content in new:
        page.put(content)
    if page.writes:
        page.writes = state.live(page.writes)
    page.writes.append(Span(start, stop, flight.stream, flight.moment, state.at))
    state.changed(page, table, flight.stream)


def _check_overwrite(state: State, flight: Flight, slots: Slots, page: PageState, new: list[Content]) -> None:
    """What is published or shared is not overwritten with something else, and a planned name is kept."""
    pool, number = slots.pool, slots.page
    shared = len(page.holders) > 1 or pool.pool.keyed
    upto = pool.size if shared else max(promise.slots for promise in page.keys.values())
    for piece in page.pieces(slots.start, min(slots.stop, upto)):
        if not isinstance(piece, Content):
            continue
        if any(_agrees(state, piece, content) is False for content in new):
            whom = "shared" if shared else "published"
            what = f"{flight.id} overwrites slot {piece.start} of page {number}, which is {whom}, with something else"
            state.find("MEM-OVERWRITE", what, pool, number)
            return
    for key, promise in page.keys.items():
        meant = _meant(Slots(pool, number, 0, promise.slots, 0), list(promise.labels or ()) or None, 0)
        if any(_agrees(state, want, content) is False for want in meant for content in new):
            what = f"{flight.id} writes something else than {key} promises into page {number}"
            state.find("MEM-NAME", what, pool, number)
            return


def _check_write_order(
    state: State, flight: Flight, slots: Slots, page: PageState, new: list[Content], holder: str | None
) -> None:
    """Every earlier use of these slots happens before this write."""
    pool, number, start, stop, _ = slots
    clock = flight.clock
    late: Span | None = None
    did = "writes"
    for span in page.writes:
        if span.start < stop and start < span.stop and clock.get(span.stream, 0) < span.moment:
            late = span
    if late is None:
        did = "reads"
        for span in page.reads:
            if span.start < stop and start < span.stop and clock.get(span.stream, 0) < span.moment:
                late = span
        for name, index in page.tables.items():
            base = index * pool.size
            for stream, spans in state.tables[name].reads.items():
                seen = clock.get(stream, 0)
                for span in spans:
                    if seen < span.moment and span.start < base + stop and base + start < span.stop:
                        late = span
    if late is None:
        return
    same = all(
        isinstance(piece, Content) and all(_agrees(state, piece, content) for content in new)
        for piece in page.pieces(start, stop)
    )
    what = f"{flight.id} writes page {number}, which stream {late.stream} {did}: nothing orders them"
    state.find("MEM-REWRITE" if same else "MEM-RACE", what, pool, number, holder, late)


def _copy(state: State, flight: Flight, source: Use, target: Use) -> None:
    """Read, and write what was read, slot by slot."""
    sources, holder, labels, first = _resolve(state, source)
    carried: list[Content] = []
    position = 0
    for piece in sources:
        _read_slots(state, flight, piece, _meant(piece, labels, first), holder)
        page = piece.pool.page(piece.page)
        page.reads = state.live(page.reads)
        page.reads.append(Span(piece.start, piece.stop, flight.stream, flight.moment - 1, state.at))
        for content in page.pieces(piece.start, piece.stop):
            found = content if isinstance(content, Content) else Content(*content, None)
            shift = position - piece.start
            carried.append(found._replace(start=found.start + shift, stop=found.stop + shift))
        position += piece.stop - piece.start
    targets, holder, labels, first = _resolve(state, target)
    if sum(piece.stop - piece.start for piece in targets) != position:
        raise Malformed(f"a copy of {position} slots to {sum(piece.stop - piece.start for piece in targets)}")
    position = 0
    for piece in targets:
        length = piece.stop - piece.start
        if target.labels is not None:
            new = _meant(piece, labels, first)
        else:
            shift = piece.start - position
            new = [
                part._replace(start=part.start + shift, stop=part.stop + shift)
                for content in carried
                if content.start < position + length and position < content.stop
                for part in (content.cut(position, position + length),)
            ]
        _write_slots(state, flight, piece, new, holder, target.table)
        position += length


def _spoil(state: State, flight: Flight, holder: str | None, cause: int | None) -> None:
    """What an operation computes for a holder is worthless."""
    state.spoilt.setdefault(flight.id, {}).setdefault(holder, cause)


def _spoil_writes(state: State, event: Begin, holders: dict[str | None, int | None]) -> None:
    """What an operation wrote for holders whose results are spoilt is spoilt too."""
    for use in [*event.writes, *(target for _, target in event.copies)]:
        slots, holder, _, _ = _resolve(state, use)
        if holder not in holders and None not in holders:
            continue
        for piece in slots:
            if piece.page not in piece.pool.sinks:
                page = piece.pool.page(piece.page)
                for content in list(page.pieces(piece.start, piece.stop)):
                    if isinstance(content, Content):
                        page.put(content._replace(failed=True))
                state.changed(page)


def _fail(state: State, event: End) -> None:
    """What was to be written is missing: names of it are plans again, and what read it meanwhile is spoilt."""
    missing: set[tuple[str, Page]] = set()
    for use in event.unwritten:
        for piece in _resolve(state, use)[0]:
            page = piece.pool.page(piece.page)
            page.content = [
                part
                for content in page.content
                for part in (content.cut(0, piece.start), content.cut(piece.stop, piece.pool.size))
                if part.start < part.stop
            ]
            page.keys = {key: promise._replace(planned=True) for key, promise in page.keys.items()}
            state.changed(page)
            missing.add((piece.pool.name, piece.page))
            if not page.holders and not page.pins:
                for key, promise in page.keys.items():
                    check_promise(state, piece.pool, piece.page, page, key, promise)
    later = False
    for id, begun in state.flying.items():
        if id == event.id:
            later = True
        elif later:
            for use in [*begun.reads, *(source for source, _ in begun.copies)]:
                slots, holder, _, _ = _resolve(state, use)
                if any((piece.pool.name, piece.page) in missing for piece in slots):
                    state.spoilt.setdefault(id, {}).setdefault(holder, None)
            if id in state.spoilt:
                _spoil_writes(state, begun, state.spoilt[id])
                missing |= {
                    (piece.pool.name, piece.page)
                    for use in [*begun.writes, *(target for _, target in begun.copies)]
                    for slots, holder, _, _ in (_resolve(state, use),)
                    if holder in state.spoilt[id]
                    for piece in slots
                }
