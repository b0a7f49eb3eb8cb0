"""The evictable nodes of a tree, the least recently used first."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from kvref.tree_node import TreeNode

MAX_STALE = 64
"""Entries of removed nodes that a queue of any size may keep."""


class EvictionQueue:
    """Nodes of a tree in the order of their last use.

    The queue is lazy: an entry has the time of its node's last use when it was queued. A node that was used since is
    queued again. A node that is no longer evictable leaves the queue, and the operation that makes it evictable again
    offers it. An offer costs the logarithm of the queue's size.
    """

    def __init__(self, is_evictable: Callable[[TreeNode], bool]) -> None:
        """An empty queue; `is_evictable` says whether a node may be evicted now."""
        self._is_evictable = is_evictable
        self._heap: list[tuple[int, int, TreeNode]] = []
        self._tickets: dict[TreeNode, int] = {}
        """Queued node -> the ticket of its entry."""
        self._next_ticket = count()

    def offer(self, node: TreeNode) -> None:
        """Queue a node, if it may be evicted and is not queued already."""
        if node not in self._tickets and self._is_evictable(node):
            ticket = self._tickets[node] = next(self._next_ticket)
            heappush(self._heap, (node.last_access, ticket, node))

    def forget(self, node: TreeNode) -> None:
        """Remove a node that has left the tree. Stale entries are cleared before they outnumber the nodes."""
        self._tickets.pop(node, None)
        if len(self._heap) > 2 * len(self._tickets) + MAX_STALE:
            self._heap = [entry for entry in self._heap if self._tickets.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def pop(self) -> TreeNode | None:
        """Take out the least recently used node, or `None` if none may be evicted."""
        while self._heap:
            queued_at, ticket, node = heappop(self._heap)
            if self._tickets.get(node) != ticket:
                continue
            del self._tickets[node]
            if node.last_access == queued_at and self._is_evictable(node):
                return node
            self.offer(node)
        return None
