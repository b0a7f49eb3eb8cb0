"""Steps: what all operations are made of.

A step asks for something (what the model judges, or the code sees to), tells events of whole sets of pages, and says
what the policy remembers afterwards. That an entry is private or the store's, that the free list is what nobody holds
or finds, that slots which count as written are: all this is shown, never asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kvspec.memory.proofs import page as law
from kvspec.memory.proofs.page import Judged, Page
from kvspec.memory.proofs.pool import Memory
from kvspec.memory.proofs.terms import (
    NONE,
    Formula,
    Map,
    Map2,
    Number,
    Set,
    Set2,
    all_of,
    among,
    any_of,
    choose,
    each,
    every,
    implies,
    negation,
    some,
)


@dataclass(frozen=True)
class Run:
    """An operation under way."""

    memory: Memory
    asked: list[tuple[str, Formula]] = field(default_factory=list)
    """What steps ask for."""
    granted: list[tuple[str, Formula]] = field(default_factory=list)
    """What the operation itself asks for: elsewhere it is refused, or goes another way."""
    told: list[tuple[str, Callable[[], Formula]]] = field(default_factory=list)
    """Events so far, and whether the law allows them."""
    between: list[Memory] = field(default_factory=list)
    """The pool after each event, and after each step."""

    def ask(self, what: str, condition: Formula) -> None:
        """What has to be so before a step."""
        self.asked.append((what, condition))

    def tell(self, what: str, pages: Set, event: Callable[[Page, Number], Judged]) -> "Run":
        """An event of all these pages, each for itself: they are different ones, so their order does not matter."""
        memory = self.memory

        def allowed() -> Formula:
            return each(pages, lambda page: event(memory.page(page), page)[0])

        def after(name: str) -> Callable[..., Any]:
            def value(page: Number, *rest: Number) -> Any:
                was, now = getattr(memory.page(page), name), getattr(event(memory.page(page), page)[1], name)
                return choose(pages(page), now(*rest), was(*rest)) if rest else choose(pages(page), now, was)

            return value

        told = replace(memory, **{part.name: after(part.name) for part in fields(Page)})
        return replace(self, memory=told, told=[*self.told, (what, allowed)], between=[*self.between, told])

    def then(self, **policy: Any) -> "Run":
        """What the policy remembers from now on."""
        memory = replace(self.memory, **policy)
        return replace(self, memory=memory, between=[*self.between, memory])


def _at(holder: Number, indices: Set) -> Callable[..., Formula]:
    """Whether an entry, or a slot of it, is a holder's and at these indices."""
    return lambda other, index, *_: all_of(other == holder, indices(index))


def _image(chosen: Set, function: Map, back: Map) -> Set:
    """What a function makes of the chosen ones; `back` is its inverse."""
    return lambda made: all_of(chosen(back(made)), function(back(made)) == made)


def _enter(run: Run, what: str, event: Any, holder: Number, indices: Set, pages: Map, where: Map, **entry: Any) -> Run:
    """Pages come into a holder's table, where nothing is yet; `where` leads back from them to their indices."""
    memory, mine, entered = run.memory, _at(holder, indices), _image(indices, pages, where)
    run.ask("no page there yet", each(indices, lambda index: negation(memory.has(holder, index))))
    run.ask("each page once", each(indices, lambda index: where(pages(index)) == index))
    return run.tell(what, entered, event).then(
        has=lambda *at: any_of(mine(*at), memory.has(*at)),
        table=among(mine, lambda _, index: pages(index), memory.table),
        place=among(lambda other, page: all_of(other == holder, entered(page)), lambda _, p: where(p), memory.place),
        **{name: among(mine, value, getattr(memory, name)) for name, value in entry.items()},
    )


def lock(run: Run, holder: Number, indices: Set, path: Map, where: Map) -> Run:
    """A holder shares the pages that the store has for `path(index)`."""
    memory = run.memory

    def page_at(index: Number) -> Number:
        return memory.at(path(index))

    run.ask("the store has them", each(indices, lambda index: page_at(index) != NONE))
    run.ask("not had already", each(indices, lambda index: negation(memory.held_at(holder, page_at(index)))))
    return _enter(
        run,
        "share",
        lambda page, number: law.share(page, holder, path(where(number)), False),
        *(holder, indices, page_at, where),
        shared=True,
        key=lambda _, index: path(index),
        valid=lambda _, index, slot: memory.promised(path(index), slot) != NONE,
        meaning=lambda _, index, slot: memory.promised(path(index), slot),
    )


