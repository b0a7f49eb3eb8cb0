"""How an answer is held against what the specification expects."""

from collections.abc import Iterable
from itertools import islice

from kvspec.events import A, Operation
from kvspec.model.state import WITHHELD, State
from kvspec.pages import Runs, expand
from kvspec.rules import Violation


def carried_out(state: State, op: Operation[A]) -> None:
    """The operation is allowed and fits: raise a violation if it was refused all the same."""
    if op.refused is not None:
        room = op.refused.pages_short or op.refused.rows_short or op.refused.rule == "CAP-1"
        raise Violation(
            "CAP-1" if room else "OP-1",
            f"the operation was refused ({op.refused.reason or 'no reason given'}), but nothing stands in its way",
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


_TELLING = ("SESS-4", "STORE-5")
"""Rules of operations that free nothing of one's own, or only duplicates: a page too many breaks just these."""


def judge_freed(state: State, rule: str, expected: list[int], observed: Runs | None) -> None:
    """Compare the pages that went back to the free pages; `rule` is what a page left behind breaks."""
    if observed is None:
        state.unjudged[rule] += 1
        return
    state.judged[rule] += 1
    freed = expand(observed)
    state.judged["TAIL-2"] += bool(freed)
    if freed == expected:
        return
    if any(page < 0 for page in expected):
        if len(freed) != len(expected):
            raise Violation(rule, "the number of freed pages is wrong", expected=len(expected), observed=len(freed))
        return
    due = set(expected)
    seen: set[int] = set()
    for page in freed:
        if page in seen:
            raise Violation("PAGE-1", f"page {page} was freed twice", expected=expected, observed=freed)
        if page not in due:
            broken, whose = _wrongly_freed(state, page)
            if rule in _TELLING:
                broken = rule
            raise Violation(broken, f"page {page} was freed, but it {whose}", expected=expected, observed=freed)
        seen.add(page)
    kept = sorted(due - seen)
    if kept:
        raise Violation(
            rule,
            f"page(s) {_listed(kept)} were not freed and nobody holds them",
            expected=expected,
            observed=freed,
        )


def _wrongly_freed(state: State, page: int) -> tuple[str, str]:
    """The rule that freeing `page` breaks, and what the page is."""
    owner = state.owner.get(page)
    if owner is None:
        return "PAGE-1", "is free already"
    if isinstance(owner, bytes):
        return "PAGE-1", "belongs to the prefix store"
    position = state.tables[owner].index(page) * state.config.page_size
    if position < state.lengths[owner].committed:
        return "TAIL-2", f"still holds committed positions of its holder, from {position} on"
    return "PAGE-1", "stays with its holder"


def _listed(numbers: list[int]) -> str:
    """A few numbers, for a sentence."""
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def choose_pages(state: State, needs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The model's own choice, where nothing was answered: the smallest free pages."""
    free = (page for page in range(1, state.config.num_pages + 1) if page not in state.owner)
    return {req: list(islice(free, need)) for req, need in needs if need}


def choose_rows(state: State, kept: dict[str, int | None]) -> dict[str, int]:
    """The model's own choice, where nothing was answered: kept rows, and the smallest free ones."""
    free = (row for row in range(state.config.num_rows) if row not in state.rows)
    return {req: next(free) if row is None else row for req, row in kept.items()}


def judge_new_pages(
    state: State, needs: Iterable[tuple[str, int]], pages: dict[str, Runs] | None
) -> dict[str, list[int]]:
    """Check the pages given to each request, `needs` pages each, and return them.

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
        taken = expand(pages.get(req, ()))
        total += len(taken)
        if len(taken) != need:
            raise Violation("PAGE-2", f"the number of pages given to {req} is wrong", expected=need, observed=taken)
        given[req] = taken
        for page in taken:
            _judge_free_page(state, page, seen, req)
    if total:
        state.judged["PAGE-1"] += 1
    state.judged["PAGE-2"] += 1
    stranger = next((req for req in pages if req not in given and len(pages[req])), None)
    if stranger is not None:
        raise Violation("PAGE-2", f"pages were given to {stranger}, which needs none", observed=pages[stranger])
    return given


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


def owner_name(state: State, page: int) -> str:
    """Who owns a page that is not free, in words."""
    owner = state.owner[page]
    return "the prefix store" if isinstance(owner, bytes) else record_name(state, owner)
