"""The prefix store of a model with a sliding window: a radix tree whose pages may lose their window side (20070).

A page of the tree without a window side is a *tombstone*: it still has its full side, but a request that continues
right after it would read a freed window. The pages of one node are all tombstones or all live, with the same window
locks: a node is split where that would change.
"""

from collections.abc import Iterator

from kvref.eviction_queue import EvictionQueue
from kvref.radix_cache import MatchResult, RadixCache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.tree_node import TreeNode, parent_of
from kvref.window_pool import SWAAllocator
from kvspec.pages import ceil_pages
from kvspec.tokens import Page


class SWARadixCache(RadixCache):
    """Prefixes that can be matched if a full window of live pages is at their end."""

    allocator: SWAAllocator

    def __init__(self, page_size: int, pool: ReqToTokenPool, allocator: SWAAllocator, sliding_window: int) -> None:
        """An empty tree; `sliding_window` in tokens."""
        super().__init__(page_size, pool, allocator)
        self.reach = ceil_pages(sliding_window, page_size)
        """The pages at the end of a prefix whose window sides a request reads when it continues there."""
        self._windows = EvictionQueue(self._is_window_evictable)

    def match_prefix(self, key: list[Page]) -> MatchResult:
        """The longest cached prefix of `key` whose last pages are live as far as the window reaches (SWA-4)."""
        pages, node = super().match_prefix(key)
        last_node, end = node, len(pages)
        at = end
        while node.parent is not None and end - at < self.reach:
            at -= len(node.value)
            if node.swa_tombstone:
                last_node, end = node.parent, at
            node = node.parent
        return MatchResult(pages[:end], last_node)

    def _split(self, node: TreeNode, at: int) -> TreeNode:
        middle = super()._split(node, at)
        middle.swa_tombstone, middle.swa_lock_ref = node.swa_tombstone, node.swa_lock_ref
        self._windows.offer(middle)
        return middle

    def insert(self, node: TreeNode, key: list[Page], value: list[int]) -> MatchResult:
        """Cache pages as any tree does; tombstones on the way are revived with the window sides of duplicates."""
        inserted = super().insert(node, key, value)
        self._revive(inserted.last_node, value)
        return inserted

    def _add_leaf(self, parent: TreeNode, key: list[Page], value: list[int]) -> TreeNode:
        """Cache pages in new nodes: those before their holder's cursor are tombstones."""
        gone = next((i for i, page in enumerate(value) if page in self.allocator.window_of), len(value))
        if gone:
            parent = super()._add_leaf(parent, key[:gone], value[:gone])
            parent.swa_tombstone = True
        if gone == len(value):
            return parent
        leaf = super()._add_leaf(parent, key[gone:], value[gone:])
        self.swa_evictable_size += len(leaf.value)
        self._windows.offer(leaf)
        return leaf

    def _revive(self, node: TreeNode, own: list[int]) -> None:
        """Give the tombstones among the last pages up to `node` the window sides of `own`, its duplicates (SWA-6).

        The window side moves and the tree keeps its page, which other requests may have locked and list in their rows.
        Pages of `own` that became the tree's own do not change.
        """
        end = len(own)
        while end > 0:
            if node.swa_tombstone and own[end - 1] in self.allocator.window_of:
                first = end - len(node.value)
                live = next(i for i in range(first, end) if own[i] in self.allocator.window_of)
                if live > first:
                    self._split(node, live - first)
                for page, tombstone in zip(own[live:end], node.value, strict=True):
                    self.allocator.move_window(page, tombstone)
                node.swa_tombstone = False
                if node.swa_lock_ref:
                    self.swa_protected_size += len(node.value)
                else:
                    self.swa_evictable_size += len(node.value)
                    self._windows.offer(node)
            end -= len(node.value)
            node = parent_of(node)

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Lock the prefix that ends at `node`, and the window sides that a request reads that goes on there (SWA-5)."""
        super().inc_lock_ref(node)
        for inside in self._in_reach(node):
            if inside.swa_lock_ref == 0 and not inside.swa_tombstone:
                self.swa_evictable_size -= len(inside.value)
                self.swa_protected_size += len(inside.value)
            inside.swa_lock_ref += 1

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Take one lock back."""
        super().dec_lock_ref(node)
        for inside in self._in_reach(node):
            inside.swa_lock_ref -= 1
            if inside.swa_lock_ref == 0 and not inside.swa_tombstone:
                self.swa_evictable_size += len(inside.value)
                self.swa_protected_size -= len(inside.value)
                self._windows.offer(inside)

    def _in_reach(self, node: TreeNode) -> Iterator[TreeNode]:
        """The nodes of the last `reach` pages of the prefix that ends at `node`.

        The node across the border is split, so a later unlock finds the same border.
        """
        left = self.reach
        while left and node.parent is not None:
            if len(node.value) > left:
                self._split(node, len(node.value) - left)
            left -= len(node.value)
            yield node
            node = node.parent

    def evict(self, num_pages: int, num_window_pages: int = 0, num_states: int = 0) -> None:
        """Free pages as any tree does, and window sides until `num_window_pages` are free or none is unlocked.

        A page that loses only its window side stays as a tombstone: a shorter prefix, or a later publication, may need
        it.
        """
        wanted = self.swa_evictable_size - num_window_pages
        super().evict(num_pages)
        while self.swa_evictable_size > wanted and (node := self._windows.pop()) is not None:
            self.allocator.free_window(node.value)
            self._lose_windows(node)

    def _is_window_evictable(self, node: TreeNode) -> bool:
        """Whether the node has window sides that no lock reaches."""
        return node.swa_lock_ref == 0 and not node.swa_tombstone

    def _evict_leaf(self, leaf: TreeNode) -> None:
        super()._evict_leaf(leaf)
        if not leaf.swa_tombstone:
            self._lose_windows(leaf)
            self._windows.forget(leaf)

    def _lose_windows(self, node: TreeNode) -> None:
        """Mark a node without window locks as a tombstone."""
        node.swa_tombstone = True
        self.swa_evictable_size -= len(node.value)
