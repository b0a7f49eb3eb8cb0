"""Operations as lists of events, pool by pool: which pages the policy means, and that the law allows each event.

A pool of any kind (pages of tokens, window pages, state slots, rows) looks the same here: holders have tables, whose
entries are their own or the store's; the allocator has a free list; the store has keys. A *step* is what all operations
are made of: it asks for something (what the model judges, or the code sees to), tells events of whole sets of pages,
and says what the policy remembers afterwards. That an entry is private or the store's, that the free list is what
nobody holds or finds, that slots which count as written are: all this is shown, never asked for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kvspec.memory.proofs import page as law
from kvspec.memory.proofs.page import THERE, Clause, Judged, Page
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
    every,
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

    def withheld(self, page: Number) -> Formula:
        """Whether somebody reads it."""
        return self.readers(page) > 0


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

    def grant(self, what: str, condition: Formula) -> None:
        """What has to be so before an operation."""
        self.granted.append((what, condition))

    def grant_what(self, step: Callable[..., "Run"], *arguments: Any) -> None:
        """What a later step asks for has to be so already."""
        self.granted.extend(step(Run(self.memory), *arguments).asked)

    def tell(self, what: str, pages: Set, event: Callable[[Page, Number], Judged]) -> "Run":
        """An event of all these pages, each for itself: they are different ones, so their order does not matter."""
        memory = self.memory

        def allowed() -> Formula:
            return every(lambda page: implies(pages(page), event(memory.page(page), page)[0]))

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

    def each(self, indices: Set, condition: Callable[[Number], Formula]) -> Formula:
        """Whether it is so at each of these indices of a table."""
        return every(lambda index: implies(indices(index), condition(index)))


def entries(memory: Memory, holder: Number, indices: Set) -> Set:
    """The pages that a holder's table has at these indices."""
    return lambda page: all_of(memory.held_at(holder, page), indices(memory.place(holder, page)))


def initial(memory: Memory) -> Memory:
    """All is free. Which pages there are, and what a key is the name of, stays open."""
    nothing: dict[str, Any] = dict.fromkeys(("holds", "pins", "named", "reads"), lambda *_: 0)
    nothing |= dict.fromkeys(("references", "names", "readers", "kind"), lambda _: 0)
    nothing |= dict.fromkeys(("content", "promise"), lambda *_: NONE)
    return replace(memory, **nothing, at=lambda _: NONE, has=lambda *_: False, is_free=memory.exists)


# Steps


def lock(run: Run, holder: Number, indices: Set, path: Map, where: Map) -> Run:
    """A holder shares the pages that the store has for `path(index)`; `where` leads back to the index."""
    memory = run.memory
    run.ask("no page there yet", run.each(indices, lambda index: negation(memory.has(holder, index))))
    run.ask("the store has them", run.each(indices, lambda index: memory.at(path(index)) != NONE))
    run.ask("each key once", run.each(indices, lambda index: where(memory.at(path(index))) == index))
    run.ask(
        "not had already", run.each(indices, lambda index: negation(memory.held_at(holder, memory.at(path(index)))))
    )

    def found(page: Number) -> Formula:
        return all_of(indices(where(page)), memory.at(path(where(page))) == page)

    told = run.tell("share", found, lambda page, number: law.share(page, holder, path(where(number)), False))

    def mine(other: Number, index: Number) -> Formula:
        return all_of(other == holder, indices(index))

    return told.then(
        has=lambda other, index: any_of(mine(other, index), memory.has(other, index)),
        table=lambda other, index: choose(mine(other, index), memory.at(path(index)), memory.table(other, index)),
        place=lambda other, page: choose(all_of(other == holder, found(page)), where(page), memory.place(other, page)),
        shared=lambda other, index: any_of(mine(other, index), memory.shared(other, index)),
        key=lambda other, index: choose(mine(other, index), path(index), memory.key(other, index)),
        valid=lambda other, index, slot: choose(
            mine(other, index), memory.promised(path(index), slot) != NONE, memory.valid(other, index, slot)
        ),
        meaning=lambda other, index, slot: choose(
            mine(other, index), memory.promised(path(index), slot), memory.meaning(other, index, slot)
        ),
    )


