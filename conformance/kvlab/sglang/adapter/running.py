"""Operations on requests that run: decode steps, launches, publication, the window."""

from itertools import takewhile
from typing import Any

from kvconform.scheduler_state import Entry, Run
from kvlab.sglang.adapter.inspection import cursor, only, runs
from kvlab.sglang.adapter.pools import Freed
from kvlab.sglang.adapter.prefill import Prefill, refused_without_room
from kvspec.events import CompleteAnswer, DecodeAnswer, Done, PublishAnswer, Refusal, SwaEvictAnswer
from kvspec.pages import ceil_pages, expand


class Running(Prefill):
    """Requests that run."""

    def decode(self, reqs: list[str], n: int) -> DecodeAnswer:
        """Allocate one decode step, plain or speculative."""
        if n < 1:
            raise Refusal("OP-1", f"n is {n}")
        if n > 1 and self.pools.states is not None:
            raise Refusal("OP-1", "a recurrent state cannot be taken back")
        self.scheduling.check_batch(reqs)
        page_size = self.config.page_size
        batch: list[tuple[Entry, Run, int, int]] = []
        for name in reqs:
            entry = self.scheduling.running(name)[0]
            have = int(entry.req.kv_allocated_len)
            run = self.scheduling.check_decode(name, n, have)
            batch.append((entry, run, have, max(have, run.committed + n)))
        needed = sum(ceil_pages(end, page_size) - ceil_pages(have, page_size) for _, _, have, end in batch)
        if n > 1:
            needed = self._reckoned(needed, [end - have for _, _, have, end in batch if end > have])
        self.scheduling.check_room(self.pools.need(needed), self.pools.room())

        self._speculates = self._speculates or n > 1
        growing = [(entry.req, have, end) for entry, _, have, end in batch if end > have]
        if n > 1:
            self._allocate_ahead(growing)
        elif growing:
            self._allocate_decode([req for req, _, _ in growing])
        pages: dict[str, list[int]] = {}
        for entry, run, have, end in batch:
            if n > 1 or end == have or not self.engine.counts_decoded:
                entry.req.kv_allocated_len = end
                entry.req.kv_committed_len += n == 1
            run.committed += n == 1
            run.prepared_end = run.committed + (0 if n == 1 else n)
            run.drafts = 0 if n == 1 else n
            new = self._pages_of(entry.req, have, end)
            if new:
                pages[entry.name] = new
        return DecodeAnswer(runs(pages), self._sides_of(pages))

    def _allocate_decode(self, reqs: list[Any]) -> None:
        """One slot for each request, at its committed length."""
        seq_lens = self.engine.int64([req.kv_committed_len for req in reqs])
        rows = self.engine.int64([req.req_pool_idx for req in reqs])
        fields = self.engine.batch(
            reqs, self.tree_cache, seq_lens=seq_lens, seq_lens_cpu=seq_lens, req_pool_indices=rows
        )
        self._set_server_args()
        with refused_without_room():
            self.engine.allocation.alloc_for_decode(fields, token_per_req=1)

    def _allocate_ahead(self, growing: list[tuple[Any, int, int]]) -> None:
        """Slots for `[have, end)` of each request, as the speculative workers allocate for drafts."""
        if not growing:
            return
        self._set_server_args()
        common, int64 = self.engine.allocation, self.engine.int64
        view = self.engine.batch([], self.tree_cache).tree_cache
        total = sum(end - have for _, have, end in growing)
        rows = self.pool.req_to_token
        with refused_without_room():
            if self.config.page_size == 1:
                slots = common.alloc_token_slots(view, total)
            else:
                starts, ends = int64([have for _, have, _ in growing]), int64([end for _, _, end in growing])
                row_numbers = int64([req.req_pool_idx for req, _, _ in growing])
                last = common.get_last_loc(rows, row_numbers, starts)
                slots = common.alloc_paged_token_slots_extend(view, starts, starts, ends, ends, last, total)
        taken = 0
        for req, have, end in growing:
            self.pool.write((req.req_pool_idx, slice(have, end)), slots[taken : taken + end - have])
            taken += end - have

    def launch(self, launch: int, reqs: list[str]) -> Done:
        """Note a forward pass."""
        self.scheduling.launch(launch, reqs)
        return Done()

    def complete(self, launch: int, tokens: dict[str, int]) -> CompleteAnswer:
        """Hand the sampled tokens to the requests, and count chunks that are done."""
        flight = self.scheduling.complete(launch, tokens)
        for name in flight.sampled:
            entry = self.scheduling.entries[name]
            entry.tokens.append(tokens[name])
            entry.req.output_ids.append(tokens[name])
            self._track_decode(entry)
        for name in flight.chunks:
            self.engine.count_chunk(self.scheduling.entries[name].req, -1)
        return CompleteAnswer()

    def _track_decode(self, entry: Entry) -> None:
        """Note with a decoded token at a page border which tracking slot keeps the state there."""
        req, position = entry.req, len(entry.tokens) - 1
        assert entry.run is not None, "a token comes for what runs"
        if self.config.tracking_states and position > entry.run.seq_len and position % self.config.page_size == 0:
            self._track(req, position)

    def _track(self, req: Any, position: int) -> None:
        """Note that the state at a position is in the slot whose turn it was."""
        record: Any = getattr(req, "kv", None)
        if hasattr(record, "mamba_last_track_idx"):  # newer releases name it, and the one before it
            record.mamba_last_track_idx = record.mamba_next_track_idx
        if hasattr(record, "mamba_prev_track_seqlen"):
            record.mamba_prev_track_seqlen = record.mamba_last_track_seqlen
        req.mamba_next_track_idx = self.pool.get_mamba_ping_pong_other_idx(req.mamba_next_track_idx)
        req.mamba_last_track_seqlen = position

    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        """Commit the accepted run. All of it goes to the request's output; it notes how much it keeps."""
        entry, run = self.scheduling.check_verify(req, accepted, len(tokens))
        run.drafts, run.verifiable = 0, False
        run.stopped = len(tokens) < accepted
        run.committed += accepted
        run.promised += len(tokens) - 1
        for token in tokens:
            entry.tokens.append(token)
        entry.req.output_ids.extend([*tokens, *(next(self._overshot) for _ in range(accepted - len(tokens)))])
        entry.req.kv_committed_len += accepted
        return Done()

    def cache_unfinished(self, req: str, chunked: bool) -> PublishAnswer:
        """Hand the pages that a prefill wrote to the cache."""
        entry, run = self.scheduling.check_unfinished(req, chunked)
        before, cached, protected = self.pools.free(), self._store_states(), int(entry.req.cache_protected_len)
        windowed = self.pools.window is not None
        begun, had = (cursor(entry.req), self._behind_cursor(entry.req)) if windowed else (0, [])
        self.engine.publish(self.tree_cache, entry.req, chunked=chunked)
        if chunked:
            if not run.stashed:
                self._let_go_of_row_between_chunks(entry.req)
            run.stashed = True
        else:
            run.published = True
        if windowed and int(entry.req.cache_protected_len) > protected:
            self._lock_anew(entry.req)
        freed = self._freed(before)
        answer = PublishAnswer(int(entry.req.cache_protected_len), freed.pages, freed.window)
        if windowed:
            answer.evicted_len = self._window_left(entry.req, begun, had, freed)
        if before.states is not None:
            answer.state_cached = only(self._store_states() - cached)
            answer.state_taken = only(before.states.keys() - (self.pools.free().states or {}).keys())
        return answer

    def _behind_cursor(self, req: Any) -> list[int]:
        """The window pages behind the pages of a request from its cursor on."""
        return [self.pools.side(page) for page in self._pages_of(req, cursor(req), int(req.kv_allocated_len))]

    def _window_left(self, req: Any, begun: int, had: list[int], freed: Freed) -> int | None:
        """The new beginning of the window, if it moved on from `begun`: newer releases do that as they publish.

        A duplicate gives its window page back as well, but then the page of the store in its place has one.
        """
        reached, size = int(req.swa_evicted_seqlen), self.config.page_size
        if reached != int(req.cache_protected_len):  # a move to the end of the published part frees nothing
            return reached if reached > begun else None
        sides = set(expand(freed.window or ()))
        gone = len(list(takewhile(sides.__contains__, had)))
        pages = self._pages_of(req, begun, begun + gone * size)
        left = max((number for number, page in enumerate(pages, 1) if not self.pools.side(page)), default=0)
        return begun + left * size if left else None

    def _lock_anew(self, req: Any) -> None:
        """Lock the published part of a request once more, with the window cut off at its beginning."""
        self.engine.unlock(self.prefix_cache, req)
        self._cut_at_window(req, int(req.cache_protected_len))
        self.engine.lock(self.prefix_cache, req)

    def _may_decode(self, entry: Entry, run: Run) -> bool:
        """Whether the window of a request may be moved as for a decode step: its first token is there."""
        return len(entry.tokens) > run.seq_len

    def swa_evict(self, req: str) -> SwaEvictAnswer:
        """Move the window of a request, as its batch does before it allocates.

        SGLang moves it in decode steps, and without a prefix cache between chunks. Before that, and once a request has
        stopped, the window stays.
        """
        entry, run = self.scheduling.running(req)
        if self.pools.window is None:
            raise Refusal("OP-1", "there is no sliding window")
        before = self.pools.free()
        position = None
        if run.mid_prefill:
            position = run.seq_len if not run.prepared_end and not self.config.prefix_cache else None
        elif self._may_decode(entry, run) and not run.stopped:
            position = len(entry.tokens) - 1
        if position is not None:
            self.engine.evict_window(self.prefix_cache, entry.req, position)
        return SwaEvictAnswer(cursor(entry.req), self._freed(before).window)
