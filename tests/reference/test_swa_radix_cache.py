"""The tree of a model with a sliding window is a map from prefixes to pages, live or tombstones (SWA-4 to SWA-6)."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.eviction_queue import MAX_STALE
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.swa_radix_cache import SWARadixCache
from kvref.tree_node import TreeNode
from kvref.window_pool import SWAAllocator
from kvspec.tokens import Page

Prefix = tuple[Page, ...]


class Tree:
    """The tree, and a naive map beside it: each cached prefix with its page, which are live, and the locks."""

    def __init__(self, reach: int) -> None:
        self.reach = reach
        self.allocator = SWAAllocator(10_000, 1, 10_000)
        self.cache = SWARadixCache(1, ReqToTokenPool(1), self.allocator, sliding_window=reach)
        self.pages: dict[Prefix, int] = {}
        self.live: set[Prefix] = set()
        self.locked: list[tuple[Prefix, TreeNode]] = []

    def prefixes(self, key: Prefix) -> list[Prefix]:
        return [key[: i + 1] for i in range(len(key))]

    def expected_match(self, key: Prefix) -> Prefix:
        """The longest cached prefix whose last pages are live."""
        cached = [prefix for prefix in self.prefixes(key) if prefix in self.pages]
        for prefix in reversed(cached):
            if set(self.prefixes(prefix)[-self.reach :]) <= self.live:
                return prefix
        return ()

    def insert(self, key: Prefix, cursor: int) -> None:
        """Publish what a holder has that has given up the window sides of its first `cursor` pages."""
        own = self.allocator.alloc(len(key))
        self.allocator.free_window(own[:cursor])
        known, _ = self.cache.insert(self.cache.root, list(key), own)
        assert known == [self.pages[prefix] for prefix in self.prefixes(key) if prefix in self.pages]
        self.allocator.free(own[: len(known)])
        for i, prefix in enumerate(self.prefixes(key)):
            self.pages.setdefault(prefix, own[i])
            if i >= cursor:
                self.live.add(prefix)

    def match(self, key: Prefix, lock: bool) -> None:
        pages, last_node = self.cache.match_prefix(list(key))
        expected = self.expected_match(key)
        assert pages == [self.pages[prefix] for prefix in self.prefixes(expected)]
        if lock:
            self.cache.inc_lock_ref(last_node)
            self.locked.append((expected, last_node))

    def unlock(self, position: int) -> None:
        self.cache.dec_lock_ref(self.locked.pop(position)[1])

    def window_locked(self) -> set[Prefix]:
        return {inside for prefix, _ in self.locked for inside in self.prefixes(prefix)[-self.reach :]}

    def evict(self, num_pages: int, num_window_pages: int) -> None:
        evictable = len(self.live - self.window_locked())
        before = len(self.live)
        self.cache.evict(num_pages, num_window_pages)
        left = set(self.cache.all_pages())
        self.pages = {prefix: page for prefix, page in self.pages.items() if page in left}
        self.live = {prefix for prefix in self.live if self.pages.get(prefix) in self.allocator.window_of}
        assert before - len(self.live) >= min(num_window_pages, evictable)

    def check(self) -> None:
        assert sorted(self.cache.all_pages()) == sorted(self.pages.values())
        assert self.allocator.window_of.keys() == {self.pages[prefix] for prefix in self.live}
        assert self.cache.swa_protected_size == len(self.live & self.window_locked())
        assert self.cache.swa_evictable_size == len(self.live - self.window_locked())
        counts = Counter(inside for prefix, _ in self.locked for inside in self.prefixes(prefix)[-self.reach :])
        locks = Counter({page: node.swa_lock_ref for node in self.cache.all_nodes() for page in node.value})
        assert +locks == Counter({self.pages[prefix]: count for prefix, count in counts.items()})


@pytest.mark.slow
@pytest.mark.parametrize("reach", [1, 2, 3])
@given(random=st.randoms(use_true_random=False), steps=st.integers(1, 50))
def test_the_tree_is_the_naive_map_at_every_step(reach: int, random: Random, steps: int) -> None:
    tree = Tree(reach)
    for _ in range(steps):
        key = tuple(random.choice(("a", "b")) for _ in range(random.randint(1, 7)))
        match random.randrange(7):
            case 0 | 1:
                tree.insert(key, random.randint(0, len(key)))
            case 2 | 3 | 4:
                tree.match(key, lock=random.random() < 0.6)
            case 5 if tree.locked:
                tree.unlock(random.randrange(len(tree.locked)))
            case 6:
                tree.evict(random.randint(0, 2), random.randint(0, 4))
        tree.check()


def test_the_least_recently_used_window_goes_first_and_its_page_stays() -> None:
    tree = Tree(reach=1)
    for key in ("xa", "xb", "xc"):
        tree.insert(tuple(key), 0)
    tree.match(tuple("xb"), lock=False)
    tree.cache.evict(0)
    tree.check()
    tree.evict(0, 1)
    assert len(tree.live) == 3
    tree.evict(0, 1)
    tree.check()
    assert tree.live == {tuple("x"), tuple("xb")}
    assert len(tree.pages) == 4


def test_a_lock_reaches_as_far_as_the_window_and_no_page_further() -> None:
    tree = Tree(reach=2)
    tree.insert(tuple("abcdef"), 0)
    tree.match(tuple("abcde"), lock=True)
    tree.evict(0, 100)
    assert tree.live == {tuple("abcd"), tuple("abcde")}
    tree.unlock(0)
    tree.evict(0, 100)
    assert tree.live == set()
    assert tree.cache.evictable_size == 6


def test_evicted_nodes_do_not_stay_among_the_candidates() -> None:
    tree = Tree(reach=1)
    for number in range(10 * MAX_STALE):
        tree.insert((f"k{number}",), 0)
        tree.evict(1, 0)
    assert len(tree.cache._windows._heap) <= MAX_STALE + 2


def test_what_a_lock_splits_off_was_used_when_the_whole_was() -> None:
    tree = Tree(reach=1)
    tree.insert(tuple("c"), 0)
    tree.insert(tuple("ab"), 0)
    tree.match(tuple("ab"), lock=True)
    tree.evict(0, 1)
    assert tree.live == {tuple("a"), tuple("ab")}
