"""Sliding-window attention: how long a page needs its window side, as functions of a few integers (20070).

Layers with a sliding window read only the last `window` positions, so their K/V has a pool of its own, from which a
page's *window side* is given back once every later step has left it behind. A holder's cursor `swa_evicted_seqlen`,
in tokens, cuts its private pages in two:

    range of positions              full side      window side
    [0, protected)                  the store's    the store's, where it is not a tombstone
    [protected, cursor)             private        given back
    [max(protected, cursor), ceil(allocated))      private, both sides
"""

from kvspec.contracts import ensure, require
from kvspec.lengths import Lengths, well_formed
from kvspec.pages import ceil_align, floor_align


@require(lambda position, window: position >= 0 and window >= 1)
@ensure(lambda position, window, result: 0 <= result <= position and position - result <= window)
@ensure(lambda position, window, result: result == 0 or position - result == window)
def attended_from(position: int, window: int) -> int:
    """The first position that a query at `position` reads, itself included (20070)."""
    return max(0, position - window)


@require(lambda position, window: position >= 0 and window >= 1)
@require(lambda page_size: page_size >= 1)
@ensure(lambda page_size, result: result >= 0 and result % page_size == 0)
@ensure(lambda position, window, result: result <= attended_from(position, window))
@ensure(lambda position, window, page_size, result: result + page_size > attended_from(position, window))
def evictable_until(position: int, window: int, page_size: int) -> int:
    """How far the cursor may go when no later query stands before `position` (rule SWA-2)."""
    return floor_align(attended_from(position, window), page_size)


@require(well_formed)
@require(lambda lengths, cursor, page_size: 0 <= cursor <= lengths.allocated and cursor % page_size == 0)
@ensure(lambda page_size, result: result >= 0 and result % page_size == 0)
@ensure(
    lambda lengths, cursor, page_size, result: (
        0 <= max(lengths.protected, cursor) + result - lengths.allocated < page_size
    )
)
def window_held_tokens(lengths: Lengths, cursor: int, page_size: int) -> int:
    """Tokens of private window memory, a page held in part counted whole (20070, rules SWA-3 and ACC-2)."""
    return ceil_align(lengths.allocated, page_size) - max(lengths.protected, cursor)


@require(well_formed)
@require(lambda cursor, until, page_size: 0 <= cursor <= until and cursor % page_size == 0 and until % page_size == 0)
@require(lambda lengths, until: until <= lengths.committed)
@ensure(
    lambda lengths, cursor, until, page_size, result: (
        window_held_tokens(lengths, until, page_size) + len(result) * page_size
        == window_held_tokens(lengths, cursor, page_size)
    )
)
def left_behind(lengths: Lengths, cursor: int, until: int, page_size: int) -> range:
    """The page indices whose window side goes back when the cursor moves on to `until`: each exactly once (20070)."""
    first = max(lengths.protected, cursor) // page_size
    return range(first, max(first, until // page_size))
