"""Operations that change nothing: an implementation's own figures, and its whole state."""

from collections import Counter
from collections.abc import Mapping

from kvspec.events import Figures, Held, HolderView, Refusal, Report, Snapshot, SnapshotAnswer
from kvspec.model.hybrid import evictable_windows
from kvspec.model.judging import carried_out, judge_length
from kvspec.model.records import Request, Session
from kvspec.model.recurrent import evictable_states, judge_roles, roles
from kvspec.model.state import WITHHELD, State
from kvspec.pages import Runs, alongside, ceil_pages, compress, count, merged, slots_of, without
from kvspec.rules import Violation
from kvspec.window import window_held_tokens


def figures(state: State) -> Figures:
    """The accounting as the specification counts it, each figure by its own definition (20070, 22213)."""
    page_size = state.config.page_size
    slots = [session.record for session in state.sessions.values() if session.record is not None]
    requests = [*state.records.keys() - slots] if slots else [*state.records]
    if state.config.turns_count_as == "sessions":
        turns = _turns(state)
        slots, requests = slots + turns, [record for record in requests if record not in turns]
    told = Figures(
        available=state.free_pages * page_size,
        evictable=state.store.evictable * page_size,
        protected=len(state.store.pins) * page_size,
        session_held=_held(state, slots),
        uncached=_held(state, requests),
    )
    if state.config.num_rows:
        told.rows_available = state.free_rows
        told.rows_requests = len(requests)
        told.rows_sessions = len(slots)
        told.rows_withheld = [*state.rows.values()].count(WITHHELD)
    if state.config.sliding_window:
        told.window_available = state.free_window_pages * page_size
        told.window_evictable = len(evictable_windows(state)) * page_size
        told.window_protected = len(state.store.window_pins.keys() & state.window_of.keys()) * page_size
        told.window_session_held = sum(_window_held(state, record) for record in slots)
        told.window_uncached = sum(_window_held(state, record) for record in requests)
    if state.config.num_states:
        told.states_available = state.free_states
        told.states_evictable = len(evictable_states(state))
        told.states_protected = len(state.store.states) - told.states_evictable
        told.states_sessions = sum(len(state.records[record].states) for record in slots)
        told.states_requests = sum(len(state.records[record].states) for record in requests) + sum(
            request.state is not None for request in state.requests.values()
        )
    return told


def _turns(state: State) -> list[int]:
    """The records that turns of sessions have."""
    turns = [request for request in state.requests.values() if request.session is not None]
    return [request.record for request in turns if request.record is not None]


def _window_held(state: State, record: int) -> int:
    lengths = state.lengths[record]
    return window_held_tokens(lengths, state.cursor[record], state.config.page_size)


def report(state: State, op: Report) -> Figures:
    """Compare an implementation's own figures with the specification's (20070, 22213)."""
    if op.mode == "idle" and any(request.record is not None for request in state.requests.values()):
        raise Refusal("OP-1", "some request holds memory: this is not idle")
    carried_out(state, op)
    expected = figures(state)
    obs = op.obs or expected
    judged: dict[str, None] = {}
    for name, rule in _RULES.items():
        due, told = getattr(expected, name), getattr(obs, name)
        if due is None:
            continue
        if told is None:
            state.unjudged[rule] += 1
        elif told != due:
            blamed = _blame(state, name, expected, obs)
            raise Violation(blamed, f"the figure {name} is wrong", expected=due, observed=told)
        else:
            judged[rule] = None
    state.chosen["turn counted as its session's"] += state.config.turns_count_as == "sessions" and bool(_turns(state))
    if state.memory is not None and op.mode == "idle":
        state.memory.idle(state)
    for rule in judged:
        state.judged[rule] += 1
    state.judged["STORE-2"] += obs.protected is not None
    state.judged["SESS-3"] += _held(state, _lent(state)) > 0 and None not in (obs.session_held, obs.uncached)
    return obs


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
    tokens = _held(state, lent)  # none, where all of them is the store's: then only the rows show it
    twice = rule == "ACC-1" and bool(lent) and more.get(whose[0]) == tokens
    return "SESS-3" if twice and (more.get(whose[1]) == len(lent) or (tokens and more.get(other) == 0)) else rule


def _lent(state: State) -> list[int]:
    """The records of session turns that whoever counts both sides counts twice."""
    if state.config.turns_count_as == "sessions":
        return _turns(state)
    return [one.record for one in state.requests.values() if one.resumed and one.record is not None]


