"""The host's table of rows: their state, and their lengths.

The lengths of all rows are columns, so a decode step of a thousand requests is a few operations on arrays.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kvcuda.arrays import Ints
from kvcuda.memory_events import Listener
from kvspec.lengths import Lengths


class Reads(NamedTuple):
    """The reads of one launch in flight: of each of `rows` the first `ends` positions."""

    rows: Ints
    ends: Ints


class RowTable:
    """The state of each row in `0..num_rows-1`, and its lengths in tokens while it is held.

    free          in `_free`
    held          by one request or session slot, which has its number
    withheld      released while a launch in flight reads it; free once the last such launch has completed
    """

    def __init__(self, num_rows: int, listener: Listener | None = None) -> None:
        """All rows are free."""
        self._listener = listener
        self._free = list(range(num_rows - 1, -1, -1))
        self._withheld: set[int] = set()
        self._reads: deque[Reads] = deque()
        self._readers = np.zeros(num_rows, dtype=np.int64)

        def column() -> Ints:
            return np.zeros(num_rows, dtype=np.int64)

        self.protected = column()
        self.committed = column()
        self.allocated = column()
        self.cursor = column()
        """The start of the private pages that still have their window side, in tokens; page-aligned (20070)."""
        self.state_at = column()
        """The length, in tokens, of the recurrent state in the slot that the holder computes in; 0 at first."""
        self.promised = column()
        """Tokens that are known, or that a launch in flight will sample."""
        self.launched = column()
        """Positions that launches have written."""
        self.prepared = column()
        """The end of the positions that wait for a launch; 0 if there are none."""
        self.drafts = column()
        """Positions of the speculative step that waits for a launch; 0 if there is none."""
        self.steps = column()
        """Speculative steps that are launched and not verified; at most two (28754)."""
        self.unverified = column()
        """Positions of all these steps together."""
        self.start = column()
        """The start of the positions that were prepared last."""
        self.out = column()
        """The index into `out_cache_loc` where their slots begin."""
        self.batch = column()
        """The number of their batch, as `DeviceMemory.batches` counts."""

    @property
    def available(self) -> int:
        """The number of free rows."""
        return len(self._free)

    @property
    def withheld(self) -> int:
        """The number of released rows that a launch still reads."""
        return len(self._withheld)

    def free_rows(self) -> list[int]:
        """The free rows."""
        return self._free

    def withheld_rows(self) -> set[int]:
        """The released rows that a launch still reads."""
        return self._withheld

    def take(self) -> int:
        """Take a free row. The caller has checked that there is one."""
        row = self._free.pop()
        self.forget_steps(row)
        self.cursor[row] = self.state_at[row] = 0
        if self._listener is not None:
            self._listener.take_row(row)
        return row

    def forget_steps(self, row: int) -> None:
        """Drop the prepared step, and the steps that wait for a verify."""
        self.prepared[row] = self.drafts[row] = self.steps[row] = self.unverified[row] = 0

    def let_go(self, row: int) -> None:
        """Release a row. It is withheld while a launch in flight reads it (17850)."""
        if self._readers[row]:
            self._withheld.add(row)
        else:
            self._give_back(row)

    def _give_back(self, row: int) -> None:
        self._free.append(row)
        if self._listener is not None:
            self._listener.free_row(row)

    def begin_read(self, rows: Ints, ends: Ints) -> None:
        """Record the reads of a launch: the first `ends` positions of each row."""
        self._reads.append(Reads(rows, ends))
        self._readers[rows] += 1

    def end_read(self) -> None:
        """The oldest launch in flight has completed."""
        self._readers[self._reads.popleft().rows] -= 1
        if self._withheld:
            for row in [row for row in self._withheld if not self._readers[row]]:
                self._withheld.remove(row)
                self._give_back(row)

    def read_len(self, row: int) -> int:
        """The number of first positions of the row that launches in flight read."""
        if not self._readers[row]:
            return 0
        return max(int(reads.ends[reads.rows == row].max(initial=0)) for reads in self._reads)

    def lengths(self, row: int) -> Lengths:
        """The three lengths of a row that is held."""
        return Lengths(int(self.protected[row]), int(self.committed[row]), int(self.allocated[row]))

    def set_lengths(self, row: int, lengths: Lengths) -> None:
        """Set the three lengths of a row."""
        self.protected[row], self.committed[row], self.allocated[row] = lengths


def ints(numbers: Sequence[int]) -> Ints:
    """Numbers as an int64 array."""
    return np.array(numbers, dtype=np.int64)
