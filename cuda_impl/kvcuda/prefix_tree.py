"""The prefix store's tree on the host: which prefixes are cached, and where in the arena their pages are listed.

An edge carries the contents of one or more pages (`Tokens.pages`), a node the places of the pages that hold them.
Nothing here knows a page; counters are in pages.
"""

from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from kvcuda.arena import Arena, Run, split
from kvspec.tokens import Page


class Node:
    """The end of an edge. A node that is split stays the lower part, so that a holder's lock still ends there."""

    __slots__ = ("children", "epoch", "key", "last_access", "locks", "parent", "queued", "runs")

    def __init__(self, key: list[Page], runs: list[Run], parent: "Node | None", epoch: int = 0) -> None:
        """A node that nobody has locked or used."""
        self.key = key
        self.runs = runs
        """Where in the arena the pages are listed, in order of position."""
        self.parent = parent
        self.epoch = epoch
        """The launch of moves that lists its pages in the arena (`DeviceMemory.epoch`)."""
        self.children: dict[Page, Node] = {}
        """By the first page of their edge."""
        self.locks = 0
        """Locks on this node and below."""
        self.last_access = 0
        self.queued = False
        """Whether it is among the candidates for eviction."""


class Match(NamedTuple):
    """The longest cached prefix of a key."""

    pages: int
    runs: list[Run]
    """Where in the arena its pages are listed. They are not locked: an eviction may take them."""
    last_node: Node
    epoch: int
    """The launch of moves that lists the last of them in the arena."""


class PrefixTree:
    """Prefixes that are kept for other requests."""

    def __init__(self, num_pages: int) -> None:
        """An empty tree, for at most `num_pages` pages."""
        self.arena = Arena(num_pages)
        self.root = Node([], [], None)
        self.evictable = 0
        """Pages that no lock covers."""
        self.protected = 0
        """Pages that some lock covers."""
        self._clock = 0
        self._candidates: list[tuple[int, int, Node]] = []
        self._ticket = count()

    def match(self, key: list[Page]) -> Match:
        """The longest cached prefix of `key`."""
        return self._walk(self.root, key)

    def _walk(self, node: Node, key: list[Page]) -> Match:
        """Follow `key` down from `node` as far as the tree goes, and split the last edge where it parts."""
        self._clock += 1
        done = epoch = 0
        runs: list[Run] = []
        while done < len(key):
            child = node.children.get(key[done])
            if child is None:
                break
            common = _common_pages(child.key, key, done)
            node = child if common == len(child.key) else self._split(child, common)
            node.last_access = self._clock
            epoch = max(epoch, node.epoch)
            runs += node.runs
            done += common
        return Match(done, runs, node, epoch)

    def _split(self, node: Node, at: int) -> Node:
        """Cut an edge in two and return the new node in its middle.

        [0, at)            move to the new node, which every lock below covers too
        [at, len(key))     stay
        """
        parent = _parent_of(node)
        upper, lower = split(node.runs, at)
        middle = Node(node.key[:at], upper, parent, node.epoch)
        middle.locks = node.locks
        middle.children[node.key[at]] = node
        parent.children[node.key[0]] = middle
        node.key, node.runs, node.parent = node.key[at:], lower, middle
        return middle

    def known(self, node: Node, key: list[Page]) -> Match:
        """How much of `key` is cached behind the prefix that ends at `node`."""
        return self._walk(node, key)

    def add(self, node: Node, key: list[Page]) -> Node:
        """Cache `key` behind the prefix that ends at `node`.

        The caller lists its pages at the new node's runs, and sets its `epoch`.
        """
        leaf = Node(key, self.arena.take(len(key)), node)
        leaf.last_access = self._clock
        node.children[key[0]] = leaf
        self.evictable += len(key)
        self._queue_if_evictable(leaf)
        return leaf

    def lock(self, node: Node) -> None:
        """Lock the prefix that ends at `node`."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= len(node.key)
                self.protected += len(node.key)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Take one lock back."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += len(node.key)
                self.protected -= len(node.key)
                self._queue_if_evictable(node)
            node = node.parent

    def evict(self, num_pages: int) -> list[Run]:
        """Give up at least `num_pages` pages, or all that can be: whole leaves, the least recently used first.

        Returns where in the arena they are listed. These places are free from now on.
        """
        runs: list[Run] = []
        wanted = self.evictable - num_pages
        while self._candidates and self.evictable > wanted:
            queued_at, _, node = heappop(self._candidates)
            node.queued = False
            if node.last_access == queued_at and self._is_evictable(node):
                parent = _parent_of(node)
                del parent.children[node.key[0]]
                self.evictable -= len(node.key)
                runs += node.runs
                self._queue_if_evictable(parent)
            else:
                self._queue_if_evictable(node)
        self.arena.give_back(runs)
        return runs

    def _is_evictable(self, node: Node) -> bool:
        """Whether nobody has locked the node and nothing hangs below it (rule STORE-3)."""
        return node.locks == 0 and not node.children and node.parent is not None

    def _queue_if_evictable(self, node: Node) -> None:
        if not node.queued and self._is_evictable(node):
            node.queued = True
            heappush(self._candidates, (node.last_access, next(self._ticket), node))

    def all_runs(self) -> list[Run]:
        """Where every page of the tree is listed. Costs the whole tree; only a snapshot asks."""
        runs: list[Run] = []
        unseen = [self.root]
        while unseen:
            node = unseen.pop()
            runs += node.runs
            unseen.extend(node.children.values())
        return runs


def _common_pages(edge: list[Page], key: list[Page], start: int) -> int:
    """How many pages of `edge` the key repeats from page `start` on."""
    part = key[start : start + len(edge)]
    if part == edge:  # the usual case, at the speed of C
        return len(edge)
    return next((i for i, (page, other) in enumerate(zip(edge, part, strict=False)) if page != other), len(part))


def _parent_of(node: Node) -> Node:
    assert node.parent is not None, "the root has no edge: it is never split or evicted"
    return node.parent
