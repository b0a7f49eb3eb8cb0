"""The prefix store's tree on the host: the cached prefixes, and the places in the arena that list their pages.

An edge carries the contents of one or more pages (`Tokens.pages`), a node the places of these pages. Page numbers are
only on the device; counters are in pages.

With a sliding window, either all pages of a node have their window side or none has: then the node is a *tombstone*.
With recurrent states a node may have the slot of the state after its last page. Window sides and states can be evicted
without the node, the least recently used first.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count, islice
from typing import NamedTuple

from kvcuda.arena import Arena, Run, split
from kvspec.tokens import Page


class Node:
    """The end of an edge. A split keeps the node as the lower part, so a holder's lock still ends there."""

    __slots__ = (
        "children",
        "ends",
        "epoch",
        "has_window",
        "key",
        "last_access",
        "locks",
        "parent",
        "queued",
        "runs",
        "state",
        "window_locks",
    )

    def __init__(self, key: list[Page], runs: list[Run], parent: "Node | None", epoch: int = 0) -> None:
        """A node without locks that was never used."""
        self.key = key
        self.runs = runs
        """Where in the arena the pages are listed, in order of position."""
        self.parent = parent
        self.epoch = epoch
        """The number of the launch of moves that lists its pages in the arena (`DeviceMemory.epoch`)."""
        self.children: dict[Page, Node] = {}
        """By the first page of their edge."""
        self.locks = 0
        """Locks on this node and below."""
        self.ends = 0
        """Locks that end at this node."""
        self.last_access = 0
        self.queued = False
        """Whether it is among the candidates for eviction."""
        self.has_window = False
        """Whether its pages have their window sides."""
        self.window_locks = 0
        """Locks on this node and below whose window reaches it."""
        self.state = 0
        """The slot of the recurrent state at its end; 0 where none is cached."""


class Match(NamedTuple):
    """A cached prefix of a key that a request can continue."""

    pages: int
    nodes: list[Node]
    """The path to its end. It is not locked yet, and a later lock may split these nodes."""
    runs: list[Run]
    """Where in the arena its pages are listed."""
    last_node: Node

    @property
    def epoch(self) -> int:
        """The launch of moves that lists the last of its pages in the arena."""
        return max((node.epoch for node in self.nodes), default=0)


class EvictedNode(NamedTuple):
    """A node that has left the prefix store."""

    runs: list[Run]
    """The places in the arena that listed its pages. They are free now."""
    has_window: bool
    state: int