def take(run: Run, holder: Number, indices: Set, new: Map, where: Map) -> Run:
    """Free pages `new(index)` become a holder's own; `where` leads back to the index."""
    memory = run.memory
    run.ask("no page there yet", run.each(indices, lambda index: negation(memory.has(holder, index))))
    run.ask("from the free list", run.each(indices, lambda index: memory.is_free(new(index))))
    run.ask("each page once", run.each(indices, lambda index: where(new(index)) == index))

    def taken(page: Number) -> Formula:
        return all_of(indices(where(page)), new(where(page)) == page)

    told = run.tell("take", taken, lambda page, _: law.take(page, holder))

    def mine(other: Number, index: Number) -> Formula:
        return all_of(other == holder, indices(index))

    return told.then(
        is_free=lambda page: all_of(memory.is_free(page), negation(taken(page))),
        has=lambda other, index: any_of(mine(other, index), memory.has(other, index)),
        table=lambda other, index: choose(mine(other, index), new(index), memory.table(other, index)),
        place=lambda other, page: choose(all_of(other == holder, taken(page)), where(page), memory.place(other, page)),
        shared=lambda other, index: all_of(negation(mine(other, index)), memory.shared(other, index)),
        valid=lambda other, index, slot: all_of(negation(mine(other, index)), memory.valid(other, index, slot)),
    )


def compute(run: Run, holder: Number, slots: Set2, labels: Map2) -> Run:
    """An operation writes slots of a holder's own pages, and reads all that counts as written."""
    memory = run.memory

    def private(index: Number, _: Number) -> Formula:
        return all_of(memory.has(holder, index), negation(memory.shared(holder, index)))

    run.ask("its own pages", every(lambda index, slot: implies(slots(index, slot), private(index, slot)), 2))
    run.ask(
        "something is written", every(lambda index, slot: implies(slots(index, slot), labels(index, slot) != NONE), 2)
    )

    def mine(page: Number) -> Formula:
        return memory.held_at(holder, page)

    def others(number: Number) -> Formula:
        return negation(every(lambda other: any_of(other == holder, memory.holds(number, other) == 0)))

    def write(page: Page, number: Number) -> Judged:
        index = memory.place(holder, number)
        return law.write(
            page, holder, others(number), lambda slot: slots(index, slot), lambda slot: labels(index, slot)
        )

    def is_written(page: Number) -> Formula:
        return all_of(mine(page), negation(every(lambda slot: negation(slots(memory.place(holder, page), slot)))))

    told = run.tell("begin, its writes", is_written, write)

    def written(other: Number, index: Number, slot: Number) -> Formula:
        return all_of(other == holder, slots(index, slot))

    told = told.then(
        valid=lambda *at: any_of(written(*at), memory.valid(*at)),
        meaning=lambda other, index, slot: choose(
            written(other, index, slot), labels(index, slot), memory.meaning(other, index, slot)
        ),
    )
    after = told.memory

    def read(page: Page, number: Number) -> Judged:
        index = memory.place(holder, number)
        return law.read(
            page,
            holder,
            lambda slot: after.valid(holder, index, slot),
            lambda slot: after.meaning(holder, index, slot),
        )

    return told.tell("begin, its reads", mine, read)


def trim(run: Run, holder: Number, stays: Set2) -> Run:
    """Less counts as written in a holder's own pages."""
    memory = run.memory
    return run.then(
        valid=lambda other, index, slot: all_of(
            memory.valid(other, index, slot),
            any_of(other != holder, memory.shared(other, index), stays(index, slot)),
        )
    )


def let_go(run: Run, holder: Number, indices: Set) -> Run:
    """A holder lets go of pages: its own become free, but for what is still read; the store's stay there."""
    memory = run.memory
    gone = entries(memory, holder, indices)
    told = run.tell("release", gone, lambda page, _: law.release(page, holder))

    def frees(page: Number) -> Formula:
        private = negation(memory.shared(holder, memory.place(holder, page)))
        return all_of(gone(page), private, negation(memory.withheld(page)))

    return told.then(
        is_free=lambda page: any_of(memory.is_free(page), frees(page)),
        has=lambda other, index: all_of(memory.has(other, index), negation(all_of(other == holder, indices(index)))),
    )


