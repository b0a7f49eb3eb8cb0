"""The prefix store: a radix tree over pages.

An edge carries the contents of one or more pages (`Tokens.pages`), a node the pages that hold them. For its callers it
is a map from page-aligned prefixes to pages; they never see how prefixes share nodes.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvref.allocator import TokenAllocator
from kvref.eviction_queue import EvictionQueue
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.request import KvRecord
from kvref.tree_node import TreeNode, parent_of
from kvspec.tokens import Page, Tokens


class MatchResult(NamedTuple):
    """The longest cached prefix of a key."""

    pages: list[int]
    """The store's pages, in order of position. They are not locked: an eviction may take them."""
    last_node: TreeNode
    """The end of the prefix, for `inc_lock_ref`."""


class CachedState(NamedTuple):
    """A recurrent state that the tree took over from a holder (17850)."""

    slot: int
    taken: int | None = None
    """The free slot that the holder got in exchange, if it goes on."""


class RadixCache:
    """The cached prefixes. Counters in pages."""

    swa_evictable_size = swa_protected_size = 0
    """The same counters for window sides; 0 in a tree without them."""
    mamba_evictable_size = mamba_protected_size = 0
    """The same counters for states, in slots."""

    def __init__(self, page_size: int, pool: ReqToTokenPool, allocator: TokenAllocator) -> None:
        """An empty tree, which frees pages to `allocator` and rewrites rows in `pool`."""
        self.page_size = page_size
        self.pool = pool
        self.allocator = allocator
        self.root = TreeNode([], [], None)
        self.evictable_size = 0
        """Pages without a lock."""
        self.protected_size = 0
        """Pages with a lock."""
        self._clock = 0
        self._leaves = EvictionQueue(self._is_evictable)

    def match_prefix(self, key: list[Page]) -> MatchResult:
        """The longest cached prefix of `key`."""
        return self._walk(self.root, key)

    def _walk(self, node: TreeNode, key: list[Page]) -> MatchResult:
        """Follow `key` down from `node` as far as the tree goes, and split the last edge where they differ."""
        self._clock += 1
        pages: list[int] = []
        while len(pages) < len(key):
            child = node.children.get(key[len(pages)])
            if child is None:
                break
            common = _common_pages(child.key, key, len(pages))
            node = child if common == len(child.key) else self._split(child, common)
            node.last_access = self._clock
            pages += node.value
        return MatchResult(pages, node)

    def _split(self, node: TreeNode, at: int) -> TreeNode:
        """Cut an edge in two and return the new node in its middle.

        [0, at)            move to the new node, which every lock below covers too
        [at, len(key))     stay
        """
        parent = parent_of(node)
        middle = TreeNode(node.key[:at], node.value[:at], parent)
        middle.lock_ref = node.lock_ref
        middle.last_access = node.last_access
        middle.children[node.key[at]] = node
        parent.children[node.key[0]] = middle
        node.key, node.value, node.parent = node.key[at:], node.value[at:], middle
        return middle

    def insert(self, node: TreeNode, key: list[Page], value: list[int]) -> MatchResult:
        """Cache the pages `value`, which hold `key`, behind the prefix that ends at `node`.

        Returns the pages that the tree had already, and the node where the inserted prefix ends. The tree owns only the
        rest of `value`; its earlier pages do not change.
        """
        known, node = self._walk(node, key)
        already = len(known)
        if already < len(key):
            node = self._add_leaf(node, key[already:], value[already:])
        return MatchResult(known, node)

    def _add_leaf(self, parent: TreeNode, key: list[Page], value: list[int]) -> TreeNode:
        """Cache pages in a new leaf."""
        leaf = TreeNode(key, value, parent)
        leaf.last_access = self._clock
        parent.children[key[0]] = leaf
        self.evictable_size += len(value)
        self._leaves.offer(leaf)
        return leaf

    def cache_unfinished_req(self, kv: KvRecord, tokens: Tokens, length: int) -> CachedState | None:
        """Publish a holder's first `length` tokens while it goes on; returns the state that was cached with them."""
        self.publish(kv, tokens, length)
        return None

    def cache_finished_req(self, kv: KvRecord, tokens: Tokens, length: int) -> CachedState | None:
        """The same for a holder that is about to release its record."""
        self.publish(kv, tokens, length)
        return None

    def publish(self, kv: KvRecord, tokens: Tokens, length: int) -> None:
        """Publish the whole pages of a holder's first `length` tokens; its lock moves up to them (20070, 20476).

        In pages, with `known` the end of the prefix that the tree has already:

        [0, protected)         the tree's already, locked by this holder
        [protected, known)     duplicates: freed, and the row lists the tree's pages instead
        [known, length)        become the tree's
        """
        first, last = kv.cache_protected_len // self.page_size, length // self.page_size
        if last <= first:
            return
        table = self.pool.req_to_token[kv.req_pool_idx]
        known, last_node = self.insert(kv.last_node, tokens.pages[first:last], table[first:last])
        self._drop_duplicates(table, first, known)
        self.inc_lock_ref(last_node)
        self.dec_lock_ref(kv.last_node)
        kv.last_node = last_node
        kv.cache_protected_len = last * self.page_size

    def _drop_duplicates(self, table: list[int], first: int, known: list[int]) -> None:
        """Free the holder's copies of `known`, never the tree's pages, which other requests may have locked."""
        self.allocator.free(table[first : first + len(known)])
        table[first : first + len(known)] = known

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Lock the prefix that ends at `node`."""
        while node.parent is not None:
            if node.lock_ref == 0:
                self.evictable_size -= len(node.value)
                self.protected_size += len(node.value)
            node.lock_ref += 1
            node = node.parent

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Take one lock back."""
        while node.parent is not None:
            node.lock_ref -= 1
            if node.lock_ref == 0:
                self.evictable_size += len(node.value)
                self.protected_size -= len(node.value)
                self._leaves.offer(node)
            node = node.parent

    def evict(self, num_pages: int, num_window_pages: int = 0, num_states: int = 0) -> None:
        """Free at least `num_pages` pages, or all unlocked ones: whole leaves, the least recently used first.

        A tree with window sides or states frees those of these pages, and at least `num_window_pages` and `num_states`,
        or all unlocked ones.
        """
        wanted = self.evictable_size - num_pages
        while self.evictable_size > wanted and (leaf := self._leaves.pop()) is not None:
            self._evict_leaf(leaf)

    def _is_evictable(self, node: TreeNode) -> bool:
        """Whether the node has no lock and no children (rule STORE-3)."""
        return node.lock_ref == 0 and not node.children and node.parent is not None

    def _evict_leaf(self, leaf: TreeNode) -> None:
        parent = parent_of(leaf)
        del parent.children[leaf.key[0]]
        self.evictable_size -= len(leaf.value)
        self.allocator.free(leaf.value)
        self._leaves.offer(parent)

    def all_nodes(self) -> Iterator[TreeNode]:
        """Every node but the root. Costs the whole tree; only a snapshot asks."""
        unseen = [*self.root.children.values()]
        while unseen:
            node = unseen.pop()
            yield node
            unseen.extend(node.children.values())

    def all_pages(self) -> Iterator[int]:
        """Every page of the tree."""
        for node in self.all_nodes():
            yield from node.value

    def all_states(self) -> list[int]:
        """Every state slot of the tree."""
        return [node.mamba_value for node in self.all_nodes() if node.mamba_value is not None]


def _common_pages(edge: list[Page], key: list[Page], start: int) -> int:
    """The number of first pages of `edge` that the key has from page `start` on."""
    part = key[start : start + len(edge)]
    if part == edge:  # the usual case, at the speed of C
        return len(edge)
    return next((i for i, (page, other) in enumerate(zip(edge, part, strict=False)) if page != other), len(part))
