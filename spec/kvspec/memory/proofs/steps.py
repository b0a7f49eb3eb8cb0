"""The steps of which all operations consist.

A step has preconditions (the model checks them, or the code ensures them), emits events of whole sets of pages, and
gives the state of the policy after it. Some facts are proved and are never preconditions: that an entry is private or
the store's, that the free list has the pages without holders and names, and that slots that count as written are
written.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from z3 import And, If, Not, Or  # type: ignore[import-untyped]

from kvspec.memory.proofs import page as checker
from kvspec.memory.proofs.page import Page, Verdict
from kvspec.memory.proofs.pool import Entry, Memory
from kvspec.memory.proofs.terms import (
    NONE,
    Formula,
    Map,
    Map2,
    Number,
    Set,
    Set2,
    among,
    every,
    everything,
    image,
    some,
)

Event = Callable[[Page, Number], Verdict]
"""An event of a page, as a function of the page and its index or key."""


@dataclass(frozen=True)
class Run:
    """An operation in progress."""

    memory: Memory
    asked: list[tuple[str, Formula]] = field(default_factory=list)
    """The preconditions of steps."""
    granted: list[tuple[str, Formula]] = field(default_factory=list)
    """The preconditions of the operation: without them it is refused, or takes another way."""
    emitted: list[tuple[str, Formula, Memory]] = field(default_factory=list)
    """The events so far, each with whether it is allowed, and the pool after it."""

    def ask(self, what: str, *conditions: Callable[..., Formula]) -> None:
        """Add a precondition of a step: `every` of the conditions."""
        self.asked.append((what, every(*conditions)))

    def emit(self, what: str, pages: Set, event: Event, whence: Map = lambda page: page) -> "Run":
        """Emit an event for each of these pages. They are different pages, so their order does not matter."""
        was = self.memory.page
        allowed = every(pages, lambda page: event(was(page), whence(page))[0])
        memory = replace(self.memory, page=among(pages, lambda page: event(was(page), whence(page))[1], was))
        return replace(self, memory=memory, emitted=[*self.emitted, (what, allowed, memory)])

    def then(self, **policy: Any) -> "Run":
        """Change the state of the policy."""
        return replace(self, memory=replace(self.memory, **policy))

    def enter(self, holder: Number, indices: Set, entry: Callable[[Number], Entry]) -> "Run":
        """Set the entries of a holder's table at these indices."""
        mine = lambda other, index: And(other == holder, indices(index))
        return self.then(entry=among(mine, lambda _, index: entry(index), self.memory.entry))


def _fill(run: Run, what: str, event: Event, holder: Number, indices: Set, where: Map, entry: Any) -> Run:
    """Enter pages into a holder's table, at empty indices; `where` leads from the pages to their indices."""
    memory, entered = run.memory, image(indices, lambda index: entry(index).page, where)
    run.ask("no page there yet", indices, lambda index: memory.entry(holder, index).page == NONE)
    run.ask("each page once", indices, lambda index: where(entry(index).page) == index)
    there = among(lambda other, page: And(other == holder, entered(page)), lambda _, page: where(page), memory.place)
    return run.emit(what, entered, event, where).then(place=there).enter(holder, indices, entry)


def lock(run: Run, holder: Number, indices: Set, path: Map, where: Map) -> Run:
    """A holder shares the pages that the store has for `path(index)`."""
    memory = run.memory
    run.ask("the store has them", indices, lambda index: memory.at(path(index)) != NONE)
    run.ask("not had already", indices, lambda index: Not(memory.held_at(holder, memory.at(path(index)))))
    entry = lambda index: Entry(memory.at(path(index)), path(index), partial(memory.promised, path(index)))
    event = lambda page, index: checker.share(page, holder, path(index), False)
    return _fill(run, "share", event, holder, indices, where, entry)


def take(run: Run, holder: Number, indices: Set, new: Map, where: Map) -> Run:
    """Free pages `new(index)` become a holder's own."""
    memory, taken = run.memory, image(indices, new, where)
    run.ask("from the free list", indices, lambda index: memory.is_free(new(index)))
    entry = lambda index: Entry(new(index), NONE, lambda _: NONE)
    run = _fill(run, "take", lambda page, _: checker.take(page, holder), holder, indices, where, entry)
    return run.then(is_free=lambda page: And(memory.is_free(page), Not(taken(page))))


def compute(run: Run, holder: Number, labels: Map2) -> Run:
    """An operation writes the labelled slots of a holder's own pages, and reads all slots that count as written."""
    memory, where = run.memory, partial(run.memory.place, holder)
    written = lambda index, slot: labels(index, slot) != NONE
    run.ask("its own pages", written, lambda index, _: memory.entry(holder, index).private)

    def entry(index: Number) -> Entry:
        was = memory.entry(holder, index)
        return replace(was, meaning=among(partial(written, index), partial(labels, index), was.meaning))

    pages = memory.entries(holder, lambda index: some(partial(written, index)))
    write = lambda page, index: checker.write(page, holder, partial(labels, index))
    read = lambda page, index: checker.read(page, holder, entry(index).meaning)
    run = run.emit("begin, its writes", pages, write, where)
    run = run.emit("begin, its reads", memory.entries(holder, everything), read, where)
    return run.enter(holder, everything, entry)


def trim(run: Run, holder: Number, stays: Set2) -> Run:
    """Fewer slots of a holder's own pages count as written."""
    entry = partial(run.memory.entry, holder)
    kept = lambda index, slot: Or(entry(index).key != NONE, stays(index, slot))
    cut = lambda index: among(partial(kept, index), entry(index).meaning, lambda _: NONE)
    return run.enter(holder, everything, lambda index: replace(entry(index), meaning=cut(index)))


