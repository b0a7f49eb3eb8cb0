"""Operations that move memory to the prefix store, to a session's slot, or back to the free pages."""

from kvref.manager.state import ManagerState
from kvref.release import evict_swa, release_kv_cache
from kvref.request import KvRecord, Run
from kvspec.events import EvictAnswer, PublishAnswer, Refusal, ReleaseAnswer, SwaEvictAnswer
from kvspec.tokens import Tokens


class Release(ManagerState):
    """Operations on held memory, and on the prefix store."""

    # Ways out. Each ends in `release_kv_cache`, or in a session's slot.

    def retract(self, req: str) -> ReleaseAnswer:
        """Take a running request's memory away; it waits again with its tokens (994, 22862).

        Raises:
            Refusal: the request is not running.
        """
        run = self._run(req)
        self._end_run(run)
        slot = run.request.slot
        if slot is None:
            self._release(run.kv)
        else:
            self.session_cache.save(slot, run)
        return self._released()

    def _end_run(self, run: Run) -> None:
        """End a run: it no longer holds its row, and samples of launches in flight are dropped."""
        del self.running[run.name], self.holders[run.name]
        self.chunked.discard(run.name)
        for launch in self.launches:
            launch.forget(run.name)

    def _release(self, kv: KvRecord) -> None:
        release_kv_cache(kv, self.tree_cache, self.pool, self.allocator)

    def _released(self) -> ReleaseAnswer:
        return ReleaseAnswer(self._freed(), self._window_freed(), self._states_freed())

    def finish(self, req: str) -> ReleaseAnswer:
        """The request is complete: publish and release, or leave the memory to the session (994, 22862).

        Raises:
            Refusal: the request is not running, or has a prefill or a decode step that is not done.
        """
        run = self._run(req)
        if run.mid_prefill:
            raise Refusal("OP-1", f"{req} is in the middle of its prefill")
        if run.prepared_end:
            raise Refusal("LAUNCH-1", f"what {req} has prepared is not launched yet")
        self._end_run(run)
        del self.requests[req]
        slot = run.request.slot
        cached = None
        if slot is None:
            tokens = self._published_tokens(run)
            kept = min(run.kv.kv_committed_len, len(tokens))
            cached = self.tree_cache.cache_finished_req(run.kv, tokens, kept)
            self._release(run.kv)
        else:
            self.session_cache.save(slot, run)
            slot.history = run.tokens
            self.session_cache.end_turn(slot)
        answer = self._released()
        answer.state_cached = None if cached is None else cached.slot
        return answer

    def _published_tokens(self, run: Run) -> Tokens:
        """The tokens of a finished request, and those accepted past its stop if their pages are published."""
        beyond = run.kv.kv_committed_len - len(run.tokens)
        if self.config.overshoot == "freed" or beyond <= 0:
            return run.tokens
        tokens = run.tokens.copy()
        tokens.extend(next(self._unkept) for _ in range(beyond))
        return tokens

    def abort(self, req: str) -> ReleaseAnswer:
        """End a request without a result, in any phase (22862).

        A turn that ran has overwritten its session's KV with tokens that the client never got, so the KV is wiped. A
        turn that never ran leaves the slot unchanged.

        Raises:
            Refusal: there is no such request.
        """
        request = self._request(req)
        run = self.running.get(req)
        if run is not None:
            self._end_run(run)
        del self.requests[req]
        self.pool.states.free_early(request)
        slot = request.slot
        kv = run.kv if run is not None else self.holders.pop(req, None)
        if slot is None:
            if kv is not None:
                self._release(kv)
        else:
            if kv is not None:
                self.session_cache.take_back(slot, kv)
            if request.extended:
                self.session_cache.wipe(slot)
            self.session_cache.end_turn(slot)
        return self._released()

    def close_session(self, session: str) -> ReleaseAnswer:
        """Release an idle session; with a turn in flight the release waits for it (22213).

        Raises:
            Refusal: the session is not open, or closing already.
        """
        slot = self._slot(session)
        if slot.closing:
            raise Refusal("OP-1", f"session {session} is closing already")
        slot.closing = True
        if slot.turn is None:
            self.session_cache.close(slot)
        return self._released()

    def preempt(self, session: str) -> ReleaseAnswer:
        """Release an idle slot's memory; the session keeps its tokens and its next turn prefills again.

        Raises:
            Refusal: the slot holds nothing, or has lent it.
        """
        slot = self._slot(session)
        if slot.kv is None or slot.lent:
            raise Refusal("OP-1", f"the slot of session {session} holds nothing, or is lent")
        self.session_cache.wipe(slot)
        return self._released()

    # Publication and eviction

    def cache_unfinished(self, req: str, chunked: bool = False) -> PublishAnswer:
        """Publish what a launched prefill wrote, so that others can match it while the request still runs (20476).

        Raises:
            Refusal: something prepared is not launched, the prefill is not where `chunked` says, or the prompt's
                next token is not sampled yet.
        """
        run = self._run(req)
        if run.prepared_end:
            raise Refusal("LAUNCH-1", f"what {req} has prepared is not launched yet")
        if chunked != run.mid_prefill:
            raise Refusal("CHUNK-1", f"chunked is {chunked}, but {req} has {run.seq_len} of {len(run.tokens)} tokens")
        if not chunked and len(run.tokens) == run.seq_len:
            raise Refusal("CHUNK-1", f"the token that follows the prompt of {req} is not sampled yet")
        cached = self.session_cache.cache_unfinished_req(run)
        answer = PublishAnswer(run.kv.cache_protected_len, self._freed(), self._window_freed())
        if cached is not None:
            answer.state_cached, answer.state_taken = cached
        return answer

    def evict(self, n: int, window: int = 0, states: int = 0) -> EvictAnswer:
        """Free at least `n` pages, `window` window sides and `states` states of the prefix store, or all unlocked ones.

        Raises:
            Refusal: all counts are 0, one is negative, or its pool does not exist.
        """
        if min(n, window, states) < 0 or n + window + states < 1:
            raise Refusal("OP-1", f"{n} pages, {window} window sides and {states} states are nothing to evict")
        if window and not self.config.sliding_window:
            raise Refusal("OP-1", "there is no sliding window")
        if states and not self.config.num_states:
            raise Refusal("OP-1", "there are no recurrent states")
        self.tree_cache.evict(n, window, states)
        return EvictAnswer(self._freed(), self._window_freed(), self._states_freed())

    def swa_evict(self, req: str) -> SwaEvictAnswer:
        """Give back the window sides that a running request has left behind (20070).

        Its next step begins at its last token at the earliest: a retracted turn computes that token again.

        Raises:
            Refusal: there is no sliding window, or the request is not running.
        """
        run, swa = self._run(req), self._swa
        if swa is None:
            raise Refusal("OP-1", "there is no sliding window")
        next_position = min(run.launched_len, len(run.tokens) - 1)
        evict_swa(run.kv, next_position, self.config.sliding_window, self.pool, swa)
        return SwaEvictAnswer(run.kv.swa_evicted_seqlen, self._window_freed())
