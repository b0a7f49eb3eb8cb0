"""The search for the shortest part that still shows a finding, the same for both levels."""

import time
from collections.abc import Callable
from typing import Optional, TypeVar

T = TypeVar("T")


class Effort:
    """The remaining cost of a search, so that every machine finds the same shortest part.

    A unit is one operation that is carried out again, or one event that is checked again. Seconds end a search only on
    a machine, or with an implementation, that is much slower than usual.
    """

    def __init__(self, units: int, seconds: float, whole: Optional["Effort"] = None) -> None:
        """Begin with so many units and seconds, within the rest of `whole`."""
        self._left = units
        self._whole = whole
        self._deadline: float = min(time.monotonic() + seconds, float("inf") if whole is None else whole._deadline)

    def part(self, least: int, seconds: float) -> "Effort":
        """The effort for one of several searches: a quarter of the rest, but at least `least` units."""
        return Effort(max(least, self._left // 4), seconds, self)

    @property
    def is_spent(self) -> bool:
        """Whether no effort is left."""
        left = self._left if self._whole is None else min(self._left, self._whole._left)
        return left <= 0 or time.monotonic() > self._deadline

    def spend(self, units: int) -> None:
        """Spend so many units."""
        self._left -= units
        if self._whole is not None:
            self._whole.spend(units)


def minimize(items: list[T], still: Callable[[list[T]], bool]) -> None:
    """Leave out ever smaller parts of `items` while `still` holds, until no single item can be left out."""
    size = max(1, len(items) // 2)
    while True:
        before, start = len(items), 0
        while start < len(items):
            fewer = items[:start] + items[start + size :]
            if still(fewer):
                items = fewer
            else:
                start += size
        if size > 1:
            size //= 2
        elif len(items) == before:
            return
