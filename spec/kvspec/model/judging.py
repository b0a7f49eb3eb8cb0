"""How an answer is held against what the specification expects."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from kvspec.events import A, MatchAnswer, Operation, ReleaseAnswer
from kvspec.model.state import WITHHELD, State
from kvspec.pages import Runs, beginning, count
from kvspec.rules import Violation
from kvspec.tokens import PrefixKey


def carried_out(state: State, op: Operation[A], rule: str = "OP-1") -> None:
    """The operation is due by `rule`, and fits: raise a violation if it was refused all the same."""
    if op.refused is not None:
        told = op.refused
        short = told.pages_short or told.rows_short or told.window_short or told.states_short
        broken = "CAP-1" if short or told.rule == "CAP-1" else rule
        what = f"the operation was refused ({told.reason or 'no reason given'}), but nothing stands in its way"
        raise Violation(broken, what, expected="carried out", observed="refused")
    state.judged["OP-1"] += 1


def judge_length(state: State, rule: str, name: str, expected: int, observed: int | None) -> None:
    """Compare one length, in tokens."""
    if observed is None:
        state.unjudged[rule] += 1
    elif observed != expected:
        raise Violation(rule, f"{name} is wrong", expected=expected, observed=observed)
    else:
        state.judged[rule] += 1


_FREE = "is free already"
_MORE = 64
"""So many numbers more than were due are written out, for the report."""
_STORE = "the prefix store"
_TELLING = ("SESS-4", "STORE-5")
"""Rules of operations that free nothing of one's own, or only duplicates: a page too many breaks just these."""


class Pool(NamedTuple):
    """A pool of what is given out by number and goes back: pages, window pages, state slots."""

    kind: str
    rule: str
    """Each number has one owner."""
    due: str
    """Says how many are given out."""
    size: int
    owners: Mapping[int, object]
    whose: Callable[[State, int], tuple[str, str]]
    """The rule that giving back a number breaks which somebody has, and who that is."""

    def use(self, state: State, number: int) -> tuple[str, str]:
        """The rule that giving back a number breaks which stays, and what is with the number."""
        if 1 <= number <= self.size and number in self.owners:
            return self.whose(state, number)
        return self.rule, _FREE if 1 <= number <= self.size else "does not exist"


def pages_of(state: State) -> Pool:
    """The pages."""
    return Pool("page", "PAGE-1", "PAGE-2", state.config.num_pages, state.owner, _whose_page)


def window_pages_of(state: State) -> Pool | None:
    """The window pages; `None` without a sliding window (20070)."""
    config = state.config
    if not config.sliding_window:
        return None
    return Pool("window page", "SWA-1", "SWA-1", config.num_window_pages, state.window_owner, _whose_side)


def states_of(state: State) -> Pool | None:
    """The state slots; `None` where there are none (17850)."""
    if not state.config.num_states:
        return None
    return Pool("state slot", "MAMBA-1", "MAMBA-1", state.config.num_states, state.state_owner, _whose_state)


def judge_given_back(
    state: State,
    obs: MatchAnswer | ReleaseAnswer,
    pages: list[int],
    rule: str,
    *,
    window_rule: str = "SWA-1",
    states: Collection[int] = (),
    states_rule: str = "MAMBA-2",
    staying: Mapping[int, str] | None = None,
) -> None:
    """Compare what went back with `pages`, the window sides behind them and `states`; no state goes to the store."""
    judge_freed(state, pages_of(state), rule, pages, obs.freed, staying)
    judge_freed(state, window_pages_of(state), window_rule, state.window_sides(pages), obs.window_freed)
    judge_freed(state, states_of(state), states_rule, states, obs.states_freed)
    if isinstance(obs, ReleaseAnswer):
        judge_cached(obs.state_cached, ())


def judge_cached(slot: int | None, due: Sequence[int]) -> None:
    """The state slot that the store took, if it took one, is one of those `due` (rule MAMBA-4)."""
    if slot is not None and slot not in due:
        what = f"state slot {slot}, which is not the request's" if due else "a state that is not due"
        raise Violation("MAMBA-4", f"the store took {what}", expected=[*due] or None, observed=slot)


