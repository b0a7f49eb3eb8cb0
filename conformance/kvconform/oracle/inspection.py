"""A report's figures and a snapshot, held against the specification's own state."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from kvconform.oracle.parts import judge_content, judge_length, not_reported
from kvconform.oracle.runs import alongside, merged, runs_of, without
from kvspec.events import Figures, Held, HolderView, SnapshotAnswer
from kvspec.model.looking import held_tokens, turns_of
from kvspec.model.records import Request, Session
from kvspec.model.recurrent import has_state, slot_keeping
from kvspec.model.state import WITHHELD, State
from kvspec.pages import Runs, ceil_pages, compress, count, expand, slots_of
from kvspec.rules import Violation, Wrong


def judge_figures(state: State, expected: Figures, obs: Figures) -> None:
    """Compare an implementation's own figures with the specification's (20070, 22213)."""
    judged: dict[str, None] = {}
    expected = _with_rows_kept(state, expected, obs)
    for name, rule in _RULES.items():
        due, told = getattr(expected, name), getattr(obs, name)
        if due is None:
            continue
        if told is None:
            not_reported(state, rule, name)
        elif told != due:
            blamed = _blame(state, name, expected, obs)
            raise Violation(blamed, f"the figure {name} is wrong", expected=due, observed=told)
        else:
            judged[rule] = None
    state.chosen["turn counted as its session's"] += state.config.turns_count_as == "sessions" and bool(turns_of(state))
    for rule in judged:
        state.judged[rule] += 1
    state.judged["STORE-2"] += obs.protected is not None
    state.judged["SESS-3"] += held_tokens(state, _lent(state)) > 0 and None not in (obs.session_held, obs.uncached)


def _with_rows_kept(state: State, expected: Figures, observed: Figures) -> Figures:
    """The figures due from an engine that withholds as many rows longer than it must as it says (RACE-1)."""
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
"""The accounting rule that a figure belongs to: each pool has its own."""


_SHIFTS = (
    ("rows_available", "rows_withheld", "RACE-1"),
    ("evictable", "protected", "STORE-2"),
    ("window_evictable", "window_protected", "SWA-5"),
    ("states_evictable", "states_protected", "MAMBA-5"),
)
"""What counts as free instead of as locked, and the rule that says which it is."""


def _blame(state: State, figure: str, expected: Figures, observed: Figures) -> str:
    """The rule that a wrong figure breaks: a wrong count, unless it shows what is behind it."""
    figures = ((name, getattr(expected, name), getattr(observed, name)) for name in _RULES)
    more = {name: told - due for name, due, told in figures if due is not None and told is not None}
    rule = _RULES[figure]
    for free, locked, shown in _SHIFTS:
        shifted = more.get(free)
        if _RULES[free] == rule and shifted and more.get(locked) == -shifted and (shifted > 0 or shown != "RACE-1"):
            return shown
    lent = _lent(state)
    whose, other = ("session_held", "rows_sessions"), "uncached"
    if state.config.turns_count_as == "sessions":
        whose, other = ("uncached", "rows_requests"), "session_held"
    tokens = held_tokens(state, lent)  # none, where all of them is the store's: then only the rows show it
    twice = rule == "ACC-1" and bool(lent) and more.get(whose[0]) == tokens
    return "SESS-3" if twice and (more.get(whose[1]) == len(lent) or (tokens and more.get(other) == 0)) else rule


def _lent(state: State) -> list[int]:
    """The records of turns that an engine counts twice if it counts the slot and the turn."""
    if state.config.turns_count_as == "sessions":
        return turns_of(state)
    return [one.record for one in state.requests.values() if one.resumed and one.record is not None]


def judge_snapshot(state: State, told: SnapshotAnswer | None) -> SnapshotAnswer:
    """Compare an implementation's whole state, if it told any, with the specification's.

    Returns the parts of that which were told, or all of it.
    """
    requests, sessions = (
        held(state) if told is None or not (told.requests is None and told.sessions is None) else ({}, {})
    )
    expected = _snapshot(state, requests, sessions, told)
    obs = told or expected
    _judge_holders(state, "request", requests, obs.requests)
    _judge_holders(state, "session", sessions, obs.sessions)
    _judge_rows(state, expected.rows or {}, obs.rows)
    _judge_free_rows(state, expected, obs)
    _judge_set(state, "STORE-1", "store_pages", expected.store_pages, obs.store_pages)
    _judge_set(state, "PAGE-1", "free_pages", expected.free_pages, obs.free_pages)
    _judge_each(state, "STORE-2", "locks", expected.locks, obs.locks)
    if state.config.sliding_window:
        _judge_each(state, "SWA-3", "window_sides", expected.window_sides, obs.window_sides)
        _judge_each(state, "SWA-5", "window_locks", expected.window_locks, obs.window_locks)
    if state.config.num_states:
        _judge_each(state, "MAMBA-5", "state_locks", expected.state_locks, obs.state_locks)
        _judge_set(state, "MAMBA-4", "store_states", expected.store_states, obs.store_states)
        _judge_set(state, "MAMBA-1", "free_states", expected.free_states, obs.free_states)
    return expected


_WORDS = {
    "store_pages": "the store's pages",
    "free_pages": "the free pages",
    "locks": "locks on page",
    "window_sides": "window side of page",
    "window_locks": "locks on window page",
    "state_locks": "locks on state slot",
    "store_states": "the store's states",
    "free_states": "the free state slots",
    "free_rows": "the free rows",
    "withheld_rows": "the withheld rows",
}
"""What the fields of a snapshot are about."""

_POOLS = {
    "window_locks": "window pages",
    "state_locks": "state slots",
    "store_states": "state slots",
    "free_states": "state slots",
    "states": "state slots",
    "free_rows": "rows",
    "withheld_rows": "rows",
}
"""The pools whose numbers they tell, where these are no pages."""


def _judge_each(
    state: State, rule: str, field: str, expected: dict[int, int] | None, observed: dict[int, int] | None
) -> None:
    """Compare what is told of each number of a pool; nothing is 0."""
    if observed is None or expected is None or state.virtual_page:
        not_reported(state, rule, field if observed is None else "pages")
        return
    state.judged[rule] += 1
    for number in expected | observed:
        due, told = expected.get(number, 0), observed.get(number, 0)
        if due != told:
            wrong = {_POOLS.get(field, "pages"): [number]}
            raise Violation(rule, f"{_WORDS[field]} {number}: wrong", expected=due, observed=told, wrong=wrong)


def _judge_free_rows(state: State, expected: SnapshotAnswer, observed: SnapshotAnswer) -> None:
    """Compare the rows without a holder.

    One that is free though a launch in flight reads it breaks RACE-1; one that is withheld with no launch in flight is
    lost, since no completion will free it (ROW-1).
    """
    if state.virtual_row:
        return
    expected = _with_withheld(state, expected, observed)
    # those of the free ones that are withheld
    early = without(observed.free_rows or (), without(observed.free_rows or (), expected.withheld_rows or ()))
    if early:
        what = "rows are free that a launch in flight still reads"
        raise Violation("RACE-1", what, observed=early, wrong={"rows": expand(early)})
    unread = without(observed.withheld_rows or (), without(observed.withheld_rows or (), expected.free_rows or ()))
    rule = "ROW-1" if unread else "RACE-1"
    _judge_set(state, rule, "withheld_rows", expected.withheld_rows, observed.withheld_rows)
    _judge_set(state, "ROW-1", "free_rows", expected.free_rows, observed.free_rows)


def _with_withheld(state: State, expected: SnapshotAnswer, observed: SnapshotAnswer) -> SnapshotAnswer:
    """The rows due from an engine that withholds some longer than it must; a row once free stays free (RACE-1)."""
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
    state: State, requests: dict[str, Held], sessions: dict[str, Held], observed: SnapshotAnswer | None
) -> SnapshotAnswer:
    """The parts that are observed; without an observation all."""
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


def _row_slots(state: State) -> dict[int, Runs]:
    tables = ((row, state.tables[record], state.lengths[record]) for record, (row, *_) in state.records.items())
    return {row: slots_of(table, lengths.allocated, state.config.page_size) for row, table, lengths in tables}


def _window_locks(state: State) -> dict[int, int]:
    sides = state.window_of
    return {sides[page]: count for page, count in state.store.window_pins.items() if page in sides}


def _state_locks(state: State) -> dict[int, int]:
    store = state.store
    locked = ((store.pages[key], slot) for key, slot in store.states.items())
    return {slot: store.state_pins[page] for page, slot in locked if page in store.state_pins}


_Parts = dict[str, Callable[[State], Any]]

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


def held(state: State) -> tuple[dict[str, Held], dict[str, Held]]:
    """What each request has, and each session slot that has not lent it."""

    def views(holders: Mapping[str, Request | Session]) -> dict[str, Held]:
        return {name: _view(state, one.record) for name, one in holders.items() if one.record is not None}

    return views(state.requests), views(state.sessions)


def _view(state: State, record: int) -> Held:
    row, _, states, _ = state.records[record]
    lengths = state.lengths[record]
    cursor = max(lengths.protected, state.cursor[record]) if state.config.sliding_window else None
    if not state.config.num_states:
        return Held(row, *lengths, cursor)
    return Held(row, *lengths, cursor, sorted(states), *_roles(state, record))


def _judge_holders(state: State, kind: str, expected: dict[str, Held], observed: dict[str, HolderView] | None) -> None:
    """Compare who holds a row, and what is told of each."""
    if observed is None:
        not_reported(state, "LEN-1", f"{kind}s")
        return
    for rule in ("ROW-1", "ROW-4"):
        state.judged[rule] += 1
    for name in expected | observed:
        if name not in observed:
            # A session that waits for its turn to be released: it was released too early, private pages or none.
            rule = "SESS-4" if kind == "session" and state.sessions[name].closing else "ROW-1"
            raise Violation(
                rule, f"{kind} {name} should hold a row", expected=expected[name], wrong=_row(expected[name])
            )
        if name not in expected:
            rule = "ROW-1" if kind == "session" else _blame_row(state, name)
            raise Violation(
                rule, f"{kind} {name} should hold no row", observed=observed[name], wrong=_row(observed[name])
            )
        _judge_holder(state, kind, name, expected[name], observed[name])


def _row(view: Held | HolderView) -> Wrong:
    return {"rows": [] if view.row is None else [view.row]}


def _judge_holder(state: State, kind: str, name: str, wanted: Held, found: HolderView) -> None:
    """Compare one holder. What is not told of it is not judged."""
    who = f"{kind} {name}"
    if found.row is None or wanted.row < 0:
        not_reported(state, "ROW-2", "row" if found.row is None else "rows")
    elif found.row != wanted.row:
        wrong = {"rows": [wanted.row, found.row]}
        raise Violation("ROW-2", f"{who} is in another row", expected=wanted.row, observed=found.row, wrong=wrong)
    else:
        state.judged["ROW-2"] += 1
    judge_length(state, "LEN-1", f"protected_len of {who}", wanted.protected_len, found.protected_len, _row(wanted))
    ahead = kind == "request" and state.speculates_ahead(name)
    length_rule = rule = "SPEC-2" if ahead else "LEN-1"
    committed, allocated = found.committed_len, found.allocated_len
    has = wanted.allocated_len if allocated is None else allocated
    if committed is not None and wanted.committed_len < committed <= has and not ahead:
        rule = "DATA-1"  # beyond its tokens, a holder vouches for content that it does not have
    judge_length(state, rule, f"committed_len of {who}", wanted.committed_len, committed, _row(wanted))
    if kind == "request" or not _same_pages(state, wanted.allocated_len, has):
        judge_length(state, length_rule, f"allocated_len of {who}", wanted.allocated_len, allocated)
    if wanted.swa_evicted_len is not None:
        judge_length(state, "SWA-2", f"swa_evicted_len of {who}", wanted.swa_evicted_len, found.swa_evicted_len)
    if wanted.states is not None:
        _judge_set(state, "MAMBA-1", "states", wanted.states, found.states, f"the state slots of {who}")
        holder = state.requests[name] if kind == "request" else state.sessions[name]
        assert holder.record is not None, "it holds a row"
        _judge_roles(state, who, holder.record, found)


def _blame_row(state: State, req: str) -> str:
    """The rule that a request with a row too many breaks: it kept an old one, or was given one by halves."""
    request = state.requests.get(req)
    return "ROW-3" if request is not None and not request.run else "ROW-4"


def _same_pages(state: State, length: int, other: int) -> bool:
    """Whether two allocated lengths are the same pages.

    A slot may forget the slots past its tokens in a page that it keeps (SGLang from 0.5.11 on does): the next match
    overwrites them anyway.
    """
    return ceil_pages(length, state.config.page_size) == ceil_pages(other, state.config.page_size)


def _judge_rows(state: State, expected: dict[int, Runs], observed: dict[int, Runs] | None) -> None:
    if observed is None:
        not_reported(state, "PAGE-3", "rows")
        return
    state.judged["PAGE-3"] += 1
    for row in expected | observed:
        if row < 0 or (state.virtual_row and row not in expected):  # no answer told whose row it is
            continue
        if row not in observed or row not in expected:
            what = "is held, but not told" if row in expected else "is told, but nobody holds it"
            due_slots, told_slots = expected.get(row), observed.get(row)
            raise Violation(
                "ROW-1", f"row {row} {what}", expected=due_slots, observed=told_slots, wrong={"rows": [row]}
            )
        due, told = count(expected[row]), count(observed[row])
        if not _same_pages(state, due, told):
            what = f"the number of positions of row {row} is wrong"
            raise Violation("PAGE-3", what, expected=due, observed=told, wrong={"rows": [row]})
        position = 0
        for want, have, length in alongside(expected[row], observed[row]):
            if want not in (have, 0):
                what = f"position {position} of row {row} is another slot"
                pages = [slot // state.config.page_size for slot in (want, have)]
                raise Violation("PAGE-3", what, expected=want, observed=have, wrong={"rows": [row], "pages": pages})
            position += length


def _judge_set(
    state: State, rule: str, field: str, expected: Runs | None, observed: Runs | None, name: str = ""
) -> None:
    name, expected = name or _WORDS[field], expected or ()
    if observed is None or state.virtual_page:
        not_reported(state, rule, field if observed is None else "pages")
        return
    state.judged[rule] += 1
    lacking, strange = without(expected, observed), without(observed, expected)
    if lacking or strange:
        due, told = (f"also {other}" if other else "no others" for other in (lacking, strange))
        wrong = {_POOLS.get(field, "pages"): [*expand(lacking), *expand(strange)]}
        raise Violation(rule, f"{name} differ", expected=due, observed=told, wrong=wrong)
    if count(observed) != sum(length for _, length in merged(observed)):
        in_order = sorted(observed, key=lambda run: run if isinstance(run, int) else run[0])
        raise Violation(rule, f"{name}: some are there twice", observed=in_order)


def _judge_roles(state: State, who: str, record: int, view: HolderView) -> None:
    """Hold what the slots of a record are used for, where that is told, against what they have (rule DATA-2).

    What no earlier answer told is learned here.
    """
    held, content, protected = state.records[record], state.state_content, state.lengths[record].protected
    if view.computing is None or any(slot < 0 for slot in held.states):
        not_reported(state, "DATA-2", "computing" if view.computing is None else "states")
        return
    if view.computing not in ((held.computing,) if held.computing else held.states):
        what = f"{who} computes in state slot {view.computing}, where its state is not"
        raise Violation("DATA-2", what, expected=held.computing or held.states, observed=view.computing)
    if not held.computing:
        state.records[record] = held = held._replace(computing=view.computing)
        content[view.computing] = record, state.written[record]
    state.judged["DATA-2"] += 1
    due = [border for border in state.borders[record] if border >= protected]
    if view.tracking is None:
        not_reported(state, "DATA-2", "tracking", bool(due))
        return
    told = {border: slot for border, slot in sorted(view.tracking.items()) if border >= protected}
    if list(told) != due:
        what = f"the page borders whose states {who} has kept are wrong"
        raise Violation("MAMBA-3", what, expected=due, observed=list(told))
    for border, slot in told.items():
        if has_state(state, record, slot, border) is not None:
            judge_content(state, record, slot, border, f"{who} keeps in")
        tracking = [own for own in held.states if own != held.computing]
        if slot not in tracking:
            what = f"{who} keeps a state in slot {slot}, which is no tracking slot of its own"
            raise Violation("DATA-2", what, expected=tracking, observed=slot)
        content[slot] = record, border


def _roles(state: State, record: int) -> tuple[int | None, dict[int, int] | None]:
    """The slot that a record computes in, and the one that keeps each border; `None` where no answer told."""
    kept = {border: slot_keeping(state, record, border) for border in state.borders[record]}
    told = {border: slot for border, slot in kept.items() if slot is not None}
    return state.records[record].computing or None, told if len(told) == len(kept) else None
