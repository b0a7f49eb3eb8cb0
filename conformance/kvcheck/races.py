"""Races: earlier operations that use the same slots, without an order between the two."""

from collections.abc import Collection, Hashable, Iterator

from kvcheck.clocks import Clocks
from kvcheck.flights import Flight
from kvcheck.pages import PageState
from kvcheck.pools import PoolState
from kvspec.memory.events import Page

_LAST = 1 << 62
"""No operation has a larger number."""

Place = tuple[Hashable, int, int, int]
"""A place where uses of a page are noted: the page, or a table that names or named it; the page index there; and the
first and last number of the operations to which it applies."""


def _places(pool: PoolState, number: Page, page: PageState, used: Collection[Hashable]) -> list[Place]:
    """The places of a page. If there are many, only the `used` ones are examined."""
    tables = page.tables
    names = tables if len(tables) <= len(used) else [name for name in used if name in tables]
    places: list[Place] = [((pool.name, number), 0, 0, _LAST), *page.left]
    places += [(name, tables[name].index, tables[name].since, _LAST) for name in names]
    return places


def used(flight: Flight, pool: PoolState, number: Page, page: PageState) -> Iterator[tuple[int, int, bool]]:
    """An operation's uses of slots of a page, in flight: first slot, end slot, and whether it writes them."""
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
    """An earlier use of these slots that is not ordered before an operation, and whether it reads or writes.

    Earlier writes count, and with `reads` earlier reads, too.
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
