"""Compares runs of numbers without expanding them: the cost follows the number of runs, not their lengths."""

from collections.abc import Iterable, Iterator

from kvspec.pages import Runs


def alongside(one: Runs, other: Runs) -> Iterator[tuple[int, int, int]]:
    """The numbers at the same places of both, up to the shorter end: one of each, and how many both count on."""
    runs, others = ([(run, 1) if isinstance(run, int) else run for run in each][::-1] for each in (one, other))
    while runs and others:
        (first, left), (second, right) = runs.pop(), others.pop()
        length = min(left, right)
        yield first, second, length
        runs += [(first + length, left - length)] * (left > length)
        others += [(second + length, right - length)] * (right > length)


def runs_of(numbers: Iterable[int]) -> list[int | tuple[int, int]]:
    """Numbers as the shortest runs in order, each number once."""
    there = {*numbers}
    starts = sorted(there.difference(map((1).__add__, there)))
    ends = sorted(there.difference(map((-1).__add__, there)))
    return [start if start == end else (start, end - start + 1) for start, end in zip(starts, ends, strict=True)]


def merged(runs: Runs) -> list[tuple[int, int]]:
    """The same numbers as runs in order, none of which touch."""
    found: list[tuple[int, int]] = []
    for first, count in sorted([(run, 1) if isinstance(run, int) else run for run in runs]):
        if found and first <= found[-1][0] + found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], first + count - found[-1][0])
        else:
            found.append((first, count))
    return found


def both(runs: Runs, others: Runs) -> list[int | tuple[int, int]]:
    """The numbers of `runs` that are among `others`, too."""
    return without(runs, without(runs, others)) if runs and others else []


def without(runs: Runs, others: Runs) -> list[int | tuple[int, int]]:
    """The numbers of `runs` that are not among `others`, as the shortest runs in order."""
    left: list[int | tuple[int, int]] = []
    taken = [*merged(others), (1 << 63, 1)]
    place = 0
    for first, length in merged(runs):
        start, stop = first, first + length
        while start < stop:
            border, taken_length = taken[place]
            if start < border:
                end = min(border, stop)
                left.append(start if end == start + 1 else (start, end - start))
                start = end
            elif start < border + taken_length:
                start = border + taken_length
            else:
                place += 1
    return left
