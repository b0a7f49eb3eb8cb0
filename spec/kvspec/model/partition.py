"""The partition of every pool for any size: the model's operations over functions from index to owner.

Each operation of the model stands here again, under the same name, as a step over `owners.Partition`. No number in it
is bounded, so what z3 shows of a step holds for any number of pages, window pages, state slots, rows, prefixes,
records, requests and sessions.

What is proved (`kvspec prove`): each clause of `induction.INVARIANTS` holds initially, and after each step if all held
before it; and each step changes the counts as `induction.counting` says.

What is assumed:

1. Counting. A set numbered one to one by an index set is as large as that, an interval `[low, end)` has `end - low`
   numbers, disjoint sets add up. From this and from `counting` it follows that the figures always sum to the pool
   (ACC-1, ACC-2, ACC-3) and that the locks on a prefix always number the records that need it (STORE-2).
2. `induction.FOREST`: prefixes are ordered by length, as sequences are.
3. The guards: elsewhere an operation is refused, or goes another way. Tests hold every guard and every step against the
   executable model, on the states before and after each operation of random walks.
4. A batch is its requests one after another, as in `running.extend` and `running.decode`.

5. Of the two ways to revive a tombstone (SWA-6), the window side moves. If the store takes the holder's page instead,
   the state is the same but for the number of one page.

Left out is what moves nothing: tokens, lengths within a page, what launches have written, which page borders a state
slot stands for. How the figures of what the store has split into evictable and protected is decided by the locks, and
does not change their sum. So the guards on window locks and on the cursor's furthest place are not here either: what
follows without them follows with them.
"""

from collections.abc import Callable
from dataclasses import replace

from kvspec.model.owners import (
    COLLECTIONS,
    FREE,
    HELD,
    LENT,
    NONE,
    OF_PREFIX,
    OF_RECORD,
    OF_REQUEST,
    PRIVATE,
    RECORD,
    ROOT,
    SLOT,
    STORE,
    WITHHELD,
    Formula,
    Map,
    Number,
    Part,
    Partition,
    Set,
    Step,
    Steps,
    all_of,
    any_of,
    choose,
    implies,
    interval,
    itself,
    negation,
    put,
    single,
    within,
)


def sides_of(before: Partition, record: Number, low: Number, end: Number) -> Part:
    """The window pages behind the private pages `[low, end)` of a record's block table."""
    return interval(
        before.sides_from(record, low, end),
        end,
        lambda index: before.side(before.table(record, index)),
        lambda side: before.page_index(before.behind(side)),
    )


def without_sides(before: Partition, gone: Set) -> Partition:
    """Pages `gone` lose the window side that they have."""
    return replace(
        before,
        side=lambda page: choose(gone(page), NONE, before.side(page)),
        behind=lambda side: choose(
            all_of(before.behind(side) != NONE, gone(before.behind(side))), NONE, before.behind(side)
        ),
    )


def free_pages_of(before: Partition, record: Number, low: Number, end: Number) -> Step:
    """The private pages `[low, end)` of a record's block table become free, and their window sides with them."""
    freed = interval(low, end, lambda index: before.table(record, index), before.page_index)

    def is_freed(page: Number) -> Formula:
        return all_of(before.private(page, record), within(low, before.page_index(page), end))

    after = replace(
        without_sides(before, is_freed),
        page_kind=lambda page: choose(is_freed(page), FREE, before.page_kind(page)),
    )
    joins = {"free pages": [freed], "free window pages": [sides_of(before, record, low, end)]}
    return Step({}, after, record, joins=joins)


def keep(before: Partition, record: Number, kept: Number) -> Step:
    """The block table is cut back to `kept` pages."""
    step = free_pages_of(before, record, kept, before.last(record))
    guard = {
        "cut behind the store's pages": all_of(before.first(record) <= kept, kept <= before.last(record)),
        "cut behind the cursor": before.cursor(record) <= kept,
    }
    return replace(step, guard=guard, after=replace(step.after, last=put(before.last, record, kept)))


