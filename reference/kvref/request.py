"""The records of sessions and requests: their tokens while they wait, and their memory."""

from collections import deque

from kvref.tree_node import TreeNode
from kvspec.lengths import Lengths
from kvspec.tokens import Tokens


class KvRecord:
    """The memory of a holder: a row, three lengths in tokens, a lock, and state slots.

    The pages are in the row's block table, their window sides behind them. The record moves as a whole between a
    request and a session slot. Its holder drops it when it is released, so that no row number outlives its row (rule
    ROW-4).
    """

    __slots__ = (
        "cache_protected_len",
        "kv_allocated_len",
        "kv_committed_len",
        "last_node",
        "req_pool_idx",
        "state_len",
        "states",
        "swa_evicted_seqlen",
        "tracked",
    )

    def __init__(self, req_pool_idx: int, lengths: Lengths, last_node: TreeNode) -> None:
        """Take a row; the prefix that ends at `last_node` is locked in the store."""
        self.req_pool_idx = req_pool_idx
        self.cache_protected_len, self.kv_committed_len, self.kv_allocated_len = lengths
        self.last_node = last_node
        self.swa_evicted_seqlen = 0
        """The cursor, in tokens: the private pages before it have lost their window side (20070)."""
        self.states: list[int] = []
        """The slot of the current state, then the tracking slots (17850)."""
        self.tracked: dict[int, int] = {}
        """Page border, in tokens -> the tracking slot that keeps the state there."""
        self.state_len = 0
        """In a session slot's record: the length of the current state, in tokens."""

    @property
    def lengths(self) -> Lengths:
        """The three lengths together, for the arithmetic of `kvspec.lengths`."""
        return Lengths(self.cache_protected_len, self.kv_committed_len, self.kv_allocated_len)

    @lengths.setter
    def lengths(self, lengths: Lengths) -> None:
        self.cache_protected_len, self.kv_committed_len, self.kv_allocated_len = lengths


class SessionSlot:
    """One open session."""

    __slots__ = ("closing", "history", "kv", "lent", "name", "turn")

    def __init__(self, name: str, history: Tokens) -> None:
        """A session that has seen `history` and holds no memory."""
        self.name = name
        self.history = history
        """The tokens of the last finished turn, output included."""
        self.kv: KvRecord | None = None
        self.lent = False
        """Whether the turn in flight holds the record; the slot keeps a reference."""
        self.turn: str | None = None
        """The request that is the turn in flight."""
        self.closing = False


class Request:
    """One request, from its submission to the end of its last run."""

    __slots__ = ("extended", "name", "prefix_len", "resumed", "slot", "state", "tokens")

    def __init__(self, name: str, tokens: Tokens, slot: SessionSlot | None) -> None:
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
        self.state: int | None = None
        """The state slot that it took before its row (17850)."""


class Run:
    """One residency of a request in memory, from its first extend to its finish, retract or abort. In tokens."""

    __slots__ = (
        "drafts",
        "kv",
        "launched_len",
        "mid_prefill",
        "name",
        "prepared_end",
        "promised_len",
        "request",
        "seq_len",
        "tokens",
        "unverified",
        "verifiable",
    )

    def __init__(self, request: Request, kv: KvRecord, prefix_len: int) -> None:
        """Begin a run: everything before `prefix_len` is written already."""
        self.request = request
        self.name = request.name
        self.tokens = request.tokens
        self.kv = kv
        self.seq_len = prefix_len
        """The end of the last extend."""
        self.mid_prefill = False
        """Whether the last extend ended before the last token."""
        self.prepared_end = 0
        """The end of the positions that wait for a launch; 0 if there are none."""
        self.drafts = 0
        """Positions of the speculative step that waits for a launch; 0 if there is none."""
        self.unverified: deque[int] = deque()
        """Positions of each speculative step that is launched and not verified, oldest first; at most two."""
        self.verifiable = 0
        """The number of these steps that have completed."""
        self.launched_len = prefix_len
        """Positions that launches have written."""
        self.promised_len = 0
        """Tokens that are known, or that a launch in flight will sample."""
