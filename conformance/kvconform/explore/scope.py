"""What is exhausted: a scope is everything that may happen, and nothing else."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kvspec.events import Config

TOKEN = 0
"""Every sampled token: which one it is decides nothing but whether prefixes are shared."""

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
    "overshoot",
    "page evicted",
    "partial page kept",
    "prefix matched",
    "prefix published",
    "request retracted",
    "row withheld",
    "running request aborted",
    "session kept out of the store",
    "slot given up",
    "slot lent",
    "slot preempted",
    "tail freed",
    "turn retracted",
)
"""Everything that the model counts as worth reaching (`kvspec.model.state.State.reached`)."""

OPTIONAL = ("cache_unfinished", "retract", "abort", "close_session", "preempt", "evict", "give_back")
"""What a scope may switch on besides the plain course of a request; `give_back` is `kvconform.explore.moves.give_back`.
"""


class Arrival(NamedTuple):
    """A request that may come, at any moment and once. Lengths in tokens."""

    name: str
    tokens: tuple[int, ...]
    """The prompt; of a turn, what follows its session's history."""
    session: str | None = None
    outputs: int = 1
    """Tokens that it generates."""
    borders: tuple[int, ...] = ()
    """Lengths at which a chunk of its prefill may end."""


class Scope(NamedTuple):
    """A bounded system."""

    name: str
    about: str
    """One line."""
    config: Config
    arrivals: tuple[Arrival, ...]
    """Turns of one session in their order."""
    operations: frozenset[str]
    """Which of `OPTIONAL` may happen."""
    sometimes: frozenset[str]
    """Which of `SOMETIMES` must be reached, or the scope does not show what it is meant to show."""
    overlap: int = 1
    """Launches that may be in flight at a time."""
    drafts: int = 0
    """With drafts, every decode step is speculative: it prepares `drafts` positions and one more."""
    max_batch: int = 2
    """Requests that one prefill batch may have."""
    partial_decode: bool = False
    """Whether a decode step may leave out some of what could decode."""

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions, in order of name."""
        return tuple(sorted({arrival.session for arrival in self.arrivals if arrival.session is not None}))

    def without(self, operations: Iterable[str]) -> "Scope":
        """The same scope in which some optional operations never happen."""
        left = self.operations.difference(operations)
        return self._replace(operations=left, sometimes=self.sometimes - _shown_by(self.operations - left))


_SHOWN_BY = {
    "retract": {"request retracted", "turn retracted"},
    "abort": {"running request aborted", "lend ended by abort"},
    "close_session": {"close deferred", "deferred close done", "idle session closed"},
    "preempt": {"slot preempted"},
    "evict": {"page evicted", "eviction stopped at a lock"},
}


def _shown_by(operations: Iterable[str]) -> set[str]:
    return {label for operation in operations for label in _SHOWN_BY.get(operation, ())}


_TINY = Scope(
    name="tiny",
    about="one session of two turns beside a plain request; pages of 2, chunks, retract, preempt, evict",
    config=Config(page_size=2, num_pages=4, num_rows=2, max_context_len=8),
    arrivals=(
        Arrival("a", (0, 0, 0), borders=(2,)),
        Arrival("s1", (0, 0), "s"),
        Arrival("s2", (0,), "s"),
    ),
    operations=frozenset(("cache_unfinished", "retract", "preempt", "evict")),
    sometimes=frozenset(),
)

SCOPES: Mapping[str, Scope] = {scope.name: scope for scope in (_TINY,)}
"""All scopes, the smallest first."""