def take(run: Run, holder: Number, indices: Set, new: Map, where: Map) -> Run:
    """Free pages `new(index)` become a holder's own."""
    memory, taken = run.memory, _image(indices, new, where)
    run.ask("from the free list", each(indices, lambda index: memory.is_free(new(index))))
    event = lambda page, _: law.take(page, holder)  # noqa: E731
    run = _enter(run, "take", event, holder, indices, new, where, shared=False, valid=False)
    return run.then(is_free=among(taken, False, memory.is_free))


def compute(run: Run, holder: Number, slots: Set2, labels: Map2) -> Run:
    """An operation writes slots of a holder's own pages, and reads all that counts as written."""
    memory = run.memory
    run.ask("its own pages", every(lambda i, slot: implies(slots(i, slot), memory.private(holder, i)), 2))
    run.ask("something is written", every(lambda i, slot: implies(slots(i, slot), labels(i, slot) != NONE), 2))

    def row(number: Number, function: Callable[..., Any]) -> Callable[..., Any]:
        """Of the index where the holder has a page."""
        return lambda slot: function(memory.place(holder, number), slot)

    def write(page: Page, number: Number) -> Judged:
        others = some(lambda other: all_of(other != holder, memory.holds(number, other) != 0))
        return law.write(page, holder, others, row(number, slots), row(number, labels))

    def is_written(page: Number) -> Formula:
        return all_of(memory.held_at(holder, page), some(row(page, slots)))

    def written(other: Number, index: Number, slot: Number) -> Formula:
        return all_of(other == holder, slots(index, slot))

    run = run.tell("begin, its writes", is_written, write).then(
        valid=lambda *at: any_of(written(*at), memory.valid(*at)),
        meaning=among(written, lambda _, index, slot: labels(index, slot), memory.meaning),
    )
    valid, meaning = run.memory.valid, run.memory.meaning

    def read(page: Page, number: Number) -> Judged:
        there, meant = row(number, lambda *at: valid(holder, *at)), row(number, lambda *at: meaning(holder, *at))
        return law.read(page, holder, there, meant)

    return run.tell("begin, its reads", lambda page: memory.held_at(holder, page), read)


def trim(run: Run, holder: Number, stays: Set2) -> Run:
    """Less counts as written in a holder's own pages."""
    memory = run.memory

    def still(other: Number, index: Number, slot: Number) -> Formula:
        return any_of(other != holder, memory.shared(other, index), stays(index, slot))

    return run.then(valid=lambda *at: all_of(memory.valid(*at), still(*at)))


def let_go(run: Run, holder: Number, indices: Set) -> Run:
    """A holder lets go of pages: its own become free, but for what is still read; the store's stay there."""
    memory, gone = run.memory, run.memory.entries(holder, indices)

    def frees(page: Number) -> Formula:
        private = negation(memory.shared(holder, memory.place(holder, page)))
        return all_of(gone(page), private, negation(memory.withheld(page)))

    return run.tell("release", gone, lambda page, _: law.release(page, holder)).then(
        is_free=among(frees, True, memory.is_free), has=among(_at(holder, indices), False, memory.has)
    )


def publish(run: Run, holder: Number, indices: Set, path: Map, back: Map) -> Run:
    """The store gets a holder's own pages as `path(index)`, and the holder goes on with them; `back` is the inverse."""
    memory, mine, keys = run.memory, _at(holder, indices), _image(indices, path, back)
    run.ask("its own to publish", each(indices, lambda index: memory.private(holder, index)))
    run.ask("unknown to the store", each(indices, lambda index: memory.at(path(index)) == NONE))
    run.ask("each key once", each(indices, lambda index: back(path(index)) == index))
    run.ask("whole and of these tokens", each(indices, lambda index: memory.whole(holder, index, path(index))))

    def continues(index: Number) -> Formula:
        parent = memory.parent(path(index))
        return any_of(parent == NONE, memory.at(parent) != NONE, keys(parent))

    run.ask("behind shorter ones", each(indices, continues))

    def event(page: Page, number: Number) -> Judged:
        key = path(memory.place(holder, number))
        return law.publish(page, key, False, lambda slot: memory.promised(key, slot))

    return run.tell("publish", memory.entries(holder, indices), event).then(
        at=among(keys, lambda key: memory.table(holder, back(key)), memory.at),
        shared=among(mine, True, memory.shared),
        key=among(mine, lambda _, index: path(index), memory.key),
    )


