"""Proposals of operations in a given state, drawn by Hypothesis or a random number generator.

Most proposals are legal and change the state: lengths at page borders and one off, a nearly full pool, prompts with
shared prefixes, repeated matches. `hasty` proposes operations too early, `unruly` any operation; a good implementation
refuses most of these. All proposals are made from the model's state, so they suit any implementation.
"""

from typing import Any, Protocol

from kvconform.fuzzing.refused import hasty, unruly
from kvconform.fuzzing.style import DRAFTS, USUAL, Draw, Style, branch, length, prompt, sampled
from kvspec.events import (
    Abort,
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
    Retract,
    Snapshot,
    Submit,
    SwaEvict,
    TakeState,
    Verify,
)
from kvspec.model.state import State
from kvspec.pages import new_pages


class Generator(Protocol):
    """Proposes one kind of operation."""

    def __call__(self, state: State, draw: Draw, style: Style = USUAL, /) -> Operation[Any] | None:
        """An operation in a run of this style; `None` if it is impossible in the state."""
        ...


THIRDS = 3
"""The denominator of `Style.drafted`."""


def open_session(state: State, draw: Draw, style: Style = USUAL, /) -> OpenSession | None:
    """Open one of a few sessions."""
    closed = [name for name in (f"s{number}" for number in range(style.sessions)) if name not in state.sessions]
    return OpenSession(draw.choice(closed)) if closed else None


def submit(state: State, draw: Draw, style: Style = USUAL, /) -> Submit | None:
    """A request, or the next turn of a session that waits for one."""
    req = f"r{len(state.requests) + draw.integer(0, 3)}"
    if req in state.requests or len(state.requests) >= style.crowd:
        return None
    ready: list[str | None] = [
        name for name, session in state.sessions.items() if session.turn is None and not session.closing
    ]
    name = draw.choice([*ready, *[None] * max(1, len(ready))])
    if name is None:
        return Submit(req, prompt(draw, state.config, style))
    history = state.sessions[name].history
    if not len(history):
        return Submit(req, prompt(draw, state.config, style), name)
    room = state.config.max_context_len - len(history)
    if room < 1:
        return None
    total = len(history) + min(room, draw.integer(1, 2 * state.config.page_size + 1))
    tokens = [*history.elements(), *([0] * (total - len(history)))]
    branch(draw, tokens, len(history), state.config.page_size, style)
    return Submit(req, tokens, name)


def match_prefix(state: State, draw: Draw, style: Style = USUAL, /) -> MatchPrefix | None:
    """Match a waiting request, perhaps again."""
    waiting = [req for req, request in state.requests.items() if not request.running]
    return MatchPrefix(draw.choice(waiting)) if waiting else None


def extend(state: State, draw: Draw, style: Style = USUAL, /) -> Extend | None:
    """A prefill batch: first requests in the middle of their prefill, then matched requests, in full or in chunks."""
    ready = [req for req in state.mid_prefill if req not in state.prepared]
    ready.sort()
    ready += [req for req, request in state.requests.items() if request.prefix_len is not None]
    batch: list[tuple[str, int]] = []
    unfinished = 0
    while ready and (not batch or draw.choice((True, False))):
        req = ready.pop(draw.integer(0, len(ready) - 1))
        request = state.requests[req]
        start, end = request.seq_len if request.running else request.prefix_len or 0, len(request.tokens)
        if draw.integer(1, 4) <= style.chunked and (not unfinished or draw.choice((False, False, True))):
            end = length(draw, start + 1, end, state.config.page_size)
        unfinished += end < len(request.tokens)
        batch.append((req, end))
    return Extend(batch) if batch else None


def steppable(state: State) -> list[str]:
    """The running requests that can prepare a decode step, perhaps before the last one is verified."""
    return [
        req
        for req, request in state.requests.items()
        if request.running
        and request.record is not None
        and req not in state.prepared
        and req not in state.mid_prefill
        and len(state.speculating.get(req, ())) < 2
        and state.lengths[request.record].committed < state.horizon[request.record]
    ]


