"""The event vocabulary: each operation, its arguments, and the answer of an implementation.

An event is an operation. Once it ran, `obs` holds the answer of the implementation, or `refused` the reason why it did
nothing. Every field of an answer is optional: `None` means that the implementation could not observe it, and the field
is not checked. All lengths are in tokens; pages and rows are named by their numbers. In every answer

    pages, window_pages                     the pages that each request was given, in order of position, and the window
                                            sides of these pages in the same order; who is not named was given none
    freed, window_freed, states_freed       all pages, window pages and state slots that went back to the free ones
    protected_len                           the length that the prefix store owns now; page-aligned
    evicted_len, swa_evicted_len            the cursor of the sliding window (`swa_evicted_seqlen`); page-aligned
"""

from functools import reduce
from operator import or_
from typing import Any, Generic, Literal, Protocol, TypeVar

import msgspec

from kvspec.pages import Runs
from kvspec.states import KEPT
from kvspec.tokens import Element

RowsRead = Literal["until_complete", "at_launch", "in_order"]
FirstTurnChunks = Literal["private", "published"]
TurnsCountAs = Literal["requests", "sessions"]
Overshoot = Literal["freed", "published"]
Room = Literal["exact", "estimated"]


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fixed sizes of one memory manager."""

    page_size: int
    """Tokens a page."""
    num_pages: int
    """Pages that can be allocated; they are numbered from 1."""
    num_rows: int
    """Rows of `req_to_token`, numbered from 0; 0: there are none, and each launch brings its block tables."""
    max_context_len: int
    """Positions a row has, in tokens."""
    prefix_cache: bool = True
    """Whether finished prefixes are kept for other requests (radix cache) or dropped (chunk cache)."""
    sliding_window: int = 0
    """How many positions before its own a query reads in the layers with a sliding window, in tokens; 0: no such
    layers."""
    num_window_pages: int = 0
    """Pages of the window pool, numbered from 1; 0 without a sliding window."""
    num_states: int = 0
    """Slots for the recurrent states of state space layers, numbered from 1; 0: no such layers."""
    rows_read: RowsRead = "until_complete"
    """How a launch reads rows: at any moment until it completes, so that they are withheld meanwhile; when it is handed
    over, where it copies them; or at any moment, but whatever writes a row later is ordered behind it by the stream.
    Without meaning where there are no rows."""
    first_turn_chunks: FirstTurnChunks = "private"
    """Whether a session's first turn publishes with its last chunk only, or after each as a plain request does."""
    turns_count_as: TurnsCountAs = "requests"
    """Whose memory a turn of a session counts as while it has any: its own, or its session's."""
    overshoot: Overshoot = "freed"
    """The fate of whole pages of accepted tokens past those that a plain request keeps when it finishes."""
    room: Room = "exact"
    """The pages that must be free for a prefill or a speculative step: those that it takes, or as many as its positions
    would fill and one more for each request. Only with a sliding window and pages of several tokens."""

    @property
    def hybrid(self) -> bool:
        """Whether there is a pool besides the pages and rows."""
        return bool(self.sliding_window or self.num_states)

    @property
    def withholds_rows(self) -> bool:
        """Whether a row that is let go stays withheld while a launch in flight reads it (RACE-1)."""
        return self.num_rows > 0 and self.rows_read == "until_complete"

    @property
    def tracking_states(self) -> int:
        """State slots of a running request besides the one it computes in: they keep what it may publish (17850)."""
        return KEPT if self.num_states and self.prefix_cache else 0