def judge_freed(
    state: State,
    pool: Pool | None,
    rule: str,
    expected: Collection[int],
    observed: Runs | None,
    staying: Mapping[int, str] | None = None,
) -> None:
    """Compare what went back to a pool with what was due, in any order; `rule` is what a number left behind breaks.

    `staying` are numbers of which a rule of the operation itself says that they stay. Where the numbers of some that
    are due were never told (negative ones), whatever seems to be free may be one of them.
    """
    if pool is None:
        return
    if observed is None:
        state.unjudged[rule] += 1
        return
    state.judged[rule] += 1
    due, of_pages = [*expected], pool.rule == "PAGE-1"
    freed = beginning(observed, len(due) + _MORE)
    state.judged["TAIL-2"] += of_pages and bool(freed)
    if freed == due:
        return
    untold = any(number < 0 for number in due)
    if untold and (number := count(observed)) != len(due):
        raise Violation(rule, f"the number of freed {pool.kind}s is wrong", expected=len(due), observed=number)
    seen: set[int] = set()
    for number in freed:
        if number in seen:
            twice = pool.rule if of_pages else rule
            raise Violation(twice, f"{pool.kind} {number} was freed twice", expected=due, observed=freed)
        if number not in due:
            broken, whose = pool.use(state, number)
            if of_pages:
                broken = rule if rule in _TELLING else (staying or {}).get(number, broken)
            if not (untold and whose == _FREE):
                raise Violation(broken, f"{pool.kind} {number} was freed, but it {whose}", expected=due, observed=freed)
        seen.add(number)
    left = sorted(set(due) - seen)
    if left and not untold:
        what = f"{pool.kind}(s) {_listed(left)} were not freed and nobody holds them"
        raise Violation(rule, what, expected=due, observed=freed)


def judge_evicted(
    state: State,
    pool: Pool,
    locked: str,
    asked: int,
    leaving: list[int],
    evictable: list[int],
    observed: Runs | None,
) -> list[int]:
    """Compare what left the store beside its pages, `leaving` with them among it, and return it.

    Only `evictable` numbers leave, and enough of them; `locked` is the rule of both.
    """
    evicted = leaving if observed is None else beginning(observed, len(pool.owners) + 1)
    if len(set(evicted)) < len(evicted) or not set(leaving) <= set(evicted):
        what = f"the {pool.kind}s of evicted pages stay, or leave twice"
        raise Violation(pool.rule, what, expected=leaving, observed=evicted)
    may = {*leaving, *evictable}
    for number in evicted:
        if number not in may:
            whose = pool.use(state, number)[1]
            rule = locked if whose.endswith(_STORE) else pool.rule
            what = "somebody has locked it" if rule == locked else f"it {whose}"
            raise Violation(rule, f"{pool.kind} {number} was evicted, but {what}", observed=evicted)
    due = min(asked, len(evictable))
    if len(evicted) < due:
        what = f"too few {pool.kind}s were evicted"
        raise Violation(locked, what, expected=f"at least {due}", observed=len(evicted))
    state.judged[locked] += 1
    state.chosen["more evicted than asked"] += len(evicted) > max(asked, len(leaving))
    state.chosen["some of several evicted"] += 0 < len(evicted) < len(evictable)
    return evicted


def _whose_page(state: State, page: int) -> tuple[str, str]:
    owner = state.owner[page]
    if isinstance(owner, bytes):
        return "PAGE-1", f"belongs to {_STORE}"
    position, name = state.tables[owner].index(page) * state.config.page_size, record_name(state, owner)
    if position < state.lengths[owner].committed:
        return "TAIL-2", f"still holds committed positions of {name}, from {position} on"
    return "PAGE-1", f"belongs to {name}"


def _whose_side(state: State, window_page: int) -> tuple[str, str]:
    page = state.window_owner[window_page]
    owner = state.owner[page]
    if isinstance(owner, bytes):
        return "SWA-1", f"is behind page {page} of {_STORE}"
    return "SWA-2", f"is behind page {page} of {record_name(state, owner)}, which is still read"


def _whose_state(state: State, slot: int) -> tuple[str, str]:
    return "MAMBA-1", f"belongs to {owner_name(state, state.state_owner[slot])}"


def _listed(numbers: list[int]) -> str:
    """A few numbers, for a sentence."""
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def choose(pool: Pool | None, needs: Iterable[tuple[str, int]]) -> dict[str, Runs] | None:
    """The model's own choice, where nothing was answered: the smallest free numbers; `None` without the pool."""
    if pool is None:
        return None
    free = (number for number in range(1, pool.size + 1) if number not in pool.owners)
    return {req: list(islice(free, need)) for req, need in needs if need}


def choose_rows(state: State, kept: dict[str, int | None]) -> dict[str, int] | None:
    """The model's own choice, where nothing was answered: kept rows, the smallest free ones; `None` without rows."""
    if not state.config.num_rows:
        return None
    free = (row for row in range(state.config.num_rows) if row not in state.rows)
    return {req: next(free) if row is None else row for req, row in kept.items()}


