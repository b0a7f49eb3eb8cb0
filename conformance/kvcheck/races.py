"""Races: which earlier operation uses some slots too, with nothing that orders the two."""

from collections.abc import Collection, Hashable, Iterator

from kvcheck.clocks import Clocks
from kvcheck.flights import Flight
from kvcheck.pages import PageState
from kvcheck.pools import PoolState
from kvspec.memory.events import Page

_LAST = 1 << 62
"""No operation has a larger number."""

Place = tuple[Hashable, int, int, int]
"""Where uses of a page are noted, the page or a table that names or named it: the page index there, and the operations
from and to whose number it counts."""


def _places(pool: PoolState, number: Page, page: PageState, used: Collection[Hashable]) -> list[Place]:
    """Those of a page, of which many are looked at only where they are `used`."""
    tables = page.tables
    names = tables if len(tables) <= len(used) else [name for name in used if name in tables]
    places: list[Place] = [((pool.name, number), 0, 0, _LAST), *page.left]
    places += [(name, tables[name].index, tables[name].since, _LAST) for name in names]
    return places


def used(flight: Flight, pool: PoolState, number: Page, page: PageState) -> Iterator[tuple[int, int, bool]]:
    """The slots of a page, from and to, that an operation in flight uses, and whether it writes them."""
    for place in _places(pool, number, page, flight.spans):
        yield from _used(flight, pool, place)


def _used(flight: Flight, pool: PoolState, place: Place) -> Iterator[tuple[int, int, bool]]:
    where, index, since, until = place
    base = index * pool.size
    for first, last, writes in flight.spans.get(where, ()) if since < flight.number <= until else ():
        if first < base + pool.size and base < last:
            yield first - base, last - base, writes


def unordered(
    clocks: Clocks, flight: Flight, pool: PoolState, number: Page, start: int, stop: int, *, reads: bool
) -> tuple[Flight, str] | None:
    """An earlier use of some slots that nothing orders before an operation, and whether it reads or writes.

    Earlier writes count, and with `reads` earlier reads do.
    """
    used = clocks.users if reads else clocks.writers
    for place in _places(pool, number, pool.page(number), used):
        base = place[1] * pool.size
        for rival in clocks.rivals_at(flight, place[0], base + start, base + stop, writing=not reads):
            read = flight.is_after(rival, "reads")
            for first, last, writes in _used(rival, pool, place):
                if first < stop and start < last and (writes or (reads and not read)):
                    return rival, "writes" if writes else "reads"
    return None
