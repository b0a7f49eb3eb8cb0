"""Copies of MAX's cache: between replicas, and to a host tier and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvattach.hooks import Trace
from kvattach.max.modules import Engine
from kvattach.max.pools import HOST, Pools
from kvspec.memory.events import Begin, Drop, End, OpId, Publish, Use, Wait


class Transfers(Pools):
    """Emits copies."""

    def __init__(self, engine: Engine, trace: Trace) -> None:
        """Install the hooks."""
        super().__init__(engine, trace)
        self._last: dict[int, OpId] = {}
        """Replica -> the last operation of its stream, or the last one that this waits for."""
        self._writing: dict[str, OpId] = {}
        """Key of a host page -> the operation that writes it."""
        self._targets: dict[OpId, list[Use]] = {}
        """Load -> its writes."""
        self.hooks.hook(engine.manager.JengaBlockManager, "_submit_page_copies", before=self._copied_from_peers)

    def _made(self, _: None, __: None, cache: Any, **___: Any) -> None:
        super()._made(None, None, cache)
        for kept in (self._last, self._writing, self._targets):
            kept.clear()

    def _begin(self, replica: int, **uses: Any) -> OpId:
        """Begin an operation on the stream of a replica's passes."""
        number = self._last[replica] = next(self._numbers)
        self.hooks.emit(Begin(number, f"compute{replica}", **uses))
        return number

    def _block(self, replica: int, leaf: str, block: int, **given: Any) -> Use:
        return Use(pool=f"kv{replica}", pages=[*self.pages(leaf, [block])], **given)

    def _copied_from_peers(self, manager: Any, replica: int, copies: Any) -> None:
        """Blocks are copied from other replicas.

        The compiled driver orders the copy. The hooks assume that it waits for all queued operations of both replicas,
        and that both wait for it.
        """
        others = sorted({copy.src_replica for copy in copies})
        for other in others:
            self.hooks.emit(Wait(f"compute{replica}", on=f"compute{other}"))
        pairs = [
            (
                self._block(copy.src_replica, copy.leaf_id, copy.src_bid),
                self._block(replica, copy.leaf_id, copy.dst_bid, holder=self.acting.now),
            )
            for copy in copies
        ]
        operation = self._begin(replica, copies=pairs) if pairs else 0
        for other in others:
            self.hooks.emit(Wait(f"compute{other}", operation))
            self._last[other] = operation

    # The host tier

    def saves(self, replica: int, taken: Mapping[str, Sequence[tuple[int, bytes]]]) -> OpId:
        """Blocks are copied to the host, each under its name."""
        pairs = [
            (self._block(replica, leaf, block), Use(pool=HOST, pages=[*self.keys(leaf, name)]))
            for leaf, blocks in taken.items()
            for block, name in blocks
        ]
        number = self._copy(replica, pairs, [])
        for _, target in pairs:
            self._writing.update((str(key), number) for key in target.pages)
        return number

    def loads(self, replica: int, blocks: Mapping[str, Sequence[int]], names: Mapping[str, Sequence[bytes]]) -> OpId:
        """Blocks are copied from the host. They should have the content that their names promise there."""
        pairs, after = list[tuple[Use, Use]](), list[OpId]()
        for leaf, targets in blocks.items():
            for target, name in zip(targets, names[leaf], strict=True):
                keys, content = self.keys(leaf, name), self.contents.get(name)
                labels = None if content is None else [f"{leaf}:{content}"] * len(keys)
                source = Use(pool=HOST, pages=[*keys], labels=labels)
                pairs.append((source, self._block(replica, leaf, target, holder=self.acting.now)))
                after += [self._writing[key] for key in keys if key in self._writing]
        number = self._copy(replica, pairs, after)
        self._targets[number] = [target for _, target in pairs]
        return number

    def _copy(self, replica: int, pairs: list[tuple[Use, Use]], after: list[OpId]) -> OpId:
        """A copy that waits for all queued operations of its replica."""
        number = next(self._numbers)
        after += [self._last[replica]] if replica in self._last else []
        self.hooks.emit(Begin(number, copies=pairs, after=sorted({*after}, key=str)))
        return number

    def copied(self, number: OpId, *, failed: bool) -> None:
        """The host has seen a copy complete or fail."""
        targets = self._targets.pop(number, [])
        self.hooks.emit(End(number, unwritten=targets if failed else []))

    def kept(self, leaf: str, name: bytes) -> None:
        """A block gets its name on the host."""
        keys, content = self.keys(leaf, name), self.contents.get(name)
        labels = None if content is None else [f"{leaf}:{content}"] * len(keys)
        self.hooks.emit(Publish(HOST, [*keys], keys, labels))

    def forgot(self, leaf: str, name: bytes) -> None:
        """A block on the host loses its name."""
        keys = self.keys(leaf, name)
        for key in keys:
            self._writing.pop(key, None)
        self.hooks.emit(Drop(HOST, [*keys], keys))
