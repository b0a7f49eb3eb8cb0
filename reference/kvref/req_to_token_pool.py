"""The rows: free, held, or withheld while a launch in flight reads them."""

from collections import deque
from collections.abc import Sequence

from kvref.state_pool import StatePool


class ReqToTokenPool:
    """`req_to_token`, with an entry for each page: a row is a block table.

    Every row in `0..num_rows-1` is in exactly one state (rule ROW-1):

        free          in `_free`, or never used
        held          by one request or session slot, which has its number
        withheld      released while a launch in flight reads it; free once the last such launch has completed
    """

    def __init__(self, num_rows: int, num_states: int = 0, tracking_states: int = 0, *, withholds: bool = True) -> None:
        """All rows `0..num_rows-1` are free, and so are all state slots.

        With `withholds` a launch reads its rows at any moment until it completes; else it copies them, and later writes
        do not affect it.
        """
        self._withholds = withholds
        self.states = StatePool(num_states, tracking_states)
        """The state slots. Freeing a row does not free its holder's states, nor the other way round (17850)."""
        self.req_to_token: list[list[int]] = [[] for _ in range(num_rows)]
        """The block table of each row, in pages. The holder of a row reads and writes it in place."""
        self._free = list(range(num_rows - 1, -1, -1))
        self._withheld: set[int] = set()
        self._reads: deque[dict[int, int]] = deque()

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

    def rows_short(self, brought: Sequence[int | None]) -> int:
        """The shortage of rows for requests, each of which brings its row or `None`."""
        return max(0, brought.count(None) - len(self._free))

    def alloc(self, brought: Sequence[int | None]) -> list[int] | None:
        """A row for each request: the one that it brings, else a free one; for all of them or for none (17850).

        A request between two chunks brings its row. Another row would free one that the forward pass of the earlier
        chunk still reads. Returns `None`, with nothing taken, if the free rows do not suffice.
        """
        if self.rows_short(brought):
            return None
        return [self._take_free_row() if row is None else row for row in brought]

    def _take_free_row(self) -> int:
        row = self._free.pop()
        self.req_to_token[row] = []
        return row

    def free(self, row: int) -> None:
        """Release a row. It is withheld while a launch in flight reads it (17850)."""
        if self.is_read(row):
            self._withheld.add(row)
        else:
            self._free.append(row)

    def begin_read(self, reads: dict[int, int]) -> None:
        """Record the reads of a launch: row -> the number of its first positions that are read."""
        self._reads.append(reads if self._withholds else {})

    def end_read(self) -> None:
        """The oldest launch in flight has completed: launches complete in order (LAUNCH-1)."""
        self._reads.popleft()
        for row in [row for row in self._withheld if not self.is_read(row)]:
            self._withheld.remove(row)
            self._free.append(row)

    def is_read(self, row: int) -> bool:
        """Whether a launch in flight reads the row."""
        return any(row in reads for reads in self._reads)

    def read_len(self, row: int) -> int:
        """The number of first positions of the row that launches in flight read."""
        return max((reads.get(row, 0) for reads in self._reads), default=0)
