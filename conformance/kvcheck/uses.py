"""Operations and their slots: begin, wait, and the tables through which slots are named.

Each read is checked against holders, earlier writes and content; each write against holders, names, and earlier reads
and writes. A stream checks the positions of a table once, and again only after a change. So the cost of a decode step
follows the slots that it adds, and not those that it reads.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, itemgetter
from typing import NamedTuple

import msgspec

from kvcheck import groups
from kvcheck.finding import Malformed
from kvcheck.flights import Flight
from kvcheck.holding import owners
from kvcheck.races import unordered
from kvcheck.state import (
    HOLE,
    NOTHING,
    Content,
    Link,
    PageState,
    PoolState,
    State,
    Table,
    Tail,
)
from kvspec.memory import events
from kvspec.memory.events import Begin, Label, Page, Use

_START, _UNTIL = attrgetter("start"), itemgetter(-1)

Part = tuple[PoolState, Page, int, int, int, str | None, list[Content]]
"""The slots of one page that a use touches: pool, page, slots from, to; the position of slot 0 of the page, in the
table or in the use's pages one after the other; for whom; and what the slots are meant to hold."""


class _Carried(NamedTuple):
    """The content that a copy reads, with its first slot as slot 0; its length; whether all slots have pages."""

    contents: list[Content]
    length: int
    complete: bool


