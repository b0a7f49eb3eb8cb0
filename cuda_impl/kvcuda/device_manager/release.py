"""Operations that move memory to the prefix store, to a session's slot, or back to the free pages."""

from kvcuda.device_manager.state import ManagerState
from kvcuda.holdings import Evicted
from kvcuda.records import Run
from kvspec.events import PublishAnswer, Refusal, SwaEvictAnswer
from kvspec.events import ReleaseAnswer as Released


class Release(ManagerState):
    """Operations on held memory, and on the prefix store."""

    # Ways out. Each ends in `Holdings.release`, or in a session's slot.

    def retract(self, req: str) -> Released:
        """Take a running request's memory away; it waits again with its tokens (994, 22862).

        Raises:
            Refusal: the request is not running.
        """
        run, states = self._run(req), self.states.pushed
        self._end_run(run)
        slot = run.request.slot
        if slot is None:
            self.holdings.release(run.kv)
        else:
            self.sessions.save(slot, run)
        return self._released(states)

    def _end_run(self, run: Run) -> None:
        """End a run: it no longer holds its row, and samples of launches in flight are dropped."""
        del self.running[run.name], self.holders[run.name]
        self.chunked.discard(run.name)
        run.ended = True
        for flight in self.launches:
            flight.thinned = True
        self._last_batch = None

    def _released(self, states: int, cached: int | None = None) -> Released:
        """The answer of a release: the state slots that became free since `states` had."""
        return Released(states_freed=self.states.since(states), state_cached=cached)

    def finish(self, req: str) -> Released:
        """The request is complete: publish and release, or leave the memory to the session (994, 22862).

        Raises:
            Refusal: the request is not running, or has a prefill or a decode step that is not done.
        """
        run = self._run(req)
        if run.mid_prefill:
            raise Refusal("OP-1", f"{req} is in the middle of its prefill")
        if self.rows.prepared[run.kv.row]:
            raise Refusal("LAUNCH-1", f"what {req} has prepared is not launched yet")
        states, cached = self.states.pushed, None
        self._end_run(run)
        del self.requests[req]
        slot = run.request.slot
        if slot is None:
            kept = min(int(self.rows.committed[run.kv.row]), len(run.tokens))
            self.holdings.publish(run.kv, run.tokens, kept)
            cached = self.holdings.leave_state(run.kv)
            self.holdings.release(run.kv)
        else:
            self.sessions.save(slot, run)
            slot.history = run.tokens
            self.sessions.end_turn(slot)
        return self._released(states, cached)

    def abort(self, req: str) -> Released:
        """End a request without a result, in any phase (22862).

        A turn that ran has overwritten its session's KV with tokens that the client never got, so the KV is wiped. A
        turn that never ran leaves the slot unchanged.

        Raises:
            Refusal: there is no such request.
        """
        request, states = self._request(req), self.states.pushed
        run = self.running.get(req)
        if run is not None:
            self._end_run(run)
        if request.state:
            self._give_state_back(request)
        del self.requests[req]
        slot = request.slot
        kv = run.kv if run is not None else self.holders.pop(req, None)
        if slot is None:
            if kv is not None:
                self.holdings.release(kv)
        else:
            if kv is not None:
                self.sessions.take_back(slot, kv)
            if request.extended:
                self.sessions.wipe(slot)
            self.sessions.end_turn(slot)
        return self._released(states)

    def close_session(self, session: str) -> Released:
        """Release an idle session; with a turn in flight the release waits for it (22213).

        Raises:
            Refusal: the session is not open, or closing already.
        """
        slot, states = self.sessions.slot(session), self.states.pushed
        if slot.closing:
            raise Refusal("OP-1", f"session {session} is closing already")
        slot.closing = True
        if slot.turn is None:
            self.sessions.close(slot)
        return self._released(states)

    def preempt(self, session: str) -> Released:
        """Release an idle slot's memory; the session keeps its tokens and its next turn prefills again.

        Raises:
            Refusal: the slot holds nothing, or has lent it.
        """
        slot, states = self.sessions.slot(session), self.states.pushed
        if slot.kv is None or slot.lent:
            raise Refusal("OP-1", f"the slot of session {session} holds nothing, or is lent")
        self.sessions.wipe(slot)
        return self._released(states)

    # Publication and eviction

    def cache_unfinished(self, req: str, chunked: bool = False) -> PublishAnswer:
        """Publish what a launched prefill wrote, so that others can match it while the request still runs (20476).

        Raises:
            Refusal: something prepared is not launched, the prefill is not where `chunked` says, or the prompt's
                next token is not sampled yet.
        """
        run = self._run(req)
        if self.rows.prepared[run.kv.row]:
            raise Refusal("LAUNCH-1", f"what {req} has prepared is not launched yet")
        if chunked != run.mid_prefill:
            raise Refusal("CHUNK-1", f"chunked is {chunked}, but {req} has {run.seq_len} of {len(run.tokens)} tokens")
        if not chunked and len(run.tokens) == run.seq_len:
            raise Refusal("CHUNK-1", f"the token that follows the prompt of {req} is not sampled yet")
        cached, taken = self.sessions.cache_unfinished(run)
        return PublishAnswer(int(self.rows.protected[run.kv.row]), state_cached=cached, state_taken=taken)

    def evict_pages(self, n: int, window: int = 0, states: int = 0) -> Evicted:
        """Free at least `n` pages, `window` window sides and `states` states of the prefix store, or all unlocked ones.

        Window sides and states may go without their pages. A freed page takes both along.

        Raises:
            Refusal: all counts are 0, one is negative, or its pool does not exist.
        """
        if min(n, window, states) < 0 or not n + window + states:
            raise Refusal("OP-1", f"n is {n}, window {window}, states {states}")
        if window and not self.config.sliding_window:
            raise Refusal("OP-1", "there is no sliding window")
        if states and not self.states.size:
            raise Refusal("OP-1", "there are no recurrent states")
        return self.holdings.evict(n, window, states)

    def swa_evict(self, req: str) -> SwaEvictAnswer:
        """Give back the window sides that a running request has left behind (20070).

        A chunk in flight may still read them. Their content stays until then: only a later forward pass writes them.

        Raises:
            Refusal: the request is not running, or there is no sliding window.
        """
        run = self._run(req)
        if not self.config.sliding_window:
            raise Refusal("OP-1", "there is no sliding window")
        row = run.kv.row
        following = min(int(self.rows.committed[row]), int(self.rows.launched[row]), len(run.tokens) - 1)
        return SwaEvictAnswer(self.holdings.shed(run.kv, following))
