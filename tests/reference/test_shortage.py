"""The shortage of an operation, pool by pool."""

import pytest

from kvref.scheduler.shortage import NOTHING, Shortage, evicted, released, shortage
from kvspec.events import EvictAnswer, Refusal, ReleaseAnswer


def test_a_refusal_reports_the_shortage_or_counts_as_one_page() -> None:
    refusal = Refusal("CAP-1", "full", pages_short=1, rows_short=2, window_short=3, states_short=4)
    assert shortage(refusal) == (1, 2, 3, 4)
    assert shortage(Refusal(None, "full", states_short=1)) == (0, 0, 0, 1)
    assert shortage(Refusal("CAP-1", "full")) == Shortage(pages=1)
    with pytest.raises(Refusal, match="no sense"):
        shortage(Refusal("OP-1", "no sense"))


def test_it_is_over_when_nothing_is_short_in_any_pool() -> None:
    short = Shortage(pages=1, rows=1, window=2)
    assert short.is_left
    assert short.is_evictable
    short = short.less(evicted(EvictAnswer([(5, 3)], window_evicted=[1, 2])))
    assert short == (-2, 1, 0, 0)
    assert short.is_left
    assert not short.is_evictable, "rows are not the store's"
    short = short.less(released(ReleaseAnswer([7], states_freed=[1, 2, 3])))
    assert short == (-3, 0, 0, -3)
    assert not short.is_left


def test_parts_that_an_answer_omits_count_as_nothing_freed() -> None:
    assert evicted(EvictAnswer([])) == NOTHING
    assert released(ReleaseAnswer()) == Shortage(rows=1)
