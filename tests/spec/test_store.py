from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvconform.oracle.notes import copy_of
from kvspec.rules import Violation
from kvspec.store import ROOT, PrefixStore

Prefix = tuple[int, ...]


def key(prefix: Prefix) -> bytes:
    return bytes(prefix)


class StoreIsAMapOfPrefixes(RuleBasedStateMachine):
    """The store against the plainest thing that means the same: a set of prefixes and a list of locks."""

    REACH = 2

    def __init__(self) -> None:
        super().__init__()
        self.store = PrefixStore(self.REACH)
        self.pages: dict[Prefix, int] = {}
        self.locks: list[Prefix] = []
        self.next_page = 1

    @rule(prefix=st.lists(st.integers(1, 2), min_size=1, max_size=5))
    def insert(self, prefix: list[int]) -> None:
        for length in range(1, len(prefix) + 1):
            part = tuple(prefix[:length])
            if part not in self.pages:
                self.store.insert(key(part[:-1]), [key(part)], [self.next_page])
                self.pages[part] = self.next_page
                self.next_page += 1

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        prefix = data.draw(st.sampled_from([(), *sorted(self.pages)]))
        self.store.lock(self.path(prefix), len(prefix))
        self.locks.append(prefix)

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        prefix = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        self.store.unlock(self.path(prefix), len(prefix))

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.pages)), min_size=1))
        allowed = not any(self.locked(prefix) for prefix in chosen) and all(
            longer in chosen for prefix in chosen for longer in self.pages if longer[:-1] == prefix
        )
        keys = {key(prefix): self.pages[prefix] for prefix in chosen}
        if not allowed:
            broken = "STORE-3" if any(self.locked(prefix) for prefix in chosen) else "STORE-1"
            with pytest.raises(Violation, match=broken):
                self.store.check_evictable(keys)
            return
        self.store.remove(keys, self.store.check_evictable(keys))
        for prefix in chosen:
            del self.pages[prefix]

    def locked(self, prefix: Prefix) -> bool:
        return any(lock[: len(prefix)] == prefix for lock in self.locks)

    def path(self, prefix: Prefix) -> list[int]:
        return [self.pages[prefix[:length]] for length in range(1, len(prefix) + 1)]

    @invariant()
    def same(self) -> None:
        assert self.store.pages == {key(prefix): page for prefix, page in self.pages.items()}
        assert self.store.parents == {page: key(prefix[:-1]) for prefix, page in self.pages.items()}
        assert self.store.pins.keys() == {page for prefix, page in self.pages.items() if self.locked(prefix)}
        assert self.store.evictable == sum(not self.locked(prefix) for prefix in self.pages)
        ends = Counter(lock for lock in self.locks if lock)
        assert self.store.state_pins == {self.pages[lock]: count for lock, count in ends.items()}
        reached = Counter(lock[:length] for lock in self.locks for length in range(len(lock), 0, -1)[: self.REACH])
        assert self.store.window_pins == {self.pages[prefix]: count for prefix, count in reached.items()}
        for prefix in self.pages:
            assert self.store.path(key(prefix)) == self.path(prefix)
        assert self.store.path(ROOT) == []


TestStoreIsAMapOfPrefixes = pytest.mark.slow(StoreIsAMapOfPrefixes.TestCase)


def small_store() -> PrefixStore:
    """The prefixes 1 and 1 2, both with a state."""
    store = PrefixStore(2)
    store.insert(ROOT, [key((1,)), key((1, 2))], [1, 2])
    store.states = {key((1,)): 7, key((1, 2)): 8}
    return store


def test_a_copy_is_independent_and_the_same() -> None:
    store = small_store()
    store.lock([1, 2], 2)
    other = copy_of(store)
    assert {name: getattr(other, name) for name in store.__slots__} == {
        name: getattr(store, name) for name in store.__slots__
    }
    other.unlock([1, 2], 2)
    assert (store.pins, store.window_pins, store.state_pins) == ({1: 1, 2: 1}, {1: 1, 2: 1}, {2: 1})
    assert not other.pins and not other.window_pins and not other.state_pins


def test_without_a_sliding_window_a_lock_reaches_no_window_side() -> None:
    store = PrefixStore()
    store.insert(ROOT, [key((1,))], [1])
    store.lock([1], 1)
    assert store.reach == 0 and not store.window_pins and store.state_pins == {1: 1}


def test_a_hole_is_reported_with_the_requests_that_still_need_the_page() -> None:
    store = PrefixStore(0)
    store.insert(ROOT, [b"a"], [7])
    for page, longer in ((1, b"ab"), (2, b"ac"), (3, b"ad")):
        store.insert(b"a", [longer], [page])
    store.insert(b"ab", [b"abc", b"abcd"], [4, 5])
    with pytest.raises(Violation, match=r"STORE-1: page 4 was evicted, but 1 longer prefix\(es\) still need it"):
        store.check_evictable({b"abc": 4})
    store.remove({b"abc": 4, b"abcd": 5}, store.check_evictable({b"abc": 4, b"abcd": 5}))
    for leaving, left in (([b"a"], 3), ([b"ab", b"a"], 2), ([b"a", b"ad", b"ab"], 1)):
        with pytest.raises(Violation) as raised:
            store.check_evictable({one: store.pages[one] for one in leaving})
        assert raised.value.what == f"page 7 was evicted, but {left} longer prefix(es) still need it"
    store.check_evictable({one: store.pages[one] for one in (b"a", b"ad", b"ab", b"ac")})