def publish(run: Run, holder: Number, indices: Set, path: Map, back: Map) -> Run:
    """The store gets a holder's own pages as `path(index)`, and the holder goes on with them; `back` is the inverse."""
    memory = run.memory
    run.ask(
        "its own pages", run.each(indices, lambda i: all_of(memory.has(holder, i), negation(memory.shared(holder, i))))
    )
    run.ask("unknown to the store", run.each(indices, lambda index: memory.at(path(index)) == NONE))
    run.ask("each key once", run.each(indices, lambda index: back(path(index)) == index))
    run.ask("whole and of these tokens", run.each(indices, lambda index: whole(memory, holder, index, path(index))))
    pages = entries(memory, holder, indices)

    def event(page: Page, number: Number) -> Judged:
        key = path(memory.place(holder, number))
        return law.publish(page, key, False, lambda slot: memory.promised(key, slot))

    def mine(other: Number, index: Number) -> Formula:
        return all_of(other == holder, indices(index))

    told = run.tell("publish", pages, event)
    return told.then(
        at=lambda key: choose(
            all_of(indices(back(key)), path(back(key)) == key), memory.table(holder, back(key)), memory.at(key)
        ),
        shared=lambda other, index: any_of(mine(other, index), memory.shared(other, index)),
        key=lambda other, index: choose(mine(other, index), path(index), memory.key(other, index)),
    )


def whole(memory: Memory, holder: Number, index: Number, key: Number) -> Formula:
    """Whether a page holds, as far as its holder knows, what a key promises."""
    return every(
        lambda slot: implies(
            memory.promised(key, slot) != NONE,
            all_of(
                memory.valid(holder, index, slot), memory.meaning(holder, index, slot) == memory.promised(key, slot)
            ),
        )
    )