def take_pages(
    before: Partition, record: Number, start: Number, end: Number, new: Map, place: Map, side: Map, side_place: Map
) -> Step:
    """Free pages `new(index)` become the record's from `start` to `end`, and free window pages `side(index)` theirs.

    `place` and `side_place` lead from them to the index.
    """
    taken = interval(start, end, new, place)
    sides = interval(choose(before.windowed, start, end), end, side, side_place)

    def each(condition: Callable[[Number], Formula]) -> Formula:
        return before.every(lambda index: implies(within(start, index, end), condition(index)))

    guard = {
        "no page is given up": start <= end,
        "free pages": each(lambda index: all_of(before.is_page(new(index)), before.page_kind(new(index)) == FREE)),
        "each page once": each(lambda index: place(new(index)) == index),
        "free window pages": implies(
            before.windowed,
            each(lambda index: all_of(before.is_window_page(side(index)), before.behind(side(index)) == NONE)),
        ),
        "each window page once": implies(before.windowed, each(lambda index: side_place(side(index)) == index)),
    }
    after = replace(
        before,
        page_kind=lambda page: choose(taken.contains(page), PRIVATE, before.page_kind(page)),
        page_owner=lambda page: choose(taken.contains(page), record, before.page_owner(page)),
        page_index=lambda page: choose(taken.contains(page), place(page), before.page_index(page)),
        side=lambda page: choose(all_of(before.windowed, taken.contains(page)), side(place(page)), before.side(page)),
        behind=lambda page: choose(sides.contains(page), new(side_place(page)), before.behind(page)),
        last=put(before.last, record, end),
        table=lambda other, index: choose(
            all_of(other == record, within(start, index, end)), new(index), before.table(other, index)
        ),
    )
    return Step(guard, after, record, leaves={"free pages": [taken], "free window pages": [sides]})


def take_states(before: Partition, request: Number, record: Number, new: Map, place: Map) -> Step:
    """A record gets its state slots: first the one that its request has without a row, then free ones `new(index)`."""
    early = before.early(request)
    brought = early != NONE
    start = choose(brought, 1, 0)
    taken = interval(start, before.states_each, new, place)

    def each(condition: Callable[[Number], Formula]) -> Formula:
        return before.every(lambda index: implies(within(start, index, before.states_each), condition(index)))

    guard = {
        "free states": each(lambda index: all_of(before.is_state(new(index)), before.state_kind(new(index)) == FREE)),
        "each state once": each(lambda index: place(new(index)) == index),
    }

    def is_taken(slot: Number) -> Formula:
        return any_of(taken.contains(slot), all_of(brought, slot == early))

    after = replace(
        before,
        state_kind=lambda slot: choose(is_taken(slot), OF_RECORD, before.state_kind(slot)),
        state_owner=lambda slot: choose(is_taken(slot), record, before.state_owner(slot)),
        state_index=lambda slot: choose(
            taken.contains(slot), place(slot), choose(is_taken(slot), 0, before.state_index(slot))
        ),
        states=lambda other, index: choose(
            other == record,
            choose(all_of(brought, index == 0), early, new(index)),
            before.states(other, index),
        ),
        early=put(before.early, request, NONE),
    )
    leaves = {"free states": [taken], "early states": [single(request, brought)]}
    return Step(guard, after, record, leaves=leaves)


def moved_lock(before: Partition, old: Number, new: Number) -> Map:
    """The locks when one of them moves; `ROOT` is no lock."""

    def locks(prefix: Number) -> Number:
        gained = choose(all_of(prefix == new, new != ROOT), 1, 0)
        lost = choose(all_of(prefix == old, old != ROOT), 1, 0)
        return before.locks(prefix) + gained - lost

    return locks


def forget_record(before: Partition, record: Number, given: Number = NONE) -> Step:
    """Its private pages, state slots and lock go, and its row, which is withheld while a launch reads it.

    The state slot `given`, by its index, stays as it is: somebody has it already.
    """
    step = free_pages_of(before, record, before.first(record), before.last(record))
    row = before.row(record)
    read = before.reads(row) > 0
    free, withheld = single(row, negation(read)), single(row, read)
    slots = Part(
        lambda index: all_of(within(0, index, before.states_each), index != given),
        before.states_each - choose(given == NONE, 0, 1),
        lambda index: before.states(record, index),
        before.state_index,
    )
    after = replace(
        step.after,
        live=put(before.live, record, False),
        locks=moved_lock(before, before.locked(record), ROOT),
        row_kind=put(before.row_kind, row, choose(read, WITHHELD, FREE)),
        state_kind=lambda slot: choose(
            all_of(before.state_kind(slot) == OF_RECORD, before.state_owner(slot) == record),
            FREE,
            before.state_kind(slot),
        ),
    )
    joins = {**step.joins, "free rows": [free], "withheld rows": [withheld], "free states": [slots]}
    return replace(step, after=after, joins=joins)


