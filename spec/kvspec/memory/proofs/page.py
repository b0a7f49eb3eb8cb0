"""One page in the memory model: the effect of each event, whether it is forbidden, and the invariants.

The memory model is local: an event acts on each page that it names separately. Each function here is one of
`kvspec.memory`, for one page. It returns whether the event is allowed, and the page after it in either case. Tests
compare it with the checker.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from z3 import And, If, Implies, Not, Or  # type: ignore[import-untyped]

from kvspec.memory.proofs.terms import NONE, Formula, Map, Map2, Number, Set, among, every, put, some

PLANNED, THERE = 1, 2
"""The states of a page's name; 0: the key does not name the page."""
FREE, CACHED, HELD = 0, 1, 2


@dataclass(frozen=True)
class Page:
    """The state of one page, without unknown content."""

    holds: Map
    """Holder -> references."""
    pins: Map
    references: Number
    """The references of all holders, including pins."""
    named: Map
    """Key -> `PLANNED`, `THERE` or 0."""
    names: Number
    """The number of keys that name the page."""
    promise: Map2
    """Key, slot -> label; `NONE`: the name promises nothing there."""
    content: Map
    """Slot -> label; `NONE`: not written since the page was allocated."""
    kind: Number
    """Its kind in the pool's counters."""

    @property
    def free(self) -> Formula:
        """Whether the page has no holder and no name."""
        return And(self.references == 0, self.names == 0)

    @property
    def kind_due(self) -> Number:
        """The kind that it should have: held, cached or free."""
        return If(self.references > 0, HELD, If(self.names > 0, CACHED, FREE))

    def counted(self, **changed: Any) -> "Page":
        """The page with these changes; the counters follow."""
        after = replace(self, **changed)
        return replace(after, kind=after.kind_due)

    def referred(self, holder: Number, shares: Number, pins: Number) -> "Page":
        """The page with so many more references of a holder."""
        return self.counted(
            holds=put(self.holds, holder, self.holds(holder) + shares),
            pins=put(self.pins, holder, self.pins(holder) + pins),
            references=self.references + shares + pins,
        )

    def kept(self, key: Number) -> Formula:
        """Whether the page has the content that a name promises."""
        return every(lambda slot: Or(self.promise(key, slot) == NONE, self.content(slot) == self.promise(key, slot)))

    def refers(self, holder: Number) -> Formula:
        """Whether a holder has a reference."""
        return Or(self.holds(holder) > 0, self.pins(holder) > 0)


Verdict = tuple[Formula, Page]
"""Whether an event is allowed, and the page after it."""


def take(page: Page, holder: Number) -> Verdict:
    """The allocator hands the page out. Its former content no longer counts, and it has no name."""
    taken = page.referred(holder, 1, 0)
    return page.free, taken.counted(named=lambda _: 0, names=0, content=lambda _: NONE)


def share(page: Page, holder: Number, key: Number, pin: Formula) -> Verdict:
    """Add a reference, under a key, or without one if it is `NONE`."""
    found = And(Not(page.free), Or(key == NONE, page.named(key) != 0))
    return found, page.referred(holder, If(pin, 0, 1), If(pin, 1, 0))


def _first(page: Page, holder: Number) -> tuple[Number, Number]:
    """The kind of a holder's references that goes first: a share (1, 0), a pin (0, 1), or none."""
    shares, pins = page.holds(holder) > 0, page.pins(holder) > 0
    return If(shares, 1, 0), If(And(Not(shares), pins), 1, 0)


def release(page: Page, holder: Number) -> Verdict:
    """Remove a reference. At the last reference the content of planned names must be written."""
    share, pin = _first(page, holder)
    kept = every(lambda key: page.named(key) == PLANNED, page.kept)
    return And(page.refers(holder), Implies(page.references == 1, kept)), page.referred(holder, -share, -pin)


def transfer(page: Page, old: Number, new: Number) -> Verdict:
    """Pass a reference to another holder. A share stays a share, and a pin a pin."""
    share, pin = _first(page, old)
    return page.refers(old), page.referred(old, -share, -pin).referred(new, share, pin)


