"""What must hold of who owns what: initially, and after each step of `partition` if it held before."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

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
    Number,
    Part,
    Partition,
    Step,
    all_of,
    any_of,
    choose,
    implies,
    negation,
    within,
)


class Clause(NamedTuple):
    """A formula that must hold for all numbers."""

    rule: str
    what: str
    variables: int
    body: Callable[..., Formula]
    """Of the state and that many numbers."""


def _one_of(number: Number, *values: int) -> Formula:
    return any_of(*(number == value for value in values))


FOREST = (
    Clause(
        "",
        "only the root is empty",
        1,
        lambda state, k: all_of(state.depth(k) >= 0, (state.depth(k) == 0) == (k == ROOT)),
    ),
    Clause("", "a prefix of its own length", 1, lambda state, k: state.ancestor(k, state.depth(k)) == k),
    Clause(
        "",
        "lengths of shorter ones",
        2,
        lambda state, k, d: implies(within(0, d, state.depth(k)), state.depth(state.ancestor(k, d)) == d),
    ),
    Clause(
        "",
        "shorter ones of shorter ones",
        3,
        lambda state, k, d, e: implies(
            all_of(within(0, e, d + 1), d <= state.depth(k)),
            state.ancestor(state.ancestor(k, d), e) == state.ancestor(k, e),
        ),
    ),
    Clause("", "no record has less than no state slot", 0, lambda state: state.states_each >= 0),
)
"""What no operation changes: the order of prefixes, and a size."""


def _row_state(state: Partition, row: Number) -> Formula:
    kind, record = state.row_kind(row), state.row_of(row)
    return implies(
        state.is_row(row),
        all_of(
            _one_of(kind, FREE, RECORD, WITHHELD),
            implies(kind == RECORD, all_of(state.live(record), state.row(record) == row)),
            implies(kind == WITHHELD, state.reads(row) > 0),
        ),
    )


def _free_row_is_unread(state: Partition, row: Number) -> Formula:
    reads = state.reads(row)
    return implies(state.is_row(row), all_of(reads >= 0, implies(state.row_kind(row) == FREE, reads == 0)))


def _record_has_row(state: Partition, record: Number) -> Formula:
    row = state.row(record)
    return implies(
        state.live(record),
        all_of(record >= 0, state.is_row(row), state.row_kind(row) == RECORD, state.row_of(row) == record),
    )


def _record_has_holder(state: Partition, record: Number) -> Formula:
    role, holder = state.role(record), state.holder(record)
    return implies(
        state.live(record),
        all_of(
            _one_of(role, HELD, LENT, SLOT),
            choose(role == SLOT, state.slot(holder) == record, state.record_of(holder) == record),
            implies(role == LENT, state.session_of(holder) != NONE),
        ),
    )


def _request_has_record(state: Partition, request: Number) -> Formula:
    record = state.record_of(request)
    return all_of(
        implies(state.running(request), record != NONE),
        implies(
            record != NONE,
            all_of(
                state.present(request),
                state.live(record),
                state.holder(record) == request,
                _one_of(state.role(record), HELD, LENT),
                implies(negation(state.running(request)), state.role(record) == LENT),
            ),
        ),
    )


def _slot_has_record(state: Partition, session: Number) -> Formula:
    record = state.slot(session)
    return implies(
        record != NONE,
        all_of(
            state.is_open(session),
            state.live(record),
            state.holder(record) == session,
            state.role(record) == SLOT,
        ),
    )


def _request_is_the_turn(state: Partition, request: Number) -> Formula:
    session = state.session_of(request)
    return implies(
        state.present(request),
        all_of(
            request >= 0,
            implies(session != NONE, all_of(state.is_open(session), state.turn(session) == request)),
        ),
    )


def _turn_is_the_request(state: Partition, session: Number) -> Formula:
    turn = state.turn(session)
    return all_of(
        implies(state.is_open(session), session >= 0),
        implies(
            all_of(state.is_open(session), turn != NONE),
            all_of(state.present(turn), state.session_of(turn) == session),
        ),
    )


def _lent_slot_is_empty(state: Partition, request: Number) -> Formula:
    session = state.session_of(request)
    asked = any_of(state.matched(request), state.record_of(request) != NONE)
    return implies(all_of(state.present(request), session != NONE, asked), state.slot(session) == NONE)


def _page_state(state: Partition, page: Number) -> Formula:
    kind, owner, index = state.page_kind(page), state.page_owner(page), state.page_index(page)
    return implies(
        state.is_page(page),
        all_of(
            _one_of(kind, FREE, STORE, PRIVATE),
            implies(kind == STORE, all_of(state.cached(owner), state.page(owner) == page)),
            implies(
                kind == PRIVATE,
                all_of(
                    state.live(owner),
                    within(state.first(owner), index, state.last(owner)),
                    state.table(owner, index) == page,
                ),
            ),
        ),
    )


def _private_pages(state: Partition, record: Number, index: Number) -> Formula:
    page = state.table(record, index)
    return implies(
        all_of(state.live(record), within(state.first(record), index, state.last(record))),
        all_of(state.private(page, record), state.page_index(page) == index),
    )


def _store_pages(state: Partition, prefix: Number) -> Formula:
    page = state.page(prefix)
    return implies(
        state.cached(prefix),
        all_of(prefix != ROOT, state.is_page(page), state.page_kind(page) == STORE, state.page_owner(page) == prefix),
    )


def _side_of_page(state: Partition, page: Number) -> Formula:
    side = state.side(page)
    return implies(
        side != NONE,
        all_of(
            state.windowed,
            state.is_page(page),
            state.page_kind(page) != FREE,
            state.is_window_page(side),
            state.behind(side) == page,
        ),
    )


def _page_of_side(state: Partition, side: Number) -> Formula:
    page = state.behind(side)
    return implies(all_of(state.is_window_page(side), page != NONE), state.side(page) == side)


def _sides_from_the_cursor(state: Partition, record: Number, index: Number) -> Formula:
    has_side = state.side(state.table(record, index)) != NONE
    return implies(
        all_of(state.live(record), state.windowed, within(state.first(record), index, state.last(record))),
        has_side == (index >= state.cursor(record)),
    )


def _cursor(state: Partition, record: Number) -> Formula:
    return implies(state.live(record), within(0, state.cursor(record), state.last(record) + 1))


def _state_slot(state: Partition, slot: Number) -> Formula:
    kind, owner, index = state.state_kind(slot), state.state_owner(slot), state.state_index(slot)
    return implies(
        state.is_state(slot),
        all_of(
            _one_of(kind, FREE, OF_RECORD, OF_REQUEST, OF_PREFIX),
            implies(
                kind == OF_RECORD,
                all_of(state.live(owner), within(0, index, state.states_each), state.states(owner, index) == slot),
            ),
            implies(kind == OF_REQUEST, state.early(owner) == slot),
            implies(kind == OF_PREFIX, state.state(owner) == slot),
        ),
    )


def _is_state_of(state: Partition, slot: Number, kind: int, owner: Number) -> Formula:
    return all_of(state.is_state(slot), state.state_kind(slot) == kind, state.state_owner(slot) == owner)


def _states_of_record(state: Partition, record: Number, index: Number) -> Formula:
    slot = state.states(record, index)
    return implies(
        all_of(state.live(record), within(0, index, state.states_each)),
        all_of(_is_state_of(state, slot, OF_RECORD, record), state.state_index(slot) == index),
    )


def _state_without_row(state: Partition, request: Number) -> Formula:
    slot = state.early(request)
    return implies(
        slot != NONE,
        all_of(
            _is_state_of(state, slot, OF_REQUEST, request),
            state.states_each > 0,
            state.present(request),
            state.matched(request),
            negation(state.running(request)),
            state.record_of(request) == NONE,
        ),
    )


def _state_of_prefix(state: Partition, prefix: Number) -> Formula:
    slot = state.state(prefix)
    return implies(slot != NONE, _is_state_of(state, slot, OF_PREFIX, prefix))


def _lengths(state: Partition, record: Number) -> Formula:
    first, last = state.first(record), state.last(record)
    return implies(state.live(record), all_of(first >= 0, first <= last, first == state.depth(state.locked(record))))


def _shared_pages(state: Partition, record: Number, index: Number) -> Formula:
    return implies(
        all_of(state.live(record), within(0, index, state.first(record))),
        state.table(record, index) == state.page(state.ancestor(state.locked(record), index + 1)),
    )


def _prefix_closed(state: Partition, prefix: Number, depth: Number) -> Formula:
    return implies(
        all_of(state.cached(prefix), within(1, depth, state.depth(prefix))),
        state.cached(state.ancestor(prefix, depth)),
    )


def _locked_is_cached(state: Partition, record: Number, depth: Number) -> Formula:
    locked = state.locked(record)
    return implies(
        all_of(state.live(record), within(1, depth, state.depth(locked) + 1)),
        state.cached(state.ancestor(locked, depth)),
    )


def _counted_from_the_start(state: Partition, number: Number) -> Formula:
    """The base of `counting`: all that there is is free, nothing is locked, and no record holds anything."""
    return all_of(
        implies(state.is_page(number), COLLECTIONS["free pages"](state, number)),
        implies(state.is_row(number), COLLECTIONS["free rows"](state, number)),
        negation(COLLECTIONS["cached prefixes"](state, number)),
        negation(COLLECTIONS["withheld rows"](state, number)),
        implies(state.is_window_page(number), COLLECTIONS["free window pages"](state, number)),
        implies(state.is_state(number), COLLECTIONS["free states"](state, number)),
        negation(COLLECTIONS["cached states"](state, number)),
        negation(COLLECTIONS["early states"](state, number)),
        negation(state.live(number)),
        state.locks(number) == 0,
    )


INITIALLY = (Clause("ACC-1", "all is free", 1, _counted_from_the_start),)
"""What holds of the initial state, besides the invariants."""

INVARIANTS = (
    Clause("ROW-1", "a row is free, its record's, or withheld while it is read", 1, _row_state),
    Clause("ROW-1", "a record has one row", 1, _record_has_row),
    Clause("ROW-1", "a record has one holder", 1, _record_has_holder),
    Clause("ROW-1", "a request holds one record, its own", 1, _request_has_record),
    Clause("ROW-1", "a slot holds one record, its own", 1, _slot_has_record),
    Clause("RACE-1", "a free row is read by no launch", 1, _free_row_is_unread),
    Clause("SESS-1", "a session's request is its turn", 1, _request_is_the_turn),
    Clause("SESS-1", "a session's turn is its request", 1, _turn_is_the_request),
    Clause("SESS-3", "the slot of a turn that has matched is empty", 1, _lent_slot_is_empty),
    Clause(
        "SESS-4",
        "a closing session has a turn to wait for",
        1,
        lambda state, s: implies(all_of(state.is_open(s), state.closing(s)), state.turn(s) != NONE),
    ),
    Clause("PAGE-1", "a page is free, a cached prefix's, or private to one record", 1, _page_state),
    Clause("PAGE-1", "a record's private pages are its own", 2, _private_pages),
    Clause("PAGE-1", "a cached prefix's page is the store's", 1, _store_pages),
    Clause("PAGE-2", "a block table begins with what is locked", 1, _lengths),
    Clause("PAGE-2", "namely with the store's pages", 2, _shared_pages),
    Clause("STORE-1", "shorter prefixes are cached", 2, _prefix_closed),
    Clause("STORE-2", "what a holder needs is cached", 2, _locked_is_cached),
    Clause("SWA-1", "a window side is behind its page, which is not free", 1, _side_of_page),
    Clause("SWA-1", "a window page is free, or behind one page", 1, _page_of_side),
    Clause("SWA-3", "private pages have a window side from the cursor on", 2, _sides_from_the_cursor),
    Clause("SWA-3", "a cursor is within its block table", 1, _cursor),
    Clause("MAMBA-1", "a state slot is free, a record's, a waiting request's or a cached prefix's", 1, _state_slot),
    Clause("MAMBA-1", "a record's state slots are its own", 2, _states_of_record),
    Clause("MAMBA-1", "a cached state is the store's", 1, _state_of_prefix),
    Clause("MAMBA-2", "who has a state slot without a row waits for one", 1, _state_without_row),
    Clause(
        "MAMBA-4",
        "only cached prefixes have a cached state",
        1,
        lambda state, prefix: implies(state.state(prefix) != NONE, state.cached(prefix)),
    ),
)
"""What is inductive: each holds after a step if all held before it."""


POOLS = (
    ("ACC-1", ("free pages", "cached prefixes")),
    ("ACC-1", ("free rows", "withheld rows")),
    ("ACC-2", ("free window pages", "cached window sides")),
    ("ACC-3", ("free states", "cached states", "early states")),
)
"""For each pool the rule that it is all accounted for, and what of it is counted index by index."""


def counting(before: Partition, step: Step) -> Iterator[Clause]:
    """What a step owes to the ACC rules and STORE-2, which speak of how many; these bodies leave their state aside.

    A collection changes by the sets that join and leave it, which are numbered one to one; records other than
    `step.record` hold what they held; and the sizes of it all cancel out.
    """
    after, touched = step.after, step.record

    def changes(name: str) -> Callable[..., Formula]:
        contains = COLLECTIONS[name]
        joins, leaves = step.joins.get(name, []), step.leaves.get(name, [])

        def body(_: Any, element: Number) -> Formula:
            joined = [part.contains(element) for part in joins]
            left = [part.contains(element) for part in leaves]
            was = contains(before, element)
            return all_of(
                contains(after, element) == any_of(all_of(was, negation(any_of(*left))), any_of(*joined)),
                *(implies(part, negation(was)) for part in joined),
                *(implies(part, was) for part in left),
                *(negation(all_of(one, other)) for one, other in _pairs(joined)),
                *(negation(all_of(one, other)) for one, other in _pairs(left)),
            )

        return body

    def numbered(part: Part) -> Callable[..., Formula]:
        return lambda _, number: all_of(
            part.size >= 0, implies(part.index(number), part.place(part.item(number)) == number)
        )

    def undisturbed(_: Any, record: Number) -> Formula:
        return any_of(
            record == touched,
            all_of(
                *(one == other for one, other in zip(_holding(before, record), _holding(after, record), strict=True)),
                after.locked(record) == before.locked(record),
            ),
        )

    def adds_up(pool: int, *names: str) -> Callable[..., Formula]:
        def change(name: str) -> Number:
            joins, leaves = step.joins.get(name, []), step.leaves.get(name, [])
            return sum(part.size for part in joins) - sum(part.size for part in leaves)

        then, now = _by_role(before, touched)[pool], _by_role(after, touched)[pool]
        held = sum(new - old for old, new in zip(then, now, strict=True))
        return lambda _: sum(map(change, names)) + held == 0

    def locks_follow(_: Any, prefix: Number) -> Formula:
        def held(state: Partition) -> Number:
            return choose(all_of(state.live(touched), state.locked(touched) == prefix), 1, 0)

        return implies(prefix != ROOT, after.locks(prefix) - before.locks(prefix) == held(after) - held(before))

    for pool, (rule, names) in enumerate(POOLS):
        for name in names:
            yield Clause(rule, f"{name} change as counted", 1, changes(name))
            for part in (*step.joins.get(name, []), *step.leaves.get(name, [])):
                yield Clause(rule, f"what joins or leaves the {name} is counted once", 1, numbered(part))
        yield Clause(rule, "the figures sum to the pool", 0, adds_up(pool, *names))
    yield Clause("ACC-1", "other records hold what they held", 1, undisturbed)
    yield Clause("STORE-2", "each holder has one lock, and no lock is anybody else's", 1, locks_follow)


def goals(before: Partition, step: Step) -> tuple[Clause, ...]:
    """All that is to be shown of the state after a step."""
    return (*INVARIANTS, *counting(before, step))


def _pairs(parts: list[Formula]) -> Iterator[tuple[Formula, Formula]]:
    return ((one, other) for number, one in enumerate(parts) for other in parts[:number])


def _holding(state: Partition, record: Number) -> tuple[Number, ...]:
    """A record's share of the figures."""
    return tuple(figure for pool in _by_role(state, record) for figure in pool)


def _by_role(state: Partition, record: Number) -> tuple[tuple[Number, Number], ...]:
    """A record's share of each of `POOLS`, each as a slot's and as a request's."""
    live, idle = state.live(record), state.role(record) == SLOT
    first, last = state.first(record), state.last(record)
    of_slot, of_request = all_of(live, idle), all_of(live, negation(idle))
    shares = (last - first, 1, last - state.sides_from(record, first, last), state.states_each)
    return tuple((choose(of_slot, share, 0), choose(of_request, share, 0)) for share in shares)