def _held(state: State, records: list[int]) -> int:
    """Tokens of the private pages of records: those of their tables that the store does not have."""
    tables, lengths = state.tables, state.lengths
    pages = sum([len(tables[record]) for record in records])
    return pages * state.config.page_size - sum([lengths[record].protected for record in records])


def snapshot(state: State, op: Snapshot) -> SnapshotAnswer:
    """Compare an implementation's whole state with the specification's."""
    carried_out(state, op)
    requests, sessions = held(state)
    expected = _snapshot(state, requests, sessions)
    obs = op.obs or expected
    _judge_holders(state, "request", requests, obs.requests)
    _judge_holders(state, "session", sessions, obs.sessions)
    _judge_rows(state, expected.rows or {}, obs.rows)
    _judge_free_rows(state, expected, obs)
    _judge_set(state, "STORE-1", "the store's pages", expected.store_pages or (), obs.store_pages)
    _judge_set(state, "PAGE-1", "the free pages", expected.free_pages or (), obs.free_pages)
    _judge_each(state, "STORE-2", "locks on page", expected.locks, obs.locks)
    if state.config.sliding_window:
        _judge_each(state, "SWA-3", "window side of page", expected.window_sides, obs.window_sides)
        _judge_each(state, "SWA-5", "locks on window page", expected.window_locks, obs.window_locks)
    if state.config.num_states:
        _judge_each(state, "MAMBA-5", "locks on state slot", expected.state_locks, obs.state_locks)
        _judge_set(state, "MAMBA-4", "the store's states", expected.store_states or (), obs.store_states)
        _judge_set(state, "MAMBA-1", "the free state slots", expected.free_states or (), obs.free_states)
    return obs


def _judge_each(
    state: State, rule: str, name: str, expected: dict[int, int] | None, observed: dict[int, int] | None
) -> None:
    """Compare what is told of each number of a pool; nothing is 0."""
    if observed is None or expected is None or state.virtual_page:
        state.unjudged[rule] += 1
        return
    state.judged[rule] += 1
    for number in expected | observed:
        due, told = expected.get(number, 0), observed.get(number, 0)
        if due != told:
            raise Violation(rule, f"{name} {number}: wrong", expected=due, observed=told)


def _judge_free_rows(state: State, expected: SnapshotAnswer, observed: SnapshotAnswer) -> None:
    """Compare the rows that nobody holds. One that is free though a launch in flight reads it breaks RACE-1."""
    if state.virtual_row:
        return
    early = without(observed.free_rows or (), without(observed.free_rows or (), expected.withheld_rows or ()))
    if early:
        raise Violation("RACE-1", "rows are free that a launch in flight still reads", observed=early)
    _judge_set(state, "RACE-1", "the withheld rows", expected.withheld_rows or (), observed.withheld_rows)
    _judge_set(state, "ROW-1", "the free rows", expected.free_rows or (), observed.free_rows)


def _snapshot(state: State, requests: dict[str, Held], sessions: dict[str, Held]) -> SnapshotAnswer:
    store, config = state.store, state.config
    told = SnapshotAnswer(
        free_pages=without([(1, config.num_pages)], list(state.owner)),
        store_pages=compress(sorted(store.pages.values())),
        requests=dict(requests),
        sessions=dict(sessions),
        locks=Counter(page for one in state.records.values() for page in store.path(one.locked)),
    )
    if config.num_rows:
        tables = ((row, state.tables[record], state.lengths[record]) for record, (row, *_) in state.records.items())
        told.rows = {row: slots_of(table, lengths.allocated, config.page_size) for row, table, lengths in tables}
        told.free_rows = without([(0, config.num_rows)], list(state.rows))
        told.withheld_rows = compress(sorted(row for row, record in state.rows.items() if record == WITHHELD))
    if config.sliding_window:
        told.window_sides = sides = state.window_of.copy()
        told.window_locks = {sides[page]: count for page, count in store.window_pins.items() if page in sides}
    if config.num_states:
        pins = store.state_pins
        told.free_states = without([(1, config.num_states)], list(state.state_owner))
        told.store_states = compress(sorted(store.states.values()))
        locked = ((store.pages[key], slot) for key, slot in store.states.items())
        told.state_locks = {slot: pins[page] for page, slot in locked if page in pins}
    return told


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
    return Held(row, *lengths, cursor, sorted(states), *roles(state, record))


