"""One pool: the pages as the law sees them, what the policy above believes, and what always holds between the two.

A pool of any kind (pages of tokens, window pages, state slots, rows) looks the same here: holders have tables, whose
entries are their own or the store's; the allocator has a free list; the store has keys, each the name of a prefix.
"""

from dataclasses import dataclass, replace
from typing import Any

from kvspec.memory.proofs.page import THERE, Clause, Page
from kvspec.memory.proofs.terms import (
    NONE,
    Formula,
    Map,
    Map2,
    Map3,
    Number,
    Set,
    Set2,
    Set3,
    all_of,
    any_of,
    choose,
    each,
    implies,
    negation,
)


@dataclass(frozen=True)
class Memory:
    """One pool: what the law remembers of each page, and above it what the policy believes."""

    holds: Map2
    """Page, holder -> references."""
    pins: Map2
    references: Map
    named: Map2
    """Page, key."""
    names: Map
    promise: Map3
    """Page, key, slot."""
    content: Map2
    """Page, slot."""
    kind: Map

    exists: Set
    promised: Map2
    """Key, slot -> label: what a key is the name of, whatever page it finds."""
    parent: Map
    """Of a key that of the prefix that is a page shorter, or `NONE`."""

    is_free: Set
    """The allocator's free list."""
    at: Map
    """Of a key the page that the store has for it, or `NONE`."""
    has: Set2
    """Holder, index: whether the holder has a page there."""
    table: Map2
    place: Map2
    """Holder, page -> the index where it has it."""
    shared: Set2
    """Holder, index: whether that page is the store's."""
    key: Map2
    """Holder, index -> under which key it found, or published, a page of the store's."""
    valid: Set3
    """Holder, index, slot: whether the slot counts as written."""
    meaning: Map3
    reads: Map2
    """Page, reader: how often a reader, say a launch, has asked that the page is kept for it."""
    readers: Map
    """All readers' together."""

    def page(self, number: Number) -> Page:
        """One page, as the law sees it."""
        return Page(
            lambda holder: self.holds(number, holder),
            lambda holder: self.pins(number, holder),
            self.references(number),
            lambda key: self.named(number, key),
            self.names(number),
            lambda key, slot: self.promise(number, key, slot),
            lambda slot: self.content(number, slot),
            self.kind(number),
        )

    def held_at(self, holder: Number, page: Number) -> Formula:
        """Whether a holder's table has the page."""
        index = self.place(holder, page)
        return all_of(self.has(holder, index), self.table(holder, index) == page)

    def entries(self, holder: Number, indices: Set) -> Set:
        """The pages that a holder's table has at these indices."""
        return lambda page: all_of(self.held_at(holder, page), indices(self.place(holder, page)))

    def private(self, holder: Number, index: Number) -> Formula:
        """Whether a holder has a page of its own there."""
        return all_of(self.has(holder, index), negation(self.shared(holder, index)))

    def withheld(self, page: Number) -> Formula:
        """Whether somebody reads it."""
        return self.readers(page) > 0

    def whole(self, holder: Number, index: Number, key: Number) -> Formula:
        """Whether a page holds, as far as its holder knows, what a key promises."""

        def there(slot: Number) -> Formula:
            same = self.meaning(holder, index, slot) == self.promised(key, slot)
            return all_of(self.valid(holder, index, slot), same)

        return each(lambda slot: self.promised(key, slot) != NONE, there)


def initial(memory: Memory) -> Memory:
    """All is free. Which pages there are, and what a key is the name of, stays open."""
    nothing: dict[str, Any] = dict.fromkeys(("holds", "pins", "named", "reads"), lambda *_: 0)
    nothing |= dict.fromkeys(("references", "names", "readers", "kind"), lambda _: 0)
    nothing |= dict.fromkeys(("content", "promise"), lambda *_: NONE)
    return replace(memory, **nothing, at=lambda _: NONE, has=lambda *_: False, is_free=memory.exists)


def _pinned(memory: Memory, page: Number, reader: Number) -> Formula:
    reads = memory.reads(page, reader)
    return all_of(memory.pins(page, reader) == reads, reads >= 0, implies(reads > 0, memory.exists(page)))


def _entry(memory: Memory, holder: Number, index: Number) -> Formula:
    page = memory.table(holder, index)
    named = choose(memory.shared(holder, index), memory.at(memory.key(holder, index)) == page, memory.names(page) == 0)
    return implies(memory.has(holder, index), all_of(memory.exists(page), memory.place(holder, page) == index, named))


def _one_owner(memory: Memory, page: Number, holder: Number, other: Number) -> Formula:
    both = all_of(memory.held_at(holder, page), memory.held_at(other, page))
    return implies(all_of(memory.names(page) == 0, both), holder == other)


def _name(memory: Memory, page: Number, key: Number, other: Number) -> Formula:
    there = all_of(memory.named(page, key) == THERE, memory.exists(page), memory.at(key) == page)
    return implies(memory.named(page, key) != 0, all_of(there, implies(memory.named(page, other) != 0, key == other)))


def _found(memory: Memory, key: Number) -> Formula:
    page = memory.at(key)
    return implies(page != NONE, all_of(memory.exists(page), memory.named(page, key) == THERE))


def _shorter(memory: Memory, key: Number) -> Formula:
    parent = memory.parent(key)
    return implies(memory.at(key) != NONE, any_of(parent == NONE, memory.at(parent) != NONE))


def _promises(memory: Memory, page: Number, key: Number, slot: Number) -> Formula:
    return implies(memory.named(page, key) != 0, memory.promise(page, key, slot) == memory.promised(key, slot))


def _free(memory: Memory, page: Number) -> Formula:
    return memory.is_free(page) == all_of(memory.exists(page), memory.page(page).free)


def _written(memory: Memory, holder: Number, index: Number, slot: Number) -> Formula:
    found = memory.content(memory.table(holder, index), slot)
    counts = all_of(memory.has(holder, index), memory.valid(holder, index, slot))
    return implies(counts, all_of(found != NONE, found == memory.meaning(holder, index, slot)))


def _held(memory: Memory, page: Number, holder: Number) -> Formula:
    return memory.holds(page, holder) == choose(memory.held_at(holder, page), 1, 0)


GIVEN = Clause("PAGE-1", "no page is no page", 1, lambda memory, page: implies(memory.exists(page), page != NONE))
"""What no operation changes."""

INVARIANTS = (
    Clause("MEM-RELEASE", "references are the tables' entries", 2, _held),
    Clause("MEM-RELEASE", "pins are the readers'", 2, _pinned),
    Clause("PAGE-2", "an entry is the store's page under its key, or has no name", 2, _entry),
    Clause("PAGE-1", "a page without a name has one holder", 3, _one_owner),
    Clause("STORE-1", "the store's keys are the names", 3, _name),
    Clause("STORE-1", "the names are the store's keys", 1, _found),
    Clause("STORE-1", "with a prefix all shorter ones are cached", 1, _shorter),
    Clause("MEM-NAME", "a name promises what its key is the name of", 3, _promises),
    Clause("ACC-1", "the free list is what nobody holds and no name finds", 1, _free),
    Clause("DATA-1", "what counts as written is there", 3, _written),
)
"""What holds between the law and the policy: before and after each step."""
