"""Page arithmetic: positions, pages and slot indices, as functions of a few integers.

A *position* is an index into a request's tokens. A *page* holds `page_size` slots and is the unit of allocation.
Pages are numbered from 1; page 0 is the padding page, which is never allocated or freed.
"""

import itertools
from collections.abc import Iterable, Sequence
from operator import ne

from kvspec.contracts import ensure, require

Runs = Sequence[int | tuple[int, int]]
"""Page numbers or slot indices; a pair `(first, count)` stands for `first, first + 1, ..., first + count - 1`."""


@require(lambda length: length >= 0)
@require(lambda page_size: page_size >= 1)
@ensure(lambda length, page_size, result: (result - 1) * page_size < length <= result * page_size)
def ceil_pages(length: int, page_size: int) -> int:
    """The number of pages that `length` tokens occupy, a page held in part counted whole (20070)."""
    return -(-length // page_size)


@require(lambda length: length >= 0)
@require(lambda page_size: page_size >= 1)
@ensure(lambda length, page_size, result: result % page_size == 0 and length <= result < length + page_size)
def ceil_align(length: int, page_size: int) -> int:
    """`length` rounded up to a page border, in tokens (20070)."""
    return ceil_pages(length, page_size) * page_size


@require(lambda length: length >= 0)
@require(lambda page_size: page_size >= 1)
@ensure(lambda length, page_size, result: result % page_size == 0 and result <= length < result + page_size)
def floor_align(length: int, page_size: int) -> int:
    """`length` rounded down to a page border, in tokens (20070)."""
    return length - length % page_size


@require(lambda start, end: 0 <= start <= end)
@require(lambda page_size: page_size >= 1)
@ensure(lambda result: result >= 0)
@ensure(
    lambda start, end, page_size, result: 0 <= (ceil_pages(start, page_size) + result) * page_size - end < page_size
)
def new_pages(start: int, end: int, page_size: int) -> int:
    """The pages to allocate before positions `[start, end)` have slots, when all before `start` have (17850).

    The partly filled page at `start` is allocated already. Cutting `end` back to `start` frees as many.
    """
    return ceil_pages(end, page_size) - ceil_pages(start, page_size)


@require(lambda page: page >= 0)
@require(lambda position: position >= 0)
@require(lambda page_size: page_size >= 1)
@ensure(lambda page, page_size, result: result // page_size == page)
@ensure(lambda position, page_size, result: result % page_size == position % page_size)
def slot_index(page: int, position: int, page_size: int) -> int:
    """The slot of `position`, whose page is `page` (rule PAGE-3)."""
    return page * page_size + position % page_size


def slots_of(table: Sequence[int], length: int, page_size: int) -> list[int | tuple[int, int]]:
    """The slots of positions `[0, length)` of a row with pages `table` (PAGE-3); 0 for each where that is no page."""
    pages = table[: ceil_pages(length, page_size)]
    breaks = itertools.compress(range(1, len(pages)), map(ne, pages[1:], map((1).__add__, pages)))
    slots: list[int | tuple[int, int]] = []
    for first, last in itertools.pairwise(sorted({0, *breaks, len(pages)})):
        missing = min(max(0, 1 - pages[first]), last - first)
        start, stop = (first + missing) * page_size, min(last * page_size, length)
        slots += [0] * (min(start, stop) - first * page_size)
        if start < stop:
            begin = slot_index(pages[first + missing], start, page_size)
            slots.append(begin if stop - start == 1 else (begin, stop - start))
    return slots


def none_empty(runs: Runs) -> bool:
    """Whether no run is empty; a reader of traces guarantees it."""
    return all(isinstance(run, int) or run[1] >= 1 for run in runs)


@require(none_empty)
@ensure(lambda runs, result: len(result) == count(runs))
def expand(runs: Runs) -> list[int]:
    """Write runs out one by one, in order."""
    return beginning(runs, count(runs))


@require(lambda runs, most: none_empty(runs) and most >= 0)
@ensure(lambda runs, most, result: len(result) == min(most, count(runs)))
def beginning(runs: Runs, most: int) -> list[int]:
    """Write out the first `most` numbers. The cost grows with `most`, whatever the lengths of the runs."""
    numbers: list[int] = []
    for run in runs[:most]:
        if isinstance(run, int):
            numbers.append(run)
        else:
            first, length = run
            numbers.extend(range(first, first + min(length, most - len(numbers))))
    return numbers[:most]


@ensure(lambda result: all(isinstance(run, int) or run[1] > 1 for run in result))
def compress(numbers: Iterable[int]) -> list[int | tuple[int, int]]:
    """The shortest runs that `expand` turns back into `numbers`; a run of one stays a plain number."""
    runs: list[int | tuple[int, int]] = []
    first = count = 0
    for number in numbers:
        if count and number == first + count:
            count += 1
            continue
        if count:
            runs.append(first if count == 1 else (first, count))
        first, count = number, 1
    if count:
        runs.append(first if count == 1 else (first, count))
    return runs


def count(runs: Runs) -> int:
    """How many numbers are named, with repeats."""
    return sum(1 if isinstance(run, int) else run[1] for run in runs)