class PrefixTree:
    """The cached prefixes."""

    def __init__(self, num_pages: int, reach: int = 0, *, has_states: bool = False) -> None:
        """An empty tree, for at most `num_pages` pages. `reach` is the sliding window in pages, 0 without one."""
        self.arena = Arena(num_pages)
        self.root = Node([], [], None)
        self.reach = reach
        self.evictable = 0
        """Pages without a lock."""
        self.protected = 0
        """Pages with a lock."""
        self.window_evictable = 0
        """Pages with a window side that no lock reaches."""
        self.window_protected = 0
        """Pages with a window side that some lock reaches."""
        self.states_evictable = 0
        """States without a lock on their prefix."""
        self.states_protected = 0
        """States with a lock on their prefix."""
        self._has_states = has_states
        self._has_extras = reach > 0 or has_states
        self._clock = 0
        self._candidates: list[tuple[int, int, Node]] = []
        self._ticket = count()
        self._extras: dict[Node, None] = {}
        """Nodes with window sides or a state, the least recently used first."""

    def match(self, key: list[Page]) -> Match:
        """The longest cached prefix of `key` that a request can continue.

        With a sliding window its last pages have their window sides, as far as the window reaches (rule SWA-4). With
        recurrent states its last node has the state (rule MAMBA-3).
        """
        found = self.known(self.root, key)
        if not self._has_extras:
            return found
        best = pages = done = 0
        tombstone = -self.reach  # the number of pages up to the last one without a window side
        for number, node in enumerate(found.nodes, 1):
            done += len(node.key)
            if self.reach and not node.has_window:
                tombstone = done
            elif done - tombstone >= self.reach and (node.state or not self._has_states):
                best, pages = number, done
        nodes = found.nodes[:best]
        return Match(pages, nodes, [run for node in nodes for run in node.runs], nodes[-1] if nodes else self.root)

    def known(self, node: Node, key: list[Page]) -> Match:
        """The cached part of `key` behind the prefix that ends at `node`; the edge where they differ is split."""
        self._clock += 1
        done = 0
        nodes: list[Node] = []
        runs: list[Run] = []
        while done < len(key):
            child = node.children.get(key[done])
            if child is None:
                break
            common = _common_pages(child.key, key, done)
            node = child if common == len(child.key) else self.split(child, common)
            self._touch(node)
            nodes.append(node)
            runs += node.runs
            done += common
        return Match(done, nodes, runs, node)

    def _touch(self, node: Node) -> None:
        node.last_access = self._clock
        if node in self._extras:
            del self._extras[node]
            self._extras[node] = None

    def split(self, node: Node, at: int) -> Node:
        """Cut an edge in two and return the new node in its middle.

        [0, at)            move to the new node, which every lock below covers too
        [at, len(key))     stay, with the state at their end
        """
        parent = _parent_of(node)
        upper, lower = split(node.runs, at)
        middle = Node(node.key[:at], upper, parent, node.epoch)
        middle.locks, middle.window_locks = node.locks, node.window_locks
        middle.last_access = node.last_access
        middle.has_window = node.has_window
        if middle.has_window:
            self._extras[middle] = None
        middle.children[node.key[at]] = node
        parent.children[node.key[0]] = middle
        node.key, node.runs, node.parent = node.key[at:], lower, middle
        return middle

    def add(self, node: Node, key: list[Page], *, has_window: bool = False) -> Node:
        """Cache `key` behind the prefix that ends at `node`.

        The caller queues the publication of its pages at the new node's runs, and sets its `epoch`.
        """
        leaf = Node(key, self.arena.take(len(key)), node)
        leaf.last_access = self._clock
        node.children[key[0]] = leaf
        self.evictable += len(key)
        self._queue_if_evictable(leaf)
        if has_window:
            self.revive(leaf)
        return leaf

    def revive(self, node: Node) -> None:
        """Mark that a node's pages have their window sides again."""
        node.has_window = True
        self._extras[node] = None
        self._count_windows(node, len(node.key))

    def keep_state(self, node: Node, slot: int) -> None:
        """Record the slot of the state at the end of a node."""
        node.state = slot
        self._extras[node] = None
        self._count_state(node, 1)

    def _count_windows(self, node: Node, pages: int) -> None:
        if node.window_locks:
            self.window_protected += pages
        else:
            self.window_evictable += pages

    def _count_state(self, node: Node, number: int) -> None:
        if node.ends:
            self.states_protected += number
        else:
            self.states_evictable += number

    def lock(self, node: Node) -> None:
        """Lock the prefix that ends at `node`: its window sides as far as the window reaches, and its state."""
        if self._has_extras:
            self._relock(node, 1)
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= len(node.key)
                self.protected += len(node.key)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Take one lock back."""
        if self._has_extras:
            self._relock(node, -1)
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += len(node.key)
                self.protected -= len(node.key)
                self._queue_if_evictable(node)
            node = node.parent

    def _relock(self, node: Node, change: int) -> None:
        """Count one more lock, or one less, on the state at `node` and on the window sides that its window reaches."""
        if node.state:
            self._count_state(node, -1)
        node.ends += change
        if node.state:
            self._count_state(node, 1)
        for inside in self._in_reach(node):
            if inside.has_window:
                self._count_windows(inside, -len(inside.key))
            inside.window_locks += change
            if inside.has_window:
                self._count_windows(inside, len(inside.key))

    def _in_reach(self, node: Node) -> Iterator[Node]:
        """The nodes that the window reaches from the end of `node` back; the edge that it cuts is split there."""
        left = self.reach
        while left and node.parent is not None:
            if len(node.key) > left:
                self.split(node, len(node.key) - left)
            left -= len(node.key)
            yield node
            node = node.parent

    def evict(self, num_pages: int) -> list[EvictedNode]:
        """Evict at least `num_pages` pages, or all unlocked ones: whole leaves, the least recently used first."""
        evicted: list[EvictedNode] = []
        wanted = self.evictable - num_pages
        while self._candidates and self.evictable > wanted:
            queued_at, _, node = heappop(self._candidates)
            node.queued = False
            if node.last_access == queued_at and self._is_evictable(node):
                parent = _parent_of(node)
                del parent.children[node.key[0]]
                self.evictable -= len(node.key)
                evicted.append(EvictedNode(node.runs, node.has_window, node.state))
                if self._has_extras:
                    self._strip(node)
                self.arena.give_back(node.runs)
                self._queue_if_evictable(parent)
            else:
                self._queue_if_evictable(node)
        return evicted

    def _strip(self, node: Node) -> int:
        """Remove window sides and state from a node; returns the state's slot, 0 if it had none."""
        if node.has_window:
            self._count_windows(node, -len(node.key))
        if node.state:
            self._count_state(node, -1)
        state, node.state, node.has_window = node.state, 0, False
        self._extras.pop(node, None)
        return state

    def evict_windows(self, num_pages: int) -> list[Run]:
        """Evict at least `num_pages` window sides, or all that no lock reaches: those of whole nodes, which stay.

        Returns the places in the arena that list their pages.
        """
        victims: list[Node] = []
        for node in self._extras:
            if num_pages <= 0:
                break
            if not node.window_locks:
                num_pages -= len(node.key)
                victims.append(node)
        for node in victims:
            self._strip(node)
        return [run for node in victims for run in node.runs]

    def evict_states(self, number: int) -> list[int]:
        """Evict `number` states, or all whose prefix has no lock; returns their slots."""
        unlocked = (node for node in self._extras if not node.ends)
        return [self._strip(node) for node in list(islice(unlocked, max(0, number)))]

    def _is_evictable(self, node: Node) -> bool:
        """Whether the node has no lock and no children (rule STORE-3)."""
        return node.locks == 0 and not node.children and node.parent is not None

    def _queue_if_evictable(self, node: Node) -> None:
        if not node.queued and self._is_evictable(node):
            node.queued = True
            heappush(self._candidates, (node.last_access, next(self._ticket), node))

    def nodes(self) -> list[Node]:
        """Every node. Costs the whole tree; only a snapshot asks."""
        found: list[Node] = []
        unseen = [*self.root.children.values()]
        while unseen:
            node = unseen.pop()
            found.append(node)
            unseen.extend(node.children.values())
        return found


def _common_pages(edge: list[Page], key: list[Page], start: int) -> int:
    """The number of first pages of `edge` that the key has from page `start` on."""
    part = key[start : start + len(edge)]
    if part == edge:  # the usual case, at the speed of C
        return len(edge)
    return next((i for i, (page, other) in enumerate(zip(edge, part, strict=False)) if page != other), len(part))


def _parent_of(node: Node) -> Node:
    assert node.parent is not None, "the root has no edge: it is never split or evicted"
    return node.parent
