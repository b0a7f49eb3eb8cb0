"""What the scheduler knows of a request, and of a launch that is in flight."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kvspec.tokens import Element

if TYPE_CHECKING:
    from kvref.scheduler_sessions import Session


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

    def __init__(self, request: GenerateReq, prompt_len: int, session: "Session | None") -> None:
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
