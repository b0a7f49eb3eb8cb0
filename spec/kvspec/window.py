"""Sliding-window attention: how long a page needs its window side, as functions of a few integers (20070).

Layers with a sliding window read only the last `window` positions, so their K/V has a pool of its own, from which a
page's *window side* is given back once every later step has left it behind. A holder's cursor `swa_evicted_seqlen`,
in tokens, cuts its private pages in two:

    range of positions              full side      window side
    [0, protected)                  the store's    the store's, where it is not a tombstone
    [protected, cursor)             private        given back
    [max(protected, cursor), ceil(allocated))      private, both sides

The last two functions here are what is promised of the whole: window pages are conserved by every change of the three
lengths, and a turn that resumes never stands where its window is gone. The model does not call them. It does the same
page by page, and the tests hold it against them.
"""

from kvspec.contracts import ensure, require
from kvspec.lengths import Lengths, private_pages, well_formed
from kvspec.pages import ceil_align, ceil_pages, floor_align


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


@require(lambda lengths, page_size: page_size >= 1 and well_formed(lengths, page_size))
@require(lambda lengths, cursor, page_size: 0 <= cursor <= lengths.allocated and cursor % page_size == 0)
@ensure(lambda page_size, result: result >= 0 and result % page_size == 0)
@ensure(
    lambda lengths, cursor, page_size, result: (
        0 <= max(lengths.protected, cursor) + result - lengths.allocated < page_size
    )
)
def window_held_tokens(lengths: Lengths, cursor: int, page_size: int) -> int:
    """Tokens of private window memory, a page held in part counted whole (20070)."""
    return ceil_align(lengths.allocated, page_size) - max(lengths.protected, cursor)


@require(lambda lengths, page_size: page_size >= 1 and well_formed(lengths, page_size))
@require(lambda lengths, cursor, page_size: 0 <= cursor <= lengths.allocated and cursor % page_size == 0)
@ensure(lambda lengths, cursor, page_size, result: result * page_size == window_held_tokens(lengths, cursor, page_size))
@ensure(lambda lengths, page_size, result: 0 <= result <= private_pages(lengths, page_size))
def window_pages(lengths: Lengths, cursor: int, page_size: int) -> int:
    """The number of private pages that have their window side (rule SWA-3)."""
    return ceil_pages(lengths.allocated, page_size) - max(lengths.protected, cursor) // page_size


@require(lambda lengths, page_size: page_size >= 1 and well_formed(lengths, page_size))
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


@require(
    lambda before, after, page_size: page_size >= 1 and all(well_formed(one, page_size) for one in (before, after))
)
@require(lambda before, after: before.protected <= after.protected <= before.allocated)
@require(lambda before, after, cursor: 0 <= cursor <= min(before.allocated, after.allocated))
@require(lambda cursor, page_size: cursor % page_size == 0)
@ensure(
    lambda before, after, cursor, page_size, result: (
        window_pages(after, cursor, page_size) + result
        == window_pages(before, cursor, page_size)
        + max(0, ceil_pages(after.allocated, page_size) - ceil_pages(before.allocated, page_size))
    )
)
@ensure(
    lambda before, after, cursor, page_size, result: (
        after.protected > before.protected
        or result == max(0, ceil_pages(before.allocated, page_size) - ceil_pages(after.allocated, page_size))
    )
)
def sides_let_go(before: Lengths, after: Lengths, cursor: int, page_size: int) -> int:
    """The window pages that leave a holder by a change of its lengths, with its cursor where it is (20070).

    *Held after + let go = held before + taken*, and each new page takes one. So it is for a first and a further extend,
    a decode, a verify, a trim (nothing is let go), a resume and a shrink (the tail goes with both sides: the cursor is
    never in it) and for publishing (pages before the cursor go to the store without a side, as tombstones).
    """
    published = max(after.protected, cursor) - max(before.protected, cursor)
    tail = ceil_pages(before.allocated, page_size) - ceil_pages(after.allocated, page_size)
    return published // page_size + max(0, tail)


@require(lambda committed, written, window, page_size: min(committed, written) >= 0 and min(window, page_size) >= 1)
@require(lambda tokens, key_len: tokens >= 1 and key_len >= tokens - 1)
@ensure(
    lambda committed, written, tokens, window, page_size, result: (
        attended_from(result, window) >= evictable_until(min(committed, written, tokens - 1), window, page_size)
    )
)
def resumes_at(committed: int, written: int, tokens: int, key_len: int, window: int, page_size: int) -> int:
    """Where a turn goes on that came to `tokens` tokens: the cursor has left all that it reads there (rule SWA-2).

    The slot takes what is written of these tokens (`lengths.trim`). The retried or the next turn has at least as many,
    of which `key_len` are those that are not always recomputed, and begins where both end (`lengths.resume`).
    """
    return min(committed, written, tokens, key_len)
