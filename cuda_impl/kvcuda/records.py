"""What is remembered of requests, runs, sessions and launches. Lengths are columns of the `RowTable`."""

from typing import TYPE_CHECKING

from kvcuda.lanes import Event
from kvspec.tokens import Tokens

if TYPE_CHECKING:
    from kvcuda.prefix_tree import Node


class KvRecord:
    """What a holder of memory has: a row, and the lock on the prefix that ends at `last_node`.

    It moves whole between a request and a session slot, and who releases it forgets it (rule ROW-4).
    """

    __slots__ = ("last_node", "row")

    def __init__(self, row: int, last_node: "Node") -> None:
        """Take a row."""
        self.row = row
        self.last_node = last_node


class Slot:
    """One open session. As long as the turn in flight has the record, the slot only remembers it."""

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

    __slots__ = ("extended", "name", "prefix_len", "resumed", "slot", "tokens")

    def __init__(self, name: str, tokens: Tokens, slot: Slot | None) -> None:
        """Take a request in; with a slot it is a turn of that slot's session."""
        self.name = name
        self.tokens = tokens
        self.slot = slot
        self.prefix_len: int | None = None
        """The answer of the last match, in tokens; `None` before there was one, and while the request runs."""
        self.resumed = False
        """Whether it continues the KV of its session's slot."""
        self.extended = False
        """Whether it ran at all: a turn that did has overwritten its session's KV (22862)."""


class Run:
    """One stay of a request in memory: from its first extend to its finish, retract or abort."""

    __slots__ = ("ended", "kv", "mid_prefill", "name", "request", "seq_len", "tokens", "verifiable")

    def __init__(self, request: Request, kv: KvRecord, seq_len: int) -> None:
        """Begin a run."""
        self.request = request
        self.name = request.name
        self.tokens = request.tokens
        self.kv = kv
        self.seq_len = seq_len
        """Where the last extend ended, in tokens."""
        self.mid_prefill = False
        """Whether it ended before the last token."""
        self.ended = False
        """Whether nothing that a launch brings comes to it any more."""
        self.verifiable = False
        """Whether its speculative launch has completed and is not verified yet."""


class Flight:
    """One launch in flight, and the runs that wait for something of it."""

    __slots__ = ("done", "drafted", "number", "sampled", "thinned")

    def __init__(self, number: int, sampled: list[Run], drafted: list[Run], done: Event | None) -> None:
        """A launch that is handed over; `done` is passed once the forward pass is."""
        self.number = number
        self.sampled = sampled
        """The runs that get a token."""
        self.drafted = drafted
        """The runs that get positions to verify."""
        self.done = done
        self.thinned = False
        """Whether some run has ended since."""
