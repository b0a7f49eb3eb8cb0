"""Slots for recurrent states: who has them, and which state each of them has (17850).

`State.state_content` is the ghost: the state in each slot, as far as answers reported the slot. A launch writes the
slot that its request computes in, and a tracking slot at a page border. Published states, and those from which a
request goes on, are compared with it (rule DATA-2).
"""

from kvspec.events import CacheUnfinished, Finish, FreeState, Refusal, TakeState
from kvspec.model.answer import ObservedAnswer
from kvspec.model.records import Request
from kvspec.model.state import State
from kvspec.rules import Violation
from kvspec.states import kept_borders, last_state
from kvspec.tokens import PrefixKey


def slot_keeping(state: State, record: int, border: int) -> int | None:
    """The tracking slot of a record that is known to keep its state at a page border."""
    _, _, states, computing = state.records[record]
    return next(
        (slot for slot in states if slot != computing and state.state_content.get(slot) == (record, border)), None
    )


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


def source(state: State, request: Request, prefix_len: int) -> int | None:
    """The slot with the state from which a request goes on, if it goes on from one and an answer reported the slot."""
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


def resumable(state: State, record: int, key_len: int) -> int:
    """The length at most `key_len`, in tokens, from which a turn can resume.

    A recurrent state cannot be taken back by a token. Where the one that the record computes in stands past
    `key_len`, the turn goes back to the last page border whose state a tracking slot or the store has kept; 0 if none.
    """
    target = min(state.lengths[record].committed, key_len)
    if not state.config.num_states or state.written[record] <= target:
        return key_len
    protected, locked = state.lengths[record].protected, state.records[record].locked
    return last_state(state.borders[record], protected, target, cached=locked in state.store.states)


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
    state.take_states(record, slots)
    computing = slots[0] if slots and (early or chooses) else held.computing
    state.records[record] = held._replace(states=(*held.states, *slots), computing=computing)
    if computing and not request.running:
        state.state_content[computing] = record, state.prepared[req].start


def take_state(state: State, op: TakeState, answer: ObservedAnswer) -> None:
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
    answer.carried_out()
    slot = answer.slot("state", op.req)
    state.state_owner[slot] = op.req
    state.requests[op.req] = request._replace(state=slot)


def free_state(state: State, op: FreeState, answer: ObservedAnswer) -> None:
    """A waiting request gives back the state slot that it took: it has no row that could be freed with it (17850)."""
    request = state.request(op.req)
    if request.state is None:
        raise Refusal("OP-1", f"request {op.req} has no state slot without a row")
    answer.carried_out()
    answer.freed("states", "MAMBA-2", [request.state])
    del state.state_owner[request.state]
    state.requests[op.req] = request._replace(state=None)


def state_to_publish(state: State, request: Request, record: int, length: int) -> PrefixKey | None:
    """The prefix of `length` tokens, if the store lacks its state and a tracking slot of the record has kept it."""
    if length == 0 or length not in state.borders[record]:
        return None
    key = request.tokens.key(length // state.config.page_size - 1)
    return None if key in state.store.states else key


def publish_copy(
    state: State, op: CacheUnfinished, answer: ObservedAnswer, record: int, key: PrefixKey | None, border: int
) -> None:
    """The store takes the state at `border`, named `key`, while the holder goes on; one free slot is needed for it.

    Either the free slot gets a copy for the store, or the store takes the tracking slot and the holder the free one.
    """
    cached, taken = (op.obs.state_cached, op.obs.state_taken) if op.obs else (None, None)
    if key is None:
        return answer.cached(taken if cached is None else cached, ())
    states = state.records[record].states
    new = answer.slot("state_taken", op.req)
    cached = answer.choice("state_cached", new)
    answer.cached(cached, [new, *states])
    if cached != new:
        if cached == state.records[record].computing:
            what = f"the store took state slot {cached}, in which {op.req} computes"
            raise Violation("DATA-2", what, observed=cached, part="state_cached")
        answer.content(record, cached, border, "the store took")
        state.borders[record] = tuple(other for other in state.borders[record] if other != border)
    kept = tuple(new if slot == cached else slot for slot in states)
    state.records[record] = state.records[record]._replace(states=kept)
    state.publish_state(record, key, cached, new)


def publish_own(
    state: State, op: Finish, answer: ObservedAnswer, record: int, key: PrefixKey | None, border: int
) -> None:
    """A request ends: the store takes its state at `border`, named `key`, if it lacks it. The rest goes back."""
    if not state.config.num_states:
        return
    states = state.records[record].states
    given = None if op.obs is None else op.obs.state_cached
    if key is not None and (op.obs is None or op.obs.states_freed is None):
        given = answer.choice("state_cached", slot_keeping(state, record, border) or states[-1])
    if key is not None and given is None:
        raise Violation(
            "MAMBA-4", "the store did not take the state that is due", expected=list(states), part="state_cached"
        )
    answer.cached(given, () if key is None else states)
    kept = tuple(slot for slot in states if slot != given)
    answer.freed("states", "MAMBA-2", kept)
    state.records[record] = state.records[record]._replace(states=kept)
    if key is not None and given is not None:
        answer.content(record, given, border, "the store took")
        state.publish_state(record, key, given)


def evictable_states(state: State) -> list[int]:
    """The state slots of the store at prefixes without a lock."""
    store = state.store
    return [slot for key, slot in store.states.items() if store.pages[key] not in store.state_pins]
