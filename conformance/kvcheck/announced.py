"""The blocks that a host's routers know, tier by tier, and the batches of announcements that they got."""

from bisect import bisect_right
from operator import attrgetter
from typing import NamedTuple

from kvcheck.pools import PoolState
from kvspec.memory.events import Label

_MISSING = 1000
"""The most runs of missing batches that are remembered for a host. Batches of a forgotten run count as received."""


class Block(NamedTuple):
    """An announced block."""

    labels: tuple[Label, ...] | None
    gaps: int
    """The number of gaps in the batches before it was announced; -1: a finding says that routers may not know it."""
    unfound: bool = False
    """Whether a finding already says that no name finds it."""


class Tier:
    """The blocks of one tier that routers know."""

    def __init__(self, host: "Host") -> None:
        """Nothing is announced."""
        self.host = host
        self.lost = host.lost
        self.blocks: dict[str, Block] = {}
        self.pool: PoolState | None = None
        """The pool whose names were compared last. The fields below note the changes since then."""
        self.renamed: dict[str, None] = {}
        """The pool's names that were given or withdrawn."""
        self.removed = set[str]()
        """Blocks that were removed."""
        self.stored: dict[str, None] = {}
        """Blocks that were stored."""

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
        """Remove a block; returns whether it was known."""
        if self.pool is not None:
            self.removed.add(block)
        return self.blocks.pop(block, None) is not None

    def compared(self, pool: PoolState) -> set[str]:
        """The blocks to compare with the names of a pool. From now on the changes of that pool are noted."""
        if self.pool is pool:
            return {*self.renamed, *self.removed, *self.stored}
        if self.pool is not None:
            self.pool.renamed = [one for one in self.pool.renamed if one is not self.renamed]
        self.pool, self.renamed = pool, {}
        pool.renamed.append(self.renamed)
        return {*pool.names, *self.blocks}

    def agree(self, *, lost: bool) -> None:
        """The routers know all names of the pool, even if they had `lost` batches."""
        self.lost = False
        if lost:
            found = {key: block for key, block in self.blocks.items() if not block.unfound}
            self.blocks = {key: block._replace(gaps=self.host.gaps) for key, block in found.items()}
        for noted in (self.renamed, self.removed, self.stored):
            noted.clear()


class Host:
    """The announcements of one host."""

    def __init__(self) -> None:
        """Nothing is announced."""
        self.tiers: dict[str, Tier] = {}
        self.last = -1
        """The highest number of a batch."""
        self.missing: list[range] = []
        """Lower numbers of batches that have not come, in order."""
        self.gaps = 0
        self.lost = False
        """Whether batches are missing that may have announced a tier that is still unknown."""
        self.ignored = False
        """Whether the current batch is ignored: it came too late, or for the second time."""

    def clear(self, name: str | None) -> None:
        """All blocks of a tier are removed, or of all tiers."""
        self.lost &= name is not None
        for tier in self.tiers.values() if name is None else filter(None, [self.tiers.get(name)]):
            tier.clear()

    def begin(self, number: int) -> str:
        """A batch begins. Returns the case of the rule that it breaks; empty if it breaks none."""
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
        """Whether a batch that comes late or again was missing. It counts as received from now on."""
        place = bisect_right(self.missing, number, key=attrgetter("start")) - 1
        run = self.missing[place] if place >= 0 else range(0)
        if number not in run:
            return False
        parts = range(run.start, number), range(number + 1, run.stop)
        self.missing[place : place + 1] = filter(None, parts)
        return True