def _judge_holders(state: State, kind: str, expected: dict[str, Held], observed: dict[str, HolderView] | None) -> None:
    """Compare who holds a row, and what is told of each."""
    if observed is None:
        state.unjudged["LEN-1"] += 1
        return
    for rule in ("ROW-1", "ROW-4"):
        state.judged[rule] += 1
    for name in expected | observed:
        if name not in observed:
            # A session that waits for its turn to be released: it was released too early, private pages or none.
            rule = "SESS-4" if kind == "session" and state.sessions[name].closing else "ROW-1"
            raise Violation(rule, f"{kind} {name} should hold a row", expected=expected[name])
        if name not in expected:
            rule = "ROW-1" if kind == "session" else _blame_row(state, name)
            raise Violation(rule, f"{kind} {name} should hold no row", observed=observed[name])
        _judge_holder(state, kind, name, expected[name], observed[name])


def _judge_holder(state: State, kind: str, name: str, wanted: Held, found: HolderView) -> None:
    """Compare one holder. What is not told of it is not judged."""
    who = f"{kind} {name}"
    if found.row is None or wanted.row < 0:
        state.unjudged["ROW-2"] += 1
    elif found.row != wanted.row:
        raise Violation("ROW-2", f"{who} is in another row", expected=wanted.row, observed=found.row)
    else:
        state.judged["ROW-2"] += 1
    judge_length(state, "LEN-1", f"protected_len of {who}", wanted.protected_len, found.protected_len)
    ahead = kind == "request" and state.speculates_ahead(name)
    length_rule = rule = "SPEC-2" if ahead else "LEN-1"
    committed, allocated = found.committed_len, found.allocated_len
    has = wanted.allocated_len if allocated is None else allocated
    if committed is not None and wanted.committed_len < committed <= has and not ahead:
        rule = "DATA-1"  # beyond its tokens, a holder vouches for content that it does not have
    judge_length(state, rule, f"committed_len of {who}", wanted.committed_len, committed)
    if kind == "request" or not _same_pages(state, wanted.allocated_len, has):
        judge_length(state, length_rule, f"allocated_len of {who}", wanted.allocated_len, allocated)
    if wanted.swa_evicted_len is not None:
        judge_length(state, "SWA-2", f"swa_evicted_len of {who}", wanted.swa_evicted_len, found.swa_evicted_len)
    if wanted.states is not None:
        _judge_set(state, "MAMBA-1", f"the state slots of {who}", wanted.states, found.states)
        holder = state.requests[name] if kind == "request" else state.sessions[name]
        assert holder.record is not None, "it holds a row"
        judge_roles(state, who, holder.record, found)


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
        state.unjudged["PAGE-3"] += 1
        return
    state.judged["PAGE-3"] += 1
    for row in expected | observed:
        if row < 0 or (state.virtual_row and row not in expected):  # no answer told whose row it is
            continue
        if row not in observed or row not in expected:
            what = "is held, but not told" if row in expected else "is told, but nobody holds it"
            raise Violation("ROW-1", f"row {row} {what}", expected=expected.get(row), observed=observed.get(row))
        due, told = count(expected[row]), count(observed[row])
        if not _same_pages(state, due, told):
            raise Violation("PAGE-3", f"the number of positions of row {row} is wrong", expected=due, observed=told)
        position = 0
        for want, have, length in alongside(expected[row], observed[row]):
            if want not in (have, 0):
                what = f"position {position} of row {row} is another slot"
                raise Violation("PAGE-3", what, expected=want, observed=have)
            position += length


def _judge_set(state: State, rule: str, name: str, expected: Runs, observed: Runs | None) -> None:
    if observed is None or state.virtual_page:
        state.unjudged[rule] += 1
        return
    state.judged[rule] += 1
    lacking, strange = without(expected, observed), without(observed, expected)
    if lacking or strange:
        due, told = (f"also {other}" if other else "no others" for other in (lacking, strange))
        raise Violation(rule, f"{name} differ", expected=due, observed=told)
    if count(observed) != sum(length for _, length in merged(observed)):
        in_order = sorted(observed, key=lambda run: run if isinstance(run, int) else run[0])
        raise Violation(rule, f"{name}: some are there twice", observed=in_order)
