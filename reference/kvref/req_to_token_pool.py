"""The rows: which are free, which are held, and which a launch in flight still reads."""

from collections import deque
from collections.abc import Sequence

from kvref.state_pool import StatePool


class ReqToTokenPool:
    """`req_to_token`, seen page by page: a row is a block table.

    Every row in `0..num_rows-1` is in exactly one state (rule ROW-1):

        free          in `_free`, or never used
        held          by one request or session slot, which knows its number
        withheld      let go while a launch in flight reads it; free once the last such launch has completed
    """

    def __init__(self, num_rows: int, num_states: int = 0, tracking_states: int = 0, *, withholds: bool = True) -> None:
        """All rows `0..num_rows-1` are free, and so are all state slots.

        With `withholds` a launch reads its rows at any moment until it completes; else nothing that is written to a row
        later can reach it.
        """
        self._withholds = withholds
        self.states = StatePool(num_states, tracking_states)
        """The state slots. Freeing a row does not free its holder's states, nor the other way round (17850)."""
        self.req_to_token: list[list[int]] = [[] for _ in range(num_rows)]
        """The block table of each row, in pages. Who holds a row reads and writes it in place."""
        self._free = list(range(num_rows - 1, -1, -1))
        self._withheld: set[int] = set()
        self._reads: deque[dict[int, int]] = deque()

    @property
    def available(self) -> int:
        """The number of free rows."""
        return len(self._free)

    @property
    def withheld(self) -> int:
        """The number of rows that were let go and are still read."""
        return len(self._withheld)

    def free_rows(self) -> list[int]:
        """The rows that nobody has."""
        return self._free

    def withheld_rows(self) -> set[int]:
        """The rows that were let go and are still read."""
        return self._withheld

    def rows_short(self, brought: Sequence[int | None]) -> int:
        """How many rows are missing for requests that bring these rows, or none."""
        return max(0, brought.count(None) - len(self._free))

    def alloc(self, brought: Sequence[int | None]) -> list[int] | None:
        """A row for each request: the one that it brings, else a free one; for all of them or for none (17850).

        A request that is between two chunks brings its row. Giving it another would free one that the forward pass
        of the earlier chunk still reads. Returns `None`, with nothing taken, if the free rows do not suffice.
        """
        if self.rows_short(brought):
            return None
        return [self._take_free_row() if row is None else row for row in brought]

    def _take_free_row(self) -> int:
        row = self._free.pop()
        self.req_to_token[row] = []
        return row

    def free(self, row: int) -> None:
        """Let a row go. It is withheld while a launch in flight reads it (17850)."""
        if self.is_read(row):
            self._withheld.add(row)
        else:
            self._free.append(row)

    def begin_read(self, reads: dict[int, int]) -> None:
        """A launch is handed to the device: of each row that it reads, it reads the first so many positions."""
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
        """How many positions of the row launches in flight read, from its beginning on."""
        return max((reads.get(row, 0) for reads in self._reads), default=0)
