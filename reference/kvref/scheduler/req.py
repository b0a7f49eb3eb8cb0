"""The scheduler's records of a request, of its session, and of a launch in flight."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kvspec.tokens import Element


class GenerateReq(NamedTuple):
    """A request as a client sends it."""

    name: str
    """Unique among all requests."""
    tokens: list[Element]
    """The prompt. A turn's prompt begins with its session's history, sampled tokens included."""
    outputs: Sequence[int]
    """The tokens that will be sampled, at least one. A `range` costs nothing."""
    session: str | None = None
    last_turn: bool = True
    """Whether its session is closed after it."""


class Session:
    """One streaming session."""

    __slots__ = ("busy_until", "closing", "complete", "is_open", "name", "turn", "turns")

    def __init__(self, name: str) -> None:
        """A session that is not open yet."""
        self.name = name
        self.turns: deque[Req] = deque()
        """Turns that wait for the end of the one before (SESS-1)."""
        self.turn: Req | None = None
        """The turn in flight."""
        self.is_open = False
        self.closing = False
        """Closed while its turn is in flight: it is released when the turn ends (SESS-4)."""
        self.complete = False
        """No further turn will come."""
        self.busy_until = 0
        """The last launch that may still read its row (RACE-1)."""


class Req:
    """A request on its way through the scheduler. Lengths in tokens."""

    __slots__ = (
        "lent",
        "name",
        "output_len",
        "outputs",
        "prefix_len",
        "produced",
        "prompt_len",
        "ran",
        "seq_len",
        "session",
        "swa_evicted_seqlen",
        "tokens",
    )

    def __init__(self, request: GenerateReq, prompt_len: int, session: Session | None) -> None:
        """A request that nothing was done for yet."""
        self.name = request.name
        self.tokens = request.tokens
        self.outputs = request.outputs
        self.session = session
        self.prompt_len = prompt_len
        self.output_len = len(request.outputs)
        self.produced = 0
        """Tokens sampled so far; a retracted request keeps them."""
        self.prefix_len = 0
        """The length of its last match."""
        self.seq_len = 0
        """The end of its last extend."""
        self.swa_evicted_seqlen = 0
        """The end of the window sides that were freed in this run, as far as answers report it."""
        self.lent = False
        """Whether it waits with its session's KV, which the slot has lent it."""
        self.ran = False
        """Whether it was extended since its submission, so that an abort wipes its session's KV (22862)."""

    @property
    def length(self) -> int:
        """Its tokens, output so far included."""
        return self.prompt_len + self.produced

    @property
    def remaining(self) -> int:
        """Tokens still to be sampled."""
        return self.output_len - self.produced

    def tokens_so_far(self) -> list[Element]:
        """The prompt and the sampled tokens."""
        return [*self.tokens, *self.outputs[: self.produced]]


class Flight(NamedTuple):
    """A launch in flight, and its expected results."""

    launch: int
    prefill: list[Req]
    """Requests whose prompt it completes: each samples its first token (CHUNK-1)."""
    decode: list[Req]
    left: set[Req]
    """Requests that ended or were retracted since: their results are dropped."""

    def still(self, reqs: list[Req]) -> list[Req]:
        """Those of `reqs` whose results are still wanted."""
        return [req for req in reqs if req not in self.left] if self.left else reqs
