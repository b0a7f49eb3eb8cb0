"""Slots for recurrent states: who has them, and which state each of them has (17850).

`State.state_content` is the ghost: what each slot has, as far as answers told which one that is. A launch writes the
slot that its request computes in, and a tracking slot where it passes a page border; what is published, and what a
request goes on from, is held against it (rule DATA-2).
"""

from itertools import count

from kvspec.events import (
    CacheUnfinished,
    Evict,
    EvictAnswer,
    FreeState,
    HolderView,
    PublishAnswer,
    Refusal,
    ReleaseAnswer,
    StateAnswer,
    TakeState,
)
from kvspec.model.judging import carried_out, judge_cached, judge_evicted, judge_freed, judge_new, states_of
from kvspec.model.meaning import waiting
from kvspec.model.records import Part, Request
from kvspec.model.state import State
from kvspec.pages import Runs
from kvspec.rules import Violation
from kvspec.states import kept_borders, last_state
from kvspec.tokens import PrefixKey


def slot_keeping(state: State, record: int, border: int) -> int | None:
    """The tracking slot of a record that is known to keep its state at a page border."""
    _, _, states, computing = state.records[record]
    return next(
        (slot for slot in states if slot != computing and state.state_content.get(slot) == (record, border)), None
    )


def _has_state(state: State, record: int, slot: int, length: int) -> bool | None:
    """Whether a slot of a record has its state after `length` tokens; `None` if no answer told which slot has."""
    told = state.state_content.get(slot)
    if told is None and slot_keeping(state, record, length) is None:
        return None
    return told == (record, length)


def _judge_content(state: State, record: int, slot: int, length: int, what: str) -> None:
    """Rule DATA-2 for a slot of a record that is used for its state after `length` tokens; `what` is what for."""
    has = _has_state(state, record, slot, length)
    if has is False:
        held = state.state_content.get(slot)
        observed = "no state" if held is None else f"the state after {held[1]} tokens"
        raise _other_state(what, slot, length, slot_keeping(state, record, length), observed)
    (state.unjudged if has is None else state.judged)["DATA-2"] += 1


def _other_state(what: str, slot: int, length: int, expected: int | None, observed: object) -> Violation:
    what = f"{what} state slot {slot}, which does not have the state after {length} tokens"
    return Violation("DATA-2", what, expected=expected, observed=observed)


def move_on(state: State, record: int, start: int, end: int, *, chooses: bool) -> None:
    """A launch moves the state of a record from `start` on to `end`, and keeps it at the last page border it passes.

    Which of its tracking slots that is, shows later, unless only one can be or the model itself `chooses`.
    """
    held, content, borders = state.records[record], state.state_content, state.borders[record]
    if held.computing:
        content[held.computing] = record, end
    passed = kept_borders(borders, start, end, state.config.page_size)
    if passed == borders or not state.config.tracking_states:
        return
    state.borders[record] = passed
    kept = {slot_keeping(state, record, border) for border in passed[:-1]}
    free = [slot for slot in held.states if slot != held.computing and slot not in kept]
    for slot in free:
        content.pop(slot, None)
    if held.computing and (len(free) == 1 or (chooses and len(free) + len(passed) == len(held.states))):
        content[free[0]] = record, passed[-1]


def cut_borders(state: State, record: int, length: int) -> None:
    """States at page borders past `length` count no more: their tokens are computed again, perhaps others."""
    for border in state.borders[record]:
        slot = slot_keeping(state, record, border)
        if border > length and slot is not None:
            del state.state_content[slot]
    state.borders[record] = tuple(border for border in state.borders[record] if border <= length)


def _source(state: State, request: Request, prefix_len: int) -> int | None:
    """The slot that has the state from which a request goes on, if it goes on from one and an answer told which."""
    if not prefix_len or not state.config.num_states:
        return None
    record = request.record
    if record is None:
        return state.store.states[state.matched_key(request.tokens, prefix_len)]
    held = state.records[record]
    if held.computing and state.state_content.get(held.computing) == (record, prefix_len):
        return held.computing
    cached = state.store.states.get(held.locked) if prefix_len == state.lengths[record].protected else None
    return slot_keeping(state, record, prefix_len) or cached


def sources(state: State, batch: list[Part]) -> dict[str, int] | None:
    """The model's own answer: the slots whose states the requests of a prefill batch go on from."""
    due = {req: slot for req, one, start, _ in batch if (slot := _source(state, one, start)) is not None}
    return due if state.config.num_states else None


def judge_sources(state: State, batch: list[Part], told: dict[str, int] | None) -> None:
    """Rule DATA-2 for the slots whose states the requests of a prefill batch go on from, each at its `prefix_len`."""
    if not state.config.num_states:
        return
    for req, request, prefix_len, _ in batch:
        if told is None or req not in told:
            state.unjudged["DATA-2"] += prefix_len > 0
            continue
        record, slot, due = request.record, told[req], _source(state, request, prefix_len)
        if slot == due or (due is not None and due < 0):
            state.judged["DATA-2"] += 1
        elif record is not None and slot in state.records[record].states and prefix_len:
            _judge_content(state, record, slot, prefix_len, f"{req} goes on from")
        else:
            raise _other_state(f"{req} goes on from", slot, prefix_len, due, slot)


