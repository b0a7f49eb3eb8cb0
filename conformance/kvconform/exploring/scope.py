"""Scopes to exhaust: a scope defines all possible operations."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kvconform.exploring.streams import PROTOCOLS
from kvspec.events import Config

TOKEN = 0
"""Every sampled token. Its value only decides whether prefixes are shared."""

SOMETIMES = (
    "close deferred",
    "deferred close done",
    "duplicate dropped",
    "eviction stopped at a lock",
    "idle session closed",
    "last chunk beside a first chunk",
    "launch overlapped",
    "lend ended by abort",
    "lend repeated",
    "match cut short by a tombstone",
    "match ends where a state is",
    "overshoot",
    "page evicted",
    "partial page kept",
    "prefix matched",
    "prefix published",
    "request retracted",
    "resumed at a page border",
    "row withheld",
    "running request aborted",
    "session kept out of the store",
    "slot given up",
    "slot lent",
    "slot preempted",
    "state evicted",
    "state given back",
    "state published",
    "state without a row",
    "tail freed",
    "tombstone left",
    "tombstone revived",
    "turn retracted",
    "window evicted",
    "window eviction stopped at a lock",
)
"""All events that the model counts (`NotedState.reached` of `kvconform.oracle`)."""

OPTIONAL = (
    "cache_unfinished",
    "retract",
    "abort",
    "close_session",
    "preempt",
    "evict",
    "give_back",
    "swa_evict",
    "take_state",
    "free_state",
)
"""Optional operations of a scope, besides the plain course of a request.

A scope without a pool has none of the pool's operations; `evict` applies to each existing pool. `give_back` is an abort
and a new submit in one, see `kvconform.exploring.moves.give_back`.
"""


class Arrival(NamedTuple):
    """A request that may arrive once, at any time. Lengths in tokens."""

    name: str
    tokens: tuple[int, ...]
    """The prompt; for a turn, the tokens after its session's history."""
    session: str | None = None
    outputs: int = 1
    """The number of tokens that it generates."""
    borders: tuple[int, ...] = ()
    """Lengths at which a chunk of its prefill may end."""