def cache_state(before: Partition, prefix: Number, slot: Number) -> Partition:
    """The store has the state after a prefix in `slot`."""
    return replace(
        before,
        state=put(before.state, prefix, slot),
        state_kind=put(before.state_kind, slot, OF_PREFIX),
        state_owner=put(before.state_owner, slot, prefix),
    )


def lacks_state(before: Partition, prefix: Number) -> Formula:
    """Whether the store has the prefix, but not its state."""
    return all_of(before.cached(prefix), before.state(prefix) == NONE)


def publish(before: Partition, record: Number, known: Number, end: Number, path: Map, revived: Number) -> Step:
    """The store takes the pages up to `end` over; `path(index)` is the prefix that page `index` ends.

    Up to `known` the store has them already: the record's duplicates become free, and its table names the store's.
    Where the store's page is a tombstone, the window side of the duplicate, if it has one, moves behind it: `revived`
    is how many. Pages before the cursor become tombstones.
    """
    first, locked = before.first(record), before.locked(record)
    start = before.sides_from(record, first, known)
    guard = {
        "whole pages of the record": all_of(first <= known, known <= end, end <= before.last(record)),
        "prefixes of one sequence": before.every(
            lambda index: implies(within(first, index, end), before.depth(path(index)) == index + 1)
        ),
        "which continues the locked one": before.every(
            lambda index: before.every(
                lambda shorter: implies(
                    all_of(within(first, index, end), within(1, shorter, index + 1)),
                    before.ancestor(path(index), shorter)
                    == choose(shorter <= first, before.ancestor(locked, shorter), path(shorter - 1)),
                )
            )
        ),
        "known ones first": before.every(
            lambda index: all_of(
                implies(within(first, index, known), before.cached(path(index))),
                implies(within(known, index, end), negation(before.cached(path(index)))),
            )
        ),
        "as many as are revived": within(0, revived, known - start + 1),
    }

    def place(prefix: Number) -> Number:
        return before.depth(prefix) - 1

    def is_tombstone(index: Number) -> Formula:
        return before.side(before.page(path(index))) == NONE

    def is_revived(index: Number) -> Formula:
        return all_of(within(start, index, known), is_tombstone(index))

    def revives(prefix: Number) -> Formula:
        return all_of(is_revived(place(prefix)), path(place(prefix)) == prefix)

    inserted = interval(known, end, path, place)
    sides = sides_of(before, record, first, known)
    freed_sides = replace(
        sides,
        index=lambda index: all_of(within(start, index, known), negation(is_tombstone(index))),
        size=known - start - revived,
    )
    revived_sides = Part(is_revived, revived, path, place)
    inserted_sides = interval(before.sides_from(record, known, end), end, path, place)
    step = free_pages_of(before, record, first, known)

    def is_handed_over(page: Number) -> Formula:
        return all_of(before.private(page, record), within(known, before.page_index(page), end))

    def is_of_revived(page: Number) -> Formula:
        return all_of(before.is_page(page), before.page_kind(page) == STORE, revives(before.page_owner(page)))

    lock = choose(first < end, path(end - 1), locked)
    after = replace(
        step.after,
        page_kind=lambda page: choose(is_handed_over(page), STORE, step.after.page_kind(page)),
        page_owner=lambda page: choose(is_handed_over(page), path(before.page_index(page)), before.page_owner(page)),
        side=lambda page: choose(
            is_of_revived(page),
            before.side(before.table(record, place(before.page_owner(page)))),
            step.after.side(page),
        ),
        behind=lambda side: choose(
            all_of(sides.contains(side), is_tombstone(sides.place(side))),
            before.page(path(sides.place(side))),
            step.after.behind(side),
        ),
        cached=lambda prefix: any_of(before.cached(prefix), inserted.contains(prefix)),
        page=lambda prefix: choose(
            inserted.contains(prefix), before.table(record, before.depth(prefix) - 1), before.page(prefix)
        ),
        table=lambda other, index: choose(
            all_of(other == record, within(first, index, known)), before.page(path(index)), before.table(other, index)
        ),
        first=put(before.first, record, end),
        locked=put(before.locked, record, lock),
        locks=moved_lock(before, locked, lock),
    )
    joins = {
        "free pages": step.joins["free pages"],
        "cached prefixes": [inserted],
        "free window pages": [freed_sides],
        "cached window sides": [revived_sides, inserted_sides],
    }
    return replace(step, guard=guard, after=after, joins=joins)


