"""One pool: its pages in the memory model, the state of the policy above it, and the invariants between the two.

Pools of all kinds (pages of tokens, window pages, state slots, rows) look the same here. Holders have tables, with
entries that are their own or the store's; the allocator has a free list; the store has keys, each for a prefix.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from z3 import And, If, Implies, Or  # type: ignore[import-untyped]

from kvspec.memory.proofs.page import FREE, THERE, Clause, Page
from kvspec.memory.proofs.terms import NONE, Formula, Map, Map2, Number, Set, everything, image, some


@dataclass(frozen=True)
class Entry:
    """An entry of a holder's table."""

    page: Number
    """The page, or `NONE`."""
    key: Number
    """The key under which the holder found or published a page of the store; `NONE`: the page is its own."""
    meaning: Map
    """Slot -> label; `NONE`: it does not count as written."""

    @property
    def private(self) -> Formula:
        """Whether the entry is a page of the holder's own."""
        return And(self.page != NONE, self.key == NONE)


@dataclass(frozen=True)
class Memory:
    """One pool: the state of each page in the memory model, and the state of the policy above it."""

    page: Callable[[Number], Page]
    exists: Set
    promised: Map2
    """Key, slot -> label: the content that a key stands for, in any page."""
    parent: Map
    """Key -> the key of the prefix that is a page shorter, or `NONE`."""
    is_free: Set
    """The allocator's free list."""
    at: Map
    """Key -> the store's page for it, or `NONE`."""
    entry: Callable[[Number, Number], Entry]
    """Holder, index -> entry."""
    place: Map2
    """Holder, page -> the index of the page in its table."""
    reads: Map2
    """Page, reader -> how often a reader, such as a launch, has requested to keep the page for it."""

    def held_at(self, holder: Number, page: Number) -> Formula:
        """Whether a holder's table has the page."""
        return self.entries(holder, everything)(page)

    def entries(self, holder: Number, indices: Set) -> Set:
        """The pages that a holder's table has at these indices."""
        there = image(indices, lambda index: self.entry(holder, index).page, partial(self.place, holder))
        return lambda page: And(page != NONE, there(page))

    def withheld(self, page: Number) -> Formula:
        """Whether a reader needs the page."""
        return some(lambda reader: self.reads(page, reader) > 0)


def initial(memory: Memory) -> Memory:
    """All pages are free. The set of pages, and the content of keys, stay open."""
    nothing, none = (lambda *_: 0), (lambda *_: NONE)
    page, entry = Page(nothing, nothing, 0, nothing, 0, none, none, FREE), Entry(NONE, NONE, none)
    start = replace(memory, page=lambda _: page, is_free=memory.exists, at=none)
    return replace(start, entry=lambda *_: entry, place=none, reads=nothing)


def _pinned(pool: Memory, page: Number, reader: Number) -> Formula:
    reads = pool.reads(page, reader)
    return And(pool.page(page).pins(reader) == reads, Implies(reads > 0, pool.exists(page)))


def _entry(pool: Memory, holder: Number, index: Number) -> Formula:
    entry = pool.entry(holder, index)
    named = If(entry.private, pool.page(entry.page).names == 0, pool.at(entry.key) == entry.page)
    return Implies(entry.page != NONE, And(pool.exists(entry.page), pool.place(holder, entry.page) == index, named))


def _one_owner(pool: Memory, page: Number, holder: Number, other: Number) -> Formula:
    both = And(pool.held_at(holder, page), pool.held_at(other, page))
    return Implies(And(pool.page(page).names == 0, both), holder == other)


def _name(pool: Memory, page: Number, key: Number, other: Number) -> Formula:
    named = pool.page(page).named
    there = And(named(key) == THERE, pool.exists(page), pool.at(key) == page)
    return Implies(named(key) != 0, And(there, Implies(named(other) != 0, key == other)))


def _found(pool: Memory, key: Number) -> Formula:
    page = pool.at(key)
    return Implies(page != NONE, And(key != NONE, pool.exists(page), pool.page(page).named(key) == THERE))


def _shorter(pool: Memory, key: Number) -> Formula:
    parent = pool.parent(key)
    return Implies(pool.at(key) != NONE, Or(parent == NONE, pool.at(parent) != NONE))


def _promises(pool: Memory, number: Number, key: Number, slot: Number) -> Formula:
    page = pool.page(number)
    return Implies(page.named(key) != 0, page.promise(key, slot) == pool.promised(key, slot))


def _written(pool: Memory, holder: Number, index: Number, slot: Number) -> Formula:
    entry = pool.entry(holder, index)
    due = And(entry.page != NONE, entry.meaning(slot) != NONE)
    return Implies(due, pool.page(entry.page).content(slot) == entry.meaning(slot))


GIVEN = Clause("PAGE-1", "no page is no page", lambda memory, page: Implies(memory.exists(page), page != NONE))
"""A clause on the parts that no operation changes."""

INVARIANTS = (
    Clause(
        "MEM-RELEASE",
        "references are the tables' entries",
        lambda pool, page, holder: pool.page(page).holds(holder) == If(pool.held_at(holder, page), 1, 0),
    ),
    Clause("MEM-RELEASE", "pins are the readers'", _pinned),
    Clause("PAGE-2", "an entry is the store's page under its key, or has no name", _entry),
    Clause("PAGE-1", "a page without a name has one holder", _one_owner),
    Clause("STORE-1", "the store's keys are the names", _name),
    Clause("STORE-1", "the names are the store's keys", _found),
    Clause("STORE-1", "with a prefix all shorter ones are cached", _shorter),
    Clause("MEM-NAME", "a name promises what its key is the name of", _promises),
    Clause(
        "ACC-1",
        "the free list is the pages that have no holder and that no name finds",
        lambda pool, page: pool.is_free(page) == And(pool.exists(page), pool.page(page).free),
    ),
    Clause("DATA-1", "what counts as written is there", _written),
)
"""The invariants between the memory model and the policy, before and after each step."""