def judge_new(
    state: State, pool: Pool | None, needs: Iterable[tuple[str, int]], told: dict[str, Runs] | None, due: str = ""
) -> dict[str, list[int]]:
    """Check the numbers given to each request, and return them; `due` is the rule that says how many.

    What the implementation could not observe gets negative numbers, which no later answer is held against.
    """
    if pool is None:
        return {}
    if told is None:
        state.unjudged[pool.rule] += 1
        return {req: [_virtual_page(state) for _ in range(need)] for req, need in needs if need}
    given: dict[str, list[int]] = {}
    seen: set[int] = set()
    wanted = dict(needs)
    for req in [*wanted, *(told.keys() - wanted.keys())]:
        need, runs = wanted.get(req, 0), told.get(req, ())
        taken = beginning(runs, need + _MORE)
        if len(taken) != need:
            rule = due if due and req in wanted else pool.due
            raise Violation(rule, f"the number of {pool.kind}s given to {req} is wrong", expected=need, observed=taken)
        if taken:
            _judge_free(state, pool, taken, given, seen, req)
            given[req] = taken
    state.judged[pool.rule] += bool(given)
    if pool.due != pool.rule:
        state.judged[pool.due] += 1
    return given


def _judge_free(
    state: State, pool: Pool, numbers: list[int], given: dict[str, list[int]], seen: set[int], req: str
) -> None:
    """Each number is free; `seen` are those that were `given` to others of the batch, and these join them."""
    before = len(seen)
    seen.update(numbers)
    fine = len(seen) == before + len(numbers) and pool.owners.keys().isdisjoint(numbers)
    if fine and min(numbers) >= 1 and max(numbers) <= pool.size:
        return
    taken = {*chain(*given.values())}
    for number in numbers:
        exists = 1 <= number <= pool.size
        if number in taken or number in pool.owners or not exists:
            whose = "was given out already" if number in taken and exists else pool.use(state, number)[1]
            what = f"{pool.kind} {number} was given to {req}, but it {whose}"
            raise Violation(pool.rule, what, expected=f"a free {pool.kind}", observed=number)
        taken.add(number)


def _virtual_page(state: State) -> int:
    state.virtual_page -= 1
    return state.virtual_page


def judge_rows(state: State, kept: dict[str, int | None], told: dict[str, int] | None) -> dict[str, int]:
    """Check the row of each request of an extend, and return them; `kept` are the rows that they bring."""
    rows: dict[str, int] = {}
    for req, row in kept.items():
        rows[req] = _judge_row(state, req, row, told, rows)
    if told is not None and len(told) > len(rows):
        raise Violation("ROW-1", "rows were given to requests that are not in the batch", observed=told)
    return rows


def _judge_row(state: State, req: str, kept: int | None, rows: dict[str, int] | None, batch: dict[str, int]) -> int:
    """Check the row of one request of an extend: `kept` is the row it brings, `batch` the rows of those before it."""
    row = None if rows is None else rows.get(req)
    if row is None:
        state.unjudged["ROW-1"] += 1
        if kept is not None:
            return kept
        state.virtual_row -= 1
        return state.virtual_row
    if kept is not None:
        if row != kept:
            raise Violation("ROW-2", f"{req} did not keep its row", expected=kept, observed=row)
        state.judged["ROW-2"] += 1
        state.judged["ROW-3"] += 1
        return row
    what = f"{req} was given row {row}"
    if not 0 <= row < state.config.num_rows:
        raise Violation("ROW-1", what, expected=f"0..{state.config.num_rows - 1}", observed=row)
    if row in batch.values():
        raise Violation("ROW-1", f"row {row} was given out twice", expected="a free row", observed=row)
    holder = state.rows.get(row)
    if holder is not None:
        read = holder == WITHHELD
        whose = "a launch in flight still reads" if read else f"belongs to {record_name(state, holder)}"
        rule = "RACE-1" if read else "ROW-1"
        raise Violation(rule, f"{what}, which {whose}", expected="a free row", observed=row)
    state.judged["ROW-1"] += 1
    state.judged["RACE-1"] += bool(state.readers)
    return row


def record_name(state: State, record: int) -> str:
    """Who holds a record, in words."""
    for req, request in state.requests.items():
        if request.record == record:
            return f"request {req}"
    for session, slot in state.sessions.items():
        if slot.record == record:
            return f"the slot of session {session}"
    return "nobody"


def owner_name(state: State, owner: int | str | PrefixKey) -> str:
    """Who owns a page or a state slot, in words."""
    if isinstance(owner, bytes):
        return _STORE
    return f"request {owner}" if isinstance(owner, str) else record_name(state, owner)