def decode(state: State, draw: Draw, style: Style = USUAL, /) -> Decode | None:
    """A plain or a speculative decode step of some running requests; perhaps before the last step is verified."""
    able = steppable(state)
    verified = [req for req in able if req not in state.speculating]
    ready = draw.choice((verified, able)) if style.drafted < THIRDS else able
    ready = ready or able
    if not ready:
        return None
    kept = ready[: draw.integer(1, len(ready))]
    plain = state.config.num_states or (kept[0] in verified and draw.integer(1, THIRDS) > style.drafted)
    return Decode(kept, 1 if plain and set(kept) <= set(verified) else DRAFTS + 1)


def launch(state: State, draw: Draw, style: Style = USUAL, /) -> Launch | None:
    """Launch everything that is prepared, or a part of it."""
    prepared = list(state.prepared)
    if not prepared:
        return None
    name = max(state.flights, default=0) + 1
    return Launch(name, draw.choice((prepared, prepared[: draw.integer(1, len(prepared))])))


def complete(state: State, draw: Draw, style: Style = USUAL, /) -> Complete | None:
    """The oldest launch completes with the expected tokens, now and then with an unexpected one."""
    if not state.flights:
        return None
    oldest = next(iter(state.flights))
    tokens = {}
    for passage in state.flights[oldest]:
        request = state.requests.get(passage.req)
        if request is None or not request.running:
            continue
        due = passage.samples and request.run == passage.run
        undue = passage.samples or passage.req in state.mid_prefill
        if due or (undue and draw.choice((False, False, False, True))):
            tokens[passage.req] = sampled(draw, style)
    return Complete(oldest, tokens)


def verify(state: State, draw: Draw, style: Style = USUAL, /) -> Verify | None:
    """Accept some drafts, and perhaps return fewer tokens than were accepted."""
    ready = [req for req, steps in state.speculating.items() if steps[0].completed and req not in state.prepared]
    if not ready:
        return None
    req = draw.choice(ready)
    accepted = draw.integer(1, state.speculating[req][0].positions)
    kept = draw.choice((accepted, draw.integer(1, accepted)))
    return Verify(req, accepted, [sampled(draw, style) for _ in range(kept)])


def cache_unfinished(state: State, draw: Draw, style: Style = USUAL, /) -> CacheUnfinished | None:
    """Publish the pages that a prefill wrote."""
    ready = [
        req
        for req, request in state.requests.items()
        if request.running
        and req not in state.prepared
        and (req in state.mid_prefill or len(request.tokens) > request.seq_len)
    ]
    if not ready:
        return None
    req = draw.choice(ready)
    return CacheUnfinished(req, req in state.mid_prefill)


def finish(state: State, draw: Draw, style: Style = USUAL, /) -> Finish | None:
    """Finish a request."""
    ready = [
        req
        for req, request in state.requests.items()
        if request.running and req not in state.prepared and req not in state.mid_prefill
    ]
    return Finish(draw.choice(ready)) if ready else None


def retract(state: State, draw: Draw, style: Style = USUAL, /) -> Retract | None:
    """Retract any running request, at any moment."""
    running = [req for req, request in state.requests.items() if request.running]
    return Retract(draw.choice(running)) if running else None


def abort(state: State, draw: Draw, style: Style = USUAL, /) -> Abort | None:
    """Abort any request, at any moment."""
    return Abort(draw.choice(list(state.requests))) if state.requests else None


def close_session(state: State, draw: Draw, style: Style = USUAL, /) -> CloseSession | None:
    """Close any session, at any moment."""
    is_open = [name for name, session in state.sessions.items() if not session.closing]
    return CloseSession(draw.choice(is_open)) if is_open else None


def preempt(state: State, draw: Draw, style: Style = USUAL, /) -> Preempt | None:
    """Release the memory of an idle slot."""
    idle = [name for name, session in state.sessions.items() if session.record is not None]
    return Preempt(draw.choice(idle)) if idle else None


def swa_evict(state: State, draw: Draw, style: Style = USUAL, /) -> SwaEvict | None:
    """Free the pages that the window has left."""
    running = [req for req, request in state.requests.items() if request.running]
    return SwaEvict(draw.choice(running)) if running and state.config.sliding_window else None


def take_state(state: State, draw: Draw, style: Style = USUAL, /) -> TakeState | None:
    """A matched request takes its state before its row."""
    ready = [
        req
        for req, request in state.requests.items()
        if request.prefix_len is not None and request.record is None and request.state is None
    ]
    return TakeState(draw.choice(ready)) if ready and state.config.num_states else None