class Answer(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The observations of an implementation while it carried an operation out."""


class Done(Answer):
    """Nothing to observe: the operation was carried out."""


class MatchAnswer(Answer):
    """The answer to `match_prefix`. The tail of a resumed session goes back, or all of a slot that is given up."""

    prefix_len: int | None = None
    """Where the next extend begins to write; the store owns `protected_len` of it."""
    protected_len: int | None = None
    freed: Runs | None = None
    window_freed: Runs | None = None
    states_freed: Runs | None = None


class ExtendAnswer(Answer):
    """The answer to `extend`."""

    rows: dict[str, int] | None = None
    """Each request's row."""
    pages: dict[str, Runs] | None = None
    window_pages: dict[str, Runs] | None = None
    states: dict[str, Runs] | None = None
    """The state slots that each request was given besides what it had."""
    states_from: dict[str, int] | None = None
    """The state slot from which each request goes on that does not begin with its first token: one of the store's, or
    one of its own that it computes in, or that keeps a page border."""


class DecodeAnswer(Answer):
    """The answer to `decode`."""

    pages: dict[str, Runs] | None = None
    window_pages: dict[str, Runs] | None = None


class CompleteAnswer(Answer):
    """The answer to `complete`."""

    tokens: dict[str, int] | None = None
    """The token appended to each request, where the engine samples itself; `None`: those that it was handed."""


class PublishAnswer(Answer):
    """The answer to `cache_unfinished`. The holder's duplicates of pages that the store already had go back."""

    protected_len: int | None = None
    freed: Runs | None = None
    window_freed: Runs | None = None
    state_cached: int | None = None
    """The state slot that the store has now for the last published page border, if it took one."""
    state_taken: int | None = None
    """The free slot that was taken for it: a copy, or what the holder has in its place."""
    evicted_len: int | None = None
    """The cursor, if it was moved on before: the window pages that it left are among those freed."""


class ReleaseAnswer(Answer):
    """The answer to every operation that lets memory go."""

    freed: Runs | None = None
    window_freed: Runs | None = None
    states_freed: Runs | None = None
    state_cached: int | None = None
    """The holder's state slot that the store took over, if it took one."""


class SwaEvictAnswer(Answer):
    """The answer to `swa_evict`."""

    evicted_len: int | None = None
    window_freed: Runs | None = None


class StateAnswer(Answer):
    """The answer to `take_state` and `free_state`."""

    state: int | None = None
    """The state slot that was taken, or went back."""


class EvictAnswer(Answer):
    """The answer to `evict`."""

    evicted: Runs
    """The pages that left the prefix store for the free pages."""
    window_evicted: Runs | None = None
    """The window pages that left it: those of the pages above, and those of pages that stay as tombstones."""
    states_evicted: Runs | None = None
    """The state slots that left it."""


class Figures(Answer):
    """The answer to `report`: one's own figures, those of pages and window pages in tokens, a page held in part whole.

    available                   free ones
    evictable                   the prefix store's that no lock covers, of window pages no window lock; state slots at
                                prefixes without a lock
    protected                   the prefix store's other ones
    session_held, sessions      private ones of idle session slots
    uncached, requests          private ones of requests; state slots of waiting requests too
    withheld                    rows that were let go under a launch still in flight: those that one reads, and others
                                at will (RACE-1)
    """

    available: int | None = None
    evictable: int | None = None
    protected: int | None = None
    session_held: int | None = None
    uncached: int | None = None
    rows_available: int | None = None
    rows_requests: int | None = None
    rows_sessions: int | None = None
    rows_withheld: int | None = None
    window_available: int | None = None
    window_evictable: int | None = None
    window_protected: int | None = None
    window_session_held: int | None = None
    window_uncached: int | None = None
    states_available: int | None = None
    states_evictable: int | None = None
    states_protected: int | None = None
    states_sessions: int | None = None
    states_requests: int | None = None


class HolderView(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One holder as the implementation's own records show it, as far as it reports them. Lengths in tokens."""

    row: int | None = None
    protected_len: int | None = None
    committed_len: int | None = None
    allocated_len: int | None = None
    swa_evicted_len: int | None = None
    """The cursor, or the protected length where that is more."""
    states: Runs | None = None
    computing: int | None = None
    """The state slot that it computes in."""
    tracking: dict[int, int] | None = None
    """For each page border, in tokens, whose state it keeps, the state slot that has it."""


class SnapshotAnswer(Answer):
    """The answer to `snapshot`: the whole state, for a deep compare."""

    rows: dict[int, Runs] | None = None
    """For each row that is held, the slot index of each position in `[0, allocated)`."""
    free_pages: Runs | None = None
    store_pages: Runs | None = None
    requests: dict[str, HolderView] | None = None
    """The requests that hold a row."""
    sessions: dict[str, HolderView] | None = None
    """The session slots that hold a row and have not lent it."""
    window_sides: dict[int, int] | None = None
    """For each page that has one, its window page."""
    free_states: Runs | None = None
    store_states: Runs | None = None
    free_rows: Runs | None = None
    withheld_rows: Runs | None = None
    """As in `Figures.rows_withheld`."""
    locks: dict[int, int] | None = None
    """Locked page of the prefix store -> the number of holders that lock it."""
    window_locks: dict[int, int] | None = None
    """For each window page of the prefix store that a window lock covers, how many do."""
    state_locks: dict[int, int] | None = None
    """For each state slot of the prefix store at whose prefix locks end, how many do."""


class Refused(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """An operation that was not carried out and changed nothing."""

    reason: str = ""
    rule: str | None = None
    """The rule that the operation would have broken, where the implementation knows it."""
    pages_short: int = 0
    rows_short: int = 0
    window_short: int = 0
    states_short: int = 0


class Refusal(Exception):
    """An implementation raises this to refuse an operation; its state must be as it was before."""

    def __init__(self, rule: str | None, reason: str, **short: int) -> None:
        """Say why, and for rule CAP-1 how many pages, rows, window pages and state slots are missing."""
        super().__init__(reason)
        self.refused = Refused(reason, rule, **short)


A = TypeVar("A", bound=Answer)


class Operation(
    msgspec.Struct, Generic[A], tag_field="op", forbid_unknown_fields=True, omit_defaults=True, kw_only=True, gc=False
):
    """The common part of all operations: the place for their answer."""

    obs: A | None = None
    refused: Refused | None = None


class OfRequest(Operation[A], Generic[A], kw_only=False):
    """The common part of those about one request."""

    req: str


class OpenSession(Operation[Done], tag="open_session", kw_only=False):
    """Open a streaming session. It has no slot yet."""

    session: str


class Submit(Operation[Done], tag="submit", kw_only=False):
    """A new request. With a session it is a turn, and `tokens` extends what the session has seen (20476, 22862)."""

    req: str
    tokens: list[Element]
    session: str | None = None


class MatchPrefix(OfRequest[MatchAnswer], tag="match_prefix"):
    """Ask how much of a waiting request is cached already. Repeatable (20476)."""


class Extend(Operation[ExtendAnswer], tag="extend", kw_only=False):
    """Prefill: rows, pages and row writes for each request up to its `seq_len`; all of the batch or nothing (17850)."""

    reqs: list[tuple[str, int]]


class Decode(Operation[DecodeAnswer], tag="decode", kw_only=False):
    """One decode step: `n` is 1, or drafts + 1 for speculative decoding."""

    reqs: list[str]
    n: int = 1


class Verify(OfRequest[Done], tag="verify", kw_only=False):
    """Speculative decoding: `accepted` positions become valid; `tokens` are those that the request keeps (22862)."""

    accepted: int
    tokens: list[int]


class Launch(Operation[Done], tag="launch", kw_only=False):
    """A forward pass over the requests is handed to the device (17850)."""

    launch: int
    reqs: list[str]


class Complete(Operation[CompleteAnswer], tag="complete", kw_only=False):
    """The oldest launch in flight has completed; `tokens` are those it sampled, unless the engine answers its own."""

    launch: int
    tokens: dict[str, int] = {}

    @property
    def sampled(self) -> dict[str, int]:
        """The tokens that the requests are given: the engine's own where it answers them."""
        return self.tokens if self.obs is None or self.obs.tokens is None else self.obs.tokens


class CacheUnfinished(OfRequest[PublishAnswer], tag="cache_unfinished", kw_only=False):
    """Publish what a prefill wrote; `chunked` when more of the prompt is still to come (20476)."""

    chunked: bool = False


class Finish(OfRequest[ReleaseAnswer], tag="finish"):
    """The request is complete: publish and release, or hand the record to the session."""


class Retract(OfRequest[ReleaseAnswer], tag="retract"):
    """Take a running request's memory away; it waits again with its tokens (994, 22862)."""


class Abort(OfRequest[ReleaseAnswer], tag="abort"):
    """The request leaves the system without a result (22862)."""


class CloseSession(Operation[ReleaseAnswer], tag="close_session", kw_only=False):
    """Release the session; with a turn in flight the release waits for it."""

    session: str


class Preempt(Operation[ReleaseAnswer], tag="preempt", kw_only=False):
    """Release the memory of an idle session slot; its tokens stay, and the next turn prefills again."""

    session: str


class SwaEvict(OfRequest[SwaEvictAnswer], tag="swa_evict"):
    """Give back the window sides that a running request has left behind (20070)."""


class TakeState(OfRequest[StateAnswer], tag="take_state"):
    """A waiting request takes the state slot that it will compute in, before it has a row (17850)."""


class FreeState(OfRequest[StateAnswer], tag="free_state"):
    """A waiting request that was not admitted gives its state slot back (17850)."""


class Evict(Operation[EvictAnswer], tag="evict", kw_only=False):
    """Free at least so many pages, window pages and state slots of the prefix store, or all that can be freed."""

    n: int
    window: int = 0
    states: int = 0


class Report(Operation[Figures], tag="report", kw_only=False):
    """Ask for the implementation's own figures; `idle` when no request holds memory."""

    mode: Literal["idle", "busy"] = "busy"


class Snapshot(Operation[SnapshotAnswer], tag="snapshot", kw_only=False):
    """Ask for the whole state."""


Event = Operation[Any]
"""Any of the operations above."""

EVENTS: Any = reduce(or_, [kind for kind in Operation.__subclasses__() if kind is not OfRequest])
EVENTS |= reduce(or_, OfRequest.__subclasses__())
"""All of them as one type, for decoders."""


class Step(Protocol):
    """Whatever carries operations out: an implementation, alone or under the eye of the model."""

    def __call__(self, op: Operation[A], /) -> A:
        """Carry `op` out and return the answer.

        Raises:
            Refusal: the operation was refused; nothing has changed.
        """
        ...


__all__ = ["EVENTS", "Event"]
__all__ += [name for name, thing in globals().items() if isinstance(thing, type) and thing.__module__ == __name__]
