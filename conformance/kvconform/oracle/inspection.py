"""Compares a report's figures and a snapshot with the specification's own state."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from kvconform.oracle.holders import Held, check_holders, held, same_pages
from kvconform.oracle.notes import NotedState
from kvconform.oracle.parts import POOLS, WORDS, check_set, not_reported
from kvconform.oracle.runs import alongside, both, merged, runs_of, without
from kvspec.events import Figures, SnapshotAnswer
from kvspec.model.looking import held_tokens, turns_of
from kvspec.model.state import WITHHELD
from kvspec.pages import Runs, compress, count, expand, slots_of
from kvspec.rules import Violation


def check_figures(state: NotedState, expected: Figures, obs: Figures) -> None:
    """Compare an implementation's own figures with the specification's (20070, 22213)."""
    checked: dict[str, None] = {}
    expected = _with_rows_kept(state, expected, obs)
    for name, rule in _RULES.items():
        due, observed = getattr(expected, name), getattr(obs, name)
        if due is None:
            continue
        if observed is None:
            not_reported(state, rule, name)
        elif observed != due:
            blamed = _blame(state, name, expected, obs)
            raise Violation(blamed, f"the figure {name} is wrong", expected=due, observed=observed, part=name)
        else:
            checked[rule] = None
    state.chosen["turn counted as its session's"] += state.config.turns_count_as == "sessions" and bool(turns_of(state))
    for rule in checked:
        state.checked[rule] += 1
    state.batch_refused &= obs.rows_available is None
    state.checked["STORE-2"] += obs.protected is not None
    state.checked["SESS-3"] += held_tokens(state, _lent(state)) > 0 and None not in (obs.session_held, obs.uncached)


def _with_rows_kept(state: NotedState, expected: Figures, observed: Figures) -> Figures:
    """The expected figures of an engine that withholds rows longer than it must, as many as it reports (RACE-1)."""
    if not state.may_keep or expected.rows_available is None or expected.rows_withheld is None:
        return expected
    kept = 0
    if observed.rows_withheld is not None:
        kept = observed.rows_withheld - expected.rows_withheld
    elif observed.rows_available is not None:
        kept = expected.rows_available - observed.rows_available
    if not 0 < kept <= len(state.may_keep):
        return expected
    state.chosen["row withheld longer"] += 1
    return replace(expected, rows_available=expected.rows_available - kept, rows_withheld=expected.rows_withheld + kept)


_POOLS = {"window": "ACC-2", "states": "ACC-3"}
_RULES = {name: _POOLS.get(name.partition("_")[0], "ACC-1") for name in Figures.__struct_fields__}
"""Figure -> its accounting rule: each pool has its own."""


_SHIFTS = (
    ("rows_available", "rows_withheld", "RACE-1"),
    ("evictable", "protected", "STORE-2"),
    ("window_evictable", "window_protected", "SWA-5"),
    ("states_evictable", "states_protected", "MAMBA-5"),
)
"""Figure -> the figure that it is confused with, and the rule that separates the two."""


def _blame(state: NotedState, figure: str, expected: Figures, observed: Figures) -> str:
    """The rule that a wrong figure breaks: a wrong count, unless the figure shows its cause."""
    figures = ((name, getattr(expected, name), getattr(observed, name)) for name in _RULES)
    more = {name: found - due for name, due, found in figures if due is not None and found is not None}
    rule = _RULES[figure]
    for free, locked, shown in _SHIFTS:
        shifted = more.get(free)
        if _RULES[free] == rule and shifted and more.get(locked) == -shifted and (shifted > 0 or shown != "RACE-1"):
            return shown
    if state.batch_refused and figure == "rows_available" and more[figure] < 0:
        return "ROW-3"
    lent = _lent(state)
    whose, other = ("session_held", "rows_sessions"), "uncached"
    if state.config.turns_count_as == "sessions":
        whose, other = ("uncached", "rows_requests"), "session_held"
    tokens = held_tokens(state, lent)  # none if the store has all of them: then only the rows show it
    twice = rule == "ACC-1" and bool(lent) and more.get(whose[0]) == tokens
    return "SESS-3" if twice and (more.get(whose[1]) == len(lent) or (tokens and more.get(other) == 0)) else rule


def _lent(state: NotedState) -> list[int]:
    """The records of turns that an engine counts twice if it counts the slot and the turn."""
    if state.config.turns_count_as == "sessions":
        return turns_of(state)
    turns = [state.requests[one.turn] for one in state.sessions.values() if one.turn is not None]
    return [turn.record for turn in turns if turn.resumed and turn.record is not None]


def check_snapshot(state: NotedState, observed: SnapshotAnswer | None) -> SnapshotAnswer:
    """Compare an implementation's whole state, if it reported any, with the specification's.

    Returns the reported parts of the specification's state, or all of it.
    """
    requests, sessions = (
        held(state) if observed is None or not (observed.requests is None and observed.sessions is None) else ({}, {})
    )
    expected = _snapshot(state, requests, sessions, observed)
    obs = observed or expected
    check_holders(state, "request", requests, obs.requests, obs)
    check_holders(state, "session", sessions, obs.sessions, obs)
    _check_rows(state, expected.rows or {}, obs.rows)
    _check_free_rows(state, expected, obs)
    check_set(state, "STORE-1", "store_pages", expected.store_pages, obs.store_pages)
    check_set(state, "PAGE-1", "free_pages", expected.free_pages, obs.free_pages)
    _check_each(state, "STORE-2", "locks", expected.locks, obs.locks)
    if state.config.sliding_window:
        _check_each(state, "SWA-3", "window_sides", expected.window_sides, obs.window_sides)
        _check_each(state, "SWA-5", "window_locks", expected.window_locks, obs.window_locks)
    if state.config.num_states:
        _check_each(state, "MAMBA-5", "state_locks", expected.state_locks, obs.state_locks)
        check_set(state, "MAMBA-4", "store_states", expected.store_states, obs.store_states)
        check_set(state, "MAMBA-1", "free_states", expected.free_states, obs.free_states)
    return expected


def _check_each(
    state: NotedState, rule: str, field: str, expected: dict[int, int] | None, observed: dict[int, int] | None
) -> None:
    """Compare the value of each number of a pool; a missing one is 0."""
    if observed is None or expected is None or state.virtual_page:
        not_reported(state, rule, field if observed is None else "pages")
        return
    state.checked[rule] += 1
    for number in expected | observed:
        due, found = expected.get(number, 0), observed.get(number, 0)
        if due != found:
            wrong = {POOLS.get(field, "pages"): [number]}
            what = f"{WORDS[field]} {number}: wrong"
            raise Violation(rule, what, expected=due, observed=found, part=field, wrong=wrong)


def _check_free_rows(state: NotedState, expected: SnapshotAnswer, observed: SnapshotAnswer) -> None:
    """Compare the rows without a holder.

    A free row that a launch in flight reads breaks RACE-1. A withheld row without a launch in flight is lost, since no
    completion will free it (ROW-1). A row that is lost since a batch was refused was kept by the batch (ROW-3).
    """
    if state.virtual_row:
        return
    expected = _with_withheld(state, expected, observed)
    # free rows that should be withheld
    early = both(observed.free_rows or (), expected.withheld_rows or ())
    if early:
        what = "rows are free that a launch in flight still reads"
        raise Violation("RACE-1", what, observed=early, part="free_rows", wrong={"rows": expand(early)})
    unread = both(observed.withheld_rows or (), expected.free_rows or ())
    rule = "ROW-1" if unread else "RACE-1"
    check_set(state, rule, "withheld_rows", expected.withheld_rows, observed.withheld_rows)
    lost = state.batch_refused and not without(observed.free_rows or (), expected.free_rows or ())
    check_set(state, "ROW-3" if lost else "ROW-1", "free_rows", expected.free_rows, observed.free_rows)
    state.batch_refused &= observed.free_rows is None


def _with_withheld(state: NotedState, expected: SnapshotAnswer, observed: SnapshotAnswer) -> SnapshotAnswer:
    """The expected rows of an engine that withholds some longer than it must; a row once free stays free (RACE-1)."""
    if not state.may_keep or (observed.withheld_rows is None and observed.free_rows is None):
        return expected
    may = compress(sorted(state.may_keep))
    freed = without(may, observed.withheld_rows) if observed.withheld_rows is not None else observed.free_rows or ()
    state.may_keep.difference_update(row for row in [*state.may_keep] if not without([row], freed))
    kept = compress(sorted(state.may_keep))
    state.chosen["row withheld longer"] += bool(kept)
    return replace(
        expected,
        free_rows=without(expected.free_rows or (), kept),
        withheld_rows=merged([*(expected.withheld_rows or ()), *kept]),
    )


def _snapshot(
    state: NotedState, requests: dict[str, Held], sessions: dict[str, Held], observed: SnapshotAnswer | None
) -> SnapshotAnswer:
    """The observed parts; without an observation all."""
    expected = SnapshotAnswer(requests=dict(requests), sessions=dict(sessions))
    config = state.config
    parts = dict(_PARTS)
    if config.num_rows:
        parts |= _ROW_PARTS
    if config.sliding_window:
        parts |= _WINDOW_PARTS
    if config.num_states:
        parts |= _STATE_PARTS
    rows = observed is None or not (observed.free_rows is None and observed.withheld_rows is None)
    for name, part in parts.items():
        if observed is None or getattr(observed, name) is not None or (rows and name in _FREE_ROWS):
            setattr(expected, name, part(state))
    return expected


def _row_slots(state: NotedState) -> dict[int, Runs]:
    tables = ((row, state.tables[record], state.lengths[record]) for record, (row, *_) in state.records.items())
    return {row: slots_of(table, lengths.allocated, state.config.page_size) for row, table, lengths in tables}


def _window_locks(state: NotedState) -> dict[int, int]:
    sides = state.window_of
    return {sides[page]: count for page, count in state.store.window_pins.items() if page in sides}


def _state_locks(state: NotedState) -> dict[int, int]:
    store = state.store
    locked = ((store.pages[key], slot) for key, slot in store.states.items())
    return {slot: store.state_pins[page] for page, slot in locked if page in store.state_pins}


_Parts = dict[str, Callable[[NotedState], Any]]

_PARTS: _Parts = {
    "free_pages": lambda state: without([(1, state.config.num_pages)], runs_of(state.owner)),
    "store_pages": lambda state: runs_of(state.store.pages.values()),
    "locks": lambda state: Counter(page for one in state.records.values() for page in state.store.path(one.locked)),
}
_FREE_ROWS = ("free_rows", "withheld_rows")
_ROW_PARTS: _Parts = {
    "rows": _row_slots,
    "free_rows": lambda state: without([(0, state.config.num_rows)], list(state.rows)),
    "withheld_rows": lambda state: compress(sorted(row for row, one in state.rows.items() if one == WITHHELD)),
}
_WINDOW_PARTS: _Parts = {"window_sides": lambda state: state.window_of.copy(), "window_locks": _window_locks}
_STATE_PARTS: _Parts = {
    "free_states": lambda state: without([(1, state.config.num_states)], list(state.state_owner)),
    "store_states": lambda state: compress(sorted(state.store.states.values())),
    "state_locks": _state_locks,
}


def _check_rows(state: NotedState, expected: dict[int, Runs], observed: dict[int, Runs] | None) -> None:
    if observed is None:
        not_reported(state, "PAGE-3", "rows")
        return
    state.checked["PAGE-3"] += 1
    for row in expected | observed:
        if row < 0 or (state.virtual_row and row not in expected):  # no answer reported the row's holder
            continue
        if row not in observed or row not in expected:
            what = "is held, but not reported" if row in expected else "is reported, but has no holder"
            due_slots, found_slots = expected.get(row), observed.get(row)
            what = f"row {row} {what}"
            raise Violation("ROW-1", what, expected=due_slots, observed=found_slots, part="rows", wrong={"rows": [row]})
        due, found = count(expected[row]), count(observed[row])
        if not same_pages(state, due, found):
            what = f"the number of positions of row {row} is wrong"
            raise Violation("PAGE-3", what, expected=due, observed=found, part="rows.length", wrong={"rows": [row]})
        position = 0
        for want, have, length in alongside(expected[row], observed[row]):
            if want not in (have, 0):
                what = f"position {position} of row {row} is another slot"
                pages = [slot // state.config.page_size for slot in (want, have)]
                wrong = {"rows": [row], "pages": pages}
                raise Violation("PAGE-3", what, expected=want, observed=have, part="rows.slot", wrong=wrong)
            position += length
