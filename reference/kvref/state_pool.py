"""The slots for the recurrent states of state space layers (17850).

A running request computes in one slot. A recurrent state contains all tokens before it and cannot go back by one. So
two more slots, its *tracking slots*, keep the states at the last page borders that its launches passed: the prefix
store can take these, and a session's next turn can resume there.
"""

from kvref.allocator import TokenAllocator
from kvref.request import KvRecord, Request


class StatePool(TokenAllocator):
    """The free state slots, and the slots of each record. Without such layers there are none."""

    def __init__(self, num_states: int, tracking_states: int) -> None:
        """All slots `1..num_states` are free; a record has `tracking_states` slots besides the one it computes in."""
        super().__init__(num_states)
        self.tracking_states = tracking_states

    def states_missing(self, request: Request) -> int:
        """The slots that a request still needs for its first extend; it may have taken one early."""
        return self.tracking_states + (request.state is None) if self.num_pages else 0

    def alloc_early(self, request: Request) -> int:
        """Give a request the slot that it will compute in, before its row."""
        (request.state,) = self.alloc(1)
        return request.state

    def free_early(self, request: Request) -> None:
        """Free the early slot of a request without a row, if it has one: no release of a row does it."""
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
        """Move a record's state from `start` to `end`, and keep it at the last border that the launch passes.

        An unused tracking slot takes it, or else that of the oldest border.
        """
        border = end - end % page_size
        if border <= start or not self.tracking_states:
            return
        unused = [slot for slot in kv.states[1:] if slot not in kv.tracked.values()]
        kv.tracked[border] = unused[0] if unused else kv.tracked.pop(min(kv.tracked))

    def donate(self, kv: KvRecord, border: int) -> int:
        """Take the slot with the state at `border` from a record, for the prefix store."""
        slot = kv.tracked.pop(border)
        kv.states.remove(slot)
        return slot


def resumable_len(kv: KvRecord, key_len: int) -> int:
    """The length, at most `key_len`, at which a session's turn can resume; 0 if there is none. In tokens.

    If the current state is past `key_len`, the turn goes back to the last border whose state is kept: in a tracking
    slot or, at the end of the record's locked prefix, in the prefix store.
    """
    target = min(kv.kv_committed_len, key_len)
    if not kv.states or kv.state_len <= target:
        return key_len
    kept = [border for border in kv.tracked if kv.cache_protected_len <= border <= target]
    if kv.last_node.mamba_value is not None:
        kept.append(kv.cache_protected_len)
    return max(kept, default=0)


def source_of_state(kv: KvRecord, length: int) -> int:
    """The slot with the state after `length` tokens: the current state's, a tracking slot, or the store's."""
    if kv.state_len == length:
        return kv.states[0]
    slot = kv.tracked.get(length, kv.last_node.mamba_value)
    assert slot is not None, "a turn resumes where a state is kept"
    return slot


def rewind(kv: KvRecord, length: int) -> None:
    """Drop the states past `length`, where a turn resumes: it computes these positions again."""
    kv.tracked = {border: slot for border, slot in kv.tracked.items() if border <= length}
