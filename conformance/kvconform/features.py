"""Features that an engine may lack, and the features that a vector needs.

An implementation declares the features that it lacks by an attribute of its class:

    class MyAdapter:
        lacks = frozenset({"sessions", "speculative"})

A vector that needs such a feature is reported as not supported, with the reason, and is not run. `lacks` names features
that the engine *does not have*; a feature that it has and gets wrong is a finding.

Permitted choices that differ from the usual one are declared as well, each policy of `kvspec.events.Config` by its
name:

    class MyAdapter:
        rows_read = ("in_order",)
        first_turn_chunks = ("published",)

Each attribute names the ways of the policy that the engine supports, the default first. Vectors that leave the policy
open are run and checked with the default.
"""

from collections.abc import Iterable
from typing import Any, get_args, get_type_hints

import msgspec

from kvconform.errors import LoadError
from kvconform.oracle import Model
from kvconform.oracle.notes import in_flight
from kvconform.traces.codec import Vector
from kvconform.vectors.runner import unanswered
from kvspec.events import (
    Abort,
    CacheUnfinished,
    CloseSession,
    Complete,
    Config,
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
    Refusal,
    Retract,
    Submit,
    SwaEvict,
    TakeState,
    Verify,
)
from kvspec.model.state import State
from kvspec.tokens import Element

FEATURES = {
    "rows": "rows: a table of the slots of each request, of which there are so many",
    "rowless": "rowless running: without rows, each launch with its own block tables",
    "larger_pages": "larger pages: of more than one token",
    "sessions": "streaming sessions: memory that stays between the turns of a conversation",
    "preempt": "preemption: taking the memory of an idle session away while the session stays open",
    "speculative": "speculative decoding: decode steps of more than one position, and their verification",
    "speculative_overlap": "overlapped speculative steps: launched before the one before them is verified",
    "page_keys": "page keys: prompts that are given as keys of whole pages",
    "wide_tokens": "wide tokens: token ids of more than 31 bits",
    "chunk_cache": "chunk cache: running without a prefix cache",
    "sliding_window": "sliding window: a second pool for layers that have one",
    "recurrent_states": "recurrent states: slots for those of state space layers",
    "release_in_flight": "release in flight: letting a request go while a launch in flight runs for it",
    "rows_at_launch": "rows at launch: copying the rows of a launch when it is handed over",
    "rows_in_order": "rows in order: rows whose writes the stream orders behind the launches that read them",
    "published_chunks": "published chunks: those of a session's first turn, before its last one",
    "published_overshoot": "published overshoot: whole pages of tokens that were accepted past a request's stop",
    "estimated_room": "estimated room: refusing what fits, by an estimate of the pages needed, with a sliding window",
    "turns_as_sessions": "turns as sessions: figures that count what a turn has as its session's",
    "release_before_launch": "release before launch: retracting or aborting amid a prompt, or with unlaunched work",
    "retract_after_stop": "retraction after a stop: of a request that has stopped within a speculative step",
    "early_finish": "early finish: of a request before the token that follows its prompt is there",
    "late_publish": "late publication: of a prompt when its window is given back in part, or its state has gone on",
    "chunk_in_page": "chunk within a page: one that ends there, with recurrent states",
    "unpublished_chunks": "unpublished chunks: going on from one that was not handed to the prefix cache",
    "beside_a_chunk": "beside a chunk: others in a prefill batch with one that does not end a prompt begun before",
    "publish_without_state": "publication without a state: of a prefix when no state slot is free",
    "deep_overlap": "deep overlap: three launches in flight, or letting a request go while two of its launches are",
}
"""Feature that may be lacking -> a few words, and its explanation."""

POLICIES = {
    "rows_read": {"at_launch": "rows_at_launch", "in_order": "rows_in_order"},
    "first_turn_chunks": {"published": "published_chunks"},
    "turns_count_as": {"sessions": "turns_as_sessions"},
    "overshoot": {"published": "published_overshoot"},
    "room": {"estimated": "estimated_room"},
}
"""Policy that an engine chooses, by its name in `Config` -> each way except the default, and its feature."""


class UnknownFeatureError(LoadError, ValueError):
    """An implementation declares an unknown feature as lacking."""


def check_supported(factory: object, impl: str, needed: frozenset[str]) -> None:
    """Refuse a run that needs features that an implementation declares as lacking.

    Raises:
        LoadError: it lacks a feature.
    """
    missing = needed & lacks(factory)
    if missing:
        raise LoadError(f"implementation {impl!r} cannot run this: {why_not(missing)}")


