"""Compares the engine's own figures and lists of pages with the sum of its events.

The cost of a list follows its runs of pages and the changes since the last one, not its length.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from kvcheck.finding import SHOWN
from kvcheck.holding import find_once, owners
from kvcheck.pools import PoolState
from kvcheck.state import State
from kvspec.memory import events
from kvspec.memory.events import Page, Pages

LISTED = 16
"""The most pages of a list that are reported as wrong or repeated. Further ones follow when one is right again."""

Runs = list[tuple[int, int]]
"""Ranges of page numbers: first and end, in order."""


def count(state: State, event: events.Count) -> None:
    """Compare the engine's own figures or lists with the sum of its events. Each difference is reported once."""
    pool = state.pool(event.pool)
    free = None if pool.total is None else pool.total - pool.held - pool.cached
    figures = ("free", event.free, free), ("cached", event.cached, pool.cached), ("held", event.held, pool.held)
    for kind, counted, due in figures:
        if counted is None:
            continue
        runs: Runs | None = None
        if isinstance(counted, int):
            number = right = counted
        else:
            runs, again = _sorted(pool, counted)
            size = sum(stop - start for start, stop in runs)
            number, right = size + sum(again.values()), size - _check_listed(state, pool, kind, runs, again)
        if due is not None:
            missing = [] if runs is None or right >= due else [*islice(_missing(pool, kind, runs), SHOWN)]
            code = "MEM-COUNT/missing" if missing else "MEM-COUNT/total"
            if found := find_once(state, pool, code, kind, right - due, next(iter(missing), None)):
                found.figure, found.pages = kind, tuple(missing)
                found.expected, found.found = due, right if missing else number
    for page_number, references in (event.references or {}).items():
        page = pool.page(page_number)
        difference = references - sum(page.holders.values()) - sum(page.pins.values())
        if found := find_once(state, pool, "MEM-COUNT/references", "references", difference, page_number, each=True):
            found.found, found.owners = references, owners(page)
        state.forget_if_free(pool, page_number, page)


def _sorted(pool: PoolState, pages: Pages) -> tuple[Runs, dict[Page, int]]:
    """The pages of a list, each once; and the first pages of repeated ranges with their lengths."""
    pool.expect({int if isinstance(one, tuple) else type(one) for one in pages})
    runs, again = Runs(), defaultdict[Page, int](int)
    listed = [run if isinstance(run, tuple) else (run, 1) for run in pages if not isinstance(run, str)]
    for first, length in sorted(listed):
        before, stop = runs[-1][1] if runs else first, first + length
        if first < before:
            again[first] += min(before, stop) - first
        if first <= before and runs:
            runs[-1] = runs[-1][0], max(before, stop)
        else:
            runs.append((first, stop))
    return runs, again


def _check_listed(state: State, pool: PoolState, kind: str, runs: Runs, again: dict[Page, int]) -> int:
    """Check that a list repeats no page, and has no page of another kind except free ones. Returns their number."""
    for page, times in _news(pool.reported[f"{kind} twice"], again, lambda page: again.get(page, 0)):
        if found := find_once(state, pool, "MEM-COUNT/twice", f"{kind} twice", times, page, each=True):
            found.figure = kind
    others = [pool.of_kind(other) for other in ("held", "cached") if other != kind]
    spans = [(one, bisect_left(one, first), bisect_left(one, stop)) for one in others for first, stop in runs]
    listed = (one[place] for one, start, stop in spans for place in range(start, stop))
    reported, number = pool.reported[f"in {kind}"], sum(stop - start for _, start, stop in spans)
    state.checked["MEM-COUNT"] += len(pool.individual) + len(pool.groups)
    news = False

    def is_wrong(page: Page) -> bool:
        return pool.kind_of(page) not in (kind, "free") and _has(runs, page)

    for page, wrong in _news(reported, listed, is_wrong):
        if found := find_once(state, pool, "MEM-COUNT/listed", f"in {kind}", wrong, page, each=True):
            found.figure, found.owners, news = kind, owners(pool.seen(page)), True
    if news:
        state.by_code["MEM-COUNT/listed"][0].more += number - len(reported)
    return number


def _news(
    reported: dict[Page | None, int], wrong: Iterable[Page], due: Callable[[Page], int]
) -> Iterator[tuple[Page, int]]:
    """Pages that were reported as wrong, and some that are wrong now, each with its current error."""
    yield from [(page, due(page)) for page in reported if page is not None]
    for page in wrong:
        if len(reported) >= LISTED:
            return
        if page not in reported:
            yield page, due(page)


def _has(runs: Runs, page: Page) -> bool:
    assert isinstance(page, int)
    place = bisect_right(runs, page, key=lambda run: run[0]) - 1
    return place >= 0 and page < runs[place][1]


def _missing(pool: PoolState, kind: str, runs: Runs) -> Iterator[Page]:
    """Pages of a kind that are in none of the runs, but between them."""
    start = pool.numbers.start
    for first, stop in [*runs, (pool.numbers.stop, pool.numbers.stop)]:
        if kind == "free":
            yield from _free(pool, start, min(first, pool.numbers.stop))
        else:
            pages = pool.of_kind(kind)
            yield from (pages[place] for place in range(bisect_left(pages, start), bisect_left(pages, first)))
        start = max(start, stop)


def _free(pool: PoolState, start: int, stop: int) -> Iterator[Page]:
    """The free pages from `start` to before `stop`."""
    used = pool.of_kind("held"), pool.of_kind("cached"), pool.skipped

    def free_before(number: int) -> int:
        return number - start - sum(bisect_left(one, number) - bisect_left(one, start) for one in used)

    for place in range(free_before(stop) if start < stop else 0):
        near = range(start, start + place + sum(map(len, used)) + 1)
        yield start + bisect_right(near, place, key=lambda number: free_before(number + 1))
