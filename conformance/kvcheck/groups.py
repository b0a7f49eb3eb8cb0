"""Page groups: runs of pages with the same history are taken, mapped, written, published and released at once.

Only events without a finding are handled here, for runs of pages of one `PageGroup`. Each function yields the ranges of
pages, by their place in the event, that it leaves to the general code. That code checks pages one by one, and splits
a page from its group when it needs the page's own state.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile

from msgspec.structs import replace

from kvcheck.flights import Flight
from kvcheck.pages import NOTHING, PageGroup, PageState, Stretch
from kvcheck.pools import PoolState
from kvcheck.state import State, Table
from kvspec.memory.events import Label, Page, Use

_MANY = 1000
"""The most holders or tables of a page group. With more of them each page has its own state, which is changed in
place."""


def _runs(pool: PoolState, numbers: list[Page]) -> Iterator[tuple[PageGroup | None, int, int]]:
    """Runs of pages by group: the group, first and end place. `None`: pages with their own state, or none."""
    found = [*map(pool.groups.get, numbers)]
    if found and found.count(found[0]) == len(found):
        yield found[0], 0, len(found)
        return
    start = 0
    for one, run in groupby(found):
        stop = start + len([*run])
        yield one, start, stop
        start = stop


def _once(numbers: list[Page]) -> bool:
    """Whether no page is repeated."""
    return len(numbers) == 1 or len({*numbers}) == len(numbers)


def _distinct(pool: PoolState, numbers: list[Page]) -> Iterator[tuple[PageGroup | None, int, int]]:
    """The runs of pages; if a page is repeated, one run without a group."""
    return _runs(pool, numbers) if _once(numbers) else iter([(None, 0, len(numbers))])


def _set(pool: PoolState, run: list[Page], one: PageGroup) -> None:
    groups = pool.groups
    for number in run:
        groups[number] = one


def _become(state: State, pool: PoolState, run: list[Page], one: PageGroup) -> None:
    """Put pages into group `one`; free pages without uses are forgotten."""
    if one.holders or one.named or one.tables or (one.left and one.left[-1][-1] >= state.clocks.oldest):
        _set(pool, run, one)
        return
    for number in run:
        del pool.groups[number]
    state.renew(pool, run)


def take(state: State, pool: PoolState, numbers: list[Page], holder: str) -> Iterator[range]:
    """Take free pages. Only uses by operations in flight remain of their past."""
    if not _once(numbers):
        yield range(len(numbers))
        return
    for one, start, stop in _runs(pool, numbers):
        run = numbers[start:stop]
        if not (pool.fresh(run) if one is None else not (one.holders or one.named or one.tables)):
            yield range(start, stop)
            continue
        state.renew(pool, run)
        if one is None and len(run) == 1 and pool.unit == pool.size:  # a single page is filled slot by slot
            pool.individual[run[0]] = PageState({holder: 1}, NOTHING, NOTHING, NOTHING)
        else:
            _set(pool, run, PageGroup({holder: 1}, left=() if one is None else one.left))
        pool.count(run, held=1)
        state.held(holder, pool).update(dict.fromkeys(run))


def share(state: State, pool: PoolState, numbers: list[Page], holder: str, keys: list[str] | None) -> Iterator[range]:
    """Share pages with other holders, or pages that are published under the given names."""
    for one, start, stop in _distinct(pool, numbers):
        run = numbers[start:stop]
        if (
            one is None
            or holder in one.holders
            or len(one.holders) == _MANY
            or not (one.named or one.holders)
            or (keys and [*map(one.named.get, run)] != keys[start:stop])
        ):
            yield range(start, stop)
            continue
        if not one.holders:
            pool.count(run, held=1, cached=-1)
        _become(state, pool, run, replace(one, holders={**one.holders, holder: 1}))
        state.held(holder, pool).update(dict.fromkeys(run))


def release(state: State, pool: PoolState, numbers: list[Page], holder: str) -> Iterator[range]:
    """Release a holder's pages that none of its tables names."""
    for one, start, stop in _distinct(pool, numbers):
        if (
            one is None
            or holder not in one.holders
            or any(state.tables[table].holder == holder for table in one.tables)
        ):
            yield range(start, stop)
            continue
        run = numbers[start:stop]
        _let_go(state, pool, run, holder)
        holders = {**one.holders}
        del holders[holder]
        if not holders:
            pool.count(run, held=-1, cached=bool(one.named))
        _become(state, pool, run, replace(one, holders=holders or NOTHING))


def _let_go(state: State, pool: PoolState, run: list[Page], holder: str) -> None:
    """Remove pages from a holder's pages."""
    held = state.holdings[holder]
    if len(held[pool.name]) == len(run):
        del held[pool.name]
        if not held:
            del state.holdings[holder]
    else:
        pages = held[pool.name]
        for number in run:
            del pages[number]


def transfer(state: State, pool: PoolState, numbers: list[Page], old: str, new: str) -> Iterator[range]:
    """Pass all pages of a holder to another, together with their tables: so nothing in these changes."""
    for one, start, stop in _runs(pool, numbers):
        if one is None or new in one.holders:
            yield range(start, stop)
            continue
        run = numbers[start:stop]
        holders = {**one.holders, new: 1}
        del holders[old]
        _set(pool, run, replace(one, holders=holders))
        _let_go(state, pool, run, old)
        state.held(new, pool).update(dict.fromkeys(run))
        state.checked["MEM-RELEASE"] += stop - start


