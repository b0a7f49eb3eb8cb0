"""Places in the arena, the device's list of the prefix store's pages. The host knows places, never pages."""

from typing import NamedTuple


class Run(NamedTuple):
    """`size` places from `first` on."""

    first: int
    size: int


def split(runs: list[Run], at: int) -> tuple[list[Run], list[Run]]:
    """The first `at` places of `runs`, and the others."""
    for number, (first, size) in enumerate(runs):
        if at <= size:
            head = [*runs[:number], Run(first, at)] if at else runs[:number]
            tail = [Run(first + at, size - at), *runs[number + 1 :]] if at < size else runs[number + 1 :]
            return head, tail
        at -= size
    return runs, []


class Arena:
    """Which places are free, as runs with no free neighbour.

    There are as many places as pages, and every place that is in use holds another page, so room never lacks.
    """

    def __init__(self, num_places: int) -> None:
        """Everything is free."""
        self._by_first: dict[int, int] = {0: num_places}
        """First place of each free run -> its size."""
        self._by_end: dict[int, int] = {num_places: 0}
        """End of each free run -> its first place."""

    def take(self, count: int) -> list[Run]:
        """Take `count` places, in as few runs as the first free ones allow."""
        taken = []
        while count:
            first, free = next(iter(self._by_first.items()))
            part = min(count, free)
            self._remove(first)
            if part < free:
                self._add(first + part, free - part)
            taken.append(Run(first, part))
            count -= part
        return taken

    def give_back(self, runs: list[Run]) -> None:
        """Take places back and join them to free neighbours."""
        for first, size in runs:
            end = first + size
            start = self._by_end.get(first, first)
            if start < first:
                self._remove(start)
            if end in self._by_first:
                end += self._remove(end)
            self._add(start, end - start)

    def _add(self, first: int, size: int) -> None:
        self._by_first[first] = size
        self._by_end[first + size] = first

    def _remove(self, first: int) -> int:
        size = self._by_first.pop(first)
        del self._by_end[first + size]
        return size
