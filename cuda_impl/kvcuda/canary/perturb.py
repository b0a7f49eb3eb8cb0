"""Faults that are injected on request: the self-test of an installation.

They change only the canary's inputs and labels. A table is restored before the pass runs, so the engine's results do
not change.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import partial

import torch

from kvcuda.canary.canary import Canary, Staged
from kvcuda.canary.pools import Places


class Perturbation(StrEnum):
    """The fault to inject, once, at the first launch where it is possible."""

    TABLE = "table"
    """Two entries of a request's table are swapped while the launch verifies it."""
    STALE = "stale"
    """A request is read through another request's row."""
    TOKEN = "token"
    """A pass is stamped with another token than the request has. Found where the host knows the request's tokens."""
    USED = "used"
    """The label of a slot that a request reads is overwritten."""
    UNUSED = "unused"
    """The label of a slot that was never written is overwritten. No request reads it, so nothing is found."""
    COPY = "copy"
    """A copy to another tier, or back, lands one page off."""


class PerturbedCanary(Canary):
    """A canary that injects one fault. Unlike a plain canary, it waits for the device when it looks for a victim."""

    perturbation = Perturbation.TABLE
    after = 0
    """Launches before the fault."""
    done_at = 0
    """The launch of the fault; 0 before it."""

    def enqueue(self, staged: Staged) -> None:
        """As `Canary.enqueue`, with the fault."""
        do: dict[Perturbation, Callable[[Staged], bool]] = {
            Perturbation.TABLE: self._table,
            Perturbation.STALE: self._stale,
            Perturbation.TOKEN: self._token,
            Perturbation.USED: self._used,
            Perturbation.UNUSED: self._unused,
        }
        if (
            self.done_at
            or self.launches <= self.after
            or self.perturbation not in do
            or not do[self.perturbation](staged)
        ):
            super().enqueue(staged)

    def copy(self, source: str, sources: torch.Tensor, target: str, targets: torch.Tensor) -> None:
        """As `Canary.copy`, with `COPY` to the next page."""
        if self.perturbation is Perturbation.COPY and not self.done_at and self.launches >= self.after:
            self.done_at = max(1, self.launches)
            targets = targets + self.pools[self.number(target)].page_size
        super().copy(source, sources, target, targets)

    def _starts(self, staged: Staged) -> list[int]:
        batch = staged.batch
        firsts = batch.counts.cumsum() - batch.counts
        return [int(batch.positions[first]) for first in firsts.tolist()]

    def _entries(self, staged: Staged, request: int) -> tuple[torch.Tensor, int, int]:
        """The first pool's table, the index of a request's entry for position 0, and the tokens of an entry."""
        places = staged.batch.places[0]
        if not isinstance(places, Places):
            raise ValueError("the first pool has states: there is no table to perturb")
        pool = self.pools[0]
        flat = places.table.as_strided((places.table.numel(),), (1,))
        return flat, int(places.offsets[request]), pool.page_size if pool.block_tables else 1

    def _table(self, staged: Staged) -> bool:
        for request, start in enumerate(self._starts(staged)):
            table, offset, unit = self._entries(staged, request)
            last = (start - 1) // unit
            if start > unit and int(table[offset]) != int(table[offset + last]):
                swap = partial(_swap, table, offset, offset + last)
                self._stream.run(swap)
                super().enqueue(staged)
                self._stream.run(swap)
                self.done_at = self.launches
                return True
        return False

    def _stale(self, staged: Staged) -> bool:
        read = [request for request, start in enumerate(self._starts(staged)) if start > 0]
        if len(read) < 2:
            return False
        one, other = read[:2]
        at = self._entry * one + self._header + self._place, self._entry * other + self._header + self._place
        words = staged.slot.words.view("int64")
        words[[*at]] = words[[*reversed(at)]]
        self.done_at = self.launches
        super().enqueue(staged)
        return True

    def _token(self, staged: Staged) -> bool:
        ids = staged.batch.input_ids
        self._stream.run(lambda: ids[:1].add_(1))
        super().enqueue(staged)
        self._stream.run(lambda: ids[:1].sub_(1))
        self.done_at = self.launches
        return True

    def _used(self, staged: Staged) -> bool:
        for request, start in enumerate(self._starts(staged)):
            if start > 1:
                table, offset, unit = self._entries(staged, request)
                slot = int(table[offset]) * unit
                self._overwrite(slot)
                super().enqueue(staged)
                return True
        return False

    def _unused(self, staged: Staged) -> bool:
        free = (self.labels[: self.pools[0].slots] == 0).nonzero().flatten()
        self._overwrite(int(free[-1]))
        super().enqueue(staged)
        return True

    def _overwrite(self, slot: int) -> None:
        self.done_at = self.launches
        self._stream.run(lambda: self.labels[slot : slot + 1].fill_(self.launches))


def _swap(table: torch.Tensor, one: int, other: int) -> None:
    before = table[one].clone()
    table[one] = table[other]
    table[other] = before
