"""The possible moves: all operations that a scope allows in a state, in a fixed order.

Nothing here is random. If operations differ only in names that do not matter (page numbers, row numbers, launch
numbers), or commute, one of them stands for all: a launch takes everything that is prepared, and has the smallest free
number. All sampled tokens are the same.
"""

from collections.abc import Iterator
from itertools import combinations, product
from typing import Any, NamedTuple

from kvconform.exploring.scope import TOKEN, Arrival, Scope
from kvconform.oracle import NotedState, carry_out
from kvspec.events import (
    Abort,
    CacheUnfinished,
    CloseSession,
    Complete,
    Decode,
    Evict,
    EvictAnswer,
    Extend,
    Finish,
    FreeState,
    Launch,
    MatchPrefix,
    OpenSession,
    Operation,
    Preempt,
    PublishAnswer,
    Retract,
    Submit,
    SwaEvict,
    SwaEvictAnswer,
    TakeState,
    Verify,
)
from kvspec.model.hybrid import furthest_cursor
from kvspec.model.records import Request
from kvspec.model.recurrent import slot_keeping
from kvspec.model.state import State
from kvspec.tokens import PrefixKey

Move = tuple[Operation[Any], ...]
"""Operations that are carried out together: one, or two that only make sense together."""


class Node(NamedTuple):
    """A state of the whole system: the specification's state, and the names that have been used."""

    state: NotedState
    came: frozenset[str]
    """Requests and sessions that have arrived."""


class Choice(NamedTuple):
    """One possible move."""

    move: Move
    came: str | None = None
    """The request or session that arrives with it."""
    serves: bool = False
    """Whether it is the scheduler's; all others are the clients'."""


def choices(scope: Scope, node: Node, *, chooses_victims: bool = True) -> Iterator[Choice]:
    """All possible moves, in a fixed order.

    `chooses_victims`: an eviction names its victims, with one move for each choice; otherwise the implementation
    chooses them. The same holds for the distance that a cursor moves, and for the state slot that the store takes. Some
    moves may have to be refused for lack of room, or because a batch is not allowed.
    """
    for name, move in _arrivals(scope, node):
        yield Choice(move, came=name)
    yield from map(Choice, _departures(scope, node.state))
    for move in _services(scope, node.state, chooses_victims=chooses_victims):
        yield Choice(move, serves=True)


def _arrivals(scope: Scope, node: Node) -> Iterator[tuple[str, Move]]:
    """Clients open sessions, and send requests and turns."""
    state, came = node
    for session in scope.sessions:
        if session not in came:
            yield session, (OpenSession(session),)
    waiting: set[str] = set()
    for arrival in scope.arrivals:
        if arrival.name in came or arrival.session in waiting:
            continue
        if arrival.session is None:
            yield arrival.name, (Submit(arrival.name, list(arrival.tokens)),)
            continue
        waiting.add(arrival.session)  # later turns wait for this one
        session_now = state.sessions.get(arrival.session)
        if session_now is not None and session_now.turn is None:
            tokens = [*session_now.history.elements(), *arrival.tokens]
            yield arrival.name, (Submit(arrival.name, tokens, arrival.session),)


def _departures(scope: Scope, state: State) -> Iterator[Move]:
    """Clients abort requests and close sessions."""
    if "abort" in scope.operations:
        yield from ((Abort(req),) for req in sorted(state.requests))
    if "close_session" in scope.operations:
        yield from ((CloseSession(name),) for name, session in sorted(state.sessions.items()) if not session.closing)


