"""SGLang's own memory classes behind the protocol.

There is one module for each part of a request's life, with a class that extends the previous one: `inspection`,
`waiting`, `prefill`, `running`, and here the ways out.

The adapter acts as the scheduler: it calls the classes in the same order as SGLang's scheduler, and sets the same
attributes of a request. It carries out the operations of the specification as follows:

- `extend` and `decode` allocate through SGLang's own functions, with a cache that has nothing to evict: eviction is an
  operation of its own.
- A decode step of n > 1 allocates as the speculative workers do; `verify` commits as they do, the whole accepted run,
  and a request that stopped within it notes how many tokens it keeps.
- `retract` is the release that SGLang uses for retraction. `abort` of a running request sets the reason that SGLang
  sets and releases without publishing; of a waiting request it does what SGLang does, which is to drop it.
- Sessions are opened, given turns and closed by SGLang's own session controller.
- Launches are only noted: no forward pass runs.
- A window is moved by the batch's own function, at moments at which the scheduler may do it; in others it stays.
- A state slot is taken by the match that copies a cached state, and otherwise from the pool. States are kept at page
  borders: SGLang's interval and chunk size are set so.
"""

from types import SimpleNamespace
from typing import ClassVar

from kvconform.scheduler_state import Entry
from kvlab.sglang.adapter.inspection import only
from kvlab.sglang.adapter.pools import Free
from kvlab.sglang.adapter.running import Running
from kvspec.events import EvictAnswer, Overshoot, Refusal, ReleaseAnswer

CLOCK_STEP = 10.0
"""Seconds between two checks of the session controller, more than its own interval."""


class Adapter(Running):
    """The memory of one SGLang engine; `adapter` in this package makes one for a release. Here: the ways out."""

    overshoot: ClassVar[tuple[Overshoot, ...]] = ("published",)

    def finish(self, req: str) -> ReleaseAnswer:
        """The request has stopped, with as many tokens as allowed."""
        entry, _ = self.scheduling.check_finish(req)
        kept = len(entry.tokens) - len(entry.req.origin_input_ids)
        entry.req.sampling_params.max_new_tokens = entry.req.finished_len = kept
        entry.req.finished_reason = self.engine.batches.FINISH_LENGTH(kept)
        cached = self._store_states()
        before = self._release(entry, is_insert=True)
        self.scheduling.leave(entry, finished=True)
        answer = self._after_turn(entry, before)
        answer.state_cached = only(self._store_states() - cached)
        return answer

    def retract(self, req: str) -> ReleaseAnswer:
        """Release without publishing, and wait again."""
        entry, _ = self.scheduling.running(req)
        before = self._release(entry, is_insert=False)
        entry.req.reset_for_retract()
        entry.resumed = False
        return ReleaseAnswer(*self._freed(before))

    def abort(self, req: str) -> ReleaseAnswer:
        """A waiting request is dropped. A running one is released with the reason of an abort."""
        entry = self.scheduling.entry(req)
        before = self.pools.free()
        if entry.run is not None:
            entry.req.finished_reason = self.engine.batches.FINISH_ABORT()
            self._release(entry, is_insert=False)
        elif self.pools.states is not None and entry.req.mamba_pool_idx is not None:
            if entry.req.req_pool_idx is None and not self.config.prefix_cache:
                self.free_state(req)  # without a prefix cache SGLang takes no state before a row
            else:
                self._release(entry, is_insert=False)
        self.scheduling.leave(entry, finished=False)
        return self._after_turn(entry, before)

    def _release(self, entry: Entry, *, is_insert: bool) -> Free:
        """Let SGLang release a request. Returns what was free before."""
        before = self.pools.free()
        self._set_server_args()
        self.engine.release_kv_cache(entry.req, self.tree_cache, is_insert=is_insert)
        self.scheduling.end_run(entry)
        return before

    def _after_turn(self, entry: Entry, before: Free) -> ReleaseAnswer:
        """A close that waited for this turn happens at the controller's next check."""
        chat = self.scheduling.chats.get(entry.session) if entry.session is not None else None
        if chat is not None and chat.closing and entry.session is not None:
            self._reap()
            del self.scheduling.chats[entry.session]
        return ReleaseAnswer(*self._freed(before))

    def close_session(self, session: str) -> ReleaseAnswer:
        """Close as the session controller does."""
        chat = self.scheduling.chat(session)
        if chat.closing:
            raise Refusal("OP-1", f"session {session} is closing already")
        before = self.pools.free()
        self.sessions.close(SimpleNamespace(session_id=session))
        if chat.turn is None:
            del self.scheduling.chats[session]
        else:
            chat.closing = True
        return ReleaseAnswer(*self._freed(before))

    def preempt(self, session: str) -> ReleaseAnswer:
        """Release the memory of a session's slot."""
        self.scheduling.chat(session)
        if session not in self._idle_slots():
            raise Refusal("OP-1", f"the slot of session {session} holds nothing, or is lent")
        before = self.pools.free()
        self.tree_cache.release_session(session)
        return ReleaseAnswer(*self._freed(before))

    def evict(self, n: int, window: int = 0, states: int = 0) -> EvictAnswer:
        """Evict from the prefix store."""
        if min(n, window, states) < 0 or n + window + states < 1:
            raise Refusal("OP-1", f"n is {n}, window {window}, states {states}")
        if (window and self.pools.window is None) or (states and self.pools.states is None):
            raise Refusal("OP-1", "there is no such pool")
        before, page_size = self.pools.free(), self.config.page_size
        self.engine.evict(self.prefix_cache, n * page_size, window * page_size, states)
        return EvictAnswer(*self._freed(before))

    def _reap(self) -> None:
        if hasattr(self.sessions, "maybe_reap"):
            self._clock += CLOCK_STEP
            self.sessions.maybe_reap(self._clock)