def let_go(run: Run, holder: Number, indices: Set) -> Run:
    """A holder releases pages: its own become free, unless they are still read; the store's stay there."""
    memory, entry = run.memory, partial(run.memory.entry, holder)
    own = memory.entries(holder, lambda index: And(indices(index), entry(index).private))
    run = run.emit("release", memory.entries(holder, indices), lambda page, _: checker.release(page, holder))
    run = run.enter(holder, indices, lambda index: replace(entry(index), page=NONE))
    return run.then(is_free=lambda page: Or(memory.is_free(page), And(own(page), Not(memory.withheld(page)))))


def publish(run: Run, holder: Number, indices: Set, path: Map, back: Map) -> Run:
    """The store gets a holder's own pages as `path(index)`, and the holder keeps using them; `back` is the inverse."""
    memory, entry, keys = run.memory, partial(run.memory.entry, holder), image(indices, path, back)
    promised = lambda index, slot: memory.promised(path(index), slot)
    due = lambda index, slot: And(indices(index), promised(index, slot) != NONE)
    cached = lambda key: Or(key == NONE, memory.at(key) != NONE, keys(key))
    run.ask("its own to publish", indices, lambda index: entry(index).private)
    run.ask("unknown to the store", indices, lambda index: And(path(index) != NONE, memory.at(path(index)) == NONE))
    run.ask("each key once", indices, lambda index: back(path(index)) == index)
    run.ask("whole and of these tokens", due, lambda index, slot: entry(index).meaning(slot) == promised(index, slot))
    run.ask("behind shorter ones", indices, lambda index: cached(memory.parent(path(index))))
    event = lambda page, index: checker.publish(page, path(index), False, partial(promised, index))
    run = run.emit("publish", memory.entries(holder, indices), event, partial(memory.place, holder))
    run = run.enter(holder, indices, lambda index: replace(entry(index), key=path(index)))
    return run.then(at=among(keys, lambda key: entry(back(key)).page, memory.at))


def hand_on(run: Run, old: Number, new: Number) -> Run:
    """All pages of a holder pass to another, which has none."""
    memory, whose = run.memory, lambda holder: If(holder == new, old, holder)
    run.ask("nothing there", lambda index: memory.entry(new, index).page == NONE)
    gone = lambda index: replace(memory.entry(old, index), page=NONE)
    run = run.emit("transfer", memory.entries(old, everything), lambda page, _: checker.transfer(page, old, new))
    run = run.then(place=lambda holder, page: memory.place(whose(holder), page))
    return run.then(entry=lambda holder, index: memory.entry(whose(holder), index)).enter(old, everything, gone)


def end_holder(run: Run, holder: Number) -> Run:
    """A holder ends: it must have nothing in any pool."""
    run.ask("all is let go", lambda index: run.memory.entry(holder, index).page == NONE)
    run.ask("it reads nothing", lambda page: run.memory.reads(page, holder) == 0)
    return run.emit("end_holder", everything, lambda page, _: checker.end_holder(page, holder))


def drop(run: Run, keys: Set, back: Map) -> Run:
    """The store gives up pages without locks and readers; `back` leads from a page to its key."""
    memory, gone = run.memory, image(keys, run.memory.at, back)
    has = lambda holder, index: memory.entry(holder, index).page != NONE
    stays = lambda key: And(memory.at(key) != NONE, memory.parent(key) != NONE, Not(keys(key)))
    run.ask("what the store has", keys, lambda key: memory.at(key) != NONE)
    run.ask("each page once", keys, lambda key: back(memory.at(key)) == key)
    run.ask("unlocked", has, lambda holder, index: Not(keys(memory.entry(holder, index).key)))
    run.ask("unread", keys, lambda key: Not(memory.withheld(memory.at(key))))
    run.ask("longer ones too", stays, lambda key: Not(keys(memory.parent(key))))
    run = run.emit("drop", gone, checker.drop, back).then(at=among(keys, lambda _: NONE, memory.at))
    return run.then(is_free=lambda page: Or(memory.is_free(page), gone(page)))


def _asked(memory: Memory, pages: Set, reader: Number, by: int) -> Map2:
    """`reads` after a reader has requested these pages once more, or once less."""
    return lambda page, other: memory.reads(page, other) + If(And(pages(page), other == reader), by, 0)


def keep_for(run: Run, reader: Number, pages: Set) -> Run:
    """Pages are kept for a reader: a row for a launch, a cached state for the holder that has locked its prefix."""
    memory = run.memory
    run.ask("in use", pages, lambda page: And(memory.exists(page), Not(memory.is_free(page))))
    run = run.emit("share, pinned", pages, lambda page, _: checker.share(page, reader, NONE, True))
    return run.then(reads=_asked(memory, pages, reader, 1))


def let_read(run: Run, reader: Number, pages: Set) -> Run:
    """A reader no longer needs pages: those without another holder become free."""
    memory, after = run.memory, _asked(run.memory, pages, reader, -1)
    run.ask("kept for it", pages, lambda page: memory.reads(page, reader) > 0)
    run.ask("and not its own", pages, lambda page: Not(memory.held_at(reader, page)))
    had = lambda page: Or(some(lambda holder: memory.held_at(holder, page)), some(lambda key: memory.at(key) == page))
    read = lambda page: some(lambda other: after(page, other) > 0)
    frees = lambda page: And(pages(page), Not(had(page)), Not(read(page)))
    run = run.emit("release, pinned", pages, lambda page, _: checker.release(page, reader))
    return run.then(reads=after, is_free=lambda page: Or(memory.is_free(page), frees(page)))


STEPS: dict[str, Callable[..., Run]] = {
    step.__name__: step
    for step in (lock, take, compute, trim, let_go, publish, hand_on, end_holder, drop, keep_for, let_read)
}