def _services(scope: Scope, state: NotedState, *, chooses_victims: bool) -> Iterator[Move]:
    """The scheduler's moves."""
    waiting = [req for req, request in sorted(state.requests.items()) if not request.running]
    running = [req for req, request in sorted(state.requests.items()) if request.running]
    idle = [req for req in running if req not in state.prepared]
    unfinished = [req for req in running if left_to_generate(scope, state, req) > 0]
    yield from ((MatchPrefix(req),) for req in waiting)
    yield from prefills(scope, state, waiting, idle)
    yield from decodes(scope, state, [req for req in unfinished if req in idle])
    if state.prepared and len(state.flights) < scope.overlap:
        number = next(number for number in range(1, scope.overlap + 1) if number not in state.flights)
        yield (Launch(number, sorted(state.prepared)),)
    if state.flights:
        yield from completions(scope, state)
    yield from verifies(scope, state)
    for req in idle:
        chunked = req in state.mid_prefill
        if "cache_unfinished" in scope.operations and (
            chunked or len(state.requests[req].tokens) > state.requests[req].seq_len
        ):
            yield from publications(state, CacheUnfinished(req, chunked), chooses=chooses_victims)
        if "swa_evict" in scope.operations and scope.config.sliding_window:
            yield from window_evictions(state, req, chooses=chooses_victims)
        if not chunked and req not in unfinished:
            yield (Finish(req),)
    if "retract" in scope.operations:
        yield from ((Retract(req),) for req in unfinished)
    if "preempt" in scope.operations:
        yield from ((Preempt(name),) for name, session in sorted(state.sessions.items()) if session.record is not None)
    if "evict" in scope.operations:
        yield from evictions(state) if chooses_victims else unchosen_evictions(scope)
    if scope.config.num_states:
        yield from state_moves(scope, state, waiting)
    if "give_back" in scope.operations:
        yield from give_back(state, waiting)


def left_to_generate(scope: Scope, state: State, req: str) -> int:
    """The number of tokens that a request still has to generate."""
    arrival = _arrival(scope, req)
    request = state.requests[req]
    history = 0 if request.session is None else len(state.sessions[request.session].history)
    return history + len(arrival.tokens) + arrival.outputs - len(request.tokens)


def _arrival(scope: Scope, req: str) -> Arrival:
    return next(arrival for arrival in scope.arrivals if arrival.name == req)


def prefills(scope: Scope, state: State, waiting: list[str], idle: list[str]) -> Iterator[Move]:
    """All prefill batches of requests that can be in one, up to each length that the scope allows."""
    able = [req for req in waiting if state.requests[req].prefix_len is not None]
    able += [req for req in idle if req in state.mid_prefill]
    able.sort()
    for size in range(1, min(scope.max_batch, len(able)) + 1):
        for reqs in combinations(able, size):
            for ends in product(*(_ends(scope, state.requests[req], req) for req in reqs)):
                yield (Extend(list(zip(reqs, ends, strict=True))),)


def _ends(scope: Scope, request: Request, req: str) -> list[int]:
    start = request.seq_len if request.running else request.prefix_len or 0
    length = len(request.tokens)
    return [border for border in _arrival(scope, req).borders if start < border < length] + [length]


def decodes(scope: Scope, state: State, idle: list[str]) -> Iterator[Move]:
    """A decode step of all requests that can decode, or of any of them if the scope allows partial steps."""
    able = [req for req in idle if can_decode(state, req)]
    for size in range(1 if scope.partial_decode else max(1, len(able)), len(able) + 1):
        yield from ((Decode(list(reqs), scope.drafts + 1),) for reqs in combinations(able, size))


def can_decode(state: State, req: str) -> bool:
    """Whether a running request has, or is about to get, a token without K/V."""
    record = state.requests[req].record
    return (
        record is not None
        and req not in state.mid_prefill
        and req not in state.speculating
        and state.lengths[record].committed < state.horizon[record]
    )


def completions(scope: Scope, state: State) -> Iterator[Move]:
    """The oldest launch in flight completes, with the expected tokens.

    A request with all its tokens finishes before an unneeded launch brings it another token.
    """
    oldest, passages = next(iter(state.flights.items()))
    tokens = {}
    for passage in passages:
        request = state.requests.get(passage.req)
        if passage.samples and request is not None and request.running and request.run == passage.run:
            if left_to_generate(scope, state, passage.req) < 1:
                return
            tokens[passage.req] = TOKEN
    yield (Complete(oldest, tokens),)


def verifies(scope: Scope, state: State) -> Iterator[Move]:
    """Any number of drafts may be accepted; the request keeps at most the tokens that it still needs."""
    for req, (step, *_) in sorted(state.speculating.items()):
        if step.completed:
            left = left_to_generate(scope, state, req)
            for accepted in range(1, step.positions + 1):
                yield (Verify(req, accepted, [TOKEN] * min(accepted, left)),)


