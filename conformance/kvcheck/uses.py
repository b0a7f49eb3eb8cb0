"""Operations as they begin, and the order between streams and hosts.

Reads are checked before writes. A stream checks the positions of a table once, and again only after a change. So the
cost of a decode step follows the slots that it adds, and not those that it reads.
"""

from collections.abc import Iterator

import msgspec

from kvcheck.finding import Malformed
from kvcheck.flights import Flight
from kvcheck.pages import NOTHING, Content
from kvcheck.parts import Part, uses_of
from kvcheck.reads import read
from kvcheck.state import State
from kvcheck.writes import gather, put, write
from kvspec.memory import events
from kvspec.memory.events import Begin, Use


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
    read(state, flight, early)
    taken = [None if _sees_own(state, event, source) else gather(state, flight, source) for source, _ in event.copies]
    write(state, flight, event.writes)
    read(state, flight, late)
    for (source, target), carried in zip(event.copies, taken, strict=True):
        put(state, flight, gather(state, flight, source) if carried is None else carried, target)
    if event.id in state.tainted:
        _mark(state, flight)


def _sees_own(state: State, event: Begin, use: Use) -> bool:
    """Whether a read sees the writes of its own operation. A use without a known pool counts as if it did."""
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


def _written(state: State, flight: Flight) -> Iterator[tuple[Part, bool | None]]:
    """The writes of an operation, and whether each is tainted; `None`: if and only if the source of the copy is."""
    event, holders = flight.event, state.tainted.get(flight.event.id, NOTHING)
    for use, carried in [*((use, False) for use in event.writes), *((to, not to.labels) for _, to in event.copies)]:
        for part in uses_of(state, flight, [use]):
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