def hand_to(before: Partition, record: Number, role: int, holder: Number) -> Partition:
    """The record moves whole to another holder."""
    return replace(before, role=put(before.role, record, role), holder=put(before.holder, record, holder))


def without_request(before: Partition, request: Number) -> Partition:
    """The request is gone; what it held has moved on."""
    return replace(
        before,
        present=put(before.present, request, False),
        record_of=put(before.record_of, request, NONE),
        running=put(before.running, request, False),
        matched=put(before.matched, request, False),
    )


def with_session(before: Partition, session: Number, slot: Number, turn: Number) -> Partition:
    """What the session holds, and its turn in flight. `NONE` is no session."""
    here = session != NONE
    return replace(
        before,
        slot=lambda other: choose(all_of(here, other == session), slot, before.slot(other)),
        turn=lambda other: choose(all_of(here, other == session), turn, before.turn(other)),
    )


def without_session(before: Partition, session: Number) -> Partition:
    """The session's name is gone; it must hold nothing."""
    after = with_session(before, session, NONE, NONE)
    return replace(after, is_open=put(before.is_open, session, False), closing=put(before.closing, session, False))


def initial(before: Partition) -> Partition:
    """`State.__init__`: all is free, and nobody is there. Of `before` only the sizes and the prefixes count."""

    def nobody(_: Number) -> int:
        return NONE

    def nothing(_: Number) -> int:
        return 0

    def nowhere(_: Number) -> bool:
        return False

    return replace(
        before,
        page_kind=nothing,
        side=nobody,
        behind=nobody,
        state_kind=nothing,
        state=nobody,
        early=nobody,
        cached=nowhere,
        locks=nothing,
        live=nowhere,
        present=nowhere,
        record_of=nobody,
        running=nowhere,
        matched=nowhere,
        is_open=nowhere,
        slot=nobody,
        turn=nobody,
        closing=nowhere,
        row_kind=nothing,
        reads=nothing,
    )


def open_session(before: Partition, session: Number) -> Steps:
    """`waiting.open_session`."""
    after = with_session(before, session, NONE, NONE)
    after = replace(after, is_open=put(before.is_open, session, True), closing=put(before.closing, session, False))
    return {"": Step({"a name": session >= 0, "a new one": negation(before.is_open(session))}, after)}


def submit(before: Partition, request: Number, session: Number) -> Steps:
    """`waiting.submit`."""
    guard = {
        "a name": request >= 0,
        "a new one": negation(before.present(request)),
        "an open session": implies(session != NONE, all_of(before.is_open(session), negation(before.closing(session)))),
        "no turn in flight": implies(session != NONE, before.turn(session) == NONE),
    }
    after = without_request(before, request)
    after = replace(
        after,
        present=put(before.present, request, True),
        session_of=put(before.session_of, request, session),
        turn=lambda other: choose(all_of(session != NONE, other == session), request, before.turn(other)),
    )
    return {"": Step(guard, after)}


def match_prefix(before: Partition, request: Number, kept: Number) -> Steps:
    """`waiting.match_prefix`: lend the slot's record, of which `kept` pages stay, give it up, or ask the store."""
    session = before.session_of(request)
    slot = choose(session == NONE, NONE, before.slot(session))
    record = choose(before.record_of(request) == NONE, slot, before.record_of(request))
    waits = {"a waiting request": all_of(before.present(request), negation(before.running(request)))}
    matched = put(before.matched, request, True)
    holds = {"a record": record != NONE}

    lend = keep(before, record, kept)
    lent = with_session(hand_to(lend.after, record, LENT, request), session, NONE, before.turn(session))
    lent = replace(lent, matched=matched, record_of=put(before.record_of, request, record))

    give_up = forget_record(before, record)
    given_up = with_session(give_up.after, session, NONE, before.turn(session))
    given_up = replace(given_up, matched=matched, record_of=put(before.record_of, request, NONE))
    return {
        "lend": replace(lend, guard={**waits, **holds, **lend.guard, "of some use": kept > 0}, after=lent),
        "give up": replace(give_up, guard={**waits, **holds, "of no use": kept == 0}, after=given_up),
        "store": Step({**waits, "no record": record == NONE}, replace(before, matched=matched)),
    }


