"""What may be evicted, the least recently used first."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from kvref.tree_node import TreeNode

MAX_STALE = 64
"""So many entries of nodes that have left may lie about in a queue, whatever its size."""


class EvictionQueue:
    """Nodes of a tree in the order of their last use.

    The queue is lazy: an entry tells when its node was used when it was queued. A node that was used since is queued
    again; one that may not be evicted any more leaves the queue, and whoever ends what stands in the way offers it.
    Offering costs the logarithm of the queue, whatever the tree's size.
    """

    def __init__(self, is_evictable: Callable[[TreeNode], bool]) -> None:
        """Nobody is queued; `is_evictable` says whether a node may go now."""
        self._is_evictable = is_evictable
        self._heap: list[tuple[int, int, TreeNode]] = []
        self._tickets: dict[TreeNode, int] = {}
        """The nodes that are queued, and which entry is theirs."""
        self._next_ticket = count()

    def offer(self, node: TreeNode) -> None:
        """Queue a node, if it may be evicted and is not queued already."""
        if node not in self._tickets and self._is_evictable(node):
            ticket = self._tickets[node] = next(self._next_ticket)
            heappush(self._heap, (node.last_access, ticket, node))

    def forget(self, node: TreeNode) -> None:
        """A node has left the tree. Its entry goes with the next clearing, so that entries never outgrow nodes."""
        self._tickets.pop(node, None)
        if len(self._heap) > 2 * len(self._tickets) + MAX_STALE:
            self._heap = [entry for entry in self._heap if self._tickets.get(entry[2]) == entry[1]]
            heapify(self._heap)

    def pop(self) -> TreeNode | None:
        """Take out the node that was used longest ago, or `None` if none may be evicted."""
        while self._heap:
            queued_at, ticket, node = heappop(self._heap)
            if self._tickets.get(node) != ticket:
                continue
            del self._tickets[node]
            if node.last_access == queued_at and self._is_evictable(node):
                return node
            self.offer(node)
        return None