def lacks(factory: object) -> frozenset[str]:
    """The features that an implementation declares as lacking, and the hybrid pools whose operations its class lacks.

    Raises:
        UnknownFeatureError: it declares an unknown feature.
    """
    declared = frozenset(getattr(factory, "lacks", ()))
    for policy, ways in POLICIES.items():
        declared |= {feature for way, feature in ways.items() if way not in _ways(factory, policy)}
    declared |= set() if "rows" in declared else {"rowless"}
    unknown = declared - FEATURES.keys()
    if unknown:
        raise UnknownFeatureError(f"no feature {', '.join(sorted(unknown))!r}; there are {', '.join(FEATURES)}")
    if not isinstance(factory, type):
        return declared
    return declared | {feature for feature, method in _HYBRID.items() if not callable(getattr(factory, method, None))}


def under(factory: object, config: Config) -> Config:
    """The same sizes for this implementation: without rows if it has none, and with its own open policies."""
    if "rows" in getattr(factory, "lacks", ()):
        config = msgspec.structs.replace(config, num_rows=0)
    open_here = [policy for policy, ways in POLICIES.items() if getattr(config, policy) not in ways]
    return msgspec.structs.replace(config, **{policy: _ways(factory, policy)[0] for policy in open_here})


def vector_under(factory: object, vector: Vector) -> Vector:
    """The vector in the form in which this implementation runs it."""
    header = msgspec.structs.replace(vector.header, config=under(factory, vector.header.config))
    return vector._replace(header=header)


def _ways(factory: object, policy: str) -> tuple[str, ...]:
    """The ways of a policy in which an implementation can be made."""
    usual, *others = get_args(get_type_hints(Config)[policy])
    declared: tuple[str, ...] = getattr(factory, policy, (usual,))
    if not declared or not {*declared} <= {usual, *others}:
        raise UnknownFeatureError(f"{policy} is {declared!r}, not some of: {', '.join((usual, *others))}")
    return declared


_HYBRID = {"sliding_window": "swa_evict", "recurrent_states": "take_state"}
"""Hybrid pool -> the operation that only managers with such a pool have."""


_OPERATIONS = {
    "open_session": {"sessions"},
    "close_session": {"sessions"},
    "preempt": {"sessions", "preempt"},
    "verify": {"speculative"},
}
"""Operation -> the features without which it is never requested."""


def never_asked(factory: object) -> set[str]:
    """The operations that an implementation need not have, because it lacks features."""
    declared = frozenset(getattr(factory, "lacks", ()))
    return {operation for operation, features in _OPERATIONS.items() if features & declared}


def lacked(feature: str) -> str:
    """A missing feature, in a few words."""
    return f"no {FEATURES[feature].partition(':')[0]}"


def why_not(missing: Iterable[str]) -> str:
    """The reason why something is not supported, for a report."""
    return "; ".join(f"no {FEATURES[feature]}" for feature in sorted(missing))


def needs(vector: Vector) -> frozenset[str]:
    """The features that an implementation needs to run `vector`."""
    model = Model(vector.header.config)
    found = set(needs_of_config(vector.header.config))
    for step in vector.steps:
        found |= {"rows"} if step.expect is not None and step.expect.rows_short else set()
        op = unanswered(step.op)
        found |= needs_now(model.state, op)
        try:
            model.step(op)
        except Refusal as refusal:
            if refusal.refused.rule == "RACE-1":
                found.add("release_in_flight")
    return frozenset(found)


def needs_of_config(config: Config) -> frozenset[str]:
    """The features that an implementation needs to be made with these sizes."""
    found = set() if config.prefix_cache else {"chunk_cache"}
    found |= set() if config.num_rows else {"rowless"}
    found |= {"larger_pages"} if config.page_size > 1 else set()
    found |= {"sliding_window"} if config.sliding_window else set()
    found |= {"recurrent_states"} if config.num_states else set()
    found |= {ways[way] for policy, ways in POLICIES.items() if (way := getattr(config, policy)) in ways}
    return frozenset(found)


def needs_of_steps(overlap: int, drafts: int) -> frozenset[str]:
    """The features that an implementation needs for steps with drafts and for so many launches in flight."""
    found = {"speculative"} if drafts else set()
    found |= {"speculative_overlap"} if drafts and overlap else set()
    found |= {"deep_overlap"} if overlap > 1 else set()
    return frozenset(found)