def extend(
    before: Partition,
    request: Number,
    record: Number,
    row: Number,
    locked: Number,
    end: Number,
    new: Map,
    place: Map,
    side: Map,
    side_place: Map,
    state: Map,
    state_place: Map,
) -> Steps:
    """`running.extend`, one request of the batch: begin a record behind the matched prefix, or continue one."""
    start = before.depth(locked)
    begun = replace(
        before,
        live=put(before.live, record, True),
        row=put(before.row, record, row),
        locked=put(before.locked, record, locked),
        locks=moved_lock(before, ROOT, locked),
        first=put(before.first, record, start),
        cursor=put(before.cursor, record, 0),
        table=lambda other, index: choose(
            other == record, before.page(before.ancestor(locked, index + 1)), before.table(other, index)
        ),
        row_kind=put(before.row_kind, row, RECORD),
        row_of=put(before.row_of, row, record),
        record_of=put(before.record_of, request, record),
    )
    begin = take_pages(hand_to(begun, record, HELD, request), record, start, end, new, place, side, side_place)
    begin = begin.then(take_states(begin.after, request, record, state, state_place))
    begin_guard = {
        **begin.guard,
        "matched": all_of(before.present(request), negation(before.running(request)), before.matched(request)),
        "no record": before.record_of(request) == NONE,
        "a new record": all_of(record >= 0, negation(before.live(record))),
        "a free row": all_of(before.is_row(row), before.row_kind(row) == FREE),
        "what matched is cached": any_of(locked == ROOT, before.cached(locked)),
    }
    go_on = take_pages(before, record, before.last(record), end, new, place, side, side_place)
    go_on_guard = {
        **go_on.guard,
        "its record": all_of(record != NONE, before.record_of(request) == record),
    }

    def run(step: Step) -> Partition:
        return replace(
            step.after,
            running=put(before.running, request, True),
            matched=put(before.matched, request, False),
        )

    return {
        "begin": replace(
            begin, guard=begin_guard, after=run(begin), leaves={**begin.leaves, "free rows": [single(row, True)]}
        ),
        "continue": replace(go_on, guard=go_on_guard, after=run(go_on)),
    }


def decode(before: Partition, request: Number, end: Number, new: Map, place: Map, side: Map, side_place: Map) -> Steps:
    """`running.decode`, one request of the batch."""
    record = before.record_of(request)
    step = take_pages(before, record, before.last(record), end, new, place, side, side_place)
    return {"": replace(step, guard={**step.guard, "a running request": before.running(request)})}


def unchanged(before: Partition) -> Steps:
    """Nothing changes hands: `running.verify`, `looking.report`, `looking.snapshot`."""
    return {"": Step({}, before)}


def launch(before: Partition, reads: Set) -> Steps:
    """`running.launch`, which reads the given rows."""
    guard = {
        "held rows": before.every(
            lambda row: implies(reads(row), all_of(before.is_row(row), before.row_kind(row) == RECORD))
        )
    }
    return {"": Step(guard, replace(before, reads=lambda row: before.reads(row) + choose(reads(row), 1, 0)))}


def complete(before: Partition, reads: Set, released: Number) -> Steps:
    """`running.complete` of a launch that reads the given rows; `released` rows were withheld for it alone."""
    guard = {
        "a count": released >= 0,
        "rows that it reads": before.every(
            lambda row: implies(reads(row), all_of(before.is_row(row), before.reads(row) > 0))
        ),
    }

    def is_released(row: Number) -> Formula:
        return all_of(reads(row), before.row_kind(row) == WITHHELD, before.reads(row) == 1)

    after = replace(
        before,
        reads=lambda row: before.reads(row) - choose(reads(row), 1, 0),
        row_kind=lambda row: choose(is_released(row), FREE, before.row_kind(row)),
    )
    rows = [itself(is_released, released)]
    return {"": Step(guard, after, joins={"free rows": rows}, leaves={"withheld rows": rows})}