def publish(
    state: State, pool: PoolState, numbers: list[Page], keys: list[str], labels: list[Label]
) -> Iterator[range]:
    """Publish whole pages with a holder and the promised content. Each name is new, and the first of its page."""
    distinct = len({*keys}) == len(keys) and pool.names.keys().isdisjoint(keys)
    for one, start, stop in _distinct(pool, numbers) if distinct else [(None, 0, len(numbers))]:
        run = numbers[start:stop]
        if (
            one is None
            or one.named
            or not (one.holders and one.whole)
            or [*map(one.whole.get, run)] != labels[start:stop]
        ):
            yield range(start, stop)
            continue
        named = dict(zip(run, keys[start:stop], strict=True))
        _set(pool, run, replace(one, named=named))
        pool.names.update(zip(keys[start:stop], run, strict=True))
        state.checked["MEM-NAME"] += stop - start


def drop(state: State, pool: PoolState, numbers: list[Page], keys: list[str] | None) -> Iterator[range]:
    """Drop the only name of pages."""
    for one, start, stop in _distinct(pool, numbers):
        run = numbers[start:stop]
        named = [one.named[number] for number in run] if one is not None and one.named else []
        if one is None or not named or (keys and named != keys[start:stop]):
            yield range(start, stop)
            continue
        pool.rename(named)
        for key in named:
            del pool.names[key]
        if not one.holders:
            pool.count(run, cached=-1)
        _become(state, pool, run, replace(one, named=NOTHING))


def link(state: State, table: Table, index: int, numbers: list[Page]) -> Iterator[range]:
    """Enter pages into a table that does not name them elsewhere."""
    for one, start, stop in _distinct(table.pool, numbers):
        if one is None or table.name in one.tables or len(one.tables) == _MANY:
            yield range(start, stop)
            continue
        run = numbers[start:stop]
        stretch = Stretch(index + start, state.clocks.begun, run)
        _set(table.pool, run, replace(one, tables={**one.tables, table.name: stretch}))


def unlink(state: State, table: Table, start: int, stop: int) -> Iterator[range]:
    """Remove pages from a table. Reads by operations in flight through the table still count."""
    pages, begun, oldest = table.pages[start:stop], state.clocks.begun, state.clocks.oldest
    for one, first, last in _runs(table.pool, pages):
        if one is None:
            yield range(start + first, start + last)
            continue
        tables = {**one.tables}
        stretch = tables.pop(table.name)
        left = tuple(left for left in one.left if left[-1] >= oldest)
        if begun >= oldest:
            left += ((table.name, stretch, begun),)
        _become(state, table.pool, pages[first:last], replace(one, tables=tables or NOTHING, left=left))


def write(
    flight: Flight, table: Table, numbers: list[Page], labels: Sequence[Label | None], start: int, stop: int
) -> int:
    """Write whole pages of a table, as long as they are in the group of the first. Returns their number.

    They were empty, so no stream has checked them: a check would have split them from the group.
    """
    pool, run = table.pool, numbers[start:stop]
    one = pool.groups[run[0]]
    if one.whole or table.holder not in one.holders:
        return 0
    found = [*map(pool.groups.get, run)]
    if found.count(one) != len(run):
        run = run[: len([*takewhile(lambda other: other is one, found)])]
    _set(pool, run, replace(one, whole=dict(zip(run, labels[start:stop], strict=False)), writer=flight.by))
    return len(run)


def append(flight: Flight, table: Table, use: Use) -> bool:
    """Append whole units to the written ones of a page. Returns whether the use is then complete.

    No stream has read the page through a table: a read would have split it from the group.
    """
    pool, (index, slot), labels = table.pool, divmod(use.start, table.pool.size), use.labels
    one = pool.groups.get(table.pages[index]) if 0 <= index < len(table.pages) else None
    if (
        labels is None
        or one is None
        or table.holder not in one.holders
        or not slot < slot + use.stop - use.start <= pool.size
    ):
        return False
    number = table.pages[index]
    if len(one.units) * pool.unit != slot or len(labels) * pool.unit != use.stop - use.start:
        return False
    units = one.units or []
    units += labels
    pool.groups[number] = replace(one, units=units, writer=flight.by)
    return True


def read(state: State, flight: Flight, table: Table, start: int, stop: int) -> Iterator[range]:
    """Read positions of a table in pages with exactly the table's labels. Yields the remaining positions."""
    pool, holder, size = table.pool, table.holder, table.pool.size
    first, last = -(-start // size), stop // size
    if flight.rivals or first >= last:
        yield range(start, stop)
        return
    numbers, labels = table.pages[first:last], table.labels_of(first, last)
    for one, begin, end in _runs(pool, numbers):
        meant = labels[begin:end]
        if (
            one is None
            or not one.whole
            or holder not in one.holders
            or [*map(one.whole.get, numbers[begin:end])] != meant
        ):
            continue
        at = (first + begin) * size
        if start < at:
            yield range(start, at)
        start = at + (end - begin) * size
        if unlabelled := meant.count(None):
            pool.unchecked["MEM-CONTENT"] += unlabelled
        state.checked["MEM-CONTENT"] += end - begin - unlabelled
    if start < stop:
        yield range(start, stop)
