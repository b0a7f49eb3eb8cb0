"""What is remembered of sessions and requests: their tokens while they wait, their memory while they have some."""

from collections import deque

from kvref.tree_node import TreeNode
from kvspec.lengths import Lengths
from kvspec.tokens import Tokens


class KvRecord:
    """What a holder of memory has: a row, three lengths in tokens, a lock, and state slots.

    The pages are in the row's block table, their window sides behind them. The record moves whole between a request and
    a session slot, and who releases it forgets it, so that no row number outlives its row (rule ROW-4).
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
        """Take a row, of which the prefix that ends at `last_node` is locked in the store."""
        self.req_pool_idx = req_pool_idx
        self.cache_protected_len, self.kv_committed_len, self.kv_allocated_len = lengths
        self.last_node = last_node
        self.swa_evicted_seqlen = 0
        """The cursor, in tokens: the private pages before it have given their window side back (20070)."""
        self.states: list[int] = []
        """The state slot that is computed in, then the tracking slots (17850)."""
        self.tracked: dict[int, int] = {}
        """Page border, in tokens -> the tracking slot that keeps the state there."""
        self.state_len = 0
        """Of a slot's record: the tokens that the state which was computed last has taken in."""

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
        """Whether the turn in flight has the record; the slot only remembers it."""
        self.turn: str | None = None
        """The request that is the turn in flight."""
        self.closing = False


class Request:
    """One request, from its submission to the end of its last run."""

    __slots__ = ("extended", "name", "prefix_len", "resumed", "slot", "state", "tokens")

    def __init__(self, name: str, tokens: Tokens, slot: SessionSlot | None) -> None:
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
        self.state: int | None = None
        """The state slot that it took before it had a row (17850)."""


class Run:
    """One stay of a request in memory: from its first extend to its finish, retract or abort. Lengths in tokens."""

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
        """Where the last extend ended."""
        self.mid_prefill = False
        """Whether it ended before the last token."""
        self.prepared_end = 0
        """Where the positions end that wait to be launched; 0 when none do."""
        self.drafts = 0
        """Positions of the speculative step that waits to be launched; 0 when there is none."""
        self.unverified: deque[int] = deque()
        """Positions of each speculative step that is launched and not verified, oldest first; at most two."""
        self.verifiable = 0
        """How many of these have completed."""
        self.launched_len = prefix_len
        """Positions that launches have written."""
        self.promised_len = 0
        """Tokens that are known, or that a launch in flight will bring."""