def cache_unfinished(
    before: Partition,
    request: Number,
    known: Number,
    end: Number,
    path: Map,
    revived: Number,
    prefix: Number,
    given: Number,
    slot: Number,
) -> Steps:
    """`leaving.cache_unfinished`, without a state, or with the one after `prefix`.

    The store has it as a copy in the free `slot`, or it takes the record's slot of index `given`, whose place the free
    one takes.
    """
    record = before.record_of(request)
    step = publish(before, record, known, end, path, revived)
    step = replace(step, guard={**step.guard, "a running request": before.running(request)})
    own = before.states(record, given)
    handed = replace(
        cache_state(step.after, prefix, own),
        states=lambda other, index: choose(all_of(other == record, index == given), slot, before.states(other, index)),
    )
    handed = replace(
        handed,
        state_kind=put(handed.state_kind, slot, OF_RECORD),
        state_owner=put(handed.state_owner, slot, record),
        state_index=put(before.state_index, slot, given),
    )
    guard = {
        "a prefix without a state": lacks_state(step.after, prefix),
        "a free state": all_of(before.is_state(slot), before.state_kind(slot) == FREE),
    }
    moved = {"joins": {"cached states": [single(prefix, True)]}, "leaves": {"free states": [single(slot, True)]}}
    copy = Step({**guard, "a copy": given == NONE}, cache_state(step.after, prefix, slot), record, **moved)
    own_guard = {**guard, "a state of the record": within(0, given, before.states_each)}
    return {
        "": replace(step, guard={**step.guard, "no state": prefix == NONE}),
        "copy": step.then(copy),
        "own": step.then(Step(own_guard, handed, record, **moved)),
    }


def finish(
    before: Partition,
    request: Number,
    known: Number,
    end: Number,
    path: Map,
    revived: Number,
    prefix: Number,
    given: Number,
    kept: Number,
) -> Steps:
    """`leaving.finish`: publish and release, hand the record to the slot, or end a closing session.

    The store may take the record's state slot of index `given` for `prefix`.
    """
    record, session = before.record_of(request), before.session_of(request)
    runs = {"a running request": before.running(request)}
    plain = publish(before, record, known, end, path, revived)
    own = before.states(record, given)
    state_guard = {
        "a prefix without a state": lacks_state(plain.after, prefix),
        "a state of the record": within(0, given, before.states_each),
    }
    cached = Step(
        state_guard, cache_state(plain.after, prefix, own), record, joins={"cached states": [single(prefix, True)]}
    )
    with_state = plain.then(cached)
    with_state = with_state.then(forget_record(with_state.after, record, given))
    plain = plain.then(forget_record(plain.after, record))
    plain = replace(plain, guard={**plain.guard, "no state": prefix == NONE})

    def end_plain(step: Step) -> Step:
        guard = {**runs, "no turn": session == NONE, **step.guard}
        return replace(step, guard=guard, after=without_request(step.after, request))

    turn = keep(before, record, kept)
    slot = with_session(hand_to(turn.after, record, SLOT, session), session, record, NONE)
    last = forget_record(before, record)
    stays = {"a turn": all_of(session != NONE, negation(before.closing(session)))}
    closes = {"a turn of a closing session": all_of(session != NONE, before.closing(session))}
    return {
        "plain": end_plain(plain),
        "plain with a state": end_plain(with_state),
        "turn": replace(turn, guard={**runs, **stays, **turn.guard}, after=without_request(slot, request)),
        "closing": replace(
            last, guard={**runs, **closes}, after=without_request(without_session(last.after, session), request)
        ),
    }


def retract(before: Partition, request: Number, kept: Number) -> Steps:
    """`leaving.retract`: release, or hand the record to the slot; the request waits."""
    record, session = before.record_of(request), before.session_of(request)
    runs = {"a running request": before.running(request)}
    plain = forget_record(before, record)
    turn = keep(before, record, kept)
    slot = with_session(hand_to(turn.after, record, SLOT, session), session, record, before.turn(session))

    def wait(after: Partition) -> Partition:
        return replace(without_request(after, request), present=before.present)

    return {
        "plain": replace(plain, guard={**runs, "no turn": session == NONE}, after=wait(plain.after)),
        "turn": replace(turn, guard={**runs, "a turn": session != NONE, **turn.guard}, after=wait(slot)),
    }


