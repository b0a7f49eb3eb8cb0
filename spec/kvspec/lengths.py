"""The lengths of one holder, and every way they may change.

A holder (a request, or an idle session slot) has a row. Three lengths, in tokens, cut the row into ranges:

    range of positions          meaning
    [0, protected)              pages of the prefix store, locked by this holder; `protected` is page-aligned
    [protected, committed)      private pages whose K/V counts as valid
    [committed, allocated)      private pages whose K/V does not count: room for drafts, or left over
    [allocated, ceil(allocated))  the rest of the last page: owned, without a slot index

Each transition promises two things besides its result: lengths that were well-formed stay so, and pages are conserved.

The next extend begins to write at `prefix_len`, which is not stored. If a holder with a row is about to extend,
`prefix_len` equals `committed`; by TAIL-1 it also equals `allocated`.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from kvspec.contracts import ensure, require
from kvspec.pages import ceil_align, ceil_pages, floor_align, new_pages

Change = TypeVar("Change", bound=Callable[..., "Lengths"])


class Lengths(NamedTuple):
    """`cache_protected_len`, `kv_committed_len` and `kv_allocated_len`, in tokens."""

    protected: int
    committed: int
    allocated: int


def well_formed(lengths: Lengths, page_size: int) -> bool:
    """Whether LEN-1 and LEN-2 hold (the bound `max_context_len` is the caller's)."""
    protected, committed, allocated = lengths
    return 0 <= protected <= committed <= allocated and page_size >= 1 and protected % page_size == 0


@require(lambda kept, allocated, page_size: page_size >= 1 and 0 <= kept <= allocated)
@ensure(lambda kept, page_size, result: result.start * page_size >= kept)
@ensure(lambda allocated, page_size, result: result.stop == ceil_pages(allocated, page_size))
@ensure(lambda kept, page_size, result: (result.start - 1) * page_size < kept)
def tail(kept: int, allocated: int, page_size: int) -> range:
    """The page indices that may be freed when positions from `kept` on are given up (22862, rule TAIL-2).

    It begins at the *ceiling* of `kept`: a page that still holds one kept position stays whole, because freeing one
    slot of a page frees the page.
    """
    return range(ceil_pages(kept, page_size), ceil_pages(allocated, page_size))


@require(well_formed)
@ensure(lambda page_size, result: result >= 0 and result % page_size == 0)
@ensure(lambda lengths, page_size, result: 0 <= lengths.protected + result - lengths.allocated < page_size)
def held_tokens(lengths: Lengths, page_size: int) -> int:
    """Tokens of private memory; a page that is held in part counts whole (20070)."""
    return ceil_align(lengths.allocated, page_size) - lengths.protected


@require(well_formed)
@ensure(lambda lengths, page_size, result: result == held_tokens(lengths, page_size) // page_size)
@ensure(lambda lengths, page_size, result: result == len(tail(lengths.protected, lengths.allocated, page_size)))
def private_pages(lengths: Lengths, page_size: int) -> int:
    """The number of the holder's private pages, without those of the prefix store."""
    return ceil_pages(lengths.allocated, page_size) - lengths.protected // page_size


def conserved(lengths: Lengths, page_size: int, result: Lengths) -> bool:
    """Whether LEN-1 and LEN-2 still hold, and in pages *held after + freed + published = held before + taken*."""
    kept = min(lengths.allocated, result.allocated)
    freed = len(tail(kept, lengths.allocated, page_size))
    taken = new_pages(kept, result.allocated, page_size)
    published = (result.protected - lengths.protected) // page_size
    held = private_pages(result, page_size) + freed + published
    return well_formed(result, page_size) and held == private_pages(lengths, page_size) + taken


def transition(change: Change) -> Change:
    """The contract of every change of a holder's lengths."""
    return require(well_formed)(ensure(conserved)(change))


@require(lambda prefix_len, page_size: page_size >= 1 and prefix_len >= 0 and prefix_len % page_size == 0)
@require(lambda prefix_len, seq_len: seq_len > prefix_len)
@ensure(lambda prefix_len, seq_len, result: result == (prefix_len, seq_len, seq_len))
@ensure(lambda prefix_len, page_size, result: conserved(Lengths(*3 * [prefix_len]), page_size, result))
def begin(prefix_len: int, seq_len: int, page_size: int) -> Lengths:
    """The first extend of a fresh row: `prefix_len` matched in the store, written up to `seq_len` (17850)."""
    return Lengths(prefix_len, seq_len, seq_len)


@transition
@require(lambda lengths: lengths.committed == lengths.allocated)
@require(lambda lengths, seq_len: seq_len > lengths.committed)
@ensure(lambda lengths, seq_len, result: result == (lengths.protected, seq_len, seq_len))
def extend(lengths: Lengths, seq_len: int, page_size: int) -> Lengths:
    """A further chunk, or the first extend of a resumed turn (17850, 22862)."""
    return Lengths(lengths.protected, seq_len, seq_len)


@transition
@require(lambda n, unverified: n >= 1 and unverified >= 0 and (n > 1 or unverified == 0))
@ensure(
    lambda lengths, n, unverified, result: (
        result.allocated == max(lengths.allocated, lengths.committed + unverified + n)
    )
)
@ensure(lambda lengths, n, result: result.committed - lengths.committed == (1 if n == 1 else 0))
@ensure(lambda lengths, result: result.protected == lengths.protected)
def decode(lengths: Lengths, n: int, page_size: int, unverified: int = 0) -> Lengths:
    """One decode step: room for `n` tokens past the committed ones; `n == 1` commits its token at once (994).

    A speculative step may be launched before the previous step is verified. Its first position is unknown then, so it
    also gets room past all the `unverified` positions of the previous step (28754, rule SPEC-2).
    """
    protected, committed, allocated = lengths
    room = committed + unverified + n
    return Lengths(protected, room if n == 1 else committed, allocated if allocated > room else room)


@transition
@require(lambda lengths, accepted: 1 <= accepted <= lengths.allocated - lengths.committed)
@ensure(lambda lengths, accepted, result: result == lengths._replace(committed=lengths.committed + accepted))
def verify(lengths: Lengths, accepted: int, page_size: int) -> Lengths:
    """Speculative decoding: `accepted` tokens (accepted drafts + 1) become valid (22862)."""
    return Lengths(lengths.protected, lengths.committed + accepted, lengths.allocated)


@transition
@require(lambda lengths, length: 0 <= length <= lengths.committed)
@ensure(lambda lengths, result: result.protected >= lengths.protected)
@ensure(lambda lengths, result: (result.committed, result.allocated) == (lengths.committed, lengths.allocated))
@ensure(lambda lengths, length, page_size, result: result.protected in (lengths.protected, length - length % page_size))
def publish(lengths: Lengths, length: int, page_size: int) -> Lengths:
    """The store takes over the whole pages of the first `length` tokens; protected moves up to them (20070)."""
    return Lengths(max(lengths.protected, floor_align(length, page_size)), lengths.committed, lengths.allocated)


@transition
@require(lambda lengths, key_len: key_len >= lengths.protected)
@ensure(lambda lengths, key_len, result: result.committed == min(lengths.committed, key_len))
@ensure(lambda result: result.allocated == result.committed)
@ensure(lambda lengths, result: result.protected == lengths.protected)
def resume(lengths: Lengths, key_len: int, page_size: int) -> Lengths:
    """A turn resumes a session's record: everything from `prefix_len` on will be overwritten (22862).

    `key_len` is the number of tokens minus the one that is always recomputed. The result's `committed` and
    `allocated` are `prefix_len`; the pages in `tail(prefix_len, lengths.allocated)` go back (rules TAIL-1 and TAIL-2).
    `key_len >= protected` is rule LEN-3.
    """
    prefix_len = min(lengths.committed, key_len)
    return Lengths(lengths.protected, prefix_len, prefix_len)


@transition
@require(lambda lengths, valid: valid >= lengths.protected)
@ensure(lambda lengths, valid, result: result == lengths._replace(committed=min(lengths.committed, valid)))
def trim(lengths: Lengths, valid: int, page_size: int) -> Lengths:
    """At most `valid` positions count: those that are written and whose tokens the client got (22862)."""
    return Lengths(lengths.protected, min(lengths.committed, valid), lengths.allocated)


@transition
@require(lambda lengths, length: length >= lengths.committed)
@ensure(lambda lengths, length, result: result == lengths._replace(allocated=min(lengths.allocated, length)))
def shrink(lengths: Lengths, length: int, page_size: int) -> Lengths:
    """Give up the slots past `length`; the pages in `tail(length, lengths.allocated)` go back (22862, rule TAIL-2)."""
    return Lengths(lengths.protected, lengths.committed, min(lengths.allocated, length))
