"""Operations that change nothing: an implementation's own figures, and its whole state."""

from kvspec.events import Figures, Refusal, Report, Snapshot
from kvspec.model.answer import ObservedAnswer
from kvspec.model.hybrid import evictable_windows
from kvspec.model.recurrent import evictable_states
from kvspec.model.state import WITHHELD, State
from kvspec.window import window_held_tokens


def figures(state: State) -> Figures:
    """The accounting as the specification counts it, each figure by its own definition (20070, 22213)."""
    page_size = state.config.page_size
    slots = [session.record for session in state.sessions.values() if session.record is not None]
    requests = [*state.records.keys() - slots] if slots else [*state.records]
    if state.config.turns_count_as == "sessions":
        turns = turns_of(state)
        slots, requests = slots + turns, [record for record in requests if record not in turns]
    counted = Figures(
        available=state.free_pages * page_size,
        evictable=state.store.evictable * page_size,
        protected=len(state.store.pins) * page_size,
        session_held=held_tokens(state, slots),
        uncached=held_tokens(state, requests),
    )
    if state.config.num_rows:
        counted.rows_available = state.free_rows
        counted.rows_requests = len(requests)
        counted.rows_sessions = len(slots)
        counted.rows_withheld = [*state.rows.values()].count(WITHHELD)
    if state.config.sliding_window:
        counted.window_available = state.free_window_pages * page_size
        counted.window_evictable = len(evictable_windows(state)) * page_size
        counted.window_protected = len(state.store.window_pins.keys() & state.window_of.keys()) * page_size
        counted.window_session_held = sum(_window_held(state, record) for record in slots)
        counted.window_uncached = sum(_window_held(state, record) for record in requests)
    if state.config.num_states:
        counted.states_available = state.free_states
        counted.states_evictable = len(evictable_states(state))
        counted.states_protected = len(state.store.states) - counted.states_evictable
        counted.states_sessions = sum(len(state.records[record].states) for record in slots)
        counted.states_requests = sum(len(state.records[record].states) for record in requests) + sum(
            request.state is not None for request in state.requests.values()
        )
    return counted


def turns_of(state: State) -> list[int]:
    """The records that turns of sessions have."""
    return [one.record for one in state.requests.values() if one.session is not None and one.record is not None]


def held_tokens(state: State, records: list[int]) -> int:
    """Tokens of the private pages of records: those of their tables that the store does not have."""
    tables, lengths = state.tables, state.lengths
    pages = sum([len(tables[record]) for record in records])
    return pages * state.config.page_size - sum([lengths[record].protected for record in records])


def _window_held(state: State, record: int) -> int:
    return window_held_tokens(state.lengths[record], state.cursor[record], state.config.page_size)


def report(state: State, op: Report, answer: ObservedAnswer) -> None:
    """An implementation's own figures are the specification's (20070, 22213)."""
    if op.mode == "idle" and any(request.record is not None for request in state.requests.values()):
        raise Refusal("OP-1", "some request holds memory: this is not idle")
    answer.carried_out()
    answer.figures(figures(state))


def snapshot(state: State, op: Snapshot, answer: ObservedAnswer) -> None:
    """An implementation's whole state is the specification's."""
    answer.carried_out()
    answer.whole()