def map_table(state: State, event: events.Map) -> None:
    """A holder's table names these pages from page index `index` on."""
    pool = state.pool(event.pool)
    table = state.tables.get(event.table)
    if table is None:
        table = state.tables[event.table] = Table(event.table, event.holder, pool)
        state.tables_of.setdefault(event.holder, {})[event.table] = None
    numbers, units, labels = pool.expand(event.pages), pool.size // pool.unit, event.labels or []
    if table.pool is not pool:
        raise Malformed(f"table {event.table} names pages of pool {table.pool.name}, not of {pool.name}")
    if not 0 <= event.index <= len(table.pages):
        raise Malformed(f"table {event.table} has {len(table.pages)} pages: the next page index is not {event.index}")
    if len(labels) > len(numbers) * units:
        raise Malformed(f"{len(labels)} labels for {len(numbers)} pages of {units} labels each")
    if table.holder != event.holder:
        state.give(table, event.holder)
        table.views.clear()
    table.tail = None
    if event.index < len(table.pages):
        _unlink(state, table, event.index, min(len(table.pages), event.index + len(numbers)))
    table.pages[event.index : event.index + len(numbers)] = numbers
    name, begun, pages, padding = event.table, state.clocks.begun, pool.individual, pool.padding
    for place in chain.from_iterable(groups.link(state, table, event.index, numbers)):
        index, number = event.index + place, numbers[place]
        if number not in padding:
            page = pages.get(number) or pool.page(number)
            if page.tables:
                if len(page.tables) == 1:  # the first table loses its tail; with two or more none has one
                    other = state.tables[next(iter(page.tables))]
                    if other.tail is not None and other.tail.page is page:
                        other.tail = None
                page.tables[name] = Link(index, begun)
            else:
                page.tables = {name: Link(index, begun)}
    for view in table.views.values():
        view.change(event.index, min(event.index + len(numbers), -(-view.high // pool.size)))
    start = event.index * units
    known = min(len(table.labels), start + len(numbers) * units)
    table.set_labels(start, [*labels, *[None] * (known - start - len(labels))])


def unmap(state: State, event: events.Unmap) -> None:
    """A table ends before page index `index`, or has a hole from there on; without pages it is forgotten."""
    if 0 < event.stop < event.index:
        raise Malformed(f"page indices {event.index} to {event.stop} of table {event.table} are gone")
    table = state.tables.get(event.table)
    if table is None:
        return
    _unlink(state, table, event.index, min(event.stop, len(table.pages)) if event.stop else len(table.pages))
    if 0 < event.stop < len(table.pages):
        hole, table.tail = range(event.index, event.stop), None
        table.pages[event.index : event.stop] = [HOLE] * len(hole)
        for view in table.views.values():
            if hole.start * table.pool.size <= view.low:  # a window moves on: nothing is left there to be checked
                view.low = min(max(view.low, hole.stop * table.pool.size), view.high)
                del view.changed[: bisect_left(view.changed, hole.stop)]
            else:
                view.change(hole.start, min(hole.stop, -(-view.high // table.pool.size)))
        return
    end, table.tail = event.index * table.pool.size, None
    del table.pages[event.index :], table.labels[end // table.pool.unit :]
    for view in table.views.values():
        view.low, view.high = min(view.low, end), min(view.high, end)
        del view.changed[bisect_left(view.changed, event.index) :]
    if not table.pages:
        del state.tables[event.table]
        state.take_from_holder(table)


def _unlink(state: State, table: Table, start: int, stop: int) -> None:
    """A table names pages no longer; what operations in flight read of them through the table still counts."""
    name, pages, begun, oldest = table.name, table.pool.individual, state.clocks.begun, state.clocks.oldest
    for index in chain.from_iterable(groups.unlink(state, table, start, stop)):
        number = table.pages[index]
        page = pages.get(number)
        link = None if page is None else page.tables.get(name)
        if page is None or link is None or link.index != index:
            continue
        if len(page.tables) > 1:
            del page.tables[name]
            if len(page.tables) == 1:
                page.looked = None
        else:
            page.tables = NOTHING
        if page.left:
            page.left = page.left[bisect_left(page.left, oldest, key=_UNTIL) :]
        if begun >= oldest:
            page.left += ((name, index, link.since, begun),)
        if not (page.holders or page.keys):
            state.forget_if_free(table.pool, number, page)


def unify(state: State, event: events.Unify) -> None:
    """Two labels are the same."""
    state.labels.unify(event.label, event.same, event.slots)
    state.sweep_labels()


def begin(state: State, event: Begin) -> None:
    """An operation is queued: each of its uses is checked, and takes effect."""
    if state.clocks.in_flight(event.id, event.host):
        state.find("MEM-ORDER/begun-again").operation = event.id
    flight = state.clocks.begin(event)
    flight.by = event.id, state.event
    state.checked["MEM-ORDER"] += 1
    count_uses(state, len(event.reads) + len(event.copies), len(event.writes) + len(event.copies))
    state.tainted.pop(event.id, None)
    early: list[Use] = []
    late = event.reads
    if not (event.reads_own_writes and state.reads_own_writes):
        early = [use for use in event.reads if not _sees_own(state, event, use)]
        late = [use for use in event.reads if _sees_own(state, event, use)]
    _reads(state, flight, early)
    taken = [None if _sees_own(state, event, source) else _gather(state, flight, source) for source, _ in event.copies]
    _writes(state, flight, event.writes)
    _reads(state, flight, late)
    for (source, target), carried in zip(event.copies, taken, strict=True):
        _put(state, flight, _gather(state, flight, source) if carried is None else carried, target)
    if event.id in state.tainted:
        _mark(state, flight)


def _sees_own(state: State, event: Begin, use: Use) -> bool:
    """Whether a read sees what its operation writes; of what names no pool that is no matter."""
    table = state.tables.get(use.table or "")
    pool = state.pools.get(use.pool or "") if table is None else table.pool
    return event.reads_own_writes and (pool is None or pool.reads_own_writes)


def count_uses(state: State, reads: int, writes: int) -> None:
    """Count so many uses of the operation that began last as checked."""
    state.checked["MEM-USE"] += reads + writes
    state.checked["MEM-WRITTEN"] += state.writes_reported * reads
    if state.clocks.begun > 1:
        state.checked["MEM-RACE"] += reads + writes
        state.checked["MEM-REWRITE"] += writes


def wait(state: State, event: events.Wait) -> None:
    """Later operations of a stream come after an operation or another stream."""
    if event.id is None and event.on is None:
        raise Malformed("a wait names neither an operation nor a stream")
    state.clocks.wait(event)


def send(state: State, event: events.Send) -> None:
    """A host sends a message."""
    state.clocks.send(event)


def receive(state: State, event: events.Receive) -> None:
    """A host receives a message."""
    state.clocks.receive(event)


def parts_of(state: State, use: Use, *, check: bool = True) -> list[Part]:
    """The slots of a use, page by page; a position that has no page is a finding."""
    table, labels, holder = None, use.labels, use.holder
    if use.table is not None:
        if use.pages or use.pool is not None or use.holder is not None:
            raise Malformed(f"a use of table {use.table} names a pool, pages or a holder besides")
        table = state.tables.get(use.table)
        if table is None:
            if check:
                state.find("MEM-USE/no-table").table = use.table
            return []
        pool, pages, holder = table.pool, table.pages, table.holder
    elif use.pool is not None:
        pool = state.pool(use.pool)
        pages = pool.expand(use.pages)
    else:
        raise Malformed("a use names neither a table nor a pool")
    size, unit, room = pool.size, pool.unit, len(pages) * pool.size
    start, stop = use.start, use.stop or room
    if start > stop:
        raise Malformed(f"a use of slots {start} to {stop}")
    first = start // unit
    if labels is not None and len(labels) != (-(-stop // unit) - first if start < stop else 0):
        raise Malformed(f"{len(labels)} labels for slots {start} to {stop}, {unit} each")
    for beyond in [start] * (start < 0) + [stop - 1] * (stop > room):
        if check:
            found = state.find("MEM-USE/no-page", pool, holder=holder)
            found.table, found.slot = use.table, beyond
    start, stop = max(start, 0), min(stop, room)
    known: Sequence[Label | None] | None = labels
    if table is not None and labels is None:
        first = start // unit
        known = table.labels_of(first, -(-stop // unit))
    parts: list[Part] = []
    while start < stop:
        index, slot = divmod(start, size)
        position = start - slot
        end = size if stop - position > size else stop - position
        if pages[index] != HOLE:
            meant = pool.meant(known, slot, end, position, first)
            parts.append((pool, pages[index], slot, end, position, holder, meant))
        elif check:
            found = state.find("MEM-USE/no-page", pool, holder=holder)
            found.table, found.slot = use.table, start
        start = position + end
    return parts


def _reads(state: State, flight: Flight, uses: list[Use]) -> None:
    """Check reads. A stream checks positions of a table again only after a change."""
    for use in uses:
        table, start, stop = state.tables.get(use.table or ""), use.start, use.stop
        view = None if table is None else table.views.get(flight.stream)
        if view and view.low <= start < stop <= view.high and use.labels is None and not view.changed:
            continue
        room = 0 if table is None else len(table.pages) * table.pool.size
        if table is None or use.labels is not None or stop > room:
            for part in parts_of(state, use):
                _read_part(state, flight, part, table)
        else:
            _look(state, flight, table, start, stop or room)


def _look(state: State, flight: Flight, table: Table, start: int, stop: int) -> None:
    """Check the positions of a table that this stream has not checked yet, or that changed since."""
    size, view = table.pool.size, table.views.get(flight.stream)
    if view is None or start > view.high or stop < view.low:
        view = table.look(flight.stream, start)
    parts = [(start, view.low), (max(start, view.high), stop)]
    near = slice(bisect_left(view.changed, start // size), bisect_left(view.changed, -(-stop // size)))
    changed, view.changed[near] = view.changed[near], []
    for index in changed:
        first, last = index * size, (index + 1) * size
        if not (start <= max(first, view.low) and min(last, view.high) <= stop):
            view.change(index, index + 1)
        parts.append((max(start, view.low, first), min(stop, view.high, last)))
    view.low, view.high = min(view.low, start), max(view.high, stop)
    for first, last in parts:
        for left in groups.read(state, flight, table, first, last) if first < last else ():
            for part in parts_of(state, Use(table.name, start=left.start, stop=left.stop)):
                if _read_part(state, flight, part, table):
                    view.change(part[4] // size, part[4] // size + 1)


def _read_part(
    state: State, flight: Flight, part: Part, through: Table | None = None, *, carried: bool = False
) -> bool:
    """Check the read of slots of one page; whether they hold tainted content.

    A copy without labels may carry slots that were never written (`carried`). A read of padding without a holder and
    without labels, as for an empty entry of a batch, has no effect; in a copy it has.
    """
    pool, number, start, stop, _, holder, meant = part
    id = flight.event.id
    if number in pool.padding:
        if holder is None and not carried and all(want.label is None for want in meant):
            return False
        state.find("MEM-USE/padding", pool, number, holder).operation = id
        return False
    page = pool.page(number)
    if holder not in page.holders:
        _check_held(state, part, page, id)
    clash = flight.rivals and unordered(state.clocks, flight, pool, number, start, stop, reads=False)
    if clash:
        _find_race(state, "MEM-RACE/read", part, id, clash)
    if through is None:
        flight.uses.append(((pool.name, number), start, stop, False))
    elif page.looked is not None:
        page.looked[through.name] = None
    tainted = other = False
    missing = not pool.writes_reported or (carried and meant[0].label is None and not pool.keyed)
    for piece in page.pieces(start, stop):
        if not isinstance(piece, Content):
            if not missing:
                found = state.find("MEM-WRITTEN/unwritten", pool, number, holder)
                found.operation, found.slot = id, piece
                taint(state, flight, holder, found.cause or found.event)
                missing = True
            continue
        if piece.failed:
            taint(state, flight, holder, state.cause(pool, number))
            tainted = True
        if piece.label is None or meant[0].label is None:
            pool.unchecked["MEM-CONTENT"] += 1
        else:
            state.checked["MEM-CONTENT"] += 1
        wrong = next((want for want in _within(meant, piece) if state.agree(piece, want) is False), None)
        if wrong is not None and not other:
            place = max(wrong.start, piece.start)
            code = "MEM-CONTENT/shifted" if wrong.label == piece.label else "MEM-CONTENT/other"
            found = state.find(code, pool, number, holder)
            found.operation, found.slot, found.expected, found.found = id, place, wrong.label, piece.label
            found.offsets = wrong.offset + place - wrong.start, piece.offset + place - piece.start
            found.other, other = page.writer, True
            taint(state, flight, holder, found.cause or found.event)
    return tainted


def _within(meant: list[Content], piece: Content) -> list[Content]:
    """The meant contents that overlap a piece."""
    if len(meant) == 1:
        return meant
    first = max(bisect_right(meant, piece.start, key=_START) - 1, 0)
    return meant[first : bisect_left(meant, piece.stop, key=_START)]


def _check_held(state: State, part: Part, page: PageState, id: events.OpId) -> None:
    """Check that the use's holder holds the page; without a holder, that the page is held or published."""
    pool, number, *_, holder, _ = part
    if not (pool.keyed or (page.kind != "free" if holder is None else holder in page.holders or holder in page.pins)):
        found = state.find("MEM-USE/not-held", pool, number, holder)
        found.operation, found.owners = id, owners(page)


def _find_race(state: State, code: str, part: Part, id: events.OpId, clash: tuple[Flight, str]) -> None:
    """Note a race with an earlier operation, which reads or writes."""
    pool, number, *_, holder, _ = part
    rival, did = clash
    found = state.find(code, pool, number, holder)
    found.operation, found.stream, found.did = id, rival.stream, did
    found.earlier, found.other = rival.event.at, rival.by


def _writes(state: State, flight: Flight, uses: list[Use]) -> None:
    """Check writes. An append to the tail of a table, as in decoding, needs no further check."""
    stream = flight.stream
    for use in uses:
        table = state.tables.get(use.table or "")
        tail = None if table is None else table.tail
        if (
            tail is not None
            and tail.view.high == use.start < use.stop <= tail.end
            and tail.stream == stream
            and not (use.labels is not None or use.at_most or flight.rivals)
        ):
            tail.view.high = use.stop
            tail.content.stop = use.stop - tail.base
            tail.page.writer = flight.by
        else:
            _write(state, flight, use)


def _write(state: State, flight: Flight, use: Use) -> None:
    """Check a write and apply it."""
    table = None if use.table is None else state.tables.get(use.table)
    if table and not (flight.rivals or use.at_most):
        start, stop = use.start, use.stop
        if use.labels is None and table.pool.unit == table.pool.size:
            done = _append(state, flight, table, start, stop)
            if start < done:
                if done == stop:
                    return
                use = Use(use.table, start=done, stop=stop)
        elif table.pool.unit < table.pool.size and groups.append(flight, table, use):
            table.set_labels(start // table.pool.unit, use.labels or ())
            state.checked["MEM-CONTENT"] += _view_own(flight, table, start, stop)
            return
    parts = parts_of(state, use)
    for part in parts:
        new = [Content(part[2], part[3], None)] if use.at_most else part[-1]
        _write_part(state, flight, part, new, table)
    if table is None or not parts:
        return
    start, stop = max(use.start, 0), parts[-1][4] + parts[-1][3]
    view = table.views.get(flight.stream) or table.look(flight.stream, start)
    if use.labels is not None:
        size, unit, new_labels = table.pool.size, table.pool.unit, use.labels[(start - use.start) // table.pool.unit :]
        first = start // unit
        before = table.labels_of(first, first + len(new_labels))
        # A unit that is written in part gets a new label for its other slots, too.
        ends = [(start, new_labels[0], before[0]), (stop, new_labels[-1], before[-1])]
        for at in [at for at, new_label, old in ends if at % unit and new_label != old]:
            view.change(at // size, at // size + 1)
        table.set_labels(first, new_labels)
    if not use.at_most and _view_own(flight, table, start, stop):
        for pool, number, _, _, position, _, meant in parts:
            (pool.unchecked if meant[0].label is None else state.checked)["MEM-CONTENT"] += 1
            if number in pool.padding:  # padding holds no content, so a read of it is checked again
                view.change(position // pool.size, position // pool.size + 1)


def _append(state: State, flight: Flight, table: Table, start: int, stop: int) -> int:
    """Write positions that only continue what their pages hold; up to the first that does not, which is returned.

    Nothing was there to be overwritten, and nothing in flight is a rival.
    """
    pool, holder, position, parts, begun = table.pool, table.holder, start, 0, False
    size, pages = pool.size, pool.individual
    view = table.views.get(flight.stream)
    alone = len(table.views) == (view is not None)
    first = start // size
    numbers = table.pages[first : -(-stop // size)] if start >= 0 else []
    labels = table.labels_of(first, first + len(numbers))
    place, whole = 0, stop // size - first
    while place < len(numbers):
        base, number, label = (first + place) * size, numbers[place], labels[place]
        if number in pool.groups:
            together = base == position and place < whole
            written = groups.write(flight, table, numbers, labels, place, whole) if together else 0
            if written:
                place, position, parts, begun = place + written, position + written * size, parts + written, True
                continue
            pool.page(number)
        page = pages.get(number)
        if page is None or holder not in page.holders:
            break
        end = stop - base if stop - base < size else size
        last = page.content[-1] if page.content else None
        if last is None and position == base:
            last = Content(0, end, label)
            page.content = (last,)
            begun = True
        elif (
            last is None
            or last.stop != position - base
            or last.label != label
            or last.offset != last.start
            or last.failed
        ):
            break
        else:
            last.stop = end
        page.writer = flight.by
        if len(page.tables) > 1 or not alone:
            state.changed(page, table, flight.stream)
        elif base + end == stop and view is not None:
            table.tail = Tail(flight.stream, view, page, last, base, base + size)
        place, position, parts = place + 1, base + end, parts + 1
    if parts and _view_own(flight, table, start, position) and begun:
        (table.pool.unchecked if labels[0] is None else state.checked)["MEM-CONTENT"] += parts
    return position


def _view_own(flight: Flight, table: Table, start: int, stop: int) -> bool:
    """A stream that writes on from where it has looked reads what is meant there: whether it does."""
    view = table.views.get(flight.stream) or table.look(flight.stream, start)
    if view.high != start:
        return False
    view.high = stop
    return True


def _write_part(state: State, flight: Flight, part: Part, new: list[Content], table: Table | None = None) -> None:
    """Check the write of slots of one page, through `table` if there is one, and apply it."""
    pool, number, start, stop, _, holder, _ = part
    if number in pool.padding:
        return
    page = pool.page(number)
    if holder not in page.holders:
        _check_held(state, part, page, flight.event.id)
    if page.keys or len(page.holders) > 1 or pool.keyed:
        _check_overwrite(state, flight, part, page, new)
    clash = flight.rivals and unordered(state.clocks, flight, pool, number, start, stop, reads=True)
    if clash:
        there = list(page.pieces(start, stop))
        whole = sum(want.stop - want.start for want in new) == stop - start  # else a copy leaves slots unwritten
        same = whole and all(isinstance(old, Content) and all(state.agree(old, want) for want in new) for old in there)
        _find_race(state, "MEM-REWRITE/write" if same else "MEM-RACE/write", part, flight.event.id, clash)
    if page.writer is flight.by:
        _check_same(state, flight, part, page, new)
    page.writer = flight.by
    page.put(new)
    flight.uses.append(((pool.name, number), start, stop, True))
    state.changed(page, table, flight.stream)


def _check_overwrite(state: State, flight: Flight, part: Part, page: PageState, new: list[Content]) -> None:
    """Check that published or shared content is not overwritten with other content.

    In a page with planned names only the promised content is protected: other content is on the way to it (a copy
    first, then a pass).
    """
    pool, number, start, stop, *_ = part
    state.checked["MEM-OVERWRITE"] += 1
    shared = (len(page.holders) > 1 or pool.keyed) and not page.plans
    for piece in page.pieces(start, stop):
        if not isinstance(piece, Content) or not any(state.agree(piece, content) is False for content in new):
            continue
        guarded = [piece] if shared else []
        for want, plan in [(want, promise.plan) for promise in page.keys.values() for want in promise.meant]:
            same = state.same_up_to(piece, want)
            cut = piece.cut(want.start, want.stop if same is None else same)
            if cut.start < cut.stop and not (same is None and plan):
                guarded.append(cut)
        if any(state.agree(old, content) is False for old in guarded for content in new):
            found = state.find("MEM-OVERWRITE/content", pool, number)
            found.operation, found.slot, found.owners = flight.event.id, piece.start, owners(page)
            found.other = page.writer
            return


def _check_same(state: State, flight: Flight, part: Part, page: PageState, new: list[Content]) -> None:
    """Check that all writes of one operation to a slot have the same label: there is no order between them."""
    pool, number, start, stop, _, holder, _ = part
    if not any(
        isinstance(old, Content) and state.agree(old, want) is False for old in page.pieces(start, stop) for want in new
    ):
        return
    if flight.written is None:
        flight.written = defaultdict(list)
        for other in _uses(state, flight, [use for use in flight.event.writes if not use.at_most]):
            flight.written[other[0].name, other[1]] += other[-1]
    written = flight.written[pool.name, number]
    for old, want in ((old, want) for old in written for want in new):
        if state.agree(old, want) is False:
            found = state.find("MEM-RACE/itself", pool, number, holder)
            found.operation, found.expected, found.found = flight.event.id, old.label, want.label
            return


def _gather(state: State, flight: Flight, source: Use) -> _Carried:
    """Read the source of a copy: its content slot by slot, and its length."""
    found_before, carried, length = len(state.findings), list[Content](), 0
    parts = parts_of(state, source)
    complete = len(state.findings) == found_before
    for part in parts:
        pool, number, start, stop, *_ = part
        _read_part(state, flight, part, carried=True)
        pieces = pool.page(number).pieces(start, stop)
        carried += [piece.shifted(length - start) for piece in pieces if isinstance(piece, Content)]
        length += stop - start
    return _Carried(carried, length, complete)


def _put(state: State, flight: Flight, taken: _Carried, target: Use) -> None:
    """Write the target of a copy slot by slot; slots that are unwritten in the source become unwritten here."""
    found_before, done = len(state.findings), 0
    written = parts_of(state, target)
    if (room := sum(stop - start for _, _, start, stop, *_ in written)) != taken.length:
        if not taken.complete or len(state.findings) > found_before:
            return
        raise Malformed(f"a copy of {taken.length} slots to {room}")
    for part in written:
        pool, number, start, stop, *_, meant = part
        until = done + stop - start
        found = _within(taken.contents, Content(done, until, None))
        cuts = [piece.cut(done, until) for piece in found if done < piece.stop and piece.start < until]
        new = meant if target.labels else [cut.shifted(start - done) for cut in cuts]
        _write_part(state, flight, part, new)
        for first, last in zip([start, *[one.stop for one in new]], [*[one.start for one in new], stop], strict=True):
            if first < last and number not in pool.padding:
                _leave_unwritten(state, flight, pool, number, first, last)
        done = until
    if causes := [cause for cause in state.tainted.get(flight.event.id, {}).values() if cause is not None]:
        for pool, number, *_ in written:
            state.comes_from(causes[0], pool, number)


def _leave_unwritten(state: State, flight: Flight, pool: PoolState, number: Page, start: int, stop: int) -> None:
    """Slots of a copy's target become unwritten, as those of its source are."""
    page = pool.page(number)
    guarded = len(page.holders) > 1 or any(promise.plan is None for promise in page.keys.values())
    if guarded and any(isinstance(piece, Content) for piece in page.pieces(start, stop)):
        found = state.find("MEM-OVERWRITE/unwritten", pool, number)
        found.operation, found.slot = flight.event.id, start
    page.erase(start, stop)


def taint(state: State, flight: Flight, holder: str | None, cause: int | None) -> None:
    """Taint the results of an operation for a holder."""
    causes = state.tainted.setdefault(flight.event.id, {})
    if causes.get(holder) is None:
        causes[holder] = cause


def _uses(state: State, flight: Flight, uses: Iterable[Use]) -> Iterator[Part]:
    """The slots of a checked operation, without padding and pages that its tables got later."""
    for use in uses:
        for part in parts_of(state, use, check=False):
            pool, number, *_ = part
            if number not in pool.padding:
                link = pool.page(number).tables.get(use.table or "")
                if link is None or link.since < flight.number:
                    yield part


def _written(state: State, flight: Flight) -> Iterator[tuple[Part, bool | None]]:
    """The writes of an operation, each with whether it is tainted; `None`: as its source in a copy."""
    event, holders = flight.event, state.tainted.get(flight.event.id, NOTHING)
    for use, carried in [*((use, False) for use in event.writes), *((to, not to.labels) for _, to in event.copies)]:
        for part in _uses(state, flight, [use]):
            failed = part[5] in holders or None in holders
            yield part, None if carried and holders and not failed else failed


def _mark(state: State, flight: Flight) -> None:
    """Mark the writes of an operation as tainted or not."""
    causes = state.tainted.get(flight.event.id, NOTHING)
    for (pool, number, start, stop, _, holder, _), failed in _written(state, flight):
        page, cause = pool.page(number), causes.get(holder) or causes.get(None)
        if cause is not None:
            state.comes_from(cause, pool, number)
        for piece in list(page.pieces(start, stop)):
            if isinstance(piece, Content) and failed is not None:
                page.put([msgspec.structs.replace(piece, failed=failed)])
        state.changed(page)
