"""The operations of sessions with simultaneous turns: matched, perhaps again, prefilled in one batch, and ended.

The source documents are about these states, which a scheduler that admits every ready request seldom reaches.
"""

from itertools import count
from typing import Any

from kvconform.fuzzing import generate
from kvconform.fuzzing.style import DRAFTS, USUAL, Draw, Style, prompt, sampled
from kvspec.events import CloseSession, Decode, Extend, Finish, MatchPrefix, Operation, Retract, Submit, Verify
from kvspec.model.hybrid import is_match
from kvspec.model.state import State


def converse(state: State, draw: Draw, style: Style = USUAL, /) -> Operation[Any] | None:
    """The next operation of all sessions together."""
    urgent = generate.launch(state, draw, style) or (
        generate.complete(state, draw, style) if len(state.flights) > style.depth else None
    )
    return urgent or _ask(state, draw, style) or _run(state, draw, style) or generate.complete(state, draw, style)


def _ask(state: State, draw: Draw, style: Style) -> Operation[Any] | None:
    """A new session, the next turn of an idle one, its match, or a repeated match."""
    if len(state.sessions) < style.sessions and (op := generate.open_session(state, draw, style)):
        return op
    for name, session in state.sessions.items():
        if session.turn is None and not session.closing:
            history = session.history.elements()
            more = draw.choice((1, 0, 2)) or state.config.page_size
            if len(history) + more + DRAFTS > state.config.max_context_len:
                return CloseSession(name)
            req = next(req for number in count() if (req := f"r{number}") not in state.requests)
            return Submit(req, [*history, *[0] * more] if history else prompt(draw, state.config, style), name)
    turns = _waiting(state)
    for req in turns:
        if state.requests[req].prefix_len is None:
            return MatchPrefix(req)
    return MatchPrefix(draw.choice(turns)) if turns and draw.integer(1, 4) == 1 else None


def _waiting(state: State) -> list[str]:
    return [req for req, one in state.requests.items() if one.session is not None and not one.running]


def _run(state: State, draw: Draw, style: Style) -> Operation[Any] | None:
    """One batch of all waiting turns if none runs; else a step, a verify or the end of a running turn."""
    idle = [req for req, one in state.requests.items() if one.running and one.session is not None]
    mid = [req for req in idle if req in state.mid_prefill]
    if mid or (not idle and _waiting(state)):
        return _batch(state, draw, mid + _waiting(state))
    ready = [req for req in idle if req not in state.prepared]
    if not ready:
        return None
    req = draw.choice(ready)
    steps = state.speculating.get(req)
    if steps:
        accepted = draw.choice((1, 1, 1, steps[0].positions))
        return Verify(req, accepted, [sampled(draw, style)] * accepted) if steps[0].completed else None
    if draw.integer(1, 8) == 1:
        return Retract(req)
    record = state.requests[req].record
    assert record is not None, "it runs"
    lengths = state.lengths[record]
    has_tail = lengths.allocated > lengths.committed  # the turn ends with its tail, so that the next turn frees it
    if not has_tail and draw.choice((True, False)) and lengths.committed < state.horizon[record]:
        return Decode([req], 1 if state.config.num_states else draw.choice((DRAFTS + 1, state.config.page_size + 1)))
    return Finish(req)


def _batch(state: State, draw: Draw, reqs: list[str]) -> Operation[Any] | None:
    """Prefill all of them, in full; if they do not fit, as many as do, or make room."""
    for req in reqs:
        tokens, record, prefix_len = (
            state.requests[req].tokens,
            state.requests[req].record,
            state.requests[req].prefix_len,
        )
        if prefix_len is None:
            continue
        if record is None and not is_match(state, tokens, prefix_len // state.config.page_size):
            return MatchPrefix(req)
        if record is not None and state.read_beyond(state.records[record].row, prefix_len):
            return generate.complete(state, draw)
    while reqs:
        batch = Extend([(req, len(state.requests[req].tokens)) for req in reqs])
        if generate.fits(state, batch):
            return batch
        reqs = reqs[:-1]
    others = [req for req, one in state.requests.items() if one.running and one.session is None]
    if others:
        return Retract(draw.choice(others))
    return generate.evict(state, draw) or generate.preempt(state, draw) or generate.abort(state, draw)
