"""Operations that change nothing."""

from typing import Literal

from kvref.manager.state import ManagerState
from kvref.request import KvRecord
from kvspec import lengths
from kvspec.events import Figures, HolderView, Refusal, SnapshotAnswer
from kvspec.pages import Runs, compress, slots_of
from kvspec.window import window_held_tokens


class Inspection(ManagerState):
    """The figures, and the whole state."""

    def report(self, mode: Literal["idle", "busy"] = "busy") -> Figures:
        """The manager's own figures, in tokens and rows, each by its own definition: their sum is the check (20070).

        Raises:
            Refusal: the mode is `idle`, but a request holds memory.
        """
        if mode == "idle" and self.holders:
            raise Refusal("OP-1", f"{len(self.holders)} requests hold memory: this is not idle")
        page_size = self.config.page_size
        of_sessions, of_requests = [kv for _, kv in self.session_cache.idle()], list(self.holders.values())
        if self.config.turns_count_as == "sessions":
            of_sessions += [kv for req, kv in self.holders.items() if self.requests[req].slot is not None]
            of_requests = [kv for req, kv in self.holders.items() if self.requests[req].slot is None]
        figures = Figures(
            available=self.allocator.available * page_size,
            evictable=self.tree_cache.evictable_size * page_size,
            protected=self.tree_cache.protected_size * page_size,
            session_held=sum(map(self._held_tokens, of_sessions)),
            uncached=sum(map(self._held_tokens, of_requests)),
            rows_available=self.pool.available,
            rows_requests=len(of_requests),
            rows_sessions=len(of_sessions),
            rows_withheld=self.pool.withheld,
        )
        swa, tree = self._swa, self.tree_cache
        if swa is not None:
            figures.window_available = swa.window.available * page_size
            figures.window_evictable = tree.swa_evictable_size * page_size
            figures.window_protected = tree.swa_protected_size * page_size
            figures.window_session_held = sum(map(self._window_held_tokens, of_sessions))
            figures.window_uncached = sum(map(self._window_held_tokens, of_requests))
        if self.config.num_states:
            figures.states_available = self.pool.states.available
            figures.states_evictable = tree.mamba_evictable_size
            figures.states_protected = tree.mamba_protected_size
            figures.states_sessions = sum(len(kv.states) for kv in of_sessions)
            figures.states_requests = sum(len(kv.states) for kv in of_requests)
            figures.states_requests += sum(request.state is not None for request in self.requests.values())
        return figures

    def _held_tokens(self, kv: KvRecord) -> int:
        """Tokens of a holder's private pages; a page that is held in part counts whole (20070)."""
        return lengths.held_tokens(kv.lengths, self.config.page_size)

    def _window_held_tokens(self, kv: KvRecord) -> int:
        """The same for the window pool: the pages before the cursor have lost their window side (20070)."""
        return window_held_tokens(kv.lengths, kv.swa_evicted_seqlen, self.config.page_size)

    def snapshot(self) -> SnapshotAnswer:
        """The whole state, for a deep compare. Costs the whole pool."""
        requests, sessions = self.holders, dict(self.session_cache.idle())
        swa, states = self._swa, self.pool.states if self.config.num_states else None
        return SnapshotAnswer(
            rows={kv.req_pool_idx: self._slots_of(kv) for kv in (*requests.values(), *sessions.values())},
            free_rows=compress(sorted(self.pool.free_rows())),
            withheld_rows=compress(sorted(self.pool.withheld_rows())),
            free_pages=compress(self.allocator.free_pages()),
            store_pages=compress(sorted(self.tree_cache.all_pages())),
            requests={req: self._view(kv) for req, kv in requests.items()},
            sessions={session: self._view(kv) for session, kv in sessions.items()},
            window_sides=None if swa is None else dict(swa.window_of),
            free_states=None if states is None else compress(states.free_pages()),
            store_states=None if states is None else compress(sorted(self.tree_cache.all_states())),
            **self._locks(),
        )

    def _locks(self) -> dict[str, dict[int, int]]:
        """The number of locks on each locked page, window page and state of the prefix store."""
        nodes, swa = list(self.tree_cache.all_nodes()), self._swa
        locks = {"locks": {page: node.lock_ref for node in nodes for page in node.value if node.lock_ref}}
        if swa is not None:
            locked = {page: node.swa_lock_ref for node in nodes for page in node.value if node.swa_lock_ref}
            locks["window_locks"] = {swa.window_of[page]: n for page, n in locked.items() if page in swa.window_of}
        if self.config.num_states:
            ends = {node.mamba_value: node.mamba_lock_ref for node in nodes if node.mamba_lock_ref}
            locks["state_locks"] = {slot: n for slot, n in ends.items() if slot is not None}
        return locks

    def _slots_of(self, kv: KvRecord) -> Runs:
        """The slot index of each allocated position of a row (rule PAGE-3)."""
        return slots_of(self.pool.req_to_token[kv.req_pool_idx], kv.kv_allocated_len, self.config.page_size)

    def _view(self, kv: KvRecord) -> HolderView:
        view = HolderView(kv.req_pool_idx, *kv.lengths)
        if self._swa is not None:
            view.swa_evicted_len = max(kv.cache_protected_len, kv.swa_evicted_seqlen)
        if self.config.num_states:
            view.states, view.computing, view.tracking = compress(sorted(kv.states)), kv.states[0], kv.tracked
        return view
