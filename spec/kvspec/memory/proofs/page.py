"""One page under the law: what each event does to it, when it is forbidden, and what holds whatever happens.

The law is local: an event acts on each page that it names by itself. Each function here is one of `kvspec.memory`, of
one page; it returns whether the law allows it and the page afterwards, forbidden or not. Tests hold it against the law.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from kvspec.memory.proofs.terms import (
    NONE,
    Formula,
    Map,
    Map2,
    Number,
    Set,
    all_of,
    among,
    any_of,
    choose,
    each,
    every,
    implies,
    negation,
    put,
    some,
)

PLANNED, THERE = 1, 2
"""What a name of a page says, if it is one."""
FREE, CACHED, HELD = 0, 1, 2


@dataclass(frozen=True)
class Page:
    """What the law remembers of one page. Content that is not told is left aside."""

    holds: Map
    """Holder -> references."""
    pins: Map
    references: Number
    """Of all holders, pins included."""
    named: Map
    """Key -> `PLANNED`, `THERE` or 0."""
    names: Number
    """How many keys name it."""
    promise: Map2
    """Key, slot -> label, or `NONE` where the name promises nothing."""
    content: Map
    """Slot -> label, or `NONE`: never written since the page was handed out."""
    kind: Number
    """As the pool's counters have it."""

    @property
    def free(self) -> Formula:
        """Whether nobody holds it and no name finds it."""
        return all_of(self.references == 0, self.names == 0)

    @property
    def kind_due(self) -> Number:
        """Whether it is held, cached or free."""
        return choose(self.references > 0, HELD, choose(self.names > 0, CACHED, FREE))

    def counted(self, **changed: Any) -> "Page":
        """The page with what has changed; the counters follow."""
        after = replace(self, **changed)
        return replace(after, kind=after.kind_due)

    def referred(self, holder: Number, shares: Number, pins: Number) -> "Page":
        """So many more references of a holder."""
        return self.counted(
            holds=put(self.holds, holder, self.holds(holder) + shares),
            pins=put(self.pins, holder, self.pins(holder) + pins),
            references=self.references + shares + pins,
        )

    def kept(self, key: Number) -> Formula:
        """Whether what a name promises is there."""
        return each(lambda slot: self.promise(key, slot) != NONE, lambda s: self.content(s) == self.promise(key, s))

    def refers(self, holder: Number) -> Formula:
        """Whether a holder has a reference."""
        return any_of(self.holds(holder) > 0, self.pins(holder) > 0)


Judged = tuple[Formula, Page]
"""Whether an event is allowed, and the page after it."""


def take(page: Page, holder: Number) -> Judged:
    """The allocator hands it out; what was in it counts no more, and no name finds it."""
    taken = page.referred(holder, 1, 0)
    return page.free, taken.counted(named=lambda _: 0, names=0, content=lambda _: NONE)


def share(page: Page, holder: Number, key: Number, pin: Formula) -> Judged:
    """One more reference, under a key or, with `NONE`, without."""
    found = all_of(negation(page.free), any_of(key == NONE, page.named(key) != 0))
    return found, page.referred(holder, choose(pin, 0, 1), choose(pin, 1, 0))


def _first(page: Page, holder: Number) -> tuple[Number, Number]:
    """Which of a holder's references goes first: a share (1, 0), a pin (0, 1), or none."""
    shares, pins = page.holds(holder) > 0, page.pins(holder) > 0
    return choose(shares, 1, 0), choose(all_of(negation(shares), pins), 1, 0)


def release(page: Page, holder: Number) -> Judged:
    """One reference less. After the last nobody is left to write what a name plans."""
    share, pin = _first(page, holder)
    kept = each(lambda key: page.named(key) == PLANNED, page.kept)
    return all_of(page.refers(holder), implies(page.references == 1, kept)), page.referred(holder, -share, -pin)


def pass_on(page: Page, old: Number, new: Number) -> Judged:
    """One reference changes hands, and stays what it is."""
    share, pin = _first(page, old)
    return page.refers(old), page.referred(old, -share, -pin).referred(new, share, pin)


def publish(page: Page, key: Number, planned: Formula, promise: Map) -> Judged:
    """It can be found by a name: what that promises is there, or somebody is left to write it."""
    held, was = page.references > 0, page.named(key)
    after = page.counted(
        named=put(page.named, key, choose(planned, PLANNED, THERE)),
        names=page.names + choose(was == 0, 1, 0),
        promise=lambda other, slot: choose(other == key, promise(slot), page.promise(other, slot)),
    )
    same = every(
        lambda slot: any_of(
            page.promise(key, slot) == NONE, promise(slot) == NONE, promise(slot) == page.promise(key, slot)
        )
    )
    allowed = all_of(negation(page.free), implies(was == THERE, same), any_of(all_of(planned, held), after.kept(key)))
    return allowed, after