def hand_on(run: Run, old: Number, new: Number) -> Run:
    """All that a holder has goes to another, which has nothing."""
    memory = run.memory
    run.ask("somebody else", old != new)
    run.ask("nothing there", every(lambda index: negation(memory.has(new, index))))
    told = run.tell("pass_on", lambda page: memory.held_at(old, page), lambda page, _: law.pass_on(page, old, new))

    def moved(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda holder, *rest: choose(holder == new, function(old, *rest), function(holder, *rest))

    policy = {name: moved(getattr(memory, name)) for name in ("table", "place", "shared", "key", "valid", "meaning")}
    has = moved(memory.has)
    return told.then(**policy, has=lambda holder, index: all_of(holder != old, has(holder, index)))


def leave(run: Run, holder: Number) -> Run:
    """A holder is gone: it must have nothing in any pool."""
    run.ask("all is let go", every(lambda index: negation(run.memory.has(holder, index))))
    run.ask("it reads nothing", every(lambda page: run.memory.reads(page, holder) == 0))
    return run.tell("leave", lambda _: True, lambda page, _: law.leave(page, holder))


def drop(run: Run, keys: Set, back: Map) -> Run:
    """The store gives up pages that nobody has locked or reads; `back` leads from a page to its key."""
    memory = run.memory
    run.ask("what the store has", every(lambda key: implies(keys(key), memory.at(key) != NONE)))
    run.ask("each page once", every(lambda key: implies(keys(key), back(memory.at(key)) == key)))
    unlocked = every(
        lambda holder, index: negation(
            all_of(memory.has(holder, index), memory.shared(holder, index), keys(memory.key(holder, index)))
        ),
        2,
    )
    run.ask("unlocked", unlocked)
    run.ask("unread", every(lambda key: implies(keys(key), negation(memory.withheld(memory.at(key))))))

    def gone(page: Number) -> Formula:
        return all_of(keys(back(page)), memory.at(back(page)) == page)

    told = run.tell("drop", gone, lambda page, number: law.drop(page, back(number)))
    return told.then(
        is_free=lambda page: any_of(memory.is_free(page), gone(page)),
        at=lambda key: choose(keys(key), NONE, memory.at(key)),
    )


def keep_for(run: Run, reader: Number, pages: Set) -> Run:
    """Pages are kept for a reader: a row for a launch, a cached state for who has locked its prefix."""
    memory = run.memory
    run.ask(
        "in use", every(lambda page: implies(pages(page), all_of(memory.exists(page), negation(memory.is_free(page)))))
    )
    told = run.tell("share, pinned", pages, lambda page, _: law.share(page, reader, NONE, True))
    return told.then(
        reads=lambda page, other: memory.reads(page, other) + choose(all_of(pages(page), other == reader), 1, 0),
        readers=lambda page: memory.readers(page) + choose(pages(page), 1, 0),
    )


def let_read(run: Run, reader: Number, pages: Set) -> Run:
    """A reader needs pages no more: those that nobody else has become free."""
    memory = run.memory
    run.ask("kept for it", every(lambda page: implies(pages(page), memory.reads(page, reader) > 0)))
    run.ask("and not its own", every(lambda page: implies(pages(page), negation(memory.held_at(reader, page)))))
    told = run.tell("release, pinned", pages, lambda page, _: law.release(page, reader))

    def frees(page: Number) -> Formula:
        had = any_of(
            negation(every(lambda holder: negation(memory.held_at(holder, page)))),
            negation(every(lambda key: memory.at(key) != page)),
        )
        return all_of(pages(page), memory.readers(page) == 1, negation(had))

    return told.then(
        is_free=lambda page: any_of(memory.is_free(page), frees(page)),
        reads=lambda page, other: memory.reads(page, other) - choose(all_of(pages(page), other == reader), 1, 0),
        readers=lambda page: memory.readers(page) - choose(pages(page), 1, 0),
    )


STEPS: dict[str, Callable[..., Run]] = {
    step.__name__: step
    for step in (lock, take, compute, trim, let_go, publish, hand_on, leave, drop, keep_for, let_read)
}


# Operations: each pool of each operation of `kvspec.model` goes one of these ways.


def everything(_: Number) -> Formula:
    """All indices of a table."""
    return True


def begin(run: Run, holder: Number, found: Set, path: Map, where: Map, own: Set, new: Map, place: Map) -> Run:
    """A record begins: it shares what matched and takes the rest."""
    run.grant("a new holder", every(lambda index: negation(run.memory.has(holder, index))))
    run.grant("matched before its own", every(lambda index: negation(all_of(found(index), own(index)))))
    run.grant_what(lock, holder, found, path, where)
    run.grant_what(take, holder, own, new, place)
    return take(lock(run, holder, found, path, where), holder, own, new, place)


def bring(run: Run, waiting: Number, holder: Number, own: Set, new: Map, place: Map) -> Run:
    """A record begins with what its request had while it waited, and takes the rest."""
    memory = run.memory
    run.grant("beside what it brings", run.each(own, lambda index: negation(memory.has(waiting, index))))
    run.grant("read by nobody of that name", every(lambda page: memory.reads(page, waiting) == 0))
    run.grant_what(hand_on, waiting, holder)
    run.grant_what(take, holder, own, new, place)
    return take(leave(hand_on(run, waiting, holder), waiting), holder, own, new, place)


def grow(run: Run, holder: Number, own: Set, new: Map, place: Map, slots: Set2, labels: Map2) -> Run:
    """Room is taken, and a launch writes into what is the holder's own."""
    run.grant_what(take, holder, own, new, place)
    memory = run.memory

    def private(index: Number, slot: Number) -> Formula:
        there = all_of(memory.has(holder, index), negation(memory.shared(holder, index)))
        return implies(slots(index, slot), all_of(any_of(there, own(index)), labels(index, slot) != NONE))

    run.grant("behind what is published", every(private, 2))
    return compute(take(run, holder, own, new, place), holder, slots, labels)


def _own(run: Run, holder: Number, indices: Set) -> None:
    memory = run.memory
    run.grant("its own", run.each(indices, lambda i: all_of(memory.has(holder, i), negation(memory.shared(holder, i)))))


def insert(run: Run, holder: Number, known: Set, new: Set, path: Map, where: Map, back: Map) -> Run:
    """Publish: duplicates of what the store has give way to it, and the rest becomes the store's."""
    memory = run.memory
    _own(run, holder, known)
    run.grant("the store has them", run.each(known, lambda index: memory.at(path(index)) != NONE))
    run.grant("each key once", run.each(known, lambda index: where(memory.at(path(index))) == index))
    run.grant(
        "not had already", run.each(known, lambda index: negation(memory.held_at(holder, memory.at(path(index)))))
    )
    run.grant_what(publish, holder, new, path, back)
    run = lock(let_go(run, holder, known), holder, known, path, where)
    return publish(run, holder, new, path, back)


def insert_and_leave_window(
    run: Run, holder: Number, known: Set, new: Set, path: Map, where: Map, back: Map, behind: Set
) -> Run:
    """Publish, and let go of what the moved lock does not reach any more."""
    return let_go(insert(run, holder, known, new, path, where, back), holder, behind)


def insert_and_end(run: Run, holder: Number, known: Set, new: Set, path: Map, where: Map, back: Map) -> Run:
    """Publish, then release all."""
    return end(insert(run, holder, known, new, path, where, back), holder)


def end(run: Run, holder: Number) -> Run:
    """Release all; the holder is gone."""
    run.grant("nothing is kept for it", every(lambda page: run.memory.reads(page, holder) == 0))
    return leave(let_go(run, holder, everything), holder)


def rest(run: Run, request: Number, slot: Number, tail: Set, stays: Set2) -> Run:
    """A turn's record goes to its session's slot, cut to what counts; or from the slot to a turn."""
    run.grant("nothing is kept for it", every(lambda page: run.memory.reads(page, request) == 0))
    run.grant_what(hand_on, request, slot)
    run = hand_on(trim(let_go(run, request, tail), request, stays), request, slot)
    return leave(run, request)


def give(run: Run, holder: Number, given: Set, path: Map, back: Map) -> Run:
    """The store takes a holder's own page over."""
    run.grant_what(publish, holder, given, path, back)
    return let_go(publish(run, holder, given, path, back), holder, given)


def give_and_replace(run: Run, holder: Number, given: Set, path: Map, back: Map, new: Map, place: Map) -> Run:
    """The store takes a holder's own page over, and the holder takes another in its place."""
    memory = run.memory
    run.grant("from the free list", run.each(given, lambda index: memory.is_free(new(index))))
    run.grant("each page once", run.each(given, lambda index: place(new(index)) == index))
    return take(give(run, holder, given, path, back), holder, given, new, place)


def give_copy(
    run: Run, holder: Number, made: Set, new: Map, place: Map, slots: Set2, labels: Map2, path: Map, back: Map
) -> Run:
    """The store gets a copy, which the holder makes in a page of its own."""
    memory = run.memory
    run.grant_what(take, holder, made, new, place)
    run.grant("into the copy", every(lambda i, s: implies(slots(i, s), all_of(made(i), labels(i, s) != NONE)), 2))
    run.grant("unknown to the store", run.each(made, lambda index: memory.at(path(index)) == NONE))
    run.grant("each key once", run.each(made, lambda index: back(path(index)) == index))

    def complete(index: Number, slot: Number) -> Formula:
        due = memory.promised(path(index), slot)
        return implies(all_of(made(index), due != NONE), all_of(slots(index, slot), labels(index, slot) == due))

    run.grant("whole and the same", every(complete, 2))
    run = compute(take(run, holder, made, new, place), holder, slots, labels)
    return let_go(publish(run, holder, made, path, back), holder, made)


Ways = dict[str, Sequence[Callable[..., Run]]]
_ENDS: Ways = {"pages": (end,), "window": (end,), "states": (let_read, end), "rows": (keep_for, end)}
"""A record is let go; its row stays while a launch reads it."""
_RESTS: Ways = {pool: (*ways, rest) for pool, ways in _ENDS.items()}
"""The same, or its turn's record goes to the slot, or from there to the next turn."""

OPERATIONS: dict[str, Ways] = {
    "extend": {"pages": (begin, grow), "window": (begin, grow), "states": (bring, take, keep_for), "rows": (take,)},
    "decode": {"pages": (grow,), "window": (grow,)},
    "complete": {"rows": (let_read,)},
    "cache_unfinished": {
        "pages": (insert,),
        "window": (insert_and_leave_window,),
        "states": (give_copy, give_and_replace, keep_for, let_read),
    },
    "finish": {
        "pages": (insert_and_end, *_RESTS["pages"]),
        "window": (insert_and_end, *_RESTS["window"]),
        "states": (give, keep_for, *_RESTS["states"]),
        "rows": _RESTS["rows"],
    },
    **dict.fromkeys(("retract", "match_prefix"), _RESTS),
    **dict.fromkeys(("abort", "close_session", "preempt"), _ENDS),
    "evict": {"pages": (drop,), "window": (drop,), "states": (drop,)},
    "swa_evict": {"window": (let_go,)},
    "take_state": {"states": (take,)},
    "free_state": {"states": (end,)},
}
"""What each operation does to each pool, one way or the other; those that are not here do nothing to any."""


# What always holds


def _entry(memory: Memory, holder: Number, index: Number) -> Formula:
    page = memory.table(holder, index)
    return implies(
        memory.has(holder, index),
        all_of(
            memory.exists(page),
            memory.place(holder, page) == index,
            choose(memory.shared(holder, index), memory.at(memory.key(holder, index)) == page, memory.names(page) == 0),
        ),
    )


def _one_owner(memory: Memory, page: Number, holder: Number, other: Number) -> Formula:
    both = all_of(memory.held_at(holder, page), memory.held_at(other, page))
    return implies(all_of(memory.names(page) == 0, both), holder == other)


def _name(memory: Memory, page: Number, key: Number, other: Number) -> Formula:
    return implies(
        memory.named(page, key) != 0,
        all_of(
            memory.named(page, key) == THERE,
            memory.exists(page),
            memory.at(key) == page,
            implies(memory.named(page, other) != 0, key == other),
        ),
    )


def _written(memory: Memory, holder: Number, index: Number, slot: Number) -> Formula:
    found = memory.content(memory.table(holder, index), slot)
    return implies(
        all_of(memory.has(holder, index), memory.valid(holder, index, slot)),
        all_of(found != NONE, found == memory.meaning(holder, index, slot)),
    )


GIVEN = Clause("PAGE-1", "no page is no page", 1, lambda memory, page: implies(memory.exists(page), page != NONE))
"""What no operation changes."""

INVARIANTS = (
    Clause(
        "MEM-RELEASE",
        "references are the tables' entries",
        2,
        lambda memory, page, holder: memory.holds(page, holder) == choose(memory.held_at(holder, page), 1, 0),
    ),
    Clause(
        "MEM-RELEASE",
        "pins are the readers'",
        2,
        lambda memory, page, reader: all_of(
            memory.pins(page, reader) == memory.reads(page, reader),
            memory.reads(page, reader) >= 0,
            implies(memory.reads(page, reader) > 0, memory.exists(page)),
        ),
    ),
    Clause("PAGE-2", "an entry is the store's page under its key, or has no name", 2, _entry),
    Clause("PAGE-1", "a page without a name has one holder", 3, _one_owner),
    Clause("STORE-1", "the store's keys are the names", 3, _name),
    Clause(
        "STORE-1",
        "the names are the store's keys",
        1,
        lambda memory, key: implies(
            memory.at(key) != NONE,
            all_of(memory.exists(memory.at(key)), memory.named(memory.at(key), key) == THERE),
        ),
    ),
    Clause(
        "MEM-NAME",
        "a name promises what its key is the name of",
        3,
        lambda memory, page, key, slot: implies(
            memory.named(page, key) != 0, memory.promise(page, key, slot) == memory.promised(key, slot)
        ),
    ),
    Clause(
        "ACC-1",
        "the free list is what nobody holds and no name finds",
        1,
        lambda memory, page: memory.is_free(page) == all_of(memory.exists(page), memory.page(page).free),
    ),
    Clause("DATA-1", "what counts as written is there", 3, _written),
)
"""What holds between the law and the policy: before and after each step."""
