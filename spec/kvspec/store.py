"""The prefix store as it is seen from outside: a prefix-closed map, and a multiset of locks.

A real engine keeps a radix tree. Its node splits, node ids and lock counters cannot be observed, so they are not
here: a page-aligned prefix, named by its `PrefixKey`, maps to the page that holds its last tokens, and a lock on a
prefix covers all shorter ones. Locking, unlocking and eviction cost one step a page that changes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

from kvspec.rules import Violation
from kvspec.tokens import PrefixKey

ROOT: PrefixKey = b""
"""The empty prefix. It has no page."""


class Entry(NamedTuple):
    """One cached prefix: the page that holds its last tokens, and the prefix one page shorter."""

    page: int
    parent: PrefixKey


class Publication(NamedTuple):
    """What publishing a holder's prefix will do."""

    length: int
    """The new protected length, in tokens."""
    duplicates: list[int]
    """The holder's pages whose content the store already has: freed."""
    shared: list[int]
    """The store's pages that take their place in the block table."""
    inserted: list[tuple[PrefixKey, PrefixKey, int]]
    """Key, parent key and page of each prefix that the store takes over."""
    revived: list[tuple[int, int]]
    """A tombstone of the store that gets its window side back, and the holder's duplicate that gives it."""
    exchanged: list[tuple[PrefixKey, int]]
    """The same the other way round: the store takes the holder's page, and its tombstone is freed instead."""


class PrefixStore:
    """Cached prefixes. `pins[key]` counts the locks on `key` itself and the locked prefixes one page longer.

    With a sliding window a lock also covers the window sides of the last `reach` pages of its prefix, and with
    recurrent states the state at its very end.
    """

    __slots__ = ("children", "entries", "pins", "reach", "state_pins", "states", "window_pins")

    def __init__(self, reach: int = 0) -> None:
        """An empty store. `reach` is the sliding window in pages, 0 without one."""
        self.reach = reach
        self.entries: dict[PrefixKey, Entry] = {}
        self.children: dict[PrefixKey, int] = {}
        self.pins: dict[PrefixKey, int] = {}
        self.window_pins: dict[PrefixKey, int] = {}
        """Prefix -> locks that reach the window side of its last page."""
        self.states: dict[PrefixKey, int] = {}
        """Prefix -> the slot of the recurrent state after it."""
        self.state_pins: dict[PrefixKey, int] = {}
        """Prefix -> locks on just this prefix."""

    def insert(self, key: PrefixKey, parent: PrefixKey, page: int) -> None:
        """Add the prefix `key`, one page longer than `parent`."""
        self.entries[key] = Entry(page, parent)
        self.children[parent] = self.children.get(parent, 0) + 1

    def insert_path(self, path: Sequence[tuple[PrefixKey, PrefixKey, int]]) -> None:
        """Add prefixes, each one page longer than the one before: key, parent and page of each."""
        if not path:
            return
        keys, parents, pages = zip(*path, strict=True)
        self.entries.update(zip(keys, map(Entry, pages, parents), strict=True))
        self.children.update(dict.fromkeys(parents[1:], 1))
        self.children[parents[0]] = self.children.get(parents[0], 0) + 1

    def lock(self, key: PrefixKey) -> None:
        """Pin `key` and every shorter prefix."""
        if key == ROOT:
            return
        self.state_pins[key] = self.state_pins.get(key, 0) + 1
        for inside in self.in_reach(key):
            self.window_pins[inside] = self.window_pins.get(inside, 0) + 1
        pins, entries = self.pins, self.entries
        while key:
            count = pins.get(key, 0)
            pins[key] = count + 1
            if count:
                return
            key = entries[key].parent

    def unlock(self, key: PrefixKey) -> None:
        """Take one lock on `key` back."""
        if key == ROOT:
            return
        _take_one(self.state_pins, key)
        for inside in self.in_reach(key):
            _take_one(self.window_pins, inside)
        pins, entries = self.pins, self.entries
        while key:
            count = pins[key] - 1
            if count:
                pins[key] = count
                return
            del pins[key]
            key = entries[key].parent

    def in_reach(self, key: PrefixKey) -> Iterator[PrefixKey]:
        """The prefixes whose last page lies within the window that ends with the prefix `key`, the longest first."""
        for _ in range(self.reach):
            if key == ROOT:
                return
            yield key
            key = self.entries[key].parent

    def path(self, key: PrefixKey) -> list[int]:
        """The pages of the prefix `key`, in order of position."""
        pages = []
        while key != ROOT:
            page, key = self.entries[key]
            pages.append(page)
        pages.reverse()
        return pages

    def check_evictable(self, keys: Collection[PrefixKey]) -> None:
        """Raise a violation unless `keys` can leave together, leaves first.

        STORE-3 if one of them is locked. If none is, what can still be wrong is a hole, and that breaks STORE-1.
        """
        entries, children = self.entries, self.children
        if not self.pins.keys().isdisjoint(keys):
            key = next(key for key in keys if key in self.pins)
            raise Violation("STORE-3", f"page {entries[key].page} was evicted while it is locked")
        leaving = Counter([entries[key].parent for key in keys])
        for key in keys:
            if key in children and (kept := children[key] - leaving[key]):
                page = entries[key].page
                raise Violation("STORE-1", f"page {page} was evicted, but {kept} longer prefix(es) still need it")

    def remove(self, keys: Iterable[PrefixKey]) -> None:
        """Forget prefixes that `check_evictable` allows to leave."""
        entries, children = self.entries, self.children
        for key in keys:
            parent = entries.pop(key).parent
            count = children[parent] - 1
            if count:
                children[parent] = count
            else:
                del children[parent]

    @property
    def evictable(self) -> int:
        """Unlocked pages."""
        return len(self.entries) - len(self.pins)

    def copy(self) -> "PrefixStore":
        """An independent copy."""
        other = PrefixStore(self.reach)
        if self.entries:
            for name in ("entries", "children", "pins", "window_pins", "states", "state_pins"):
                setattr(other, name, getattr(self, name).copy())
        return other


def _take_one(pins: dict[PrefixKey, int], key: PrefixKey) -> None:
    if pins[key] == 1:
        del pins[key]
    else:
        pins[key] -= 1