def drop(page: Page, key: Number) -> Judged:
    """A name is withdrawn."""
    named = page.named(key) != 0
    return named, page.counted(named=put(page.named, key, 0), names=page.names - choose(named, 1, 0))


def write(page: Page, holder: Number, others: Formula, slots: Set, labels: Map) -> Judged:
    """An operation writes slots. `others`: whether somebody else shares it, too."""
    shared = all_of(others, negation(some(lambda key: page.named(key) == PLANNED)))

    def guarded(slot: Number) -> Formula:
        """Whether what is there may not become something else: a name's, or shared and no plan."""
        named = some(lambda key: all_of(page.named(key) != 0, page.promise(key, slot) == page.content(slot)))
        return all_of(slots(slot), page.content(slot) != NONE, any_of(shared, named))

    kept = each(guarded, lambda slot: labels(slot) == page.content(slot))
    return all_of(page.refers(holder), kept), replace(page, content=among(slots, labels, page.content))


def read(page: Page, holder: Number, slots: Set, labels: Map) -> Judged:
    """An operation reads slots, and means to find labels there."""
    found = each(slots, lambda slot: all_of(page.content(slot) != NONE, page.content(slot) == labels(slot)))
    return all_of(page.refers(holder), found), page


def unwritten(page: Page, slots: Set) -> Judged:
    """Slots were not written after all: what names promise is a plan again, which somebody has to keep."""
    after = replace(
        page,
        named=lambda key: choose(page.named(key) == THERE, PLANNED, page.named(key)),
        content=among(slots, NONE, page.content),
    )
    return any_of(page.references > 0, each(lambda key: after.named(key) == PLANNED, after.kept)), after


def leave(page: Page, holder: Number) -> Judged:
    """A holder is gone."""
    return all_of(page.holds(holder) == 0, page.pins(holder) == 0), page


class Clause(NamedTuple):
    """A formula that must hold for all numbers."""

    rule: str
    what: str
    variables: int
    body: Callable[..., Formula]
    """Of the state and that many numbers."""


def _counted(page: Page, holder: Number, key: Number) -> Formula:
    counts = (page.holds(holder), page.pins(holder), page.references, page.names, page.named(key))
    return all_of(*(count >= 0 for count in counts))


def _there(page: Page, key: Number) -> Formula:
    return implies(page.named(key) == THERE, page.kept(key))


def _left(page: Page, key: Number) -> Formula:
    return implies(all_of(page.named(key) != 0, page.references == 0), page.kept(key))


INVARIANTS = (
    Clause("MEM-COUNT", "no count is less than nothing", 2, _counted),
    Clause("MEM-COUNT", "free, cached and held pages are counted as such", 0, lambda page: page.kind == page.kind_due),
    Clause("MEM-NAME", "a name says that it is kept, or planned", 1, lambda page, key: page.named(key) <= THERE),
    Clause("MEM-NAME", "what is not only planned is there", 1, _there),
    Clause("MEM-NAME", "what a name promises is there, or somebody is left to write it", 1, _left),
)
"""What holds of a page as long as nothing forbidden happens; the counts hold whatever happens."""


def follows(before: Page, after: Page, holders: tuple[Number, ...], keys: tuple[Number, ...]) -> tuple[Clause, ...]:
    """The sums follow what they are the sums of, as the event changes nothing for others than these."""

    def change(count: Callable[[Page, Number], Number], numbers: tuple[Number, ...]) -> Number:
        return sum(count(after, number) - count(before, number) for number in numbers)

    def stays(count: Callable[[Page, Number], Number], numbers: tuple[Number, ...]) -> Callable[..., Formula]:
        return lambda _, other: any_of(
            *(other == number for number in numbers), count(after, other) == count(before, other)
        )

    def held(page: Page, holder: Number) -> Number:
        return page.holds(holder) + page.pins(holder)

    def named(page: Page, key: Number) -> Number:
        return choose(page.named(key) != 0, 1, 0)

    references, names = after.references - before.references, after.names - before.names
    return (
        Clause("MEM-COUNT", "references change as the holders' do", 0, lambda _: references == change(held, holders)),
        Clause("MEM-COUNT", "others hold what they held", 1, stays(held, holders)),
        Clause("MEM-COUNT", "names are counted as they come and go", 0, lambda _: names == change(named, keys)),
        Clause("MEM-COUNT", "other names stay", 1, stays(named, keys)),
    )
