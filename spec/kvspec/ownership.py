"""The owner of a row or a page, and the steps that change it, as functions of a few integers (17850, 20476, 22213).

    owner       of         meaning
    FREE        both       no holder: it can be given out
    WITHHELD    rows       no holder, but a launch in flight still reads it
    STORE       pages      the prefix store
    1, 2, ...   both       the record of that number, which a request or a session's slot has

A record is itself held: by its session's slot, or by the turn in flight to which the slot has lent it.
"""

from typing import NamedTuple

from kvspec.contracts import ensure, require

WITHHELD = 0
FREE = -1
STORE = -2


class Lease(NamedTuple):
    """The record of a session, as its slot and its turn in flight have it: the number, or 0."""

    slot: int
    turn: int


@require(lambda owner, readers: owner == FREE and readers == 0)
@require(lambda record: record >= 1)
@ensure(lambda record, result: result == record)
@ensure(lambda owner, result: result != owner)
def allocate(owner: int, readers: int, record: int) -> int:
    """The owner of a free row or page that a record is given; no launch in flight reads it (ROW-1, PAGE-1, RACE-1)."""
    return record


@require(lambda owner, record: owner == record >= 1)
@ensure(lambda owner, result: result == owner)
def reuse(owner: int, record: int) -> int:
    """The owner of a row that a record brings to a batch: no other record got it between two chunks (ROW-2)."""
    return record


@require(lambda owner, readers: owner >= 1 and readers >= 0)
@ensure(lambda readers, result: result == (WITHHELD if readers else FREE))
def withhold(owner: int, readers: int) -> int:
    """The owner of a row that its record lets go, while so many launches in flight read it (RACE-1)."""
    return WITHHELD if readers > 0 else FREE


@require(lambda owner, readers: readers >= 0 and (owner >= 1 or owner == WITHHELD))
@ensure(lambda owner, result: owner < 1 or result == owner)
@ensure(lambda owner, readers, result: owner >= 1 or (result == FREE) == (readers == 0))
@ensure(lambda result: result >= 1 or result in (FREE, WITHHELD))
def flush(owner: int, readers: int) -> int:
    """The owner of a row when a launch that read it has completed, and so many others still do (RACE-1)."""
    return FREE if owner == WITHHELD and readers == 0 else owner


@require(lambda owner, record: owner == record >= 1)
@ensure(lambda result: result == STORE)
def publish(owner: int, record: int) -> int:
    """The owner of a private page that its record publishes (STORE-5)."""
    return STORE


@require(lambda owner: owner >= 1 or owner == STORE)
@require(lambda locks: locks == 0)
@ensure(lambda result: result == FREE)
def release(owner: int, locks: int) -> int:
    """The owner of a page that its record or the store frees: it has no lock (STORE-3)."""
    return FREE


@require(lambda lease: min(lease) == 0 < max(lease))
@ensure(lambda lease, result: result == (0, max(lease)))
def lend(lease: Lease) -> Lease:
    """A slot's record is lent to the turn; one that is lent already stays so when the turn matches again (SESS-2)."""
    return Lease(0, lease.slot or lease.turn)


@require(lambda lease: lease.slot == 0 and lease.turn >= 1)
@ensure(lambda lease, result: result == (lease.turn, 0))
def save(lease: Lease) -> Lease:
    """A turn ends, and its slot has the record; it is counted once, as the slot's (SESS-3)."""
    return Lease(lease.turn, 0)
