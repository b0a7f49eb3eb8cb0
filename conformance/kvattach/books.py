"""An engine's own lists of whole pools: read less often the larger a pool is, as runs, and by what has changed."""

from collections import Counter
from typing import Any

from kvspec.memory.events import Pages

SPREAD = 1000
"""The most pages of a pool for each step between two counts of it."""


def steps_between(least: int, pages: int) -> int:
    """The steps between two counts of a memory with so many pages: a step's share does not grow with the memory."""
    return max(least, pages // SPREAD)


def in_runs(pages: Any) -> Pages:
    """The pages of a numpy array in order, as runs. A repeated page begins another run.

    Python's part of the work follows the runs, of which a free list has one more than pages in use at most.
    """
    if not len(pages):
        return []
    pages = pages.copy()
    pages.sort()
    begins = [0, *((pages[1:] - pages[:-1] != 1).nonzero()[0] + 1).tolist()]
    stops = [*begins[1:], len(pages)]
    return [(first, stop - begin) for first, begin, stop in zip(pages[begins].tolist(), begins, stops, strict=True)]


def moved(before: Any, after: Any) -> tuple[list[int], list[int]]:
    """The pages that a free list has lost, and those that it has gained, in order; of two numpy arrays.

    Python's part of the work follows what lies between their common beginning and their common end.
    """
    same = min(len(before), len(after))
    other = (before[:same] != after[:same]).nonzero()[0]
    begin = int(other[0]) if len(other) else same
    same -= begin
    other = (before[len(before) - same :] != after[len(after) - same :]).nonzero()[0]
    end = same - 1 - int(other[-1]) if len(other) else same
    lost = Counter(before[begin : len(before) - end].tolist())
    gained = Counter(after[begin : len(after) - end].tolist())
    return sorted((lost - gained).elements()), sorted((gained - lost).elements())