def free_state(state: State, draw: Draw, style: Style = USUAL, /) -> FreeState | None:
    """A request that is not admitted frees its state."""
    early = [req for req, request in state.requests.items() if request.state is not None]
    return FreeState(draw.choice(early)) if early else None


def evict(state: State, draw: Draw, style: Style = USUAL, /) -> Evict | None:
    """Evict a little or everything, with a second pool from one or both."""
    if not state.store.pages:
        return None
    n, other = draw.choice((1, 2, 1, 3, 1000)), draw.choice((0, 1, 2, 1, 1000))
    if state.config.sliding_window:
        return Evict(n if not other else draw.choice((0, n)), window=other)
    if state.config.num_states:
        return Evict(n if not other else draw.choice((0, n)), states=other)
    return Evict(n)


def report(state: State, draw: Draw, style: Style = USUAL, /) -> Report | None:
    """Request the figures; in mode idle if only sessions hold memory."""
    idle = all(request.record is None for request in state.requests.values())
    return Report("idle" if idle else "busy")


def snapshot(state: State, draw: Draw, style: Style = USUAL, /) -> Snapshot | None:
    """Request a snapshot."""
    return Snapshot()


def advance(state: State, draw: Draw, style: Style = USUAL, /) -> Operation[Any] | None:
    """The next operation of a scheduler, so that requests make progress."""
    urgent: tuple[Generator, ...] = (launch, complete, verify) if len(state.flights) > style.depth else (launch, verify)
    for generator in urgent:
        op = generator(state, draw, style)
        if op is not None:
            return op
    usual: tuple[Generator, ...] = (_admit, _match_new, decode, decode, finish)
    if draw.integer(1, 4) > style.late:
        usual = (cache_unfinished, *usual)
    if len(state.requests) < min(3, style.crowd):
        usual = (submit, open_session, *usual)
    if state.config.sliding_window:
        usual = (*usual, swa_evict)
    if state.config.num_states:
        usual = (*usual, take_state)
    if state.free_pages < 4 or not state.free_rows or _scarce(state):
        usual = (finish, evict, preempt, *usual)
    possible = [op for generator in usual if (op := generator(state, draw, style)) is not None]
    return draw.choice(possible) if possible else complete(state, draw, style)


def _match_new(state: State, draw: Draw, style: Style = USUAL, /) -> MatchPrefix | None:
    """Match a request that has not matched."""
    new = [req for req, request in state.requests.items() if not request.running and request.prefix_len is None]
    return MatchPrefix(draw.choice(new)) if new else None


def _admit(state: State, draw: Draw, style: Style = USUAL, /) -> Extend | None:
    """A prefill batch, now and then one without room."""
    op = extend(state, draw, style)
    return op if op is None or fits(state, op) or draw.choice((False, False, False, True)) else None


def fits(state: State, op: Extend) -> bool:
    """Whether there is room for a prefill batch."""
    rows = pages = 0
    for req, seq_len in op.reqs:
        request = state.requests[req]
        start = request.seq_len if request.running else request.prefix_len or 0
        rows += request.record is None
        pages += new_pages(start, seq_len, state.config.page_size)
    config = state.config
    return (
        rows <= state.free_rows
        and pages <= state.free_pages
        and (not config.sliding_window or pages <= state.free_window_pages)
        and (not config.num_states or rows * (1 + config.tracking_states) <= state.free_states)
    )


def _scarce(state: State) -> bool:
    """Whether a second pool is nearly empty."""
    config = state.config
    return bool(config.sliding_window and state.free_window_pages < 4) or bool(
        config.num_states and state.free_states <= config.tracking_states
    )


GENERATORS: dict[Generator, int] = {
    advance: 24,
    submit: 2,
    match_prefix: 2,
    extend: 3,
    launch: 2,
    complete: 2,
    cache_unfinished: 1,
    decode: 3,
    verify: 1,
    finish: 1,
    open_session: 2,
    retract: 1,
    abort: 1,
    close_session: 1,
    preempt: 1,
    evict: 1,
    swa_evict: 3,
    take_state: 1,
    free_state: 1,
    hasty: 4,
    unruly: 1,
    report: 3,
}
"""Kind of proposal -> how often it is made."""
