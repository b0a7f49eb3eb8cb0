"""Block tables and rows: the pages that they name, and for how long."""

from bisect import bisect_left
from itertools import chain
from operator import itemgetter

from kvcheck import groups
from kvcheck.finding import Malformed
from kvcheck.pages import HOLE, NOTHING, Link
from kvcheck.state import State, Table
from kvspec.memory import events

_UNTIL = itemgetter(-1)


def map_table(state: State, event: events.Map) -> None:
    """Enter pages into a holder's table, from page index `index` on."""
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
                if len(page.tables) == 1:  # the first table loses its tail; with two or more tables none has one
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
    """End a table before page index `index`, or make a hole from there on. A table without pages is forgotten."""
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
            if hole.start * table.pool.size <= view.low:  # a window moves on: nothing is left there to check
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
    """Remove pages from a table. Reads by operations in flight through the table still count."""
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
    """Note that two labels are the same."""
    state.labels.unify(event.label, event.same, event.slots)
    state.sweep_labels()