def evictions(state: State) -> Iterator[Move]:
    """Evictions of each page that can be evicted alone, and of all pages; the same for window sides and states.

    Any other allowed set of victims takes several of these steps. The eviction of all requests more pages than there
    are, so that it stops only at locks.
    """
    store = state.store
    free = sorted(key for key, page in store.pages.items() if page not in store.pins)
    for key in free:
        if not store.children.get(key, 1):
            yield (Evict(1, obs=EvictAnswer([store.pages[key]])),)
    if len(free) > 1 or store.pins:
        yield (Evict(len(free) + 1, obs=EvictAnswer([store.pages[key] for key in leaves_first(state, free)])),)
    pages = [store.pages[key] for key in sorted(store.pages)]
    windows = [state.window_of[page] for page in pages if page in state.window_of and page not in store.window_pins]
    yield from ((Evict(0, 1, obs=EvictAnswer([], [window_page])),) for window_page in windows)
    if len(windows) > 1 or store.window_pins:
        yield (Evict(0, len(windows) + 1, obs=EvictAnswer([], windows)),)
    for key, slot in sorted(store.states.items()):
        if store.pages[key] not in store.state_pins:
            yield (Evict(0, 0, 1, obs=EvictAnswer([], None, [slot])),)


def unchosen_evictions(scope: Scope) -> Iterator[Move]:
    """Evictions with victims that the implementation chooses: one page of each pool, or as many as possible."""
    config = scope.config
    yield from ((Evict(n),) for n in (1, config.num_pages))
    if config.sliding_window:
        yield from ((Evict(0, n),) for n in (1, config.num_window_pages))
    if config.num_states:
        yield from ((Evict(0, 0, n),) for n in (1, config.num_states))


def publications(state: NotedState, op: CacheUnfinished, *, chooses: bool) -> Iterator[Move]:
    """Publish the pages that a prefill wrote; a state as a copy, or as the holder's slot in exchange for another."""
    yield (op,)
    record = state.requests[op.req].record
    if not chooses or record is None or not state.config.num_states:
        return
    alone = CacheUnfinished(op.req, op.chunked)
    carry_out(state.copy(), alone)
    answer = alone.obs
    if answer is not None and answer.state_cached is not None and answer.protected_len is not None:
        own = slot_keeping(state, record, answer.protected_len)
        given = PublishAnswer(state_cached=own, state_taken=answer.state_taken)
        yield (CacheUnfinished(op.req, op.chunked, obs=given),)


def window_evictions(state: State, req: str, *, chooses: bool) -> Iterator[Move]:
    """The cursor of a running request advances to each allowed page border."""
    request, record = state.running(req)
    page_size = state.config.page_size
    cursor = max(state.lengths[record].protected, state.cursor[record])
    furthest = furthest_cursor(state, request, record)
    if furthest > cursor and not chooses:
        yield (SwaEvict(req),)
    elif chooses:
        for until in range(cursor + page_size, furthest + 1, page_size):
            yield (SwaEvict(req, obs=SwaEvictAnswer(until)),)


def state_moves(scope: Scope, state: State, waiting: list[str]) -> Iterator[Move]:
    """Matched requests take their state slot; requests with a slot but without a row give it back."""
    for req in waiting:
        request = state.requests[req]
        if request.state is not None:
            if "free_state" in scope.operations:
                yield (FreeState(req),)
        elif request.prefix_len is not None and request.record is None and "take_state" in scope.operations:
            yield (TakeState(req),)


def leaves_first(state: State, keys: list[PrefixKey]) -> list[PrefixKey]:
    """Prefixes in an order in which each can be evicted."""
    store = state.store
    depth = {key: len(store.path(key)) for key in keys}
    return sorted(keys, key=lambda key: (-depth[key], store.parents[store.pages[key]], key))


def give_back(state: State, waiting: list[str]) -> Iterator[Move]:
    """End a lend that nothing else can end: the turn waits, and holds the KV that its session's slot has lent it.

    The turn is aborted, so that its session's slot keeps the KV and can be preempted, and is submitted again with its
    tokens so far. The turn of a closing session has no slot to return to. It ends, although its client may still want
    the answer: otherwise two such turns that fill the pool are a deadlock.
    """
    for req in waiting:
        request = state.requests[req]
        if request.record is None or request.session is None:
            continue
        if state.sessions[request.session].closing:
            yield (Abort(req),)
        else:
            yield (Abort(req), Submit(req, request.tokens.elements(), request.session))
