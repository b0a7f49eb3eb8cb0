"""A host tier behind MAX's connector interface. It replaces MAX's own, whose compiled part is in no public wheel.

Copies are queued; the driver completes them, in any order. A load may be refused, or fail. The tier holds a number of
blocks of each leaf, and evicts the least recently used.
"""

import random
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from kvattach.max.hooks import Attached
from kvattach.max.modules import Engine
from kvspec.memory.events import OpId


class Copy:
    """A transfer of blocks between a device and the host, which the cache manager polls."""

    def __init__(self, attached: Attached, number: OpId, blocks: Mapping[str, Sequence[int]]) -> None:
        """Make a queued transfer. `blocks`: the device's blocks that it needs until it is done."""
        self._attached, self._number, self.g0_blocks_per_leaf = attached, number, blocks
        self.done = self._seen = False
        self.error: Exception | None = None

    def is_complete(self) -> bool:
        """Whether it is done. Raises the error of a failed load."""
        if self.done and not self._seen:
            self._seen = True
            self._attached.copied(self._number, failed=self.error is not None)
        if self.done and self.error is not None:
            raise self.error
        return self.done

    def synchronize(self) -> None:
        """Do nothing: nothing waits for it."""


class Tier:
    """Stands in for `TierConnector`."""

    name = "host tier"

    def __init__(self, engine: Engine, attached: Attached, rng: random.Random, size: int, failures: float) -> None:
        """Make an empty tier. `size`: blocks of each leaf; `failures`: how often a load is refused, or fails."""
        self._of, self._attached, self._rng = engine.connector, attached, rng
        self._size, self._failures = size, failures
        self.leaves: dict[str, Any] = {}
        """The leaves whose blocks the tier keeps."""
        self._kept: dict[str, OrderedDict[bytes, None]] = {}
        self._coming: set[tuple[str, bytes]] = set()
        """Blocks whose copies to the host are in flight."""
        self._flying: list[tuple[Copy, list[tuple[str, bytes]], bool]] = []
        """Copies in flight, their blocks, and whether they come from a device."""
        self.metrics = engine.manager.KVCacheMetrics()
        self.host_byte_count = self.disk_byte_count = SimpleNamespace(free=0, total=0)

    def keeps(self, leaves: Mapping[str, Any]) -> None:
        """Keep blocks of these leaves."""
        self.leaves = dict(leaves)
        self._kept = {leaf: OrderedDict() for leaf in leaves}

    def lookup(self, names: Sequence[bytes], replica_idx: int = 0, hint: Any = None) -> dict[str, list[bool]]:
        """For each leaf, which blocks the tier has."""
        return {leaf: [name in kept for name in names] for leaf, kept in self._kept.items()}

    def load(
        self,
        block_ids: Mapping[str, Sequence[int]],
        block_hashes: Mapping[str, Sequence[bytes]],
        replica_idx: int = 0,
        hint: Any = None,
    ) -> Copy:
        """Copy blocks to a device."""
        for leaf, names in block_hashes.items():
            if any(name not in self._kept[leaf] for name in names) or self._rng.random() < self._failures / 4:
                raise self._of.KVLoadRefused("a block is gone")
        number = self._attached.loads(replica_idx, block_ids, block_hashes)
        copy = Copy(self._attached, number, block_ids)
        if self._rng.random() < self._failures:
            copy.error = self._of.KVLoadFailed("the copy has failed")
        self._flying.append((copy, [(leaf, name) for leaf, names in block_hashes.items() for name in names], False))
        return copy

    def offload(
        self,
        block_ids: Mapping[str, Sequence[int]],
        block_hashes: Mapping[str, Sequence[bytes]],
        replica_idx: int = 0,
    ) -> Any:
        """Copy blocks to the host that it does not have."""
        taken: dict[str, list[tuple[int, bytes]]] = {}
        for leaf, blocks in block_ids.items():
            for block, name in zip(blocks, block_hashes[leaf], strict=True):
                if name not in self._kept[leaf] and (leaf, name) not in self._coming and self._room(leaf):
                    self._coming.add((leaf, name))
                    taken.setdefault(leaf, []).append((block, name))
        if not taken:
            return self._of.CompletedTransfer()
        number = self._attached.saves(replica_idx, taken)
        copy = Copy(self._attached, number, {leaf: [block for block, _ in pairs] for leaf, pairs in taken.items()})
        self._flying.append((copy, [(leaf, name) for leaf, pairs in taken.items() for _, name in pairs], True))
        return copy

    def _room(self, leaf: str) -> bool:
        """Make room for one more block; blocks in flight to a device stay. Returns whether there is room."""
        kept, needed = self._kept[leaf], {block for _, blocks, _ in self._flying for block in blocks}
        full = len(kept) + sum(one == leaf for one, _ in self._coming) >= self._size
        gone = next((name for name in kept if (leaf, name) not in needed), None) if full else None
        if gone is not None:
            del kept[gone]
            self._attached.forgot(leaf, gone)
        return not full or gone is not None

    def touch(self, names: Sequence[bytes], replica_idx: int = 0) -> None:
        """Mark blocks as recently used."""
        for kept in self._kept.values():
            for name in names:
                if name in kept:
                    kept.move_to_end(name)

    def advance(self, rng: random.Random) -> None:
        """Complete a random number of copies."""
        while self._flying and rng.random() < 0.5:
            self._finish(rng.randrange(len(self._flying)))

    def finish(self) -> None:
        """Complete all copies."""
        while self._flying:
            self._finish(0)

    def _finish(self, index: int) -> None:
        copy, blocks, comes = self._flying.pop(index)
        copy.done = True
        for leaf, name in blocks if comes else []:
            self._coming.remove((leaf, name))
            self._kept[leaf][name] = None
            self._attached.kept(leaf, name)

    def poll_transfers(self) -> None:
        """Do nothing."""

    def reset_prefix_cache(self) -> None:
        """Do nothing: the host's blocks stay."""

    def take_metrics(self) -> Any:
        """Metrics without values."""
        return self.metrics