def abort(before: Partition, request: Number, ran: Formula) -> Steps:
    """`leaving.abort`: wipe what the request and its session hold, or leave the slot as it was."""
    session = before.session_of(request)
    slot = choose(session == NONE, NONE, before.slot(session))
    own = before.record_of(request)
    record = choose(own == NONE, slot, own)
    closing = all_of(session != NONE, before.closing(session))
    doomed = any_of(ran, closing)
    guard = {
        "a request": before.present(request),
        "what runs ran": implies(before.running(request), ran),
    }

    def leave(after: Partition, left: Number) -> Partition:
        kept = without_request(with_session(after, session, left, NONE), request)
        gone = without_request(without_session(after, session), request)
        return replace(
            kept,
            is_open=lambda other: choose(closing, gone.is_open(other), kept.is_open(other)),
            closing=lambda other: choose(closing, gone.closing(other), kept.closing(other)),
        )

    wiped = forget_record(before, record)
    early = give_early_back(before, request)
    back = hand_to(before, record, SLOT, session)
    return {
        "wipe": replace(
            wiped, guard={**guard, "it ran": doomed, "a record": record != NONE}, after=leave(wiped.after, NONE)
        ),
        "give back": Step(
            {**guard, "it never ran": negation(doomed), "a lent record": own != NONE}, leave(back, record), record
        ),
        "leave": replace(
            early,
            guard={**guard, "no own record": own == NONE, "nothing to wipe": any_of(negation(doomed), record == NONE)},
            after=leave(early.after, record),
        ),
    }


def close_session(before: Partition, session: Number) -> Steps:
    """`leaving.close_session`: at once, or when the turn in flight ends."""
    record = before.slot(session)
    guard = {"an open session": all_of(before.is_open(session), negation(before.closing(session)))}
    idle = {**guard, "no turn in flight": before.turn(session) == NONE}
    release = forget_record(before, record)
    return {
        "deferred": Step(
            {**guard, "a turn in flight": before.turn(session) != NONE},
            replace(before, closing=put(before.closing, session, True)),
        ),
        "idle": replace(
            release, guard={**idle, "a record": record != NONE}, after=without_session(release.after, session)
        ),
        "empty": Step({**idle, "no record": record == NONE}, without_session(before, session)),
    }


def preempt(before: Partition, session: Number) -> Steps:
    """`leaving.preempt`."""
    record = before.slot(session)
    step = forget_record(before, record)
    guard = {"an open session": before.is_open(session), "a record": record != NONE}
    return {"": replace(step, guard=guard, after=with_session(step.after, session, NONE, before.turn(session)))}


def swa_evict(before: Partition, request: Number, until: Number) -> Steps:
    """`hybrid.swa_evict`: the cursor moves on to page `until`."""
    record = before.record_of(request)
    first, last = before.first(record), before.last(record)
    guard = {
        "a sliding window": before.windowed,
        "a running request": before.running(request),
        "forward": all_of(first <= until, before.cursor(record) <= until, until <= last),
    }

    def is_left(page: Number) -> Formula:
        return all_of(before.private(page, record), before.page_index(page) < until)

    after = replace(without_sides(before, is_left), cursor=put(before.cursor, record, until))
    return {"": Step(guard, after, record, joins={"free window pages": [sides_of(before, record, first, until)]})}


def take_state(before: Partition, request: Number, slot: Number) -> Steps:
    """`hybrid.take_state`."""
    guard = {
        "matched": all_of(before.present(request), negation(before.running(request)), before.matched(request)),
        "no record": before.record_of(request) == NONE,
        "no state yet": before.early(request) == NONE,
        "records have states": before.states_each > 0,
        "a free state": all_of(before.is_state(slot), before.state_kind(slot) == FREE),
    }
    after = replace(
        before,
        early=put(before.early, request, slot),
        state_kind=put(before.state_kind, slot, OF_REQUEST),
        state_owner=put(before.state_owner, slot, request),
    )
    joins, leaves = {"early states": [single(request, True)]}, {"free states": [single(slot, True)]}
    return {"": Step(guard, after, joins=joins, leaves=leaves)}


