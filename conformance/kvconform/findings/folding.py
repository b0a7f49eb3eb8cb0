"""Repeated steps are shown twice, the first and the last time, with the number of repetitions between."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvconform.findings.finding import Moment

LONGEST = 8
"""The most steps of a repeated part: a decode step at the memory level takes, names, begins, ends and releases."""
LEAST = 4
"""The least number of repetitions."""
_NUMBER = re.compile(r"\d+(\.\.\d+)?(, \d+(\.\.\d+)?)*")


class Fold(NamedTuple):
    """Moments that are left out between two similar ones."""

    moments: list[Moment]
    period: int
    """The number of moments of the repeated part."""

    def __str__(self) -> str:
        times = len(self.moments) // self.period
        these = "this line" if self.period == 1 else f"these {self.period} lines"
        return f"... {these} {times:,} more time{'s'[: times != 1]}, with other numbers ..."


def folded(moments: Sequence[Moment]) -> Iterator[Moment | Fold]:
    """The moments in order. Of parts that repeat, except for numbers, only the first and the last time are kept."""
    same = [_kind(moment) for moment in moments]
    place = 0
    while place < len(moments):
        period, times = max(((period, _times(same, place, period)) for period in range(1, LONGEST + 1)), key=_covered)
        if times < LEAST:
            yield moments[place]
            place += 1
            continue
        stop, last = place + period * times, place + period * (times - 1)
        yield from moments[place : place + period]
        yield Fold([*moments[place + period : last]], period)
        yield from moments[last:stop]
        place = stop


def _covered(one: tuple[int, int]) -> tuple[int, int]:
    period, times = one
    return (period * times if times >= LEAST else 0), -period


def _times(same: Sequence[str], place: int, period: int) -> int:
    """How often the steps at a place repeat directly after each other. A step that breaks a rule never repeats."""
    if not all(same[place : place + period]):
        return 1
    times = 1
    while same[place + times * period : place + (times + 1) * period] == same[place : place + period]:
        times += 1
    return times


def _kind(moment: Moment) -> str:
    """The text of a moment without numbers; empty if it breaks a rule or is refused."""
    return "" if moment.breaks or moment.refused is not None else _NUMBER.sub("#", moment.says)