class Scope(NamedTuple):
    """A bounded system."""

    name: str
    about: str
    """A description in one line."""
    config: Config
    arrivals: tuple[Arrival, ...]
    """The requests that may arrive; turns of one session in their order."""
    operations: frozenset[str]
    """The possible operations of `OPTIONAL`."""
    sometimes: frozenset[str]
    """The events of `SOMETIMES` that must be reached; otherwise the scope is incomplete."""
    overlap: int = 1
    """The most launches in flight."""
    drafts: int = 0
    """The number of drafts. With drafts every decode step is speculative: it prepares `drafts` + 1 positions."""
    max_batch: int = 2
    """The most requests of one prefill batch."""
    partial_decode: bool = False
    """Whether a decode step may leave out requests that could decode."""

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions, in order of name."""
        return tuple(sorted({arrival.session for arrival in self.arrivals if arrival.session is not None}))

    def without(self, operations: Iterable[str]) -> "Scope":
        """The same scope without some optional operations, and without declared events."""
        left = self.operations.difference(operations)
        return self._replace(operations=left, sometimes=frozenset())


_TURN = frozenset(
    (
        "partial page kept",
        "prefix published",
        "row withheld",
        "session kept out of the store",
        "slot given up",
        "slot lent",
        "lend repeated",
        "tail freed",
        "turn retracted",
    )
)
"""Events that every scope with turns and chunks shows."""

_SHARING = frozenset(("duplicate dropped", "eviction stopped at a lock", "page evicted", "prefix matched"))
_RELEASE = frozenset(("close deferred", "deferred close done", "idle session closed", "lend ended by abort"))

_TINY = Scope(
    name="tiny",
    about="a session of two turns beside a plain request, on pages of 2",
    config=Config(page_size=2, num_pages=4, num_rows=2, max_context_len=8),
    arrivals=(Arrival("a", (0, 0, 0), borders=(2,)), Arrival("s1", (0, 0), "s"), Arrival("s2", (0,), "s")),
    operations=frozenset(("cache_unfinished", "retract", "preempt", "evict")),
    sometimes=_TURN | _SHARING | {"request retracted", "slot preempted"},
)

_SPECULATIVE = Scope(
    name="speculative",
    about="a session of two turns that decodes two drafts at a time; two launches in flight, everything may happen",
    config=Config(page_size=2, num_pages=5, num_rows=2, max_context_len=12),
    arrivals=(Arrival("s1", (0, 0, 0), "s", outputs=2, borders=(2,)), Arrival("s2", (0,), "s", outputs=2)),
    operations=frozenset(OPTIONAL),
    sometimes=_TURN | _SHARING | _RELEASE | {"launch overlapped", "overshoot", "running request aborted"},
    overlap=2,
    drafts=2,
)

_CHUNKS = Scope(
    name="chunks",
    about="two plain requests with a common prefix, both in chunks; two launches in flight",
    config=Config(page_size=2, num_pages=4, num_rows=2, max_context_len=12),
    arrivals=(Arrival("a", (0, 0, 0), outputs=2, borders=(2,)), Arrival("b", (0, 0, 1), borders=(2,))),
    operations=frozenset(("cache_unfinished", "retract", "evict", "abort")),
    sometimes=_SHARING | {"last chunk beside a first chunk", "launch overlapped", "running request aborted"},
    overlap=2,
)

_HOLD_AND_WAIT = Scope(
    name="hold-and-wait",
    about="two sessions of two turns and a plain request, of which any two fill the pool",
    config=Config(page_size=1, num_pages=3, num_rows=2, max_context_len=12),
    arrivals=(
        Arrival("a", (2, 2)),
        Arrival("s1", (0,), "s"),
        Arrival("s2", (0,), "s"),
        Arrival("t1", (1,), "t"),
        Arrival("t2", (1,), "t"),
    ),
    operations=frozenset(("retract", "evict", "preempt", "give_back")),
    sometimes=frozenset(("slot preempted", "lend ended by abort", "page evicted", "turn retracted")),
)

_THREE_IN_FLIGHT = Scope(
    name="three-in-flight",
    about="a plain request and a session of two turns in one row; three launches in flight, whose requests may leave",
    config=Config(page_size=1, num_pages=6, num_rows=1, max_context_len=8, prefix_cache=False),
    arrivals=(Arrival("a", (1,), outputs=2), Arrival("s1", (0,), "s", outputs=3), Arrival("s2", (0,), "s")),
    operations=frozenset(("retract", "abort", "close_session", "preempt")),
    sometimes=frozenset(("launch overlapped", "row withheld", "running request aborted", "turn retracted")),
    overlap=3,
)

_ONE_SESSION = Scope(
    name="one-session",
    about="as tiny, but everything may happen, and two launches are in flight",
    config=_TINY.config,
    arrivals=_TINY.arrivals,
    operations=frozenset(OPTIONAL),
    sometimes=_TINY.sometimes | _RELEASE | {"launch overlapped", "running request aborted"},
    overlap=2,
)

_TWO_SESSIONS = Scope(
    name="two-sessions",
    about="two sessions of two turns, each turn in chunks; two launches in flight",
    config=Config(page_size=2, num_pages=4, num_rows=2, max_context_len=12),
    arrivals=(
        Arrival("s1", (0, 0), "s", borders=(1,)),
        Arrival("s2", (0,), "s", borders=(2, 3)),
        Arrival("t1", (0, 0), "t", borders=(1,)),
        Arrival("t2", (1,), "t", borders=(2, 3)),
    ),
    operations=frozenset(("cache_unfinished", "retract", "preempt", "evict", "give_back")),
    sometimes=_TURN | _SHARING | {"last chunk beside a first chunk", "launch overlapped", "slot preempted"},
    overlap=2,
)

_LONG_PROMPT = (Arrival("a", (0, 0, 0, 0, 0), borders=(2, 4)), *_TINY.arrivals[1:])
"""The lock on its published prefix is longer than a window, and it passes more than one page border."""

_SLIDING_WINDOW = Scope(
    name="sliding-window",
    about="as tiny, with a longer prompt and a window of one token, whose pool is the scarce one",
    config=Config(page_size=2, num_pages=4, num_rows=2, max_context_len=8, sliding_window=1, num_window_pages=3),
    arrivals=_LONG_PROMPT,
    operations=_TINY.operations | {"abort", "swa_evict"},
    sometimes=_TINY.sometimes
    | {
        "lend ended by abort",
        "match cut short by a tombstone",
        "tombstone left",
        "tombstone revived",
        "window evicted",
        "window eviction stopped at a lock",
    },
)

_RECURRENT_STATES = Scope(
    name="recurrent-states",
    about="as tiny, with a longer prompt, and state slots for one request that runs and one more",
    config=Config(page_size=2, num_pages=4, num_rows=2, max_context_len=8, num_states=4),
    arrivals=_LONG_PROMPT,
    operations=_TINY.operations | {"abort", "take_state", "free_state"},
    sometimes=_TINY.sometimes
    | {
        "lend ended by abort",
        "match ends where a state is",
        "resumed at a page border",
        "state evicted",
        "state given back",
        "state published",
        "state without a row",
    },
)

SCOPES: Mapping[str, Scope] = {
    scope.name: scope
    for scope in (
        _TINY,
        _SPECULATIVE,
        _CHUNKS,
        _HOLD_AND_WAIT,
        _SLIDING_WINDOW,
        _RECURRENT_STATES,
        _THREE_IN_FLIGHT,
        _ONE_SESSION,
        _TWO_SESSIONS,
    )
}
"""All scopes. The last two are large: minutes beside an implementation."""

BESIDE = ("tiny", "speculative", "chunks", "hold-and-wait", "three-in-flight")
"""The default scopes in which an implementation is explored."""


def scope_named(name: str, without: Sequence[str]) -> Scope:
    """A scope without some optional operations.

    Raises:
        ValueError: there is no such scope, or one of the operations cannot be left out.
    """
    if name not in SCOPES:
        raise ValueError(f"no scope {name!r}; there are {', '.join([*SCOPES, *PROTOCOLS])}")
    for operation in without:
        if operation not in OPTIONAL:
            raise ValueError(f"{operation!r} cannot be left out, only {', '.join(OPTIONAL)} can")
    return SCOPES[name].without(without) if without else SCOPES[name]
