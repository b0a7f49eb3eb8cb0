"""A few requests in one pool, as an engine would pass them to the canary; every slot is chosen by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from kvcuda.arrays import Ints
from kvcuda.backend import DEVICE
from kvcuda.canary import Canary, Known, Pass, Places, Pool, Violation
from kvcuda.canary.chain import extended
from kvcuda.streams import default_streams


def ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


class Engine:
    """Requests with rows of slot indices, or block tables, in one pool; tokens are given with each pass."""

    def __init__(
        self,
        pool: Pool,
        *,
        rows: int = 8,
        context: int = 64,
        host: Pool | None = None,
        made: type[Canary] = Canary,
        **options: Any,
    ) -> None:
        self.pool = pool
        pools = [pool] if host is None else [pool, host]
        self.canary = made(pools, rows=rows, max_requests=rows, passes=1, **options)
        self.found: list[Violation] = []
        """All violations so far."""
        width = context // pool.page_size if pool.block_tables else context
        self.table: Any = torch.zeros((rows, width), dtype=torch.int32, device=DEVICE)
        self.tokens: dict[str, list[int]] = {}
        self.rows: dict[str, int] = {}

    def give(self, name: str, entries: Sequence[int], first: int = 0) -> None:
        """Let a request's row, or block table, have these entries from `first` on."""
        row = self.rows.setdefault(name, len(self.rows))
        self.table[row, first : first + len(entries)] = torch.tensor(entries, dtype=torch.int32, device=DEVICE)

    def slot(self, name: str, position: int) -> int:
        size = self.pool.page_size if self.pool.block_tables else 1
        return int(self.table[self.rows[name], position // size]) * size + position % size

    def run(self, *work: tuple[str, int, Sequence[int]], **options: Any) -> list[Violation]:
        """One pass: for each request, where it begins and its new tokens. Returns the violations."""
        self.launch(*work, **options)
        found = self.poll()
        self.found += found
        return found

    def poll(self) -> list[Violation]:
        """The violations of all launches so far, which are over."""
        default_streams(DEVICE).synchronize()
        return self.canary.poll()

    def launch(self, *work: tuple[str, int, Sequence[int]], fresh: Sequence[str] = (), **options: Any) -> None:
        """The same without a poll."""
        names = [name for name, _, _ in work]
        known = {}
        for index, (name, start, new) in enumerate(work):
            before = self.tokens.get(name, [])[:start]
            if name not in self.tokens or name in fresh:
                known[index] = Known(start - 1, extended(0, before, 0), fresh=True)
            self.tokens[name] = [*before, *new]
        known.update(options.get("known", {}))
        slots = [self.slot(name, start + i) for name, start, new in work for i in range(len(new))]
        positions = [start + i for _, start, new in work for i in range(len(new))]
        places = Places(
            self.table,
            ints(*(self.rows[name] * self.table.shape[1] for name in names)),
            torch.tensor(options.get("slots", slots), dtype=torch.int64, device=DEVICE),
        )
        self.hand_over(
            Pass(
                names,
                ints(*(len(new) for _, _, new in work)),
                torch.tensor([t for _, _, new in work for t in new], dtype=torch.int32, device=DEVICE),
                torch.tensor(positions, dtype=torch.int64, device=DEVICE),
                [places],
                known,
                longest=self.table.shape[1] * self.pool.page_size,
            )
        )

    def hand_over(self, batch: Pass) -> None:
        """Pass a forward pass to the canary."""
        self._staged = self.canary.stage(batch)
        self.canary.enqueue(self._staged)

    def seal(self) -> None:
        """The pass has run."""
        self.canary.seal(self._staged)