def hand_on(run: Run, old: Number, new: Number) -> Run:
    """All that a holder has goes to another, which has nothing."""
    memory = run.memory
    run.ask("somebody else", old != new)
    run.ask("nothing there", every(lambda index: negation(memory.has(new, index))))
    told = run.tell("pass_on", lambda page: memory.held_at(old, page), lambda page, _: law.pass_on(page, old, new))

    def moved(name: str) -> Callable[..., Any]:
        function = getattr(memory, name)
        return lambda holder, *rest: choose(holder == new, function(old, *rest), function(holder, *rest))

    has = moved("has")
    policy = {name: moved(name) for name in ("table", "place", "shared", "key", "valid", "meaning")}
    return told.then(**policy, has=lambda holder, index: all_of(holder != old, has(holder, index)))


def leave(run: Run, holder: Number) -> Run:
    """A holder is gone: it must have nothing in any pool."""
    run.ask("all is let go", every(lambda index: negation(run.memory.has(holder, index))))
    run.ask("it reads nothing", every(lambda page: run.memory.reads(page, holder) == 0))
    return run.tell("leave", lambda _: True, lambda page, _: law.leave(page, holder))


def drop(run: Run, keys: Set, back: Map) -> Run:
    """The store gives up pages that nobody has locked or reads; `back` leads from a page to its key."""
    memory, gone = run.memory, _image(keys, run.memory.at, back)

    def locks(holder: Number, index: Number) -> Formula:
        return all_of(memory.has(holder, index), memory.shared(holder, index), keys(memory.key(holder, index)))

    def needed(key: Number) -> Formula:
        return all_of(memory.at(key) != NONE, memory.parent(key) != NONE, keys(memory.parent(key)))

    run.ask("what the store has", each(keys, lambda key: memory.at(key) != NONE))
    run.ask("each page once", each(keys, lambda key: back(memory.at(key)) == key))
    run.ask("unlocked", every(lambda *entry: negation(locks(*entry)), 2))
    run.ask("unread", each(keys, lambda key: negation(memory.withheld(memory.at(key)))))
    run.ask("longer ones too", each(needed, keys))
    return run.tell("drop", gone, lambda page, number: law.drop(page, back(number))).then(
        is_free=among(gone, True, memory.is_free), at=among(keys, NONE, memory.at)
    )


def _count(memory: Memory, pages: Set, reader: Number, by: int) -> dict[str, Any]:
    """A reader asks once more, or less, for pages."""
    return {
        "reads": lambda page, other: memory.reads(page, other) + choose(all_of(pages(page), other == reader), by, 0),
        "readers": lambda page: memory.readers(page) + choose(pages(page), by, 0),
    }


def keep_for(run: Run, reader: Number, pages: Set) -> Run:
    """Pages are kept for a reader: a row for a launch, a cached state for who has locked its prefix."""
    memory = run.memory
    run.ask("in use", each(pages, lambda page: all_of(memory.exists(page), negation(memory.is_free(page)))))
    told = run.tell("share, pinned", pages, lambda page, _: law.share(page, reader, NONE, True))
    return told.then(**_count(memory, pages, reader, 1))


def let_read(run: Run, reader: Number, pages: Set) -> Run:
    """A reader needs pages no more: those that nobody else has become free."""
    memory = run.memory
    run.ask("kept for it", each(pages, lambda page: memory.reads(page, reader) > 0))
    run.ask("and not its own", each(pages, lambda page: negation(memory.held_at(reader, page))))

    def frees(page: Number) -> Formula:
        had = any_of(some(lambda holder: memory.held_at(holder, page)), some(lambda key: memory.at(key) == page))
        return all_of(pages(page), memory.readers(page) == 1, negation(had))

    told = run.tell("release, pinned", pages, lambda page, _: law.release(page, reader))
    return told.then(is_free=among(frees, True, memory.is_free), **_count(memory, pages, reader, -1))


STEPS: dict[str, Callable[..., Run]] = {
    step.__name__: step
    for step in (lock, take, compute, trim, let_go, publish, hand_on, leave, drop, keep_for, let_read)
}
