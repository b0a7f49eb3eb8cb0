"""Who owns what, as functions from index to owner: the abstract state that `partition` steps over.

Its numbers are z3 terms in a proof, where nothing bounds them, and Python integers in the tests that hold it against
the executable model. The few logical connectives here fold constants, so that the same code serves both.

All things are numbered: pages, window pages, state slots, rows, prefixes, records, requests, sessions. A function is
total, and says nothing where the invariants do not reach.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import z3  # type: ignore[import-untyped]

Number: TypeAlias = Annotated[Any, "n"]
"""A Python integer or a z3 term."""
Formula: TypeAlias = Annotated[Any, "f"]
"""A Python truth value or a z3 formula."""
Map: TypeAlias = Annotated[Callable[[Any], Any], "nn"]
"""From number to number. The letters tell a proof which unknown to put in."""
Set: TypeAlias = Annotated[Callable[[Any], Any], "nf"]
"""From number to formula."""
Table: TypeAlias = Annotated[Callable[[Any, Any], Any], "nnn"]
"""From two numbers to a number."""

NONE = -1
"""No record, no request, no session, no window side, no state slot."""
ROOT = 0
"""The empty prefix."""

FREE, STORE, PRIVATE = 0, 1, 2
"""What a page is."""
RECORD, WITHHELD = 1, 2
"""What a row is, if it is not `FREE`."""
OF_PREFIX, OF_RECORD, OF_REQUEST = -1, 1, 2
"""Whose a state slot is, if it is not `FREE`: a cached prefix's, a record's, a waiting request's without a row. Small
numbers, like all of these: counterexamples are looked for among small ones."""
HELD, LENT, SLOT = 0, 1, 2
"""Who has a record: a request that began it, a request that a slot has lent it to, an idle session slot."""


def all_of(*parts: Formula) -> Formula:
    """Conjunction."""
    open_parts = [part for part in parts if not isinstance(part, bool)]
    if not all(part for part in parts if isinstance(part, bool)):
        return False
    return z3.And(*open_parts) if open_parts else True


def any_of(*parts: Formula) -> Formula:
    """Disjunction."""
    return negation(all_of(*map(negation, parts)))


def negation(part: Formula) -> Formula:
    """Negation."""
    return not part if isinstance(part, bool) else z3.Not(part)


def implies(condition: Formula, consequence: Formula) -> Formula:
    """Implication."""
    return any_of(negation(condition), consequence)


def choose(condition: Formula, then: Any, otherwise: Any) -> Any:
    """`then` where the condition holds, else `otherwise`: two numbers or two formulas."""
    if isinstance(condition, bool):
        return then if condition else otherwise
    return z3.If(condition, then, otherwise)


def within(low: Number, number: Number, end: Number) -> Formula:
    """`low <= number < end`."""
    return all_of(low <= number, number < end)


def put(function: Callable[[Number], Any], place: Number, value: Any) -> Callable[[Number], Any]:
    """The function that differs from `function` in one place."""
    return lambda number: choose(number == place, value, function(number))


def clamp(low: Number, number: Number, end: Number) -> Number:
    """The number nearest to `number` in `low..end`, for `low <= end`."""
    return choose(number < low, low, choose(number < end, number, end))


@dataclass(frozen=True)
class Partition:
    """Who owns what. Lengths are in pages."""

    num_pages: Number
    num_rows: Number
    windowed: Formula
    """Whether there is a sliding window, so that new pages have window sides."""
    num_window_pages: Number
    num_states: Number
    states_each: Number
    """State slots of each record: the one that it computes in, and those that keep states."""

    page_kind: Map
    page_owner: Map
    """Of a private page the record, of a store's page the prefix."""
    page_index: Map
    """Of a private page its index in the record's block table."""

    side: Map
    """Of a page the window page behind it, or `NONE`."""
    behind: Map
    """Of a window page the page that it is behind, or `NONE`: it is free."""

    state_kind: Map
    state_owner: Map
    state_index: Map
    """Of a record's state slot its index among them."""

    cached: Set
    """Prefixes that the store has."""
    page: Map
    """Of a cached prefix the page that holds its last tokens."""
    locks: Map
    """Of a prefix the locks on exactly it."""
    state: Map
    """Of a prefix the slot of the state after it, or `NONE`."""
    depth: Map
    """Of a prefix its length."""
    ancestor: Table
    """Of a prefix the shorter one of the given length."""

    live: Set
    """Records."""
    row: Map
    locked: Map
    first: Map
    """Of a record the number of pages that are the store's."""
    last: Map
    """Of a record the number of pages in its block table."""
    cursor: Map
    """Of a record the number of pages that have given their window side back, where that is more than `first`."""
    table: Table
    states: Table
    """Of a record its state slots, by index."""
    role: Map
    holder: Map

    present: Set
    """Requests."""
    session_of: Map
    record_of: Map
    running: Set
    matched: Set
    early: Map
    """Of a request the state slot that it has without a row, or `NONE`."""

    is_open: Set
    """Sessions."""
    slot: Map
    turn: Map
    closing: Set

    row_kind: Map
    row_of: Map
    """Of a row that is held the record."""
    reads: Map
    """Of a row the number of launches in flight that read it."""

    domain: Sequence[int] | None = None
    """All numbers there are; `None`: the integers."""

    def every(self, body: Set) -> Formula:
        """Whether all numbers are such."""
        if self.domain is not None:
            return all_of(*map(body, self.domain))
        number = z3.FreshInt()
        return z3.ForAll(number, body(number))

    def is_page(self, page: Number) -> Formula:
        """Whether there is such a page."""
        return within(1, page, self.num_pages + 1)

    def is_row(self, row: Number) -> Formula:
        """Whether there is such a row."""
        return within(0, row, self.num_rows)

    def is_window_page(self, page: Number) -> Formula:
        """Whether there is such a window page."""
        return within(1, page, self.num_window_pages + 1)

    def is_state(self, slot: Number) -> Formula:
        """Whether there is such a state slot."""
        return within(1, slot, self.num_states + 1)

    def sides_from(self, record: Number, low: Number, end: Number) -> Number:
        """Where in `[low, end)` of a block table the window sides begin: at the cursor, if it is there."""
        return choose(self.windowed, clamp(low, self.cursor(record), end), end)

    def private(self, page: Number, record: Number) -> Formula:
        """Whether `page` is a private page of `record`."""
        return all_of(self.is_page(page), self.page_kind(page) == PRIVATE, self.page_owner(page) == record)

    def covers(self, lock: Number, prefix: Number) -> Formula:
        """Whether a lock on the first prefix covers the second."""
        return all_of(self.depth(prefix) <= self.depth(lock), self.ancestor(lock, self.depth(prefix)) == prefix)


