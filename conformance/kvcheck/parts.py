"""The parts of a use: the slots of one page each, and the checks that reads and writes share."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from kvcheck.finding import Malformed
from kvcheck.flights import Flight
from kvcheck.holding import owners
from kvcheck.pages import HOLE, Content, PageState
from kvcheck.pools import PoolState
from kvcheck.state import State
from kvspec.memory import events
from kvspec.memory.events import Label, Page, Use

_START = attrgetter("start")

Part = tuple[PoolState, Page, int, int, int, str | None, list[Content]]
"""The slots of one page in a use: pool, page, first and end slot; the position of slot 0 of the page, in the table or
in the concatenated pages of the use; the holder; and the expected content of the slots."""


def parts_of(state: State, use: Use, *, check: bool = True) -> list[Part]:
    """The slots of a use, page by page. A position without a page is a finding."""
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


def uses_of(state: State, flight: Flight, uses: Iterable[Use]) -> Iterator[Part]:
    """The slots of a checked operation, without padding, and without pages that its tables got later."""
    for use in uses:
        for part in parts_of(state, use, check=False):
            pool, number, *_ = part
            if number not in pool.padding:
                link = pool.page(number).tables.get(use.table or "")
                if link is None or link.since < flight.number:
                    yield part


def within(meant: list[Content], piece: Content) -> list[Content]:
    """The expected contents that overlap a piece."""
    if len(meant) == 1:
        return meant
    first = max(bisect_right(meant, piece.start, key=_START) - 1, 0)
    return meant[first : bisect_left(meant, piece.stop, key=_START)]


def check_held(state: State, part: Part, page: PageState, id: events.OpId) -> None:
    """Check that the use's holder holds the page; without a holder, that the page is held or published."""
    pool, number, *_, holder, _ = part
    if not (pool.keyed or (page.kind != "free" if holder is None else holder in page.holders or holder in page.pins)):
        found = state.find("MEM-USE/not-held", pool, number, holder)
        found.operation, found.owners = id, owners(page)


def find_race(state: State, code: str, part: Part, id: events.OpId, clash: tuple[Flight, str]) -> None:
    """Note a race with an earlier operation, which reads or writes."""
    pool, number, *_, holder, _ = part
    rival, did = clash
    found = state.find(code, pool, number, holder)
    found.operation, found.stream, found.did = id, rival.stream, did
    found.earlier, found.other = rival.event.at, rival.by


def taint(state: State, flight: Flight, holder: str | None, cause: int | None) -> None:
    """Taint the results of an operation for a holder."""
    causes = state.tainted.setdefault(flight.event.id, {})
    if causes.get(holder) is None:
        causes[holder] = cause
