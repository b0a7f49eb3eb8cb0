"""How an answer is held against what the specification expects."""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice

from kvspec.events import A, Operation
from kvspec.model.state import WITHHELD, State
from kvspec.pages import Runs, beginning, count
from kvspec.rules import Violation


def carried_out(state: State, op: Operation[A], rule: str = "OP-1") -> None:
    """The operation is due by `rule`, and fits: raise a violation if it was refused all the same."""
    if op.refused is not None:
        told = op.refused
        short = told.pages_short or told.rows_short or told.window_short or told.states_short
        raise Violation(
            "CAP-1" if short or told.rule == "CAP-1" else rule,
            f"the operation was refused ({told.reason or 'no reason given'}), but nothing stands in its way",
            expected="carried out",
            observed="refused",
        )
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
_TELLING = ("SESS-4", "STORE-5")
"""Rules of operations that free nothing of one's own, or only duplicates: a page too many breaks just these."""


def judge_freed(
    state: State, rule: str, expected: list[int], observed: Runs | None, staying: Mapping[int, str] | None = None
) -> None:
    """Compare the pages that went back to the free pages; `rule` is what a page left behind breaks.

    `staying` are pages of which a rule of the operation itself says that they stay.
    """
    if observed is None:
        state.unjudged[rule] += 1
        return
    state.judged[rule] += 1
    freed = _enough(observed, expected)
    state.judged["TAIL-2"] += bool(freed)
    if freed == expected:
        return

    def use(page: int) -> tuple[str, str]:
        broken, whose = wrongly_freed(state, page)
        return rule if rule in _TELLING else (staying or {}).get(page, broken), whose

    _judge_each_once(rule, "PAGE-1", "page", expected, observed, use)


def wrongly_freed(state: State, page: int) -> tuple[str, str]:
    """The rule that freeing `page` breaks, and what the page is."""
    owner = state.owner.get(page)
    if not 1 <= page <= state.config.num_pages:
        return "PAGE-1", "does not exist"
    if owner is None:
        return "PAGE-1", _FREE
    if isinstance(owner, bytes):
        return "PAGE-1", "belongs to the prefix store"
    position = state.tables[owner].index(page) * state.config.page_size
    if position < state.lengths[owner].committed:
        return "TAIL-2", f"still holds committed positions of its holder, from {position} on"
    return "PAGE-1", "stays with its holder"


def judge_window_freed(state: State, rule: str, expected: list[int] | None, observed: Runs | None) -> None:
    """Compare the window pages that went back; `rule` is what a window page left behind breaks (20070)."""
    if expected is None:
        return
    if observed is None:
        state.unjudged[rule] += 1
        return
    state.judged[rule] += 1
    _judge_each_once(rule, rule, "window page", expected, observed, lambda page: _window_side(state, page))


def judge_states_freed(state: State, rule: str, expected: list[int] | None, observed: Runs | None) -> None:
    """Compare the state slots that went back; `rule` is what a slot left behind breaks (17850)."""
    if expected is None:
        return
    if observed is None:
        state.unjudged[rule] += 1
        return
    state.judged[rule] += 1
    _judge_each_once(rule, rule, "state slot", expected, observed, lambda slot: _state_use(state, slot))


def _enough(observed: Runs, expected: list[int]) -> list[int]:
    """As many of the numbers as it takes to see that they are too many: one of them is not due, or there twice."""
    return beginning(observed, len(expected) + _MORE)


def _judge_each_once(
    rule: str, twice: str, kind: str, expected: list[int], observed: Runs, use: Callable[[int], tuple[str, str]]
) -> None:
    """Compare what went back to a pool with what was due, in any order.

    What is left behind breaks `rule`, what goes back twice `twice`; `use` blames what was not due. Where the numbers
    of some that are due were never told (negative ones), whatever seems to be free may be one of them.
    """
    untold = any(number < 0 for number in expected)
    if untold and (number := count(observed)) != len(expected):
        raise Violation(rule, f"the number of freed {kind}s is wrong", expected=len(expected), observed=number)
    freed = _enough(observed, expected)
    due = set(expected)
    seen: set[int] = set()
    for number in freed:
        if number in seen:
            raise Violation(twice, f"{kind} {number} was freed twice", expected=expected, observed=freed)
        if number not in due:
            broken, whose = use(number)
            if not (untold and whose == _FREE):
                raise Violation(broken, f"{kind} {number} was freed, but it {whose}", expected=expected, observed=freed)
        seen.add(number)
    if due - seen and not untold:
        raise Violation(
            rule,
            f"{kind}(s) {_listed(sorted(due - seen))} were not freed and nobody holds them",
            expected=expected,
            observed=freed,
        )


