from dataclasses import dataclass

import icontract
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec import lengths
from kvspec.contracts import CHECKED
from kvspec.lengths import Lengths, held_tokens, private_pages, tail

PAGE_SIZES = (1, 2, 16, 64)

with_contracts = pytest.mark.skipif(not CHECKED, reason="the contracts are off")
"""`make mutation` turns them off; `test_contracts_are_checked_in_tests` sees to it that nothing else does."""


@dataclass(frozen=True)
class Holder:
    page_size: int
    lengths: Lengths


@st.composite
def holders(draw: st.DrawFn) -> Holder:
    page_size = draw(st.sampled_from(PAGE_SIZES))
    protected = draw(st.integers(0, 4)) * page_size
    committed = protected + draw(st.integers(0, 3 * page_size + 1))
    allocated = committed + draw(st.integers(0, 2 * page_size + 1))
    return Holder(page_size, Lengths(protected, committed, allocated))


def pages_of(holder: Holder, after: Lengths) -> int:
    return private_pages(after, holder.page_size) - private_pages(holder.lengths, holder.page_size)


def test_contracts_are_checked_in_tests() -> None:
    assert CHECKED
    with pytest.raises(icontract.ViolationError):
        lengths.begin(3, 8, 2)


@given(holders(), st.integers(0, 300))
def test_resume_and_tail_conserve_pages(holder: Holder, extra: int) -> None:
    before = holder.lengths
    after = lengths.resume(before, before.protected + extra, holder.page_size)
    freed = tail(after.allocated, before.allocated, holder.page_size)
    assert pages_of(holder, after) == -len(freed)
    assert after.allocated == min(before.committed, before.protected + extra)


@given(holders(), st.integers(0, 300))
def test_tail_2_no_freed_page_holds_a_kept_position(holder: Holder, extra: int) -> None:
    kept = min(holder.lengths.allocated, extra)
    freed = tail(kept, holder.lengths.allocated, holder.page_size)
    assert {position // holder.page_size for position in range(kept)}.isdisjoint(freed)
    assert {position // holder.page_size for position in range(kept, holder.lengths.allocated)} <= {
        *freed,
        (kept - 1) // holder.page_size if kept else -1,
    }


@given(holders(), st.integers(1, 9))
def test_decode_allocates_only_what_is_missing(holder: Holder, n: int) -> None:
    before, after = holder.lengths, lengths.decode(holder.lengths, n, holder.page_size)
    missing = max(0, before.committed + n - before.allocated)
    assert after.allocated - before.allocated == missing
    assert after.committed - before.committed == (n == 1)
    assert lengths.decode(after, n, holder.page_size).allocated == after.allocated + (n == 1) * (
        after.allocated == after.committed
    )


@given(holders(), st.data())
def test_publish_moves_protected_to_the_page_border_and_no_page_is_lost(holder: Holder, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, holder.lengths.committed))
    after = lengths.publish(holder.lengths, length, holder.page_size)
    moved = (after.protected - holder.lengths.protected) // holder.page_size
    assert pages_of(holder, after) == -moved
    assert after.protected <= max(length, holder.lengths.protected)


@given(holders(), st.integers(0, 200))
def test_trim_and_shrink_cut_what_counts_and_what_is_held(holder: Holder, extra: int) -> None:
    valid = holder.lengths.protected + extra
    trimmed = lengths.trim(holder.lengths, valid, holder.page_size)
    assert trimmed == (holder.lengths.protected, min(holder.lengths.committed, valid), holder.lengths.allocated)
    shrunk = lengths.shrink(trimmed, valid, holder.page_size) if valid >= trimmed.committed else trimmed
    assert shrunk.allocated == min(holder.lengths.allocated, valid)
    freed = tail(shrunk.allocated, holder.lengths.allocated, holder.page_size)
    assert pages_of(holder, shrunk) == -len(freed)


@given(holders(), st.data())
def test_verify_commits_within_what_is_allocated(holder: Holder, data: st.DataObject) -> None:
    room = holder.lengths.allocated - holder.lengths.committed
    if room:
        accepted = data.draw(st.integers(1, room))
        after = lengths.verify(holder.lengths, accepted, holder.page_size)
        assert after == (holder.lengths.protected, holder.lengths.committed + accepted, holder.lengths.allocated)


@with_contracts
@given(holders())
def test_verify_commits_no_more_than_is_allocated(holder: Holder) -> None:
    room = holder.lengths.allocated - holder.lengths.committed
    with pytest.raises(icontract.ViolationError):
        lengths.verify(holder.lengths, room + 1, holder.page_size)


@given(holders())
def test_held_tokens_are_whole_pages_past_the_protected_ones(holder: Holder) -> None:
    held = held_tokens(holder.lengths, holder.page_size)
    assert held % holder.page_size == 0
    positions = range(holder.lengths.protected, holder.lengths.allocated)
    assert held // holder.page_size == len({position // holder.page_size for position in positions})


@with_contracts
def test_len_3_a_turn_cannot_resume_below_protected() -> None:
    with pytest.raises(icontract.ViolationError):
        lengths.resume(Lengths(8, 10, 12), 7, 4)


def test_extend_writes_and_commits_up_to_seq_len() -> None:
    assert lengths.extend(Lengths(4, 6, 6), 9, 4) == (4, 9, 9)


@with_contracts
def test_extend_needs_a_record_without_a_tail() -> None:
    with pytest.raises(icontract.ViolationError):
        lengths.extend(Lengths(4, 6, 7), 9, 4)
