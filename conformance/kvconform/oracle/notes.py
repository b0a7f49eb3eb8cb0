"""The model's state, and the oracle's notes: counts, and facts that only decide which rule a wrong answer breaks.

`NotedState` counts the changes that the model makes. For a whole operation the function of its kind in `NOTES` takes
notes, before the operation is carried out and after it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kvconform.oracle.meaning import Memory, waiting
from kvspec import events
from kvspec.events import Config
from kvspec.model.state import WITHHELD, State
from kvspec.store import PrefixStore, Publication
from kvspec.tokens import PrefixKey

CHOICES = (
    "more evicted than asked",
    "some of several evicted",
    "window kept longer",
    "window left when publishing",
    "chunk not published",
    "row not withheld",
    "row withheld longer",
    "first turn published early",
    "tokens sampled by the engine",
    "turn counted as its session's",
    "overshoot published",
    "refused by an estimate",
)
"""Choices that an implementation may make differently from the specification (`NotedState.chosen`). After one,
precomputed numbers need not be those of the implementation."""

Counts = defaultdict[str, int]


def _no_counts() -> Counts:
    return defaultdict(int)


def in_flight(state: State, record: int) -> bool:
    """Whether a launch in flight runs for a record."""
    return any(passage.record == record for flight in state.flights.values() for passage in flight)


@dataclass(eq=False, repr=False)
class NotedState(State):
    """The whole state of the specified system, and the notes."""

    memory: Memory | None = None
    """See `WatchedState`."""
    checked: Counts = field(default_factory=_no_counts)
    unchecked: Counts = field(default_factory=_no_counts)
    unreported: set[tuple[str, str]] = field(default_factory=set)
    """Rules that were not checked because an answer lacked a field, with the field."""
    reached: Counts = field(default_factory=_no_counts)
    chosen: Counts = field(default_factory=_no_counts)
    """Choice of CHOICES -> how often an implementation made it."""
    closed_late: set[str] = field(default_factory=set)
    """Names of ended sessions with a close that waited for a turn. An implementation that lost it refuses them."""
    verified: set[str] = field(default_factory=set)
    """Running requests with a committed length that a verify has moved."""
    let_go: dict[str, int] = field(default_factory=dict)
    """Retracted, waiting request -> its former row, which it must not bring again (ROW-4)."""
    batch_refused: bool = False
    """Whether a prefill batch was refused since the last report of free rows: it may have kept some (ROW-3)."""
    virtual_page: int = 0
    """The last invented page: unreported pages are negative."""
    virtual_row: int = 0
    """The last invented row, also negative."""

    def speculates_ahead(self, req: str) -> bool:
        """Whether a request has prepared or launched a step before the previous one is verified (SPEC-2)."""
        return len(self.speculating.get(req, ())) + (req in self.prepared) > 1

    def forget_record(self, record: int) -> None:
        """A record ends."""
        row = self.records[record].row
        super().forget_record(record)
        if self.rows.get(row) == WITHHELD:
            self.reached["row withheld"] += 1
        elif not self.config.withholds_rows and in_flight(self, record):
            self.chosen["row not withheld"] += 1

    def leave_behind(self, record: int, until: int, pages: list[int]) -> None:
        """A cursor advances."""
        super().leave_behind(record, until, pages)
        self.reached["window evicted"] += bool(pages)

    def publish(self, record: int, plan: Publication) -> None:
        """Pages go to the store."""
        super().publish(record, plan)
        self.checked["DATA-1"] += len(plan.inserted)
        self.reached["duplicate dropped"] += bool(plan.duplicates)
        self.reached["prefix published"] += bool(plan.inserted)
        self.reached["tombstone revived"] += bool(plan.revived or plan.exchanged)

    def publish_state(self, record: int, key: PrefixKey, slot: int, new: int | None = None) -> None:
        """A state goes to the store."""
        super().publish_state(record, key, slot, new)
        self.reached["state published"] += 1

    def drop_prepared(self, req: str) -> None:
        """A request no longer runs."""
        super().drop_prepared(req)
        self.let_go.pop(req, None)
        self.verified.discard(req)

    def hand_over(self, record: int) -> None:
        """A session slot has lent its record to a turn, or got it back."""

    def give_back(self, req: str, slot: int) -> None:
        """The state slot of a waiting request has become free."""
        self.reached["state given back"] += 1

    def copy(self, *, tokens: bool = True) -> "NotedState":
        """An independent copy, for exploring more than one continuation.

        Without `tokens` both share their sequences: then neither may extend them.
        """
        other = self.__new__(type(self))
        copied = vars(other)
        copied.update(vars(self))
        for name in _COPIED:
            copied[name] = copied[name].copy()
        other.store = copy_of(self.store)
        other.tables = {record: table.copy() for record, table in self.tables.items()}
        if self.memory is not None:
            other.memory = self.memory.copy()
        if tokens:
            requests = self.requests.items()
            other.requests = {req: request._replace(tokens=request.tokens.copy()) for req, request in requests}
        return other


def copy_of(store: PrefixStore) -> PrefixStore:
    """An independent copy of a prefix store."""
    other = PrefixStore(store.reach)
    if store.pages:
        for name in ("pages", "parents", "children", "pins", "window_pins", "states", "state_pins"):
            setattr(other, name, getattr(store, name).copy())
    return other


_COPIED = tuple(
    name
    for name, value in vars(NotedState(Config(1, 1, 1, 1))).items()
    if isinstance(value, (dict, set)) and name != "tables"
)
"""The attributes that a state does not share with a copy; `tables` contain lists, too."""


def _open_session(state: NotedState, op: events.OpenSession) -> Iterator[None]:
    yield
    state.closed_late.discard(op.session)


def _match_prefix(state: NotedState, op: events.MatchPrefix) -> Iterator[None]:
    request = state.requests.get(op.req)
    if request is None:
        yield
        return
    slot = None if request.session is None else state.sessions[request.session].record
    record = slot if request.record is None else request.record
    lengths, written = (None, 0) if record is None else (state.lengths[record], state.written[record])
    yield
    if record is None or lengths is None or record not in state.records:
        state.reached["slot given up"] += record is not None
        state.reached["prefix matched"] += bool(state.requests[op.req].prefix_len)
        return
    allocated, page_size = state.lengths[record].allocated, state.config.page_size
    state.checked["LEN-3"] += 1
    state.reached["tail freed"] += len(state.tables[record]) * page_size < lengths.allocated
    state.reached["partial page kept"] += allocated < lengths.allocated and allocated % page_size > 0
    state.reached["slot lent" if request.record is None else "lend repeated"] += 1
    gone_back = state.config.num_states > 0 and written > min(lengths.committed, len(request.tokens) - 1)
    state.reached["resumed at a page border"] += gone_back
    if request.record is None:
        state.hand_over(record)


def _extend(state: NotedState, op: events.Extend) -> Iterator[None]:
    continuing = {*state.mid_prefill}
    yield
    names = {req for req, _ in op.reqs}
    state.reached["last chunk beside a first chunk"] += (names & continuing and state.mid_prefill - continuing) != set()
    if not state.config.withholds_rows and state.flights:
        begun = [state.requests[req].record for req in names - continuing]
        state.chosen["row not withheld"] += sum(record is not None and in_flight(state, record) for record in begun)


def _decode(state: NotedState, op: events.Decode) -> Iterator[None]:
    yield
    if state.speculating:
        state.checked["SPEC-2"] += len(state.speculating.keys() & op.reqs)


def _launch(state: NotedState, op: events.Launch) -> Iterator[None]:
    prepared = state.prepared if state.memory is None else state.prepared.copy()
    yield
    passages = state.flights[op.launch]
    state.reached["launch overlapped"] += len(state.flights) > 1
    if state.memory is not None:
        parts = [(passage.record, prepared[passage.req].start, prepared[passage.req].end) for passage in passages]
        state.memory.launch(state, op.launch, parts)


def _complete(state: NotedState, op: events.Complete) -> Iterator[None]:
    passages = state.flights.get(op.launch, ())
    yield
    state.checked["LAUNCH-1"] += 1
    state.chosen["tokens sampled by the engine"] += op.sampled != op.tokens
    if state.memory is not None:
        withheld = passages if state.config.withholds_rows else ()
        state.memory.complete(op.launch, [passage.row for passage in withheld if passage.row not in state.rows])


def _verify(state: NotedState, op: events.Verify) -> Iterator[None]:
    yield
    state.verified.add(op.req)
    state.reached["overshoot"] += len(op.tokens) < op.accepted


def _cache_unfinished(state: NotedState, op: events.CacheUnfinished) -> Iterator[None]:
    request = state.requests.get(op.req)
    before = None if request is None or request.record is None else state.lengths[request.record]
    yield
    config = state.config
    assert request is not None and request.record is not None and before is not None
    published = state.lengths[request.record].protected
    waits = op.chunked and config.first_turn_chunks == "private"
    keeps_out = request.session is not None and (request.resumed or waits) and config.prefix_cache
    left = op.chunked and config.prefix_cache and not keeps_out and request.seq_len - published >= config.page_size
    state.reached["session kept out of the store"] += keeps_out
    state.chosen["chunk not published"] += left
    early = op.chunked and request.session is not None and published > before.protected
    state.chosen["first turn published early"] += early
    if config.sliding_window and op.obs is not None and op.obs.evicted_len is not None:
        state.checked["SWA-2"] += 1
        state.chosen["window left when publishing"] += 1


def _finish(state: NotedState, op: events.Finish) -> Iterator[None]:
    request = state.requests.get(op.req)
    if request is None or request.record is None:
        yield
        return
    record, session = request.record, request.session
    beyond = state.lengths[record].committed - len(request.tokens)
    yield
    if session is None:
        state.chosen["overshoot published"] += beyond > 0 and state.config.overshoot == "published"
    elif session in state.sessions:
        state.hand_over(record)
    else:
        _close_late(state, session)


def _close_late(state: NotedState, session: str) -> None:
    """A session has ended after its close had waited for the turn."""
    state.closed_late.add(session)
    state.reached["deferred close done"] += 1


def _retract(state: NotedState, op: events.Retract) -> Iterator[None]:
    request = state.requests.get(op.req)
    row = 0 if request is None or request.record is None else state.records[request.record].row
    yield
    assert request is not None and request.record is not None
    state.let_go[op.req] = row
    state.reached["request retracted" if request.session is None else "turn retracted"] += 1
    if request.session is not None:
        state.hand_over(request.record)


def _abort(state: NotedState, op: events.Abort) -> Iterator[None]:
    request = state.requests.get(op.req)
    session = None if request is None or request.session is None else state.sessions[request.session]
    yield
    assert request is not None
    record = session.record if session is not None and request.record is None else request.record
    if record is not None and record not in state.records:
        state.reached["running request aborted"] += 1
    elif request.record is not None:
        state.hand_over(request.record)
        state.reached["lend ended by abort"] += 1
    elif request.state is not None:
        state.give_back(op.req, request.state)
    if request.session is not None and request.session not in state.sessions:
        _close_late(state, request.session)


def _close_session(state: NotedState, op: events.CloseSession) -> Iterator[None]:
    session = state.sessions.get(op.session)
    yield
    state.reached["close deferred"] += op.session in state.sessions
    gone = session is not None and session.record is not None and op.session not in state.sessions
    state.reached["idle session closed"] += gone


def _preempt(state: NotedState, op: events.Preempt) -> Iterator[None]:
    yield
    state.reached["slot preempted"] += 1


def _take_state(state: NotedState, op: events.TakeState) -> Iterator[None]:
    yield
    slot = state.requests[op.req].state
    state.reached["state without a row"] += 1
    if state.memory is not None and slot is not None:
        state.memory.take(waiting(op.req), "states", [slot])


def _free_state(state: NotedState, op: events.FreeState) -> Iterator[None]:
    request = state.requests.get(op.req)
    yield
    if request is not None and request.state is not None:
        state.give_back(op.req, request.state)


def _report(state: NotedState, op: events.Report) -> Iterator[None]:
    yield
    if state.memory is not None and op.mode == "idle":
        state.memory.idle(state)


NOTES: dict[type[events.Event], Callable[[NotedState, Any], Iterator[None]]] = {
    events.OpenSession: _open_session,
    events.MatchPrefix: _match_prefix,
    events.Extend: _extend,
    events.Decode: _decode,
    events.Launch: _launch,
    events.Complete: _complete,
    events.Verify: _verify,
    events.CacheUnfinished: _cache_unfinished,
    events.Finish: _finish,
    events.Retract: _retract,
    events.Abort: _abort,
    events.CloseSession: _close_session,
    events.Preempt: _preempt,
    events.TakeState: _take_state,
    events.FreeState: _free_state,
    events.Report: _report,
}
"""The notes of each kind of operation."""
