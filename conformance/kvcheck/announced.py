"""The blocks that the routers of a host know, tier by tier, and the batches in which they learn of them."""

from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from kvcheck.pools import PoolState
from kvspec.memory.events import Label

_MISSING = 1000
"""Runs of missing batches of a host that are remembered; of a forgotten run each number counts as come already."""


class Block(NamedTuple):
    """An announced block."""

    labels: tuple[Label, ...] | None
    gaps: int
    """How many runs of batches were missing when it was announced; -1: a finding says that routers may not know it."""
    unfound: bool = False
    """Whether a finding has said already that no name finds it."""


class Tier:
    """The blocks of one tier that routers know."""

    def __init__(self, host: "Host") -> None:
        """Nothing is announced."""
        self.host = host
        self.lost = host.lost
        self.blocks: dict[str, Block] = {}
        self.pool: PoolState | None = None
        """The pool whose names were compared last; what follows is noted from then on."""
        self.renamed: dict[str, None] = {}
        """Names of it that were given or withdrawn since."""
        self.removed = set[str]()
        """Blocks that are known no longer since."""
        self.stored: dict[str, None] = {}
        """Blocks that were stored since."""

    def clear(self) -> None:
        """All blocks are removed."""
        if self.pool is not None:
            self.removed.update(self.blocks)
        self.blocks, self.lost = {}, False

    def store(self, key: str, block: Block) -> None:
        """A block is stored."""
        self.blocks[key] = block
        if self.pool is not None:
            self.stored[key] = None

    def forget(self, block: str) -> bool:
        """A block is removed; whether it was known."""
        if self.pool is not None:
            self.removed.add(block)
        return self.blocks.pop(block, None) is not None

    def compared(self, pool: PoolState) -> set[str]:
        """The blocks to compare with the names of a pool; from now on its changes are noted."""
        if self.pool is pool:
            return {*self.renamed, *self.removed, *self.stored}
        if self.pool is not None:
            self.pool.renamed = [one for one in self.pool.renamed if one is not self.renamed]
        self.pool, self.renamed = pool, {}
        pool.renamed.append(self.renamed)
        return {*pool.names, *self.blocks}

    def agree(self, *, lost: bool) -> None:
        """The routers know all names, whatever they had `lost`."""
        self.lost = False
        if lost:
            found = {key: block for key, block in self.blocks.items() if not block.unfound}
            self.blocks = {key: block._replace(gaps=self.host.gaps) for key, block in found.items()}
        for noted in (self.renamed, self.removed, self.stored):
            noted.clear()


class Host:
    """The announcements of one host."""

    def __init__(self) -> None:
        """None yet."""
        self.tiers: dict[str, Tier] = {}
        self.last = -1
        """The highest number of a batch."""
        self.missing: list[range] = []
        """Lower numbers that have not come, in order."""
        self.gaps = 0
        self.lost = False
        """Whether batches are missing for tiers that are still to come."""
        self.ignored = False
        """Whether the current batch came too late, or came before."""

    def clear(self, name: str | None) -> None:
        """All blocks of a tier are removed, or of all tiers."""
        self.lost &= name is not None
        for tier in self.tiers.values() if name is None else filter(None, [self.tiers.get(name)]):
            tier.clear()

    def begin(self, number: int) -> str:
        """A batch begins; the case of the rule that it breaks, if it does."""
        last, self.ignored = self.last, False
        if number == 0 < last:
            self.last, self.missing = 0, []
            self.clear(None)
            return ""
        if number <= last:
            self.ignored = True
            return "late" if self._was_missing(number) else "again"
        self.last = number
        if number == last + 1:
            return ""
        self.missing = [*self.missing, range(last + 1, number)][-_MISSING:]
        self.gaps += 1
        self.lost = True
        for tier in self.tiers.values():
            tier.lost = True
        return "gap" if last >= 0 else ""

    def _was_missing(self, number: int) -> bool:
        """A batch comes late or again; whether it was missing until now."""
        place = bisect_right(self.missing, number, key=attrgetter("start")) - 1
        run = self.missing[place] if place >= 0 else range(0)
        if number not in run:
            return False
        parts = range(run.start, number), range(number + 1, run.stop)
        self.missing[place : place + 1] = filter(None, parts)
        return True
