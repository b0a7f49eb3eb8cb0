"""Lists of whole pools: as runs, by what has changed, and less often the larger the pool is."""

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvattach.books import SPREAD, in_runs, moved, steps_between

PAGES = st.lists(st.integers(0, 30), max_size=20)


def array(pages: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.array(pages, dtype=np.int32)


@given(PAGES)
def test_runs_have_all_pages_as_often_as_the_list(pages: list[int]) -> None:
    runs = [run for run in in_runs(array(pages)) if isinstance(run, tuple)]
    assert sorted(pages) == [page for first, length in runs for page in range(first, first + length)]
    assert all(first + length != later for (first, length), (later, _) in pairwise(runs)), "two runs are one"


def test_a_run_goes_on_as_long_as_pages_follow_each_other() -> None:
    assert in_runs(array([7, 3, 5, 4, 4, 9])) == [(3, 2), (4, 2), (7, 1), (9, 1)]


@given(PAGES, PAGES)
def test_the_pages_that_a_list_has_lost_and_gained(before: list[int], after: list[int]) -> None:
    lost, gained = moved(array(before), array(after))
    assert Counter(before) - Counter(after) == Counter(lost)
    assert Counter(after) - Counter(before) == Counter(gained)
    assert lost == sorted(lost) and gained == sorted(gained)


@given(PAGES, PAGES, PAGES)
def test_what_is_taken_from_the_front_or_put_in_the_middle(front: list[int], middle: list[int], end: list[int]) -> None:
    assert moved(array(front + end), array(end)) == (sorted(front), [])
    assert moved(array(front + end), array(front + middle + end)) == ([], sorted(middle))


def test_a_large_memory_is_counted_less_often() -> None:
    assert steps_between(100, 1024) == 100
    assert steps_between(1, 12) == 1
    assert steps_between(100, 2_000_000) == 2_000_000 // SPREAD
