"""Announcements: the blocks of each tier that the routers of a host know.

Batches of announcements are numbered. After a missing batch the routers may know too much or too little: until all is
cleared, or they know all names again, nothing is checked that the batch may explain.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kvspec.memory.events import Announce, Label
from kvspec.memory.pages import Meant, PoolState

Found = tuple[str, str | None]
"""The broken case of the rule, and the block."""
Differ = Callable[[Meant, Meant], bool]
"""Whether two contents are known, and are not the same."""


class Block(NamedTuple):
    """An announced block. It is `sure` that routers know it, unless a batch is missing since, or a finding says so."""

    labels: list[Label] | None
    sure: bool = True
    unfound: bool = False
    """Whether it is a finding that no name finds it."""


@dataclass
class Tier:
    """The blocks of one tier that routers know."""

    lost: bool
    """Whether a batch is missing."""
    blocks: dict[str, Block] = field(default_factory=dict)
    removed: set[str] | None = None
    """Blocks that were removed since the routers last knew all names; `None`: they never did."""

    def clear(self) -> None:
        """All blocks are removed."""
        if self.removed is not None:
            self.removed |= self.blocks.keys()
        self.blocks, self.lost = {}, False


class Announced:
    """The announcements of each host."""

    def __init__(self, pools: Mapping[str, PoolState], differ: Differ) -> None:
        """Nothing is announced."""
        self.pools, self.differ = pools, differ
        self.tiers: dict[tuple[str | None, str], Tier] = {}
        """Host and tier -> its blocks."""
        self.numbers: dict[str | None, set[int]] = {}
        """Host -> the numbers of its batches."""
        self.lost: set[str | None] = set()
        """Hosts with missing batches, which may have announced a tier that is still unknown."""
        self.ignored: set[str | None] = set()
        """Hosts whose current batch is ignored: it came too late, or for the second time."""

    def announce(self, event: Announce) -> Iterator[Found]:
        """Check one announcement and apply it. Returns the cases of the rule that it breaks."""
        if event.batch is not None:
            yield from self._begin(event.host, event.batch)
        if event.host in self.ignored:
            return
        if event.cleared:
            self._clear(event.host, event.tier)
        if event.tier is None:
            return
        tier = self.tiers.setdefault((event.host, event.tier), Tier(event.host in self.lost))
        for block in event.removed:
            yield from self._remove(tier, block)
        yield from self._store(tier, event)
        if event.pool is not None:
            yield from self._compare(tier, self.pools[event.pool])

    def _of(self, host: str | None) -> list[Tier]:
        return [tier for (one, _), tier in self.tiers.items() if one == host]

    def _begin(self, host: str | None, number: int) -> Iterator[Found]:
        """A batch begins. One that came before, or comes after a later one, changes nothing."""
        numbers = self.numbers.setdefault(host, set())
        last = max(numbers, default=-1)
        self.ignored.discard(host)
        if number == 0 < last:  # the engine has restarted
            numbers.clear()
            self._clear(host, None)
        elif number <= last:
            yield "again" if number in numbers else "late", None
            self.ignored.add(host)
        elif number > last + 1:
            if numbers:
                yield "gap", None
            self.lost.add(host)
            for tier in self._of(host):
                tier.lost = True
                tier.blocks = {key: block._replace(sure=False) for key, block in tier.blocks.items()}
        numbers.add(number)

    def _clear(self, host: str | None, name: str | None) -> None:
        """All blocks of a tier are removed, or of all tiers."""
        if name is None:
            self.lost.discard(host)
        for (one, tier), known in self.tiers.items():
            if one == host and name in (None, tier):
                known.clear()

    def _remove(self, tier: Tier, block: str) -> Iterator[Found]:
        if tier.blocks.pop(block, None) is None and not tier.lost:
            yield "not-announced", block
        if tier.removed is not None:
            tier.removed.add(block)

    def _store(self, tier: Tier, event: Announce) -> Iterator[Found]:
        """Blocks are stored, behind a parent that some tier has."""
        if not event.stored:
            return
        tiers = self._of(event.host)
        lost = event.host in self.lost or any(one.lost for one in tiers)
        if event.parent is not None and not lost and not any(event.parent in one.blocks for one in tiers):
            yield "orphan", event.stored[0]
        labels, each = event.labels, len(event.labels or ()) // len(event.stored)
        if labels is not None and (not each or len(labels) != each * len(event.stored)):
            yield "content", event.stored[0]
            labels = None
        for index, block in enumerate(event.stored):
            new = None if labels is None else labels[index * each : (index + 1) * each]
            old = tier.blocks.get(block)
            if old is not None and any(
                self.differ((a, 0), (b, 0)) for a, b in zip(old.labels or (), new or (), strict=False)
            ):
                yield "content", block
            elif old is not None and old.sure:
                yield "twice", block
            tier.blocks[block] = Block(new)

    def _compare(self, tier: Tier, pool: PoolState) -> Iterator[Found]:
        """Check that the routers know exactly the names of a pool. From now on they count as doing so."""
        names = {key for key, _ in pool.names}
        for block in sorted(names | tier.blocks.keys()):
            known = tier.blocks.get(block)
            if known is None:
                code = "still-found" if block in (tier.removed or ()) else "missing"
            elif block not in names:
                code = "" if known.unfound else "unfound"
            else:
                code = "content" if self._other(pool, block, known.labels) else ""
            if code and not tier.lost:
                yield code, block
            if code:
                tier.blocks[block] = Block(None, code == "content", code == "unfound")
            elif known is not None:
                tier.blocks[block] = known._replace(unfound=block not in names)
        if tier.lost:
            tier.blocks = {block: Block(tier.blocks[block].labels) for block in names}
        tier.removed, tier.lost = set(), False

    def _other(self, pool: PoolState, key: str, labels: list[Label] | None) -> bool:
        """Whether a name promises other content than was announced."""
        meant = pool.meant(labels, len(labels or ()) * pool.unit)
        promises = [promise.meant for (name, _), promise in pool.names.items() if name == key]
        return any(any(map(self.differ, promise, meant)) for promise in promises)
