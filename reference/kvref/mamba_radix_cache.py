"""The prefix store of a model with recurrent states: a radix tree that keeps states at the ends of nodes (17850).

A recurrent state contains all tokens before it, so a prefix can be matched only at a length whose state is kept. A
state is published with its prefix, whose end is the end of a node. A node that is split keeps its state in its lower
part.
"""

from kvref.allocator import TokenAllocator
from kvref.eviction_queue import EvictionQueue
from kvref.radix_cache import CachedState, MatchResult, RadixCache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.request import KvRecord
from kvref.tree_node import TreeNode
from kvspec.tokens import Page, Tokens


class MambaRadixCache(RadixCache):
    """Prefixes that can be matched at a kept state."""

    def __init__(self, page_size: int, pool: ReqToTokenPool, allocator: TokenAllocator) -> None:
        """An empty tree, which frees states to `pool` and pages to `allocator`."""
        super().__init__(page_size, pool, allocator)
        self._states = EvictionQueue(self._is_state_evictable)

    def match_prefix(self, key: list[Page]) -> MatchResult:
        """The longest cached prefix of `key` whose state is kept (MAMBA-3)."""
        pages, node = super().match_prefix(key)
        end = len(pages)
        while node.parent is not None and node.mamba_value is None:
            end -= len(node.value)
            node = node.parent
        return MatchResult(pages[:end], node)

    def cache_unfinished_req(self, kv: KvRecord, tokens: Tokens, length: int) -> CachedState | None:
        """Publish whole pages, and the state at their end if the holder has kept it and a slot is free.

        The tree takes the tracking slot, and the holder gets a free one in exchange: a state has megabytes, and none is
        copied while launches are in flight. The holder can still go back to that border, which it has locked.
        """
        self.publish(kv, tokens, length)
        states = self.pool.states
        if not self._lacks_state(kv) or not states.available:
            return None
        slot = self._take_state(kv)
        (taken,) = states.alloc(1)
        kv.states.append(taken)
        return CachedState(slot, taken)

    def cache_finished_req(self, kv: KvRecord, tokens: Tokens, length: int) -> CachedState | None:
        """The same for a holder that ends: it needs no free slot in exchange."""
        self.publish(kv, tokens, length)
        return CachedState(self._take_state(kv)) if self._lacks_state(kv) else None

    def _lacks_state(self, kv: KvRecord) -> bool:
        """Whether a record has kept the state at the end of its published prefix, and the tree has not."""
        return kv.cache_protected_len in kv.tracked and kv.last_node.mamba_value is None

    def _take_state(self, kv: KvRecord) -> int:
        """Take over the state at the end of a record's published prefix, which it has locked."""
        slot = kv.last_node.mamba_value = self.pool.states.donate(kv, kv.cache_protected_len)
        self.mamba_protected_size += 1
        return slot

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Lock the prefix that ends at `node`, and the state at its very end (MAMBA-5)."""
        super().inc_lock_ref(node)
        node.mamba_lock_ref += 1
        if node.mamba_lock_ref == 1 and node.mamba_value is not None:
            self.mamba_evictable_size -= 1
            self.mamba_protected_size += 1

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Take one lock back."""
        super().dec_lock_ref(node)
        node.mamba_lock_ref -= 1
        if node.mamba_lock_ref == 0 and node.mamba_value is not None:
            self.mamba_evictable_size += 1
            self.mamba_protected_size -= 1
            self._states.offer(node)

    def evict(self, num_pages: int, num_window_pages: int = 0, num_states: int = 0) -> None:
        """Free pages as any tree does, and states until `num_states` are free, or all that can be freed.

        A prefix that loses only its state stays: a later publish may bring a state again.
        """
        wanted = self.mamba_evictable_size - num_states
        super().evict(num_pages)
        while self.mamba_evictable_size > wanted and (node := self._states.pop()) is not None:
            self._free_state(node)

    def _is_state_evictable(self, node: TreeNode) -> bool:
        """Whether the node has a state without a lock."""
        return node.mamba_lock_ref == 0 and node.mamba_value is not None

    def _evict_leaf(self, leaf: TreeNode) -> None:
        super()._evict_leaf(leaf)
        if leaf.mamba_value is not None:
            self._free_state(leaf)
            self._states.forget(leaf)

    def _free_state(self, node: TreeNode) -> None:
        """Free the state of a node that has no lock."""
        assert node.mamba_value is not None, "only nodes with a state are evictable"
        self.pool.states.free([node.mamba_value])
        node.mamba_value = None
        self.mamba_evictable_size -= 1