def judge_roles(state: State, who: str, record: int, view: HolderView) -> None:
    """Hold what the slots of a record are used for, where that is told, against what they have (rule DATA-2).

    What no earlier answer told is learned here.
    """
    held, content, protected = state.records[record], state.state_content, state.lengths[record].protected
    if view.computing is None or any(slot < 0 for slot in held.states):
        state.unjudged["DATA-2"] += 1
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
        state.unjudged["DATA-2"] += bool(due)
        return
    told = {border: slot for border, slot in sorted(view.tracking.items()) if border >= protected}
    if list(told) != due:
        what = f"the page borders whose states {who} has kept are wrong"
        raise Violation("MAMBA-3", what, expected=due, observed=list(told))
    for border, slot in told.items():
        if _has_state(state, record, slot, border) is not None:
            _judge_content(state, record, slot, border, f"{who} keeps in")
        tracking = [own for own in held.states if own != held.computing]
        if slot not in tracking:
            what = f"{who} keeps a state in slot {slot}, which is no tracking slot of its own"
            raise Violation("DATA-2", what, expected=tracking, observed=slot)
        content[slot] = record, border


def roles(state: State, record: int) -> tuple[int | None, dict[int, int] | None]:
    """The slot that a record computes in, and the one that keeps each border; `None` where no answer told."""
    kept = {border: slot_keeping(state, record, border) for border in state.borders[record]}
    told = {border: slot for border, slot in kept.items() if slot is not None}
    return state.records[record].computing or None, told if len(told) == len(kept) else None


def state_slots(state: State, slots: tuple[int, ...]) -> list[int] | None:
    """The state slots as an answer tells them; `None` where there are none."""
    return list(slots) if state.config.num_states else None


def resumable(state: State, record: int, key_len: int) -> int:
    """The length at most `key_len`, in tokens, from which a turn can resume.

    A recurrent state cannot be taken back by a token. Where the one that the record computes in stands past
    `key_len`, the turn goes back to the last page border whose state a tracking slot or the store has kept; 0 if none.
    """
    target = min(state.lengths[record].committed, key_len)
    if not state.config.num_states or state.written[record] <= target:
        return key_len
    protected, locked = state.lengths[record].protected, state.records[record].locked
    border = last_state(state.borders[record], protected, target, cached=locked in state.store.states)
    state.reached["resumed at a page border"] += border > 0
    return border


def states_missing(state: State, request: Request) -> int:
    """The state slots that a request needs besides what it has, or what it brings (17850)."""
    if not state.config.num_states or request.record is not None:
        return 0
    return (request.state is None) + state.config.tracking_states


def take_states(state: State, record: int, req: str, request: Request, new: list[int], *, chooses: bool) -> None:
    """A record's state slots become its own, the one that its request took early and new ones; it begins, or goes on.

    It computes in the early one, or in the first new one where the model itself `chooses`; else that shows later.
    """
    held = state.records[record]
    early = () if request.record is not None or request.state is None else (request.state,)
    slots = (*early, *new)
    for slot in slots:
        state.state_owner[slot] = record
        state.state_content.pop(slot, None)
    computing = slots[0] if slots and (early or chooses) else held.computing
    state.records[record] = held._replace(states=(*held.states, *slots), computing=computing)
    if computing and not request.running:
        state.state_content[computing] = record, state.prepared[req].start
    if state.memory is not None and slots:
        state.memory.take_states(state, record, req, early, new)


def take_state(state: State, op: TakeState) -> StateAnswer:
    """A matched request that waits takes the slot that it will compute in: it owns a state before a row (17850)."""
    request = state.request(op.req)
    if not state.config.num_states:
        raise Refusal("OP-1", "there are no recurrent states")
    if request.running or request.record is not None or request.state is not None:
        raise Refusal("OP-1", f"request {op.req} has a state slot already")
    if request.prefix_len is None:
        raise Refusal("OP-1", f"{op.req} has not matched its prefix")
    if not state.free_states:
        raise Refusal("CAP-1", "no state slot is free", states_short=1)
    carried_out(state, op)
    need = [(op.req, 1)]
    obs = op.obs or StateAnswer(_smallest_free(state))
    (slot,) = judge_new(state, states_of(state), need, _given(op.req, obs.state))[op.req]
    state.state_owner[slot] = op.req
    if state.memory is not None:
        state.memory.take(waiting(op.req), "states", [slot])
    state.requests[op.req] = request._replace(state=slot)
    state.reached["state without a row"] += 1
    return obs


def _smallest_free(state: State) -> int:
    """The state slot that the model itself takes; whoever asks has seen that one is free."""
    return next(slot for slot in count(1) if slot not in state.state_owner)


def _given(req: str, slot: int | None) -> dict[str, Runs] | None:
    """One slot given to one request, as an answer tells it."""
    return None if slot is None else {req: [slot]}


