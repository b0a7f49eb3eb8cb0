"""What the scheduler knows of a request, of its session, and of a launch that is in flight."""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kvspec.tokens import Element


class GenerateReq(NamedTuple):
    """A request as a client sends it."""

    name: str
    """No other request ever has it."""
    tokens: list[Element]
    """The prompt. A turn's prompt begins with all that its session saw and sampled before."""
    outputs: Sequence[int]
    """The tokens that will be sampled for it, at least one. A `range` costs nothing."""
    session: str | None = None
    last_turn: bool = True
    """Whether its session is closed after it."""


class Session:
    """One streaming session."""

    __slots__ = ("busy_until", "closing", "complete", "is_open", "name", "turn", "turns")

    def __init__(self, name: str) -> None:
        """A session that nobody has opened yet."""
        self.name = name
        self.turns: deque[Req] = deque()
        """Turns that wait for the one before them to end (SESS-1)."""
        self.turn: Req | None = None
        """The turn in flight."""
        self.is_open = False
        self.closing = False
        """Closed while its turn is in flight: it goes when the turn ends (SESS-4)."""
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
        """Take a request in."""
        self.name = request.name
        self.tokens = request.tokens
        self.outputs = request.outputs
        self.session = session
        self.prompt_len = prompt_len
        self.output_len = len(request.outputs)
        self.produced = 0
        """Tokens sampled so far; a retracted request keeps them."""
        self.prefix_len = 0
        """The answer of its last match."""
        self.seq_len = 0
        """Where its last extend ended."""
        self.swa_evicted_seqlen = 0
        """How far its window sides were given back in this run, as far as it was told."""
        self.lent = False
        """It waits, and its session's slot has lent it the session's KV."""
        self.ran = False
        """It was extended since it was submitted, so that an abort wipes its session's KV (22862)."""

    @property
    def length(self) -> int:
        """Its tokens, output so far included."""
        return self.prompt_len + self.produced

    @property
    def remaining(self) -> int:
        """Tokens still to be sampled."""
        return self.output_len - self.produced

    def tokens_so_far(self) -> list[Element]:
        """The prompt and what was sampled."""
        return [*self.tokens, *self.outputs[: self.produced]]


class Flight(NamedTuple):
    """A launch in flight, and what is due when it completes."""

    launch: int
    prefill: list[Req]
    """Requests whose prompt it completes: each brings its first token (CHUNK-1)."""
    decode: list[Req]
    left: set[Req]
    """Requests that ended or were retracted since: what it computed for them is dropped."""

    def still(self, reqs: list[Req]) -> list[Req]:
        """Those of `reqs` whose results are still wanted."""
        return [req for req in reqs if req not in self.left] if self.left else reqs
