"""Proposals of operations that an implementation must always or usually refuse."""

from collections.abc import Callable, Sequence
from typing import Any

from kvconform.fuzzing.style import DRAFTS, USUAL, Draw, Style
from kvspec.events import (
    CacheUnfinished,
    CloseSession,
    Complete,
    Decode,
    Evict,
    Extend,
    Finish,
    FreeState,
    Launch,
    MatchPrefix,
    OpenSession,
    Operation,
    Preempt,
    Report,
    Submit,
    SwaEvict,
    TakeState,
    Verify,
)
from kvspec.model.state import State


def hasty(state: State, draw: Draw, style: Style = USUAL, /) -> Operation[Any] | None:
    """An operation that was valid earlier, will be valid later, or is nearly valid: it must be refused now.

    `unruly` proposes these too rarely. The fault is drawn first, so that faults with many operations do not hide those
    with few.
    """
    options = [moments for moments in wrong_moments(state) if moments]
    return draw.choice(draw.choice(options)) if options else None


def wrong_moments(state: State) -> tuple[Sequence[Operation[Any]], ...]:
    """Operations that must be refused now, by their fault."""
    requests, sessions = state.requests, state.sessions
    waiting = {req: request for req, request in requests.items() if not request.running}
    matched = {req: request for req, request in waiting.items() if request.prefix_len is not None}
    running = {req: request for req, request in requests.items() if request.running}
    steps, unready = state.speculating, state.mid_prefill - state.prepared.keys()
    following = {name: [*session.history.elements(), 0] for name, session in sessions.items()}
    return (
        [CacheUnfinished(req, req in state.mid_prefill) for req in state.prepared],
        [CacheUnfinished(req, req not in state.mid_prefill) for req in running if req not in state.prepared],
        [Finish(req) for req in (*state.prepared, *state.mid_prefill)],
        [Verify(req, 1, [0]) for req in requests if req not in steps or not steps[req][0].completed],
        [Verify(req, 1, [0]) for req in steps if req in state.prepared],
        [Verify(req, 1, [0]) for req in running if _stopped(state, req)],
        [Verify(req, step.positions + 1, [0]) for req, (step, *_) in steps.items() if step.completed],
        [Decode([req]) for req in (*steps, *state.mid_prefill)],
        [Decode([req], DRAFTS + 1) for req, behind in steps.items() if len(behind) > 1],
        [Decode([req], n) for req in running if _stopped(state, req) for n in (1, 2, DRAFTS + 1)],
        [Extend([(req, end)]) for req, one in matched.items() for end in (one.prefix_len or 0, len(one.tokens) + 1)],
        [Extend([(req, len(one.tokens))]) for req, one in waiting.items() if one.prefix_len is None],
        [Extend([(req, len(one.tokens))]) for req, one in running.items() if req not in unready],
        [MatchPrefix(req) for req in running],
        [TakeState(req) for req, one in requests.items() if one.prefix_len is None or one.record is not None],
        [Launch(number, list(state.prepared)) for number in state.flights if state.prepared],
        [Complete(launch) for launch in list(state.flights)[1:]],
        [OpenSession(name) for name in sessions],
        [Preempt(name) for name, session in sessions.items() if session.turn and session.record is None],
        [CloseSession(name) for name, session in sessions.items() if session.closing],
        [Submit("early", following[name], name) for name, session in sessions.items() if session.turn is not None],
        [
            Submit("other", tokens, name)
            for name, session in sessions.items()
            if session.turn is None and len(session.history)
            for history in [following[name][:-1]]
            for tokens in (history[:-1] or [9], [*history[:-1], 9, 0])
        ],
    )


def _stopped(state: State, req: str) -> bool:
    """Whether a running request has no token left to decode, and gets none."""
    record = state.requests[req].record
    return record is not None and state.lengths[record].committed >= state.horizon[record]


def unruly(state: State, draw: Draw, style: Style = USUAL, /) -> Operation[Any] | None:
    """Any operation on any name: most of these must be refused and change nothing."""
    req = draw.choice([*state.requests, "stranger"])
    session = draw.choice([*state.sessions, "nowhere"])
    launch_id = draw.choice([*state.flights, 99])
    number = draw.integer(0, 3)
    options: tuple[Callable[[], Operation[Any]], ...] = (
        lambda: OpenSession(session),
        lambda: Submit(req, [number]),
        lambda: Submit("late", [7] * number, session),
        lambda: MatchPrefix(req),
        lambda: Extend([(req, number)]),
        lambda: Extend([(name, len(request.tokens)) for name, request in state.requests.items()]),
        lambda: Extend([(name, max(1, len(request.tokens) - 1)) for name, request in state.requests.items()]),
        lambda: Decode([req], number),
        lambda: Decode([req, req]),
        lambda: Verify(req, number, [0]),
        lambda: Launch(launch_id, [req]),
        lambda: Complete(launch_id, {req: 0}),
        lambda: Complete(launch_id),
        lambda: CacheUnfinished(req, number % 2 == 0),
        lambda: Finish(req),
        lambda: CloseSession(session),
        lambda: Preempt(session),
        lambda: Evict(number),
        lambda: Evict(number, window=number % 2, states=number // 2),
        lambda: SwaEvict(req),
        lambda: TakeState(req),
        lambda: FreeState(req),
        lambda: Report("idle"),
    )
    return draw.choice(options)()