@dataclass(frozen=True)
class Part:
    """A set that is numbered one to one: `item` leads from each number of `index` to an element, `place` back."""

    index: Set
    size: Number
    """Of `index`."""
    item: Map
    place: Map

    def contains(self, element: Number) -> Formula:
        """Whether the element is in the set."""
        return all_of(self.index(self.place(element)), self.item(self.place(element)) == element)


def interval(low: Number, end: Number, item: Map, place: Map) -> Part:
    """The set numbered by `low..end - 1`."""
    return Part(lambda number: within(low, number, end), end - low, item, place)


def single(element: Number, here: Formula) -> Part:
    """The set of one element, or the empty set."""
    return Part(lambda index: all_of(index == 0, here), choose(here, 1, 0), lambda _: element, lambda _: 0)


def itself(index: Set, size: Number) -> Part:
    """The set that is its own index set."""
    return Part(index, size, lambda number: number, lambda number: number)


COLLECTIONS: dict[str, Callable[[Partition, Number], Formula]] = {
    "free pages": lambda state, page: all_of(state.is_page(page), state.page_kind(page) == FREE),
    "cached prefixes": lambda state, prefix: state.cached(prefix),
    "free rows": lambda state, row: all_of(state.is_row(row), state.row_kind(row) == FREE),
    "withheld rows": lambda state, row: all_of(state.is_row(row), state.row_kind(row) == WITHHELD),
    "free window pages": lambda state, page: all_of(state.is_window_page(page), state.behind(page) == NONE),
    "cached window sides": lambda state, prefix: all_of(state.cached(prefix), state.side(state.page(prefix)) != NONE),
    "free states": lambda state, slot: all_of(state.is_state(slot), state.state_kind(slot) == FREE),
    "cached states": lambda state, prefix: state.state(prefix) != NONE,
    "early states": lambda state, request: state.early(request) != NONE,
}
"""What is counted index by index. What records hold is counted record by record."""


@dataclass(frozen=True)
class Step:
    """One way in which an operation may go."""

    guard: dict[str, Formula]
    """What must hold before; otherwise the operation is refused, or goes another way."""
    after: Partition
    record: Number = NONE
    """The one record whose lengths, lock or holder may change."""
    joins: dict[str, list[Part]] = field(default_factory=dict)
    """What comes to each collection."""
    leaves: dict[str, list[Part]] = field(default_factory=dict)
    """What goes from each collection."""

    def then(self, other: "Step") -> "Step":
        """This step, then one that begins in `self.after` and joins or leaves something else of the same record."""
        return Step(
            {**self.guard, **other.guard},
            other.after,
            self.record,
            {name: [*self.joins.get(name, []), *other.joins.get(name, [])] for name in COLLECTIONS},
            {name: [*self.leaves.get(name, []), *other.leaves.get(name, [])] for name in COLLECTIONS},
        )


Steps = dict[str, Step]
"""The ways in which an operation may go, by name."""
