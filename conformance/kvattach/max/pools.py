"""Hooks into MAX's pools: references and names of blocks, in huge blocks for leaves of several block sizes.

One slab serves all leaves. A page of the pool is the largest size that divides each leaf's block; a block is a run of
pages.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from math import lcm
from typing import Any

from kvattach.acting import Acting
from kvattach.hooks import Hooks, Trace
from kvattach.max.modules import Engine
from kvspec.memory.events import Count, Drop, EndHolder, Idle, Pool, Publish, Release, Share, Take

HOST = "host"
TRANSFERS = "transfers"
"""The holder of blocks that are pinned by transfers to and from the host tier."""


class Pools:
    """Emits changes of the holders and names of blocks."""

    def __init__(self, engine: Engine, trace: Trace) -> None:
        """Install the hooks."""
        self.hooks = hooks = Hooks(trace)
        self._numbers = count(1)
        self.acting = Acting(hooks, "engine")
        self._names: dict[tuple[int, str, int], bytes] = {}
        """Pool, leaf and block -> the name of the block."""
        self.contents: dict[bytes, str] = {}
        """Name -> the label of its content by its request's tokens, without the leaf."""
        hooks.hook(engine.cache.JengaKVCacheManager, "__init__", after=self._made)
        pool = engine.core.JengaBlockPool
        hooks.hook(pool, "alloc_block", after=self._taken)
        hooks.hook(pool, "free_block", before=self._freed)
        hooks.hook(pool, "touch", before=self._touched)
        hooks.hook(pool, "commit_into_prefix_cache", after=self._named)
        hooks.hook(pool, "get_or_commit_into_prefix_cache", after=self._named_or_found)
        for name in ("uncommit_block", "reset_prefix_cache"):
            hooks.hook(pool, name, after=lambda _, __, of, *___: self._gone(of))
        manager = engine.manager.JengaBlockManager
        for name in ("poll_transfers", "_track_transfer"):
            self.acting.within(manager, name, lambda *_, **__: TRANSFERS)
        self.acting.within(manager, "_copy_prefix_from_peers", lambda *_: f"peers {next(self._numbers)}", self._ended)

    def _made(self, _: None, __: None, cache: Any, **___: Any) -> None:
        self._pools = cache.pools
        self._size: int = cache._block_size
        self._ratios: dict[str, int] = cache.pools[0].cache_ratios
        self._pieces = lcm(*self._ratios.values())
        self._names.clear()
        self.contents.clear()
        pools = {
            f"kv{index}": Pool(
                page_size=self._size,
                num_pages=pool.num_huge_blocks * self._pieces,
                first_page=0,
                padding=[*range(self._pieces)],
            )
            for index, pool in enumerate(self._pools)
        }
        self.hooks.trace.header("max", pools | {HOST: Pool(page_size=self._size, keyed=True)})

    def _index(self, pool: Any) -> int:
        return next(index for index, one in enumerate(self._pools) if one is pool)

    def pages(self, leaf: str, blocks: Sequence[int]) -> list[int]:
        """The pages of blocks of a leaf."""
        return [block * self.per(leaf) + piece for block in blocks for piece in range(self.per(leaf))]

    def per(self, leaf: str) -> int:
        """The number of pages of a block."""
        return self._pieces // self._ratios[leaf]

    def keys(self, leaf: str, name: bytes) -> list[str]:
        """The names of the pages of a block."""
        return [f"{leaf} {name.hex()}+{piece}" for piece in range(self.per(leaf))]

    # References

    def _taken(self, _: None, block: Any, pool: Any, leaf: str) -> None:
        """A block was allocated. Its old name is dropped, and so are the names of other leaves' blocks in its bytes."""
        self._gone(pool)
        self.hooks.emit(Take(self.acting.now, f"kv{self._index(pool)}", [*self.pages(leaf, [block.bid])]))

    def _freed(self, pool: Any, block: Any) -> None:
        if not block.is_null:
            pages = self.pages(block.cache_id, [block.bid])
            self.hooks.emit(Release(self.acting.now, f"kv{self._index(pool)}", [*pages]))

    def _touched(self, pool: Any, block: Any) -> None:
        """A transfer, or a request with a hit on the block, takes a reference."""
        if block.is_null:
            return
        leaf, name, pins = block.cache_id, block.block_hash, self.acting.now == TRANSFERS
        keys = None if pins or name is None else self.keys(leaf, name)
        pages = self.pages(leaf, [block.bid])
        self.hooks.emit(Share(self.acting.now, f"kv{self._index(pool)}", [*pages], keys, pin=pins))

    def _ended(self, holder: str) -> None:
        self.hooks.emit(EndHolder(holder))

    # Names

    def _named(self, _: None, __: None, pool: Any, name: bytes, block: Any) -> None:
        index, leaf = self._index(pool), block.cache_id
        self._names[index, leaf, block.bid] = name
        pages, content = self.pages(leaf, [block.bid]), self.contents.get(name)
        labels = None if content is None else [f"{leaf}:{content}"] * len(pages)
        self.hooks.emit(Publish(f"kv{index}", [*pages], self.keys(leaf, name), labels))

    def _named_or_found(self, _: None, twin: Any, pool: Any, name: bytes, block: Any) -> None:
        """A block gets its name, or is freed because another block already has the name."""
        if twin is not None:
            self._touched(pool, twin)
            self._freed(pool, block)
        elif (self._index(pool), block.cache_id, block.bid) not in self._names:
            self._named(None, None, pool, name, block)

    def _gone(self, pool: Any) -> None:
        """Drop the names that no longer find their blocks."""
        index, caches = self._index(pool), pool.prefix_caches
        for (where, leaf, block), name in list(self._names.items()):
            found = caches[leaf].get(name) if where == index else None
            if where == index and (found is None or found.bid != block):
                del self._names[where, leaf, block]
                self.hooks.emit(Drop(f"kv{index}", [*self.pages(leaf, [block])], self.keys(leaf, name)))

    # The engine's own figures

    def counted(self) -> None:
        """Emit the references of all blocks, and the blocks with names."""
        for index, pool in enumerate(self._pools):
            references, found = Counter[int](), set[int]()
            for leaf, ratio in self._ratios.items():
                for bid in range(ratio, pool.num_huge_blocks * ratio):
                    block = pool.block(leaf, bid)
                    references.update(dict.fromkeys(self.pages(leaf, [bid]), block.ref_cnt))
                    found.update(() if block.block_hash is None else self.pages(leaf, [bid]))
            pages = range(self._pieces, pool.num_huge_blocks * self._pieces)
            free = [page for page in pages if not references[page] and page not in found]
            cached = [page for page in sorted(found) if not references[page]]
            counts = {page: references[page] for page in pages}
            self.hooks.emit(Count(f"kv{index}", free=[*free], cached=[*cached], references=counts))

    def idle(self) -> None:
        """No operation is in progress."""
        self.counted()
        self.hooks.emit(Idle())