def needs_now(state: State, op: Operation[Any]) -> frozenset[str]:
    """The features that an implementation needs to carry `op` out in `state`."""
    found: set[str] = set()
    match op:
        case Submit():
            found |= {"sessions"} if op.session is not None else set()
            found |= {"page_keys"} if any(isinstance(element, str) for element in op.tokens) else set()
            found |= _needs_to_hold(op.tokens)
        case Decode() if op.n > 1:
            found |= {"speculative"} | ({"speculative_overlap"} if state.speculating.keys() & set(op.reqs) else set())
        case Verify():
            found |= {"speculative"} | _needs_to_hold(op.tokens)
        case Complete():
            found |= _needs_to_hold(op.tokens.values())
        case Preempt():
            found |= {"sessions", "preempt"}
        case Launch() if len(state.flights) > 1:
            found.add("deep_overlap")
        case OpenSession():
            found.add("sessions")
        case SwaEvict():
            found.add("sliding_window")
        case TakeState() | FreeState():
            found.add("recurrent_states")
        case Evict():
            found |= {"sliding_window"} if op.window else set()
            found |= {"recurrent_states"} if op.states else set()
        case Extend():
            found |= _needs_to_chunk(state, op)
        case CacheUnfinished():
            found |= _needs_to_publish(state, op)
    if isinstance(op, (Preempt, CloseSession)):
        slot = state.sessions.get(op.session)
        found |= {"sessions"} | _needs_to_free_row(state, None if slot is None else slot.record)
    if isinstance(op, (Extend, MatchPrefix)):
        found |= _needs_to_resume(state, op)
    if isinstance(op, (Finish, Retract, Abort)):
        found |= _needs_to_release(state, op)
    return frozenset(found)


def _needs_to_hold(tokens: Iterable[Element]) -> set[str]:
    return {"wide_tokens"} if any(isinstance(token, int) and token >= 1 << 31 for token in tokens) else set()


def _needs_to_chunk(state: State, op: Extend) -> set[str]:
    """Recurrent states are kept where a chunk ends, counted from where it began."""
    found, size = set[str](), state.config.page_size
    for req, seq_len in op.reqs:
        request = state.requests.get(req)
        if request is None:
            continue
        ends_within = seq_len < len(request.tokens)
        if ends_within and seq_len % size and state.config.num_states:
            found.add("chunk_in_page")
        if req in state.mid_prefill and request.record is not None:
            found |= {"beside_a_chunk"} if ends_within and len(op.reqs) > 1 else set()
            unpublished = state.lengths[request.record].protected < request.seq_len // size * size
            found |= {"unpublished_chunks"} if state.config.prefix_cache and unpublished else set()
    return found


def _needs_to_publish(state: State, op: CacheUnfinished) -> set[str]:
    request = state.requests.get(op.req)
    if request is None or request.record is None or request.resumed or not state.config.prefix_cache:
        return set()
    record = request.record
    found: set[str] = set()
    if state.cursor[record] > state.lengths[record].protected:
        found.add("late_publish")
    if state.config.num_states:
        # Meanwhile one decode step may be launched, as with overlap, but not completed.
        gone_on = state.written[record] > request.seq_len + 1 or len(request.tokens) > request.seq_len + 1
        found |= {"late_publish"} if gone_on and op.req not in state.mid_prefill else set()
        found |= set() if state.free_states else {"publish_without_state"}
    return found


def _needs_to_free_row(state: State, record: int | None) -> set[str]:
    return {"release_in_flight"} if record is not None and in_flight(state, record) else set()


def _needs_to_release(state: State, op: Finish | Retract | Abort) -> set[str]:
    request = state.requests.get(op.req)
    if request is None:
        return set()
    session = None if request.session is None else state.sessions[request.session]
    record = session.record if request.record is None and session is not None else request.record
    found: set[str] = set()
    if session is None or session.closing or isinstance(op, Abort):
        found |= _needs_to_free_row(state, record)
    if record is None or not request.running:
        return found
    launches = sum(passage.record == record for flight in state.flights.values() for passage in flight)
    if launches > 1:
        found.add("deep_overlap")
    if isinstance(op, Finish) and len(request.tokens) == request.seq_len:
        found.add("early_finish")
    if op.req in state.prepared or op.req in state.mid_prefill:
        found.add("release_before_launch")
    elif isinstance(op, Retract) and state.lengths[record].committed >= state.horizon[record]:
        found.add("retract_after_stop")
    return found


def _needs_to_resume(state: State, op: Extend | MatchPrefix) -> set[str]:
    """A turn that takes over a session's record may write, or release, a row that a launch in flight reads (RACE-1)."""
    for req in [op.req] if isinstance(op, MatchPrefix) else [req for req, _ in op.reqs]:
        request = state.requests.get(req)
        if request is None or request.running or request.session is None:
            continue
        record = state.sessions[request.session].record if request.record is None else request.record
        if record is None:
            continue
        kept = min(state.lengths[record].committed, len(request.tokens) - 1)
        if state.read_beyond(state.records[record].row, kept) and (kept == 0 or isinstance(op, Extend)):
            return {"release_in_flight"}
    return set()
