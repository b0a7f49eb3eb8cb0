"""The records of requests, runs, sessions and launches. Lengths are columns of the `RowTable`."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kvcuda.prefix_tree import Node
from kvcuda.streams import Event
from kvspec.tokens import Tokens


class Tracked(NamedTuple):
    """A slot that keeps the recurrent state at a page border."""

    slot: int
    border: int = 0
    """In tokens; 0 while it keeps none."""


class KvRecord:
    """The memory of a holder: a row, the lock on the prefix that ends at `last_node`, and state slots.

    It moves as a whole between a request and a session slot. Its holder drops it when it is released (rule ROW-4).
    """

    __slots__ = ("last_node", "row", "state", "tracked")

    def __init__(self, row: int, last_node: Node, states: Sequence[int] = ()) -> None:
        """Take a row, and state slots if there are any: first the one to compute in."""
        self.row = row
        self.last_node = last_node
        self.state = states[0] if states else 0
        """The slot of the recurrent state that it computes in; 0 without recurrent states."""
        self.tracked = [Tracked(slot) for slot in states[1:]]
        """The slots that keep the states at the last page borders: unused ones first, then the oldest border."""

    @property
    def states(self) -> list[int]:
        """All its state slots."""
        return [self.state, *(tracked.slot for tracked in self.tracked)] if self.state else []

    def pass_border(self, border: int) -> int:
        """Reserve a slot for the state at a page border that a launch passes: an unused one, or the oldest border's.

        Returns the slot.
        """
        slot, _ = self.tracked.pop(0)
        self.tracked.append(Tracked(slot, border))
        return slot

    def kept_at(self, border: int) -> int:
        """The slot that keeps the state at a page border; 0 if there is none."""
        return next((slot for slot, kept in self.tracked if kept == border), 0) if border else 0

    def give(self, slot: int, fresh: Sequence[int]) -> None:
        """Give a tracking slot away; `fresh` takes its place, if there is one."""
        kept = [tracked for tracked in self.tracked if tracked.slot != slot]
        self.tracked = [*(Tracked(new) for new in fresh), *kept]

    def cut_borders(self, length: int) -> None:
        """Drop the states at borders past `length`."""
        kept = [tracked for tracked in self.tracked if tracked.border <= length]
        past = [Tracked(slot) for slot, border in self.tracked if border > length]
        self.tracked = past + kept


class Slot:
    """One open session. While its record is `lent`, the turn in flight holds it."""

    __slots__ = ("closing", "history", "kv", "lent", "name", "turn")

    def __init__(self, name: str, history: Tokens) -> None:
        """A session that has seen `history` and holds no memory."""
        self.name = name
        self.history = history
        self.kv: KvRecord | None = None
        self.lent = False
        self.turn: str | None = None
        self.closing = False


class Request:
    """One request, from its submission to the end of its last run."""

    __slots__ = ("extended", "name", "prefix_len", "resumed", "slot", "state", "tokens")

    def __init__(self, name: str, tokens: Tokens, slot: Slot | None) -> None:
        """A new request; with a slot it is a turn of that slot's session."""
        self.name = name
        self.tokens = tokens
        self.slot = slot
        self.prefix_len: int | None = None
        """The length of the last match, in tokens; `None` before the first match, and while the request runs."""
        self.resumed = False
        """Whether it continues the KV of its session's slot."""
        self.extended = False
        """Whether it ever ran: such a turn has overwritten its session's KV (22862)."""
        self.state = 0
        """The state slot that it took before its row; 0 if none (17850)."""


class Run:
    """One residency of a request in memory: from its first extend to its finish, retract or abort."""

    __slots__ = ("ended", "kv", "mid_prefill", "name", "request", "seq_len", "tokens", "unverified", "verifiable")

    def __init__(self, request: Request, kv: KvRecord, seq_len: int) -> None:
        """Begin a run."""
        self.request = request
        self.name = request.name
        self.tokens = request.tokens
        self.kv = kv
        self.seq_len = seq_len
        """Where the last extend ended, in tokens."""
        self.mid_prefill = False
        """Whether the last extend ended before the last token."""
        self.ended = False
        """Whether results of launches in flight are dropped."""
        self.unverified: deque[int] = deque()
        """Positions of each speculative step that is launched and not verified, oldest first; at most two."""
        self.verifiable = 0
        """The number of these steps that have completed."""


class Flight:
    """One launch in flight, and the runs that wait for its results."""

    __slots__ = ("done", "drafted", "number", "sampled", "thinned")

    def __init__(self, number: int, sampled: list[Run], drafted: list[Run], done: Event | None) -> None:
        """A launch that was enqueued; `done` is passed once its forward pass has ended."""
        self.number = number
        self.sampled = sampled
        """The runs that get a token."""
        self.drafted = drafted
        """The runs that get positions to verify."""
        self.done = done
        self.thinned = False
        """Whether a run of it has ended since."""