def publish(page: Page, key: Number, planned: Formula, promise: Map) -> Verdict:
    """Name the page: it has the promised content, or a holder remains that can write it."""
    held, was = page.references > 0, page.named(key)
    after = page.counted(
        named=put(page.named, key, If(planned, PLANNED, THERE)),
        names=page.names + If(was == 0, 1, 0),
        promise=among(lambda other, _: other == key, lambda _, slot: promise(slot), page.promise),
    )
    old = page.promise
    same = every(lambda slot: Or(old(key, slot) == NONE, promise(slot) == NONE, promise(slot) == old(key, slot)))
    return And(Not(page.free), Implies(was == THERE, same), Or(And(planned, held), after.kept(key))), after


def drop(page: Page, key: Number) -> Verdict:
    """Withdraw a name."""
    named = page.named(key) != 0
    return named, page.counted(named=put(page.named, key, 0), names=page.names - If(named, 1, 0))


def write(page: Page, holder: Number, labels: Map) -> Verdict:
    """An operation writes the slots that have a label."""
    two = some(lambda one: And(page.holds(one) > 0, some(lambda other: And(other != one, page.holds(other) > 0))))
    shared = And(two, Not(some(lambda key: page.named(key) == PLANNED)))

    def guarded(slot: Number) -> Formula:
        """Whether the slot's content must not change: a name promises it, or it is shared and no name is planned."""
        named = some(lambda key: And(page.named(key) != 0, page.promise(key, slot) == page.content(slot)))
        return And(labels(slot) != NONE, page.content(slot) != NONE, Or(shared, named))

    kept = every(guarded, lambda slot: labels(slot) == page.content(slot))
    after = replace(page, content=among(lambda slot: labels(slot) != NONE, labels, page.content))
    return And(page.refers(holder), kept), after


def read(page: Page, holder: Number, labels: Map) -> Verdict:
    """An operation reads the slots that have a label, and expects this label there."""
    found = every(lambda slot: Or(labels(slot) == NONE, labels(slot) == page.content(slot)))
    return And(page.refers(holder), found), page


def unwritten(page: Page, slots: Set) -> Verdict:
    """Slots were not written after all: their names are planned again, which needs a writer."""
    after = replace(
        page,
        named=lambda key: If(page.named(key) == THERE, PLANNED, page.named(key)),
        content=among(slots, lambda _: NONE, page.content),
    )
    return Or(page.references > 0, every(lambda key: after.named(key) == PLANNED, after.kept)), after


def end_holder(page: Page, holder: Number) -> Verdict:
    """A holder ends."""
    return And(page.holds(holder) == 0, page.pins(holder) == 0), page


class Clause(NamedTuple):
    """A formula that must hold for all numbers."""

    rule: str
    what: str
    body: Callable[..., Formula]
    """A function of the state and some numbers."""


def _counts(page: Page, holder: Number, key: Number) -> Formula:
    counts = (page.holds(holder), page.pins(holder), page.references, page.names, page.named(key))
    return And(*(count >= 0 for count in counts))


def _there(page: Page, key: Number) -> Formula:
    return Implies(page.named(key) == THERE, page.kept(key))


def _left(page: Page, key: Number) -> Formula:
    return Implies(And(page.named(key) != 0, page.references == 0), page.kept(key))


INVARIANTS = (
    Clause("MEM-COUNT", "no count is less than nothing", _counts),
    Clause("MEM-COUNT", "free, cached and held pages are counted as such", lambda page: page.kind == page.kind_due),
    Clause("MEM-NAME", "a name says that it is kept, or planned", lambda page, key: page.named(key) <= THERE),
    Clause("MEM-NAME", "what is not only planned is there", _there),
    Clause("MEM-NAME", "the content that a name promises is there, or a writer is left for it", _left),
)
"""Invariants of a page without forbidden events; those of the counts hold in any case."""


class Sum(NamedTuple):
    """A count of a page that is the sum of others, one for each holder or key."""

    what: str
    whole: Callable[[Page], Number]
    part: Callable[[Page, Number], Number]


SUMS = (
    Sum("references", lambda page: page.references, lambda page, holder: page.holds(holder) + page.pins(holder)),
    Sum("names", lambda page: page.names, lambda page, key: If(page.named(key) != 0, 1, 0)),
)
