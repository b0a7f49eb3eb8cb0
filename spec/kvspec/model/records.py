"""The parts of the state: a request, a session, a record of either, and a request's part in a batch or a launch."""

from typing import NamedTuple

from kvspec.tokens import PrefixKey, Tokens


class Request(NamedTuple):
    """One request. Lengths in tokens."""

    tokens: Tokens
    session: str | None = None
    record: int | None = None
    """Its record: a key of `State.records`. A waiting request has one only while a slot is lent to it."""
    running: bool = False
    prefix_len: int | None = None
    """The answer of the last match of a request that is not running; `None` before it matched."""
    seq_len: int = 0
    """Where its last extend ended."""
    resumed: bool = False
    """It continues a session slot's KV, and so publishes nothing."""
    run: int = 0
    """The number of its latest stay in memory, unlike that of any other request; 0 if it never ran."""
    state: int | None = None
    """The state slot that it took before it had a row."""


class Session(NamedTuple):
    """One streaming session."""

    history: Tokens
    """The tokens of the last finished turn, output included."""
    record: int | None = None
    """The KV in its slot, unless the slot is empty or lent."""
    turn: str | None = None
    """The request that is its turn in flight."""
    closing: bool = False


class Record(NamedTuple):
    """A holder's row, lock and state slots. It moves whole, with its lengths and table, between request and session."""

    row: int
    locked: PrefixKey
    """The protected prefix; `ROOT` when it is empty."""
    states: tuple[int, ...] = ()
    """Its state slots: the one that it computes in, and those that keep the states at the last page borders."""
    computing: int = 0
    """The one of them that it computes in; 0 if no answer reported it."""


class Part(NamedTuple):
    """One request of a prefill batch, and the positions from and to that it gets slots for."""

    req: str
    request: Request
    start: int
    end: int


class Prepared(NamedTuple):
    """Positions that were given to a request and are not launched yet."""

    start: int
    end: int
    samples: bool
    """Whether the launch will sample a token."""
    drafts: int
    """For a speculative step the positions to be verified, else 0."""


class Speculation(NamedTuple):
    """A speculative step that was launched and is not verified yet."""

    positions: int
    """Positions that it wrote; a verify commits at least one of them."""
    completed: bool


class Passage(NamedTuple):
    """One request's part in a launch."""

    req: str
    run: int
    """Which of the request's runs this is: what comes out is for that run only."""
    record: int
    row: int
    samples: bool
    drafts: int
