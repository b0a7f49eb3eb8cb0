"""The slots for the recurrent states of state space layers (17850).

A running request computes in one slot. A recurrent state holds all tokens before it and cannot be taken back by one,
so two more, its *tracking slots*, keep the states at the last page borders that its launches passed: what the prefix
store can take over, and where a session's next turn can go on.
"""

from kvref.allocator import TokenAllocator
from kvref.request import KvRecord, Request


class StatePool(TokenAllocator):
    """The free state slots, and who is given how many. Without such layers there are none and nobody needs one."""

    def __init__(self, num_states: int, tracking_states: int) -> None:
        """All slots `1..num_states` are free; a record has `tracking_states` slots besides the one it computes in."""
        super().__init__(num_states)
        self.tracking_states = tracking_states

    def states_missing(self, request: Request) -> int:
        """How many slots a request needs for its first extend, besides the one that it may have taken early."""
        return self.tracking_states + (request.state is None) if self.num_pages else 0

    def alloc_early(self, request: Request) -> int:
        """A request takes the slot that it will compute in before it has a row."""
        (request.state,) = self.alloc(1)
        return request.state

    def free_early(self, request: Request) -> None:
        """A request that has no row gives its slot back, if it has one: no release of a row will do it."""
        if request.state is not None:
            self.free([request.state])
            request.state = None

    def alloc_extend_states(self, kv: KvRecord, request: Request) -> list[int]:
        """Give a new record its slots, the request's early one among them, and return the others."""
        new = self.alloc(self.states_missing(request))
        kv.states = new if request.state is None else [request.state, *new]
        request.state = None
        return new

    def track(self, kv: KvRecord, start: int, end: int, page_size: int) -> None:
        """A launch moves the state of a record from `start` on to `end`, and keeps it at the last border it passes.

        The tracking slot that keeps nothing is written, or else the one that keeps the older border.
        """
        border = end - end % page_size
        if border <= start or not self.tracking_states:
            return
        unused = [slot for slot in kv.states[1:] if slot not in kv.tracked.values()]
        kv.tracked[border] = unused[0] if unused else kv.tracked.pop(min(kv.tracked))

    def donate(self, kv: KvRecord, border: int) -> int:
        """Take the slot that keeps the state at `border` from a record, for the prefix store to have."""
        slot = kv.tracked.pop(border)
        kv.states.remove(slot)
        return slot


def resumable_len(kv: KvRecord, key_len: int) -> int:
    """The length, at most `key_len`, from which a session's turn can go on; 0 if there is none. In tokens.

    Where the state that was computed last stands past `key_len`, the turn goes back to the last border whose state
    is kept, by a tracking slot or, at the end of what this record has locked, by the prefix store.
    """
    target = min(kv.kv_committed_len, key_len)
    if not kv.states or kv.state_len <= target:
        return key_len
    kept = [border for border in kv.tracked if kv.cache_protected_len <= border <= target]
    if kv.last_node.mamba_value is not None:
        kept.append(kv.cache_protected_len)
    return max(kept, default=0)


def source_of_state(kv: KvRecord, length: int) -> int:
    """The slot with the state after `length` tokens: the one that was computed in, a tracking slot, or the store's."""
    if kv.state_len == length:
        return kv.states[0]
    slot = kv.tracked.get(length, kv.last_node.mamba_value)
    assert slot is not None, "a turn resumes where a state is kept"
    return slot


def rewind(kv: KvRecord, length: int) -> None:
    """A turn goes on from `length`: states past it are of tokens that it will compute again, perhaps others."""
    kv.tracked = {border: slot for border, slot in kv.tracked.items() if border <= length}