def give_early_back(before: Partition, request: Number) -> Step:
    """The state slot that a request has without a row becomes free, if it has one."""
    slot = before.early(request)
    here = slot != NONE
    after = replace(
        before,
        early=put(before.early, request, NONE),
        state_kind=lambda other: choose(all_of(here, other == slot), FREE, before.state_kind(other)),
    )
    joins, leaves = {"free states": [single(slot, here)]}, {"early states": [single(request, here)]}
    return Step({}, after, joins=joins, leaves=leaves)


def free_state(before: Partition, request: Number) -> Steps:
    """`hybrid.free_state`."""
    guard = {"a state without a row": before.early(request) != NONE}
    return {"": replace(give_early_back(before, request), guard=guard)}


def evict(
    before: Partition,
    victims: Set,
    count: Number,
    sides: Set,
    side_count: Number,
    states: Set,
    state_count: Number,
) -> Steps:
    """`leaving.evict` of `count` prefixes, and of the window sides and states of as many more as are told.

    The model asks of each victim that no prefix one page longer stays. By induction on the length none that is longer
    at all stays then, and this is how it is asked here.
    """
    guard = {
        "counts": all_of(count >= 0, side_count >= 0, state_count >= 0),
        "window sides of the store": before.every(
            lambda prefix: implies(sides(prefix), COLLECTIONS["cached window sides"](before, prefix))
        ),
        "states of the store": before.every(lambda prefix: implies(states(prefix), before.state(prefix) != NONE)),
        "those of evicted prefixes too": before.every(
            lambda prefix: implies(
                victims(prefix),
                all_of(
                    any_of(sides(prefix), before.side(before.page(prefix)) == NONE),
                    any_of(states(prefix), before.state(prefix) == NONE),
                ),
            )
        ),
        "cached prefixes": before.every(lambda prefix: implies(victims(prefix), before.cached(prefix))),
        "unlocked ones": before.every(
            lambda record: before.every(
                lambda prefix: implies(
                    all_of(before.live(record), victims(prefix)),
                    negation(before.covers(before.locked(record), prefix)),
                )
            )
        ),
        "leaves first": before.every(
            lambda prefix: before.every(
                lambda depth: implies(
                    all_of(
                        before.cached(prefix),
                        within(1, depth, before.depth(prefix)),
                        victims(before.ancestor(prefix, depth)),
                    ),
                    victims(prefix),
                )
            )
        ),
    }

    def is_of(chosen: Set) -> Set:
        return lambda page: all_of(
            before.is_page(page), before.page_kind(page) == STORE, chosen(before.page_owner(page))
        )

    is_freed = is_of(victims)
    after = replace(
        without_sides(before, is_of(sides)),
        page_kind=lambda page: choose(is_freed(page), FREE, before.page_kind(page)),
        cached=lambda prefix: all_of(before.cached(prefix), negation(victims(prefix))),
        state_kind=lambda slot: choose(
            all_of(before.is_state(slot), before.state_kind(slot) == OF_PREFIX, states(before.state_owner(slot))),
            FREE,
            before.state_kind(slot),
        ),
        state=lambda prefix: choose(states(prefix), NONE, before.state(prefix)),
    )
    joins = {
        "free pages": [Part(victims, count, before.page, before.page_owner)],
        "free window pages": [
            Part(
                sides,
                side_count,
                lambda prefix: before.side(before.page(prefix)),
                lambda side: before.page_owner(before.behind(side)),
            )
        ],
        "free states": [Part(states, state_count, before.state, before.state_owner)],
    }
    leaves = {
        "cached prefixes": [itself(victims, count)],
        "cached window sides": [itself(sides, side_count)],
        "cached states": [itself(states, state_count)],
    }
    return {"": Step(guard, after, joins=joins, leaves=leaves)}


OPERATIONS: dict[str, Callable[..., Steps]] = {
    "open_session": open_session,
    "submit": submit,
    "match_prefix": match_prefix,
    "extend": extend,
    "decode": decode,
    "verify": unchanged,
    "launch": launch,
    "complete": complete,
    "cache_unfinished": cache_unfinished,
    "finish": finish,
    "retract": retract,
    "abort": abort,
    "close_session": close_session,
    "preempt": preempt,
    "swa_evict": swa_evict,
    "take_state": take_state,
    "free_state": free_state,
    "evict": evict,
    "report": unchanged,
    "snapshot": unchanged,
}
"""Every operation, by the name of the model's function."""