def _window_side(state: State, window_page: int) -> tuple[str, str]:
    """The rule that freeing a window page breaks, and what it is."""
    page = state.window_owner.get(window_page)
    if not 1 <= window_page <= state.config.num_window_pages:
        return "SWA-1", "does not exist"
    if page is None:
        return "SWA-1", _FREE
    owner = state.owner[page]
    if isinstance(owner, bytes):
        return "SWA-1", f"is behind page {page} of the prefix store"
    return "SWA-2", f"is behind page {page} of {record_name(state, owner)}, which is still read"


def _state_use(state: State, slot: int) -> tuple[str, str]:
    """The rule that freeing a state slot breaks, and what it is."""
    if not 1 <= slot <= state.config.num_states:
        return "MAMBA-1", "does not exist"
    owner = state.state_owner.get(slot)
    return "MAMBA-1", _FREE if owner is None else f"belongs to {state_owner_name(state, slot)}"


def _listed(numbers: list[int]) -> str:
    """A few numbers, for a sentence."""
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def choose(size: int, in_use: Collection[int], needs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The model's own choice, where nothing was answered: the smallest free numbers of a pool of `size`."""
    free = (number for number in range(1, size + 1) if number not in in_use)
    return {req: list(islice(free, need)) for req, need in needs if need}


def choose_pages(state: State, needs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The model's own choice of pages."""
    return choose(state.config.num_pages, state.owner, needs)


def choose_window_pages(state: State, needs: Iterable[tuple[str, int]]) -> dict[str, list[int]] | None:
    """The model's own choice of window pages; `None` without a sliding window."""
    return choose(state.config.num_window_pages, state.window_owner, needs) if state.config.sliding_window else None


def choose_states(state: State, needs: Iterable[tuple[str, int]]) -> dict[str, list[int]] | None:
    """The model's own choice of state slots; `None` where there are none."""
    return choose(state.config.num_states, state.state_owner, needs) if state.config.num_states else None


def choose_rows(state: State, kept: dict[str, int | None]) -> dict[str, int]:
    """The model's own choice, where nothing was answered: kept rows, and the smallest free ones."""
    free = (row for row in range(state.config.num_rows) if row not in state.rows)
    return {req: next(free) if row is None else row for req, row in kept.items()}


def judge_new_pages(
    state: State, needs: Iterable[tuple[str, int]], pages: dict[str, Runs] | None, rule: str = "PAGE-2"
) -> dict[str, list[int]]:
    """Check the pages given to each request, `needs` pages each, and return them; `rule` says how many are due.

    Pages that the implementation could not observe get negative numbers, which no later answer is held against.
    """
    if pages is None:
        state.unjudged["PAGE-1"] += 1
        return {req: [_virtual_page(state) for _ in range(need)] for req, need in needs if need}
    given: dict[str, list[int]] = {}
    seen: set[int] = set()
    total = 0
    for req, need in needs:
        if not need and req not in pages:
            continue
        runs = pages.get(req, ())
        taken = beginning(runs, need + _MORE)
        if count(runs) != need:
            raise Violation(rule, f"the number of pages given to {req} is wrong", expected=need, observed=taken)
        total += need
        given[req] = taken
        _judge_free_pages(state, taken, seen, req)
    if total:
        state.judged["PAGE-1"] += 1
    state.judged["PAGE-2"] += 1
    stranger = next((req for req in pages if req not in given and len(pages[req])), None)
    if stranger is not None:
        raise Violation("PAGE-2", f"pages were given to {stranger}, which needs none", observed=pages[stranger])
    return given


def _judge_free_pages(state: State, pages: list[int], seen: set[int], req: str) -> None:
    """`seen` are the pages that others of the batch were given; these join them."""
    new = set(pages)
    fine = len(new) == len(pages) and seen.isdisjoint(new) and state.owner.keys().isdisjoint(new)
    if not (fine and (not new or (min(new) >= 1 and max(new) <= state.config.num_pages))):
        for page in pages:
            _judge_free_page(state, page, seen, req)
    seen |= new


def _judge_free_page(state: State, page: int, seen: set[int], req: str) -> None:
    if not 1 <= page <= state.config.num_pages:
        raise Violation(
            "PAGE-1",
            f"page {page} was given to {req}",
            expected=f"1..{state.config.num_pages}",
            observed=page,
        )
    if page in seen:
        raise Violation("PAGE-1", f"page {page} was given out twice", expected="a free page", observed=page)
    if page in state.owner:
        raise Violation(
            "PAGE-1",
            f"page {page} was given to {req}, but it belongs to {owner_name(state, page)}",
            expected="a free page",
            observed=page,
        )
    seen.add(page)


def judge_new_window_pages(
    state: State, needs: Iterable[tuple[str, int]], told: dict[str, Runs] | None
) -> dict[str, list[int]]:
    """Check the window sides of new pages, one behind each (rule SWA-1), and return them."""
    if not state.config.sliding_window:
        return {}
    return _judge_new(
        state, "SWA-1", "window page", (state.config.num_window_pages, state.window_owner), dict(needs), told
    )


def judge_new_states(
    state: State, needs: Iterable[tuple[str, int]], told: dict[str, Runs] | None
) -> dict[str, list[int]]:
    """Check the state slots given to each request (rule MAMBA-1), and return them."""
    if not state.config.num_states:
        return {}
    return _judge_new(state, "MAMBA-1", "state slot", (state.config.num_states, state.state_owner), dict(needs), told)


def _judge_new(
    state: State,
    rule: str,
    kind: str,
    pool: tuple[int, Collection[int]],
    needs: dict[str, int],
    told: dict[str, Runs] | None,
) -> dict[str, list[int]]:
    """Check the numbers given to each request from a pool of a size, some of it in use, and return them."""
    if told is None:
        state.unjudged[rule] += 1
        return {req: [_virtual_page(state) for _ in range(need)] for req, need in needs.items() if need}
    size, in_use = pool
    seen: set[int] = set()
    given: dict[str, list[int]] = {}
    for req in [*needs, *(req for req in told if req not in needs)]:
        runs, need = told.get(req, ()), needs.get(req, 0)
        taken = beginning(runs, need + _MORE)
        if count(runs) != need:
            raise Violation(rule, f"the number of {kind}s given to {req} is wrong", expected=need, observed=taken)
        for number in taken:
            if not 1 <= number <= size or number in seen or number in in_use:
                raise Violation(
                    rule, f"{kind} {number} was given to {req}, but is not free", expected="a free one", observed=number
                )
            seen.add(number)
        given[req] = taken
    state.judged[rule] += 1
    return given


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
    if not 0 <= row < state.config.num_rows:
        raise Violation("ROW-1", f"{req} was given row {row}", expected=f"0..{state.config.num_rows - 1}", observed=row)
    if row in batch.values():
        raise Violation("ROW-1", f"row {row} was given out twice", expected="a free row", observed=row)
    holder = state.rows.get(row)
    if holder == WITHHELD:
        raise Violation(
            "RACE-1",
            f"{req} was given row {row}, which a launch in flight still reads",
            expected="a free row",
            observed=row,
        )
    if holder is not None:
        raise Violation(
            "ROW-1",
            f"{req} was given row {row}, which belongs to {record_name(state, holder)}",
            expected="a free row",
            observed=row,
        )
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


def state_owner_name(state: State, slot: int) -> str:
    """Who owns a state slot that is not free, in words."""
    owner = state.state_owner[slot]
    if isinstance(owner, bytes):
        return "the prefix store"
    return f"request {owner}" if isinstance(owner, str) else record_name(state, owner)


def owner_name(state: State, page: int) -> str:
    """Who owns a page that is not free, in words."""
    owner = state.owner[page]
    return "the prefix store" if isinstance(owner, bytes) else record_name(state, owner)
