"""The prefix store as seen from outside: a prefix-closed map, and a multiset of locks.

A real engine keeps a radix tree. Its node splits, node ids and lock counters cannot be observed, so they are not
here: a page-aligned prefix, named by its `PrefixKey`, maps to the page that holds its last tokens, and a lock on a
prefix covers all shorter ones. Other facts about a prefix are kept under its page. Locking, unlocking and eviction cost
one step for each page that changes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import filterfalse, islice, repeat
from typing import NamedTuple

from kvspec.rules import Violation
from kvspec.tokens import PrefixKey

ROOT: PrefixKey = b""
"""The empty prefix. It has no page."""


class Publication(NamedTuple):
    """The effect of publishing a holder's prefix."""

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
    """Pairs: a tombstone of the store that gets a window side back, and the holder's duplicate that gives it."""
    exchanged: list[tuple[PrefixKey, int]]
    """The same the other way round: the store takes the holder's page, and its tombstone is freed instead."""


class PrefixStore:
    """Cached prefixes. `pins[page]` counts the locks on the page's prefix and the locked prefixes one page longer.

    With a sliding window a lock also covers the window sides of the last `reach` pages of its prefix, and with
    recurrent states the state at its very end.
    """

    __slots__ = ("children", "pages", "parents", "pins", "reach", "state_pins", "states", "window_pins")

    def __init__(self, reach: int = 0) -> None:
        """An empty store. `reach` is the sliding window in pages, 0 without one."""
        self.reach = reach
        self.pages: dict[PrefixKey, int] = {}
        """Prefix -> the page that holds its last tokens."""
        self.parents: dict[int, PrefixKey] = {}
        """Page -> the prefix before the page: one page shorter than the prefix that the page ends."""
        self.children: dict[PrefixKey, int] = {ROOT: 0}
        """Prefix -> the number of prefixes one page longer, unless that is one, as for nearly all."""
        self.pins: dict[int, int] = {}
        self.window_pins: dict[int, int] = {}
        """Page -> locks that reach its window side."""
        self.states: dict[PrefixKey, int] = {}
        """Prefix -> the slot of the recurrent state after it."""
        self.state_pins: dict[int, int] = {}
        """Page -> locks on just its prefix."""

    def insert(self, parent: PrefixKey, keys: Sequence[PrefixKey], pages: Sequence[int]) -> None:
        """Add prefixes and their pages. Each is one page longer than the one before; the first, than `parent`."""
        if not keys:
            return
        self.pages.update(zip(keys, pages, strict=True))
        self.parents.update(zip(pages, (parent, *keys), strict=False))
        self.children[keys[-1]] = 0
        self._count_longer(parent, 1)

    def _count_longer(self, key: PrefixKey, more: int) -> None:
        count = self.children.pop(key, 1) + more
        if count != 1:
            self.children[key] = count

    def lock(self, table: Sequence[int], length: int, new: int = 0) -> None:
        """Pin the prefix whose `length` pages `table` begins with; the last `new` of them have no lock yet."""
        if not length:
            return
        pins, known, end = self.pins, length - new, table[length - 1]
        self.state_pins[end] = self.state_pins.get(end, 0) + 1
        for page in table[max(0, length - self.reach) : length]:
            self.window_pins[page] = self.window_pins.get(page, 0) + 1
        pins.update(zip(table[known:length], repeat(1)))
        for page in islice(reversed(table), len(table) - known, None):
            count = pins.get(page, 0)
            pins[page] = count + 1
            if count:
                return

    def unlock(self, table: Sequence[int], length: int) -> None:
        """Remove one lock from the prefix whose `length` pages `table` begins with."""
        if not length:
            return
        pins = self.pins
        _take_one(self.state_pins, table[length - 1])
        for page in table[max(0, length - self.reach) : length]:
            _take_one(self.window_pins, page)
        for page in islice(reversed(table), len(table) - length, None):
            count = pins.pop(page)
            if count > 1:
                pins[page] = count - 1
                return

    def in_reach(self, key: PrefixKey) -> Iterator[PrefixKey]:
        """The prefixes whose last page lies within the window that ends with the prefix `key`, the longest first."""
        for _ in range(self.reach):
            if key == ROOT:
                return
            yield key
            key = self.parents[self.pages[key]]

    def exchange(self, key: PrefixKey, page: int) -> None:
        """From now on the prefix `key`, which has no lock, ends in another page."""
        self.parents[page] = self.parents.pop(self.pages[key])
        self.pages[key] = page

    def keys(self, key: PrefixKey) -> list[PrefixKey]:
        """The prefixes that `key` begins with, itself the last."""
        keys = []
        while key:
            keys.append(key)
            key = self.parents[self.pages[key]]
        keys.reverse()
        return keys

    def path(self, key: PrefixKey) -> list[int]:
        """The pages of the prefix `key`, in order of position."""
        return [*map(self.pages.__getitem__, self.keys(key))]

    def check_evictable(self, keys: Mapping[PrefixKey, int]) -> list[PrefixKey]:
        """Raise a violation unless `keys` can leave together, leaves first; return which others lose a longer prefix.

        STORE-3 is broken if one of them is locked. Otherwise they can only leave a hole, which breaks STORE-1.
        """
        if not self.pins.keys().isdisjoint(keys.values()):
            page = next(page for page in keys.values() if page in self.pins)
            raise Violation("STORE-3", f"page {page} was evicted while it is locked")
        parents, children = [*map(self.parents.__getitem__, keys.values())], self.children
        # No prefix loses more children than it has: if as many leave as all have together, all of each leave.
        longer = len(keys) + sum([children[key] - 1 for key in children.keys() & keys.keys()])
        losing = [*filterfalse(keys.__contains__, parents)]
        if longer == len(keys) - len(losing):
            return losing
        leaving = Counter(parents)
        page, kept = next((keys[key], kept) for key in keys if (kept := children.get(key, 1) - leaving[key]))
        raise Violation("STORE-1", f"page {page} was evicted, but {kept} longer prefix(es) still need it")

    def remove(self, keys: Mapping[PrefixKey, int], losing: Sequence[PrefixKey]) -> None:
        """Forget prefixes that `check_evictable` allows to leave; `losing` is its result."""
        pages, parents, children = self.pages, self.parents, self.children
        for key, page in keys.items():
            del pages[key], parents[page]
        for key in children.keys() & keys.keys():
            del children[key]
        for parent in losing:
            self._count_longer(parent, -1)

    @property
    def evictable(self) -> int:
        """Unlocked pages."""
        return len(self.pages) - len(self.pins)


def _take_one(pins: dict[int, int], page: int) -> None:
    if pins[page] == 1:
        del pins[page]
    else:
        pins[page] -= 1
