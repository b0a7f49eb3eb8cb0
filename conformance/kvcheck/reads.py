"""Reads are checked against holders, earlier writes and content; a table's positions once for each stream."""

from bisect import bisect_left

from kvcheck import groups
from kvcheck.flights import Flight
from kvcheck.pages import Content
from kvcheck.parts import Part, check_held, find_race, parts_of, taint, within
from kvcheck.races import unordered
from kvcheck.state import State, Table
from kvspec.memory.events import Use


def read(state: State, flight: Flight, uses: list[Use]) -> None:
    """Check reads. A stream checks positions of a table again only after a change."""
    for use in uses:
        table, start, stop = state.tables.get(use.table or ""), use.start, use.stop
        view = None if table is None else table.views.get(flight.stream)
        if view and view.low <= start < stop <= view.high and use.labels is None and not view.changed:
            continue
        room = 0 if table is None else len(table.pages) * table.pool.size
        if table is None or use.labels is not None or stop > room:
            for part in parts_of(state, use):
                read_part(state, flight, part, table)
        else:
            _look(state, flight, table, start, stop or room)


def _look(state: State, flight: Flight, table: Table, start: int, stop: int) -> None:
    """Check the positions of a table that this stream has not checked yet, or that have changed since."""
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
                if read_part(state, flight, part, table):
                    view.change(part[4] // size, part[4] // size + 1)


def read_part(state: State, flight: Flight, part: Part, through: Table | None = None, *, carried: bool = False) -> bool:
    """Check the read of slots of one page. Returns whether they hold tainted content.

    A copy without labels may carry slots that were never written (`carried`). A read of padding without holder and
    labels, as for an empty entry of a batch, has no effect, except in a copy.
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
        check_held(state, part, page, id)
    clash = flight.rivals and unordered(state.clocks, flight, pool, number, start, stop, reads=False)
    if clash:
        find_race(state, "MEM-RACE/read", part, id, clash)
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
        wrong = next((want for want in within(meant, piece) if state.agree(piece, want) is False), None)
        if wrong is not None and not other:
            place = max(wrong.start, piece.start)
            code = "MEM-CONTENT/shifted" if wrong.label == piece.label else "MEM-CONTENT/other"
            found = state.find(code, pool, number, holder)
            found.operation, found.slot, found.expected, found.found = id, place, wrong.label, piece.label
            found.offsets = wrong.offset + place - wrong.start, piece.offset + place - piece.start
            found.other, other = page.writer, True
            taint(state, flight, holder, found.cause or found.event)
    return tainted
