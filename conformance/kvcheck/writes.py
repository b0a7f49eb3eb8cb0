"""Writes and copies: each is checked against holders, names, and earlier reads and writes."""

from collections import defaultdict
from typing import NamedTuple

from kvcheck import groups
from kvcheck.finding import Malformed
from kvcheck.flights import Flight
from kvcheck.holding import owners
from kvcheck.pages import Content, PageState
from kvcheck.parts import Part, check_held, find_race, parts_of, uses_of, within
from kvcheck.pools import PoolState
from kvcheck.races import unordered
from kvcheck.reads import read_part
from kvcheck.state import State, Table, Tail
from kvspec.memory.events import Page, Use


class _Carried(NamedTuple):
    """The content that a copy reads, with its first slot as slot 0; its length; whether all slots have pages."""

    contents: list[Content]
    length: int
    complete: bool


def write(state: State, flight: Flight, uses: list[Use]) -> None:
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
        check_held(state, part, page, flight.event.id)
    if page.keys or len(page.holders) > 1 or pool.keyed:
        _check_overwrite(state, flight, part, page, new)
    clash = flight.rivals and unordered(state.clocks, flight, pool, number, start, stop, reads=True)
    if clash:
        there = list(page.pieces(start, stop))
        whole = sum(want.stop - want.start for want in new) == stop - start  # else a copy leaves slots unwritten
        same = whole and all(isinstance(old, Content) and all(state.agree(old, want) for want in new) for old in there)
        find_race(state, "MEM-REWRITE/write" if same else "MEM-RACE/write", part, flight.event.id, clash)
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
        for other in uses_of(state, flight, [use for use in flight.event.writes if not use.at_most]):
            flight.written[other[0].name, other[1]] += other[-1]
    written = flight.written[pool.name, number]
    state.checked["MEM-RACE"] += 1  # that of operations is not counted while only one has begun
    for old, want in ((old, want) for old in written for want in new):
        if state.agree(old, want) is False:
            found = state.find("MEM-RACE/itself", pool, number, holder)
            found.operation, found.expected, found.found = flight.event.id, old.label, want.label
            return


def gather(state: State, flight: Flight, source: Use) -> _Carried:
    """Read the source of a copy: its content slot by slot, and its length."""
    found_before, carried, length = len(state.findings), list[Content](), 0
    parts = parts_of(state, source)
    complete = len(state.findings) == found_before
    for part in parts:
        pool, number, start, stop, *_ = part
        read_part(state, flight, part, carried=True)
        pieces = pool.page(number).pieces(start, stop)
        carried += [piece.shifted(length - start) for piece in pieces if isinstance(piece, Content)]
        length += stop - start
    return _Carried(carried, length, complete)


def put(state: State, flight: Flight, taken: _Carried, target: Use) -> None:
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
        found = within(taken.contents, Content(done, until, None))
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
