"""The methods that an engine implements to be checked: one per operation.

A memory manager decides who owns each *row* (one row of `req_to_token`, numbered from 0) and each *page* of the KV
cache (numbered from 1). kvspec calls one method after the other, never two at once, and holds every answer against
the specification. Lengths are in tokens. A method does three things:

- It carries the operation out and returns its answer. **Any part of an answer may be `None`: a missing part is
  not checked**, and the report names the field and the rules that need it. `MatchAnswer()` is a valid answer;
  `MatchAnswer(prefix_len=8)` is a better one. Pages may be listed one by one or as runs `(first, count)`.
- It raises `kvspec.events.Refusal(rule, reason)` for an operation that cannot be carried out. Its state must then be
  as it was before. `rule` may be `None`. Refusing an operation that could be carried out is as wrong as the reverse.
- Any other exception is reported as the implementation's failure at that step.

The life of a request: `submit`, `match_prefix` (as often as it is not admitted), `extend` once per chunk of its
prompt, `decode` once per step, `finish`. `retract` sends it back to wait with its tokens; `abort` ends it. Work that
extend and decode prepare is handed to the device by `launch` and is done at `complete`; a second launch may be in
flight before the first has completed.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, cast, get_type_hints

from kvspec import events
from kvspec.events import A, Answer, Operation
from kvspec.tokens import Element


class Implementation(Protocol):
    """A memory manager under test. It is made from its sizes: `MyManager(config)`, a `kvspec.events.Config`."""

    def open_session(self, session: str, /) -> events.Done:
        """Open a streaming session: an append-only conversation whose KV stays between its turns.

        It holds nothing yet.

        Raises:
            Refusal: OP-1, the session is open already.
        """
        ...

    def submit(self, req: str, tokens: list[Element], session: str | None, /) -> events.Done:
        """Accept a new request. It holds nothing yet.

        `tokens` are token ids, or strings that each stand for one whole page of tokens whose ids are not given (hash
        them as you hash a page). With a `session` the request is its next turn.

        Raises:
            Refusal: LEN-1, more tokens than `max_context_len`; OP-1, there are none, the name is taken, or the session
                is not open or is closing; SESS-1, the session has a turn in flight; SESS-6, `tokens` does not begin
                with all that the session's last finished turn saw and sampled.
        """
        ...

    def match_prefix(self, req: str, /) -> events.MatchAnswer:
        """Find out how much of a waiting request is cached. A request that is not admitted then matches again later.

        The last token never matches: it is recomputed, because its logits are needed. A plain request matches the
        longest page-aligned prefix in the prefix store, and owns nothing by it. A turn whose session holds KV resumes
        the session's record: it continues at `prefix_len = min(committed, len(tokens) - 1)` and gives back all
        whole pages past that. If nothing would be left to continue from, the session's row and pages are released
        and the turn matches as a plain request does.

        Answer `prefix_len`, the part of it that is the prefix store's (`protected_len`, page-aligned), and the pages
        that were `freed`. Matching again answers the same with nothing freed.

        Raises:
            Refusal: OP-1, the request is not waiting.
        """
        ...

    def extend(self, reqs: list[tuple[str, int]], /) -> events.ExtendAnswer:
        """Prepare a prefill batch: each request's prompt up to its `seq_len`, all of the batch or nothing.

        Each request has matched, or is in the middle of its prefill; a `seq_len` below the number of its tokens is a
        chunk. A request gets a row unless it brings one, a lock on its matched prefix, pages for the positions it does
        not have yet, and its row is written. Never evict here: the caller does, and tries again.

        Answer each request's `rows` and the new `pages` of each, in order of position, without the matched ones.

        Raises:
            Refusal: CAP-1 with `pages_short` and `rows_short`, the batch does not fit; STORE-5, the prefix that a
            request matched has been evicted since; RACE-1, the row of a resumed turn is still read past `prefix_len` by
            a launch in flight; BATCH-1 or BATCH-2, too many chunked requests; LAUNCH-1, the last chunk of a request is
            not launched; LEN-1, it would pass `max_context_len`; OP-1, anything else that makes no sense: an empty
            batch, a request twice, a `seq_len` that is not past `prefix_len`.
        """
        ...

    def decode(self, reqs: list[str], n: int, /) -> events.DecodeAnswer:
        """Prepare a decode step: room for `n` positions past the committed ones of each request.

        `n == 1` is plain decoding, and the position counts as committed at once; a larger `n` is a speculative step
        (drafts + 1), whose positions count once `verify` accepts them. All of the batch or nothing.

        Answer the new `pages` of each request, in order of position.

        Raises:
            Refusal: CAP-1 with `pages_short`, the step does not fit; LEN-1, it would pass `max_context_len`;
                SPEC-1, a speculative step of a request is not verified (one may be, where the next one is speculative
                too and you give it room past both, rule SPEC-2); OP-1, a request is not running, is in
                the middle of its prefill, or has unlaunched work.
        """
        ...

    def verify(self, req: str, accepted: int, tokens: list[int], /) -> events.Done:
        """Take in the outcome of a speculative step, after its launch has completed.

        `accepted` positions (accepted drafts + 1) become committed. `tokens` are the sampled tokens that the request
        keeps: fewer than `accepted` when it stopped in between.

        Raises:
            Refusal: SPEC-1, there is no completed step to verify, or `accepted` or the number of tokens is more than
                it prepared, or less than one; OP-1, the request is not running.
        """
        ...

    def launch(self, launch: int, reqs: list[str], /) -> events.Done:
        """Hand the prepared work of `reqs` to the device as one forward pass named `launch`.

        From now until it completes it reads each request's row. A row that its request gives up meanwhile must not
        be handed out before.

        Raises:
            Refusal: OP-1, the name is in flight already, or a request has nothing prepared.
        """
        ...

    def complete(self, launch: int, tokens: dict[str, int], /) -> events.CompleteAnswer:
        """The oldest forward pass in flight is done.

        `tokens` has one sampled token for each request whose prompt or single decode position it covered to the end;
        none for a chunk, for a speculative step, or for a request that has left meanwhile.

        Append them, and answer `CompleteAnswer()`. An engine that samples itself leaves them alone and answers those
        that it appended, one for each of the same requests (`tokens`).

        Raises:
            Refusal: LAUNCH-1, it is not the oldest in flight; CHUNK-1, a token is missing or too many.
        """
        ...

    def cache_unfinished(self, req: str, chunked: bool, /) -> events.PublishAnswer:
        """Publish the whole pages that the request's last extend reached; `chunked` when more of the prompt follows.

        Where the prefix store has a page already, the request's duplicate is freed and its row is rewritten to the
        store's page. The lock moves up. A session publishes once, with the last chunk of its first turn; other
        turns and chunks, and a manager without a prefix cache, change nothing here.

        Answer the new `protected_len` and the duplicates that were `freed`.

        Raises:
            Refusal: OP-1, the request is not running; CHUNK-1, `chunked` is wrong, or the sampled token is
                not there yet; LAUNCH-1, its last extend has not been launched.
        """
        ...

    def finish(self, req: str, /) -> events.ReleaseAnswer:
        """The request is complete: it publishes its whole pages and releases all else.

        A turn publishes nothing and hands its record, lock and row to its session.

        Answer all pages that were `freed`.

        Raises:
            Refusal: OP-1, the request is not running, or is in the middle of its prefill; LAUNCH-1, it has unlaunched
                work.
        """
        ...

    def retract(self, req: str, /) -> events.ReleaseAnswer:
        """Take a running request's memory away. It waits again, with its tokens.

        A plain request releases its pages, lock and row; a turn hands its record back to its session.

        Answer all pages that were `freed`.

        Raises:
            Refusal: OP-1, the request is not running.
        """
        ...

    def abort(self, req: str, /) -> events.ReleaseAnswer:
        """The request leaves without a result, wherever it is.

        If it never ran, its session is as before. If it ran, all KV of its session is released as well, and the
        session is back at its last finished turn.

        Answer all pages that were `freed`.

        Raises:
            Refusal: OP-1, there is no such request.
        """
        ...

    def close_session(self, session: str, /) -> events.ReleaseAnswer:
        """Release the session. With a turn in flight the release waits for the turn's end.

        Answer all pages that were `freed`.

        Raises:
            Refusal: OP-1, the session is not open.
        """
        ...

    def preempt(self, session: str, /) -> events.ReleaseAnswer:
        """Release the memory of an idle session. It keeps its tokens, and its next turn prefills them again.

        Answer all pages that were `freed`.

        Raises:
            Refusal: OP-1, the session is not open, holds nothing, or has lent its KV to a turn.
        """
        ...

    def evict(self, n: int, /) -> events.EvictAnswer:
        """Free at least `n` pages of the prefix store, or all that can be freed: unlocked ones, leaves first.

        Answer the pages that were `evicted`. This is the one answer that has to be complete: no other answer shows
        which prefixes are still cached.

        Raises:
            Refusal: OP-1, `n` is less than 1.
        """
        ...

    def report(self, mode: Literal["idle", "busy"], /) -> events.Figures:
        """Report your own figures, those that your leak check adds up; `idle` when no request holds memory.

        Raises:
            Refusal: OP-1, `mode` is `idle` and a request holds memory.
        """
        ...

    def snapshot(self) -> events.SnapshotAnswer:
        """Show the state for a deep comparison: everything that is known, down to the parts of each holder.

        An engine that can show nothing answers `SnapshotAnswer()`; one that knows lengths but no rows answers
        `SnapshotAnswer(requests={"r1": HolderView(committed_len=8)})`.
        """
        ...


class HybridImplementation(Implementation, Protocol):
    """The further operations of a memory manager with a sliding window or with recurrent states.

    A class without `swa_evict` is never given a sliding window, one without `take_state` never recurrent states.

    With a **sliding window** (`config.sliding_window`, in tokens) each page that `extend` and `decode` give out has a
    *window side*: a page of a second pool, answered as `window_pages`. A page that is freed frees its window side if
    it still has one (`window_freed`). CAP-1 then also reports `window_short`.

    With **recurrent states** (`config.num_states`) a running request has one state slot that it computes in, and with a
    prefix cache `config.tracking_states` more: they keep the states at the last page borders that its launches passed,
    so that these can be published. `extend` gives out the missing slots (`states`), every release gives back
    (`states_freed`) those that the store does not take (`state_cached`), and CAP-1 also reports `states_short`. A match
    ends where the store has a state; speculative steps are refused. `cache_unfinished` gives the store the state at the
    border that it publishes, if the store lacks it, the request has kept it, and a slot is free (`state_taken`). The
    answer must report the states that the store takes, like those that `evict` takes away: no other answer shows which
    states it has.
    """

    def evict(self, n: int, window: int = 0, states: int = 0, /) -> events.EvictAnswer:
        """Free at least `n` pages of the prefix store, `window` window sides and `states` states, or all there are.

        A window side may go without its page, which stays as a tombstone, and a state without its prefix; a page that
        goes takes both with it. Answer all that left, `evicted`, `window_evicted` and `states_evicted`.

        Raises:
            Refusal: OP-1, nothing is asked for, or something of a pool that does not exist.
        """
        ...

    def swa_evict(self, req: str, /) -> events.SwaEvictAnswer:
        """Give back the window sides that a running request has left behind.

        The cursor moves to a page border at most `sliding_window` positions before the next position that may be
        computed: that is `min(committed, written, len(tokens) - 1)`, because a retracted turn computes its last token
        again. It never goes back, and never below the protected length.

        Answer the cursor (`evicted_len`) and the window pages that were freed (`window_freed`).

        Raises:
            Refusal: OP-1, there is no sliding window, or the request is not running.
        """
        ...

    def take_state(self, req: str, /) -> events.StateAnswer:
        """Take the state slot that a matched, waiting request will compute in, before it has a row.

        Raises:
            Refusal: CAP-1 with `states_short` 1, no slot is free; OP-1, there are no states, or the request has one,
                runs, or has not matched.
        """
        ...

    def free_state(self, req: str, /) -> events.StateAnswer:
        """Give back the state slot that a waiting request took: it was not admitted.

        Raises:
            Refusal: OP-1, the request has taken none, or there is no such request.
        """
        ...


_O = TypeVar("_O", bound=Operation[Any])


def _calls(
    operation: type[_O], call: Callable[[Implementation, _O], Answer]
) -> tuple[type[Operation[Any]], Callable[[Implementation, Any], Answer]]:
    """One line of the table. Ties the type of the operation to the argument of `call`."""
    return operation, call


def _hybrid(implementation: Implementation) -> HybridImplementation:
    """The same implementation: operations of hybrid pools are only sent to those that have such pools."""
    return cast("HybridImplementation", implementation)


def _evict(implementation: Implementation, op: events.Evict) -> events.EvictAnswer:
    if op.window or op.states:
        return _hybrid(implementation).evict(op.n, op.window, op.states)
    return implementation.evict(op.n)


CALLS = dict(
    (
        _calls(events.OpenSession, lambda impl, op: impl.open_session(op.session)),
        _calls(events.Submit, lambda impl, op: impl.submit(op.req, op.tokens, op.session)),
        _calls(events.MatchPrefix, lambda impl, op: impl.match_prefix(op.req)),
        _calls(events.Extend, lambda impl, op: impl.extend(op.reqs)),
        _calls(events.Decode, lambda impl, op: impl.decode(op.reqs, op.n)),
        _calls(events.Verify, lambda impl, op: impl.verify(op.req, op.accepted, op.tokens)),
        _calls(events.Launch, lambda impl, op: impl.launch(op.launch, op.reqs)),
        _calls(events.Complete, lambda impl, op: impl.complete(op.launch, op.tokens)),
        _calls(events.CacheUnfinished, lambda impl, op: impl.cache_unfinished(op.req, op.chunked)),
        _calls(events.Finish, lambda impl, op: impl.finish(op.req)),
        _calls(events.Retract, lambda impl, op: impl.retract(op.req)),
        _calls(events.Abort, lambda impl, op: impl.abort(op.req)),
        _calls(events.CloseSession, lambda impl, op: impl.close_session(op.session)),
        _calls(events.Preempt, lambda impl, op: impl.preempt(op.session)),
        _calls(events.SwaEvict, lambda impl, op: _hybrid(impl).swa_evict(op.req)),
        _calls(events.TakeState, lambda impl, op: _hybrid(impl).take_state(op.req)),
        _calls(events.FreeState, lambda impl, op: _hybrid(impl).free_state(op.req)),
        _calls(events.Evict, _evict),
        _calls(events.Report, lambda impl, op: impl.report(op.mode)),
        _calls(events.Snapshot, lambda impl, _: impl.snapshot()),
    )
)
"""How each operation calls its method."""

ANSWERS: dict[type[Operation[Any]], type[Answer]] = {
    operation: get_type_hints(getattr(HybridImplementation, str(operation.__struct_config__.tag)))["return"]
    for operation in CALLS
}
"""The type of each operation's answer."""


def perform(implementation: Implementation, op: Operation[A]) -> A:
    """Carry `op` out and return the implementation's answer, unchecked.

    Raises:
        Refusal: the implementation refused it.
    """
    answer: A = CALLS[type(op)](implementation, op)  # type: ignore[assignment]
    return answer


def missing_methods(made_by: object) -> list[str]:
    """The required methods that a class lacks. If `made_by` is no class, none are known to be missing."""
    tags = (str(operation.__struct_config__.tag) for operation in CALLS)
    needed = [tag for tag in tags if hasattr(Implementation, tag)]
    return [tag for tag in needed if isinstance(made_by, type) and not callable(getattr(made_by, tag, None))]