def free_state(state: State, op: FreeState) -> StateAnswer:
    """A waiting request gives back the state slot that it took: it has no row that could be freed with it (17850)."""
    request = state.request(op.req)
    if request.state is None:
        raise Refusal("OP-1", f"request {op.req} has no state slot without a row")
    carried_out(state, op)
    obs = op.obs or StateAnswer(request.state)
    judge_freed(state, states_of(state), "MAMBA-2", [request.state], None if obs.state is None else [obs.state])
    give_back(state, op.req, request.state)
    state.requests[op.req] = request._replace(state=None)
    return obs


def give_back(state: State, req: str, slot: int) -> None:
    """The state slot of a waiting request becomes free."""
    del state.state_owner[slot]
    if state.memory is not None:
        state.memory.release(waiting(req), "states", [slot])
    state.reached["state given back"] += 1


def state_to_publish(state: State, request: Request, record: int, length: int) -> PrefixKey | None:
    """The prefix of `length` tokens, if the store lacks its state and a tracking slot of the record has kept it."""
    if length == 0 or length not in state.borders[record]:
        return None
    key = request.tokens.key(length // state.config.page_size - 1)
    return None if key in state.store.states else key


def publish_copy(
    state: State, op: CacheUnfinished, obs: PublishAnswer, record: int, key: PrefixKey | None, border: int
) -> None:
    """The store takes the state at `border`, named `key`, while the holder goes on; one free slot is needed for it.

    Either the free slot gets a copy for the store, or the store takes the tracking slot and the holder the free one.
    """
    if key is None:
        return judge_cached(obs.state_taken if obs.state_cached is None else obs.state_cached, ())
    states = state.records[record].states
    if op.obs is None:
        obs.state_cached = obs.state_taken = _smallest_free(state)
    (new,) = judge_new(state, states_of(state), [(op.req, 1)], _given(op.req, obs.state_taken))[op.req]
    cached = new if obs.state_cached is None else obs.state_cached
    judge_cached(cached, [new, *states])
    state.judged["MAMBA-4"] += 1
    if cached != new:
        if cached == state.records[record].computing:
            what = f"the store took state slot {cached}, in which {op.req} computes"
            raise Violation("DATA-2", what, observed=cached)
        _judge_content(state, record, cached, border, "the store took")
        state.borders[record] = tuple(other for other in state.borders[record] if other != border)
    kept = tuple(new if slot == cached else slot for slot in states)
    state.records[record] = state.records[record]._replace(states=kept)
    state.state_content.pop(new, None)
    state.state_owner[new] = record
    _cache_state(state, record, key, cached, new)


def _cache_state(state: State, record: int, key: PrefixKey, slot: int, new: int | None = None) -> None:
    """The store takes a state slot of a record, which has got the slot `new` for it."""
    if state.memory is not None:
        state.memory.publish_state(state, record, key, slot, new)
    state.store.states[key] = slot
    state.state_content.pop(slot, None)
    state.state_owner[slot] = key
    state.reached["state published"] += 1


def publish_own(state: State, obs: ReleaseAnswer, record: int, key: PrefixKey | None, border: int) -> None:
    """A request ends: the store takes its state at `border`, named `key`, if it lacks it. The rest goes back."""
    if not state.config.num_states:
        return
    states = state.records[record].states
    given = obs.state_cached
    if given is None and key is not None and obs.states_freed is None:  # nothing is told of states
        state.unjudged["MAMBA-4"] += 1
        given = slot_keeping(state, record, border) or states[-1]
    if given is None and key is not None:
        raise Violation("MAMBA-4", "the store did not take the state that is due", expected=list(states))
    judge_cached(given, () if key is None else states)
    kept = tuple(slot for slot in states if slot != given)
    judge_freed(state, states_of(state), "MAMBA-2", kept, obs.states_freed)
    state.records[record] = state.records[record]._replace(states=kept)
    if key is not None and given is not None:
        state.judged["MAMBA-4"] += obs.state_cached is not None
        _judge_content(state, record, given, border, "the store took")
        _cache_state(state, record, key, given)


def evictable_states(state: State) -> list[int]:
    """The state slots of the store at prefixes that nobody has locked."""
    store = state.store
    return [slot for key, slot in store.states.items() if store.pages[key] not in store.state_pins]


def evict_states(state: State, op: Evict, obs: EvictAnswer, keys: dict[PrefixKey, int]) -> None:
    """Judge the states that leave the store, those of the pages `keys` among them, and take them away."""
    states = state.store.states
    pool, leaving = states_of(state), sorted(states[key] for key in keys if key in states)
    assert pool is not None, "there are state slots"
    evicted = judge_evicted(state, pool, "MAMBA-5", op.states, leaving, evictable_states(state), obs.states_evicted)
    if state.memory is not None:
        state.memory.drop("states", {key: slot for key, slot in states.items() if slot in evicted})
    for slot in evicted:
        del states[state.state_owner.pop(slot)]  # type: ignore[arg-type]
    state.reached["state evicted"] += bool(evicted)
