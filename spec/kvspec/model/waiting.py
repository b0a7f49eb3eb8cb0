"""Operations on requests that wait: sessions opened, requests submitted, prefixes matched."""

from kvspec import lengths, ownership
from kvspec.events import MatchPrefix, OpenSession, Refusal, Submit
from kvspec.model import hybrid, recurrent
from kvspec.model.answer import ObservedAnswer
from kvspec.model.records import Request, Session
from kvspec.model.state import State
from kvspec.tokens import Tokens


def open_session(state: State, op: OpenSession, answer: ObservedAnswer) -> None:
    """Open a session with an empty history and no slot."""
    if op.session in state.sessions:
        raise Refusal("OP-1", f"session {op.session} is open already")
    answer.carried_out()
    state.sessions[op.session] = Session(Tokens(state.config.page_size))


def submit(state: State, op: Submit, answer: ObservedAnswer) -> None:
    """Take a request in. Nothing is matched or owned yet."""
    if op.req in state.requests:
        raise Refusal("OP-1", f"there is a request {op.req} already")
    try:
        tokens = Tokens(state.config.page_size, op.tokens)
    except ValueError as error:
        raise Refusal("OP-1", str(error)) from None
    if not len(tokens):
        raise Refusal("OP-1", f"request {op.req} has no tokens")
    if len(tokens) > state.config.max_context_len:
        raise Refusal("LEN-1", f"{len(tokens)} tokens exceed the context of {state.config.max_context_len}")
    session = None if op.session is None else state.session(op.session)
    if session is not None:
        if session.closing:
            raise Refusal("OP-1", f"session {op.session} is closing")
        if session.turn is not None:
            raise Refusal("SESS-1", f"session {op.session} has a turn in flight: {session.turn}")
        if not tokens.extends(session.history):
            raise Refusal("SESS-6", f"the tokens of {op.req} do not begin with the history of session {op.session}")
    answer.carried_out(*(("OP-1",) if session is None else ("SESS-1", "SESS-6", "OP-1")))
    if op.session is not None and session is not None:
        state.sessions[op.session] = session._replace(turn=op.req)
    state.requests[op.req] = Request(tokens, op.session)


def match_prefix(state: State, op: MatchPrefix, answer: ObservedAnswer) -> None:
    """Answer how much is cached: the session's record if its slot has one, else the longest prefix in the store."""
    request = state.request(op.req)
    if request.running:
        raise Refusal("OP-1", f"request {op.req} is running")
    answer.carried_out()
    record = request.record
    if record is None and request.session is not None:
        record = state.sessions[request.session].record
    if record is None:
        _match_store(state, op, answer, request, [], ())
    else:
        _lend(state, op, answer, request, record)


def _lend(state: State, op: MatchPrefix, answer: ObservedAnswer, request: Request, record: int) -> None:
    """Lend the slot's record to the turn, and free its tail.

    [0, protected)               the store's pages, locked by the record: stay
    [protected, prefix_len)      committed: stay
    [prefix_len, ceil)           the rest of the page that prefix_len cuts: stays, committed tokens share it
    [ceil, ceil(allocated))      will be overwritten in the row: freed now, or never (TAIL-1)
    """
    key_len = recurrent.resumable(state, record, len(request.tokens) - 1)
    before = state.lengths[record]
    if min(before.committed, key_len) == 0:
        return _give_up_slot(state, op, answer, request, record)
    after = lengths.resume(before, key_len, state.config.page_size)
    table = state.tables[record]
    tail = lengths.tail(after.allocated, before.allocated, state.config.page_size)
    freed = table[tail.start : tail.stop]
    rule = "SESS-2" if key_len == len(request.tokens) - 1 else "MAMBA-3"
    if answer.choice("prefix_len", after.committed) < after.protected:
        rule = "LEN-3"
    answer.length("prefix_len", rule, after.committed)
    again = request.record is not None
    answer.length("protected_len", "SESS-2" if again else "STORE-2", after.protected)
    answer.let_go(freed, "TAIL-1", states_rule="MAMBA-1")

    state.cut_table(record, tail.start)
    state.lengths[record] = after
    state.written[record] = min(state.written[record], after.committed)
    recurrent.cut_borders(state, record, after.committed)
    state.horizon[record] = len(request.tokens)
    slot = None if request.session is None else state.sessions[request.session].record
    lease = ownership.lend(ownership.Lease(slot or 0, request.record or 0))
    if request.session is not None:
        state.sessions[request.session] = state.sessions[request.session]._replace(record=lease.slot or None)
    state.requests[op.req] = request._replace(record=lease.turn, resumed=True, prefix_len=after.committed)


def _give_up_slot(state: State, op: MatchPrefix, answer: ObservedAnswer, request: Request, record: int) -> None:
    """Nothing of the slot would be kept, so its row and pages are released, and the store is asked instead."""
    freed, states = state.private(record), state.records[record].states
    _match_store(state, op, answer, request._replace(record=None, resumed=False), freed, states)
    if request.session is not None:
        state.sessions[request.session] = state.sessions[request.session]._replace(record=None)
    state.forget_record(record)


def _match_store(
    state: State, op: MatchPrefix, answer: ObservedAnswer, request: Request, freed: list[int], states: tuple[int, ...]
) -> None:
    """The longest cached page-aligned prefix of all tokens but the last. The request owns none of it yet.

    `freed` and `states` go back meanwhile: what was in a slot that is given up.
    """
    pages, rule = hybrid.longest_match(state, request.tokens)
    prefix_len = pages * state.config.page_size
    answer.let_go(freed, "TAIL-1" if freed else "PAGE-1", states=states)
    answer.length("prefix_len", rule, prefix_len)
    answer.length("protected_len", rule, prefix_len)
    state.requests[op.req] = request._replace(prefix_len=prefix_len)
