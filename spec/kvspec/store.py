"""The prefix store as it is seen from outside: a prefix-closed map, and a multiset of locks.

A real engine keeps a radix tree. Its node splits, node ids and lock counters cannot be observed, so they are not
here: a page-aligned prefix, named by its `PrefixKey`, maps to the page that holds its last tokens, and a lock on a
prefix covers all shorter ones. Locking, unlocking and eviction cost one step a page that changes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import filterfalse, repeat
from typing import NamedTuple

from kvspec.rules import Violation
from kvspec.tokens import PrefixKey

ROOT: PrefixKey = b""
"""The empty prefix. It has no page."""


class Publication(NamedTuple):
    """What publishing a holder's prefix will do."""

    length: int
    """The new protected length, in tokens."""
    duplicates: list[int]
    """The holder's pages whose content the store already has: freed."""
    shared: list[int]
    """The store's pages that take their place in the block table."""
    keys: list[PrefixKey]
    """The prefixes that end in `shared`, then those of `inserted`: what is published beyond the locked prefix."""
    inserted: list[int]
    """The pages that the store takes over."""
    revived: list[tuple[int, int]]
    """A tombstone of the store that gets its window side back, and the holder's duplicate that gives it."""
    exchanged: list[tuple[PrefixKey, int]]
    """The same the other way round: the store takes the holder's page, and its tombstone is freed instead."""


class PrefixStore:
    """Cached prefixes. `pins[key]` counts the locks on `key` itself and the locked prefixes one page longer.

    With a sliding window a lock also covers the window sides of the last `reach` pages of its prefix, and with
    recurrent states the state at its very end.
    """

    __slots__ = ("children", "pages", "parents", "pins", "reach", "state_pins", "states", "window_pins")

    def __init__(self, reach: int = 0) -> None:
        """An empty store. `reach` is the sliding window in pages, 0 without one."""
        self.reach = reach
        self.pages: dict[PrefixKey, int] = {}
        """Prefix -> the page that holds its last tokens."""
        self.parents: dict[PrefixKey, PrefixKey] = {}
        """Prefix -> the prefix one page shorter."""
        self.children: dict[PrefixKey, int] = {ROOT: 0}
        """Prefix -> how many are one page longer, unless it is one: it is for nearly all."""
        self.pins: dict[PrefixKey, int] = {}
        self.window_pins: dict[PrefixKey, int] = {}
        """Prefix -> locks that reach the window side of its last page."""
        self.states: dict[PrefixKey, int] = {}
        """Prefix -> the slot of the recurrent state after it."""
        self.state_pins: dict[PrefixKey, int] = {}
        """Prefix -> locks on just this prefix."""

    def insert(self, parent: PrefixKey, keys: Sequence[PrefixKey], pages: Sequence[int]) -> None:
        """Add prefixes and their pages: the first is one page longer than `parent`, each other than the one before."""
        if not keys:
            return
        self.pages.update(zip(keys, pages, strict=True))
        self.parents.update(zip(keys, (parent, *keys), strict=False))
        self.children[keys[-1]] = 0
        self._count_longer(parent, 1)

    def _count_longer(self, key: PrefixKey, more: int) -> None:
        count = self.children.pop(key, 1) + more
        if count != 1:
            self.children[key] = count

    def lock(self, key: PrefixKey, new: Sequence[PrefixKey] = ()) -> None:
        """Pin `key` and every shorter prefix; `new` are the last of these, if nobody can have locked them yet."""
        if key == ROOT:
            return
        self.state_pins[key] = self.state_pins.get(key, 0) + 1
        for inside in self.in_reach(key):
            self.window_pins[inside] = self.window_pins.get(inside, 0) + 1
        pins, parents = self.pins, self.parents
        if new:
            pins.update(zip(new, repeat(1)))
            key = parents[new[0]]
        while key:
            count = pins.get(key, 0)
            pins[key] = count + 1
            if count:
                return
            key = parents[key]

    def unlock(self, key: PrefixKey) -> None:
        """Take one lock on `key` back."""
        if key == ROOT:
            return
        _take_one(self.state_pins, key)
        for inside in self.in_reach(key):
            _take_one(self.window_pins, inside)
        pins, parents = self.pins, self.parents
        while key:
            count = pins[key] - 1
            if count:
                pins[key] = count
                return
            del pins[key]
            key = parents[key]

    def in_reach(self, key: PrefixKey) -> Iterator[PrefixKey]:
        """The prefixes whose last page lies within the window that ends with the prefix `key`, the longest first."""
        for _ in range(self.reach):
            if key == ROOT:
                return
            yield key
            key = self.parents[key]

    def keys(self, key: PrefixKey) -> list[PrefixKey]:
        """The prefixes that `key` begins with, itself the last."""
        keys, parents = [], self.parents
        while key:
            keys.append(key)
            key = parents[key]
        keys.reverse()
        return keys

    def path(self, key: PrefixKey) -> list[int]:
        """The pages of the prefix `key`, in order of position."""
        return [*map(self.pages.__getitem__, self.keys(key))]

    def check_evictable(self, keys: Mapping[PrefixKey, int]) -> None:
        """Raise a violation unless `keys` can leave together, leaves first.

        STORE-3 if one of them is locked. If none is, what can still be wrong is a hole, and that breaks STORE-1.
        """
        if not self.pins.keys().isdisjoint(keys):
            key = next(key for key in keys if key in self.pins)
            raise Violation("STORE-3", f"page {self.pages[key]} was evicted while it is locked")
        parents, children = [*map(self.parents.__getitem__, keys)], self.children
        # Of nobody more leave than are there: if as many leave as are there in all, all of each one leave.
        longer = len(keys) + sum([children[key] - 1 for key in children.keys() & keys.keys()])
        if longer == sum(map(keys.__contains__, parents)):
            return
        leaving = Counter(parents)
        for key in keys:
            if kept := children.get(key, 1) - leaving[key]:
                page = self.pages[key]
                raise Violation("STORE-1", f"page {page} was evicted, but {kept} longer prefix(es) still need it")

    def remove(self, keys: Mapping[PrefixKey, int]) -> None:
        """Forget prefixes that `check_evictable` allows to leave."""
        pages, children = self.pages, self.children
        for key in keys:
            del pages[key]
        for key in children.keys() & keys.keys():
            del children[key]
        for parent in filterfalse(keys.__contains__, map(self.parents.pop, keys)):
            self._count_longer(parent, -1)

    @property
    def evictable(self) -> int:
        """Unlocked pages."""
        return len(self.pages) - len(self.pins)

    def copy(self) -> "PrefixStore":
        """An independent copy."""
        other = PrefixStore(self.reach)
        if self.pages:
            for name in ("pages", "parents", "children", "pins", "window_pins", "states", "state_pins"):
                setattr(other, name, getattr(self, name).copy())
        return other


def _take_one(pins: dict[PrefixKey, int], key: PrefixKey) -> None:
    if pins[key] == 1:
        del pins[key]
    else:
        pins[key] -= 1
