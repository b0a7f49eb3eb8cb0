import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvspec.rules import Violation
from kvspec.store import ROOT, PrefixStore

Prefix = tuple[int, ...]


def key(prefix: Prefix) -> bytes:
    return bytes(prefix)


class StoreIsAMapOfPrefixes(RuleBasedStateMachine):
    """The store against the plainest thing that means the same: a set of prefixes and a list of locks."""

    def __init__(self) -> None:
        super().__init__()
        self.store = PrefixStore()
        self.pages: dict[Prefix, int] = {}
        self.locks: list[Prefix] = []
        self.next_page = 1

    @rule(prefix=st.lists(st.integers(1, 2), min_size=1, max_size=5))
    def insert(self, prefix: list[int]) -> None:
        for length in range(1, len(prefix) + 1):
            part = tuple(prefix[:length])
            if part not in self.pages:
                self.store.insert(key(part), key(part[:-1]), self.next_page)
                self.pages[part] = self.next_page
                self.next_page += 1

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        prefix = data.draw(st.sampled_from([(), *sorted(self.pages)]))
        self.store.lock(key(prefix))
        self.locks.append(prefix)

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        prefix = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        self.store.unlock(key(prefix))

    @precondition(lambda self: self.pages)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.pages)), min_size=1))
        allowed = not any(self.locked(prefix) for prefix in chosen) and all(
            longer in chosen for prefix in chosen for longer in self.pages if longer[:-1] == prefix
        )
        keys = [key(prefix) for prefix in chosen]
        if not allowed:
            broken = "STORE-3" if any(self.locked(prefix) for prefix in chosen) else "STORE-1"
            with pytest.raises(Violation, match=broken):
                self.store.check_evictable(keys)
            return
        self.store.check_evictable(keys)
        self.store.remove(keys)
        for prefix in chosen:
            del self.pages[prefix]

    def locked(self, prefix: Prefix) -> bool:
        return any(lock[: len(prefix)] == prefix for lock in self.locks)

    @invariant()
    def same(self) -> None:
        assert {name: entry.page for name, entry in self.store.entries.items()} == {
            key(prefix): page for prefix, page in self.pages.items()
        }
        assert self.store.pins.keys() == {key(prefix) for prefix in self.pages if self.locked(prefix)}
        assert self.store.evictable == sum(not self.locked(prefix) for prefix in self.pages)
        for prefix in self.pages:
            path = [self.pages[prefix[:length]] for length in range(1, len(prefix) + 1)]
            assert self.store.path(key(prefix)) == path
        assert self.store.path(ROOT) == []


TestStoreIsAMapOfPrefixes = StoreIsAMapOfPrefixes.TestCase
