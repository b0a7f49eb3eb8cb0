"""The radix tree is, seen from outside, a prefix-closed map from prefixes to pages, with locks (STORE-1 to STORE-3)."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.allocator import TokenAllocator
from kvref.radix_cache import RadixCache
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.tree_node import TreeNode
from kvspec.tokens import Page

Prefix = tuple[Page, ...]


class NaiveStore:
    """The map itself: each cached prefix with the page that holds its last tokens, and each lock by its prefix."""

    def __init__(self) -> None:
        self.pages: dict[Prefix, int] = {}
        self.locks: Counter[Prefix] = Counter()

    def match(self, key: Prefix) -> list[int]:
        cached = [self.pages.get(key[: i + 1], 0) for i in range(len(key))]
        return cached[: cached.index(0)] if 0 in cached else cached

    def protected(self) -> set[Prefix]:
        return {prefix[: i + 1] for prefix in self.locks.elements() for i in range(len(prefix))}


class Tree:
    """A radix tree and the naive map, which do everything together."""

    def __init__(self) -> None:
        self.allocator = TokenAllocator(10_000)
        self.cache = RadixCache(1, ReqToTokenPool(1), self.allocator)
        self.naive = NaiveStore()
        self.locked: list[tuple[Prefix, TreeNode]] = []

    def insert(self, key: Prefix) -> None:
        pages = self.allocator.alloc(len(key))
        known, _ = self.cache.insert(self.cache.root, list(key), pages)
        assert known == self.naive.match(key)
        self.allocator.free(pages[: len(known)])
        for i in range(len(known), len(key)):
            self.naive.pages[key[: i + 1]] = pages[i]

    def insert_below_a_lock(self, position: int, more: Prefix) -> None:
        """Publish a holder's next chunk."""
        locked, node = self.locked[position]
        pages = self.allocator.alloc(len(more))
        known, last_node = self.cache.insert(node, list(more), pages)
        assert self.naive.match(locked + more) == self.naive.match(locked) + known
        self.allocator.free(pages[: len(known)])
        for i in range(len(known), len(more)):
            self.naive.pages[locked + more[: i + 1]] = pages[i]
        self.cache.inc_lock_ref(last_node)
        self.cache.dec_lock_ref(node)
        self.locked[position] = locked + more, last_node
        self.naive.locks[locked] -= 1
        self.naive.locks[locked + more] += 1

    def match(self, key: Prefix, lock: bool) -> None:
        pages, last_node = self.cache.match_prefix(list(key))
        assert pages == self.naive.match(key)
        if lock:
            self.cache.inc_lock_ref(last_node)
            self.locked.append((key[: len(pages)], last_node))
            self.naive.locks[key[: len(pages)]] += 1

    def unlock(self, position: int) -> None:
        prefix, node = self.locked.pop(position)
        self.cache.dec_lock_ref(node)
        self.naive.locks[prefix] -= 1

    def evict(self, num_pages: int) -> None:
        self.allocator.drain_freed()
        evictable = len(self.naive.pages) - len(self.naive.protected())
        self.cache.evict(num_pages)
        evicted = set(self.allocator.drain_freed())
        assert len(evicted) >= min(num_pages, evictable)
        gone = {prefix for prefix, page in self.naive.pages.items() if page in evicted}
        assert len(gone) == len(evicted), "what left was not in the store"
        assert gone.isdisjoint(self.naive.protected()), "a locked page left"
        for prefix in gone:
            del self.naive.pages[prefix]
        assert all(prefix[:-1] in self.naive.pages for prefix in self.naive.pages if len(prefix) > 1), "a hole"

    def check(self) -> None:
        assert sorted(self.cache.all_pages()) == sorted(self.naive.pages.values())
        assert self.cache.protected_size == len(self.naive.protected())
        assert self.cache.evictable_size == len(self.naive.pages) - len(self.naive.protected())


def some_key(random: Random, longest: int = 6) -> Prefix:
    return tuple(random.choice(("a", "b")) for _ in range(random.randint(1, longest)))


@pytest.mark.slow
@given(random=st.randoms(use_true_random=False), steps=st.integers(1, 60))
def test_the_radix_tree_is_the_naive_map_at_every_step(random: Random, steps: int) -> None:
    tree = Tree()
    for _ in range(steps):
        match random.randrange(7):
            case 0 | 1:
                tree.insert(some_key(random))
            case 2 | 3:
                tree.match(some_key(random), lock=random.random() < 0.5)
            case 4 if tree.locked:
                tree.unlock(random.randrange(len(tree.locked)))
            case 5 if tree.locked:
                tree.insert_below_a_lock(random.randrange(len(tree.locked)), some_key(random, longest=3))
            case 6:
                tree.evict(random.randint(1, 4))
        tree.check()


def test_everything_is_evicted_without_locks() -> None:
    tree = Tree()
    for key in ("aaaa", "aabb", "ab", "b"):
        tree.insert(tuple(key))
    tree.match(tuple("aabb"), lock=True)
    tree.evict(100)
    assert sorted(tree.naive.pages) == [tuple("a"), tuple("aa"), tuple("aab"), tuple("aabb")]
    tree.unlock(0)
    tree.evict(100)
    assert tree.naive.pages == {}
    assert tree.allocator.available == tree.allocator.num_pages


def test_the_least_recently_used_leaf_leaves_first() -> None:
    tree = Tree()
    for key in ("xa", "xb", "xc"):
        tree.insert(tuple(key))
    tree.match(tuple("xa"), lock=False)
    tree.evict(1)
    assert tuple("xb") not in tree.naive.pages
    tree.match(tuple("xc"), lock=False)
    tree.evict(1)
    assert tuple("xa") not in tree.naive.pages
    assert tree.naive.match(tuple("xc")) != []


def test_inserting_counts_as_use() -> None:
    tree = Tree()
    tree.insert(tuple("a"))
    tree.match(tuple("a"), lock=False)
    tree.insert(tuple("b"))
    tree.evict(1)
    assert tree.naive.pages.keys() == {tuple("b")}
