"""`extend`: a prefill batch admitted and allocated as the scheduler does it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvconform.scheduler_state import Entry, Run
from kvlab.sglang.adapter.inspection import runs
from kvlab.sglang.adapter.waiting import Waiting
from kvspec.events import ExtendAnswer, Refusal
from kvspec.pages import Runs, ceil_align, ceil_pages, compress


class Prefill(Waiting):
    """Admission of requests, and the chunks of their prompts."""

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """Admit a prefill batch and allocate for it."""
        batch = [(*self.scheduling.check_prefill(req, seq_len), seq_len) for req, seq_len in reqs]
        self.scheduling.check_chunking(reqs)
        for entry, start, _ in batch:
            if entry.resumed and entry.run is None:
                self.scheduling.check_row_is_quiet(int(entry.req.req_pool_idx), start)
            elif entry.run is None:
                self._match_still_stands(entry, start)
        self._check_prefill_room(batch)
        had = {entry.name: self._states_of(entry.req) for entry, _, _ in batch}
        for entry, start, seq_len in batch:
            self._admit(entry, start, seq_len)
        self._allocate_prefill(batch)
        pages = {}
        for entry, start, seq_len in batch:
            entry.prefill(int(entry.req.req_pool_idx), seq_len)
            new = self._pages_of(entry.req, start, seq_len)
            if new:
                pages[entry.name] = new
        rows = {entry.name: self._row(entry.req) for entry, _, _ in batch}
        states: dict[str, Runs] = {
            entry.name: compress(sorted((self._states_of(entry.req) - had[entry.name]).elements()))
            for entry, _, _ in batch
        }
        return ExtendAnswer(rows, runs(pages), self._sides_of(pages), None if self.pools.states is None else states)

    def _match_still_stands(self, entry: Entry, prefix_len: int) -> None:
        """Repeat the match of a request, which does not own the pages before it is admitted."""
        if not prefix_len:
            return
        found = self.engine.matched(self.prefix_cache, self.engine.full_ids(entry.req)[:prefix_len])
        if len(found.device_indices) < prefix_len:
            raise Refusal("STORE-5", f"what {entry.name} matched has been evicted: match again")
        entry.req.prefix_indices, entry.req.last_node = found.device_indices, found.last_device_node

    def _check_prefill_room(self, batch: list[tuple[Entry, int, int]]) -> None:
        page_size, room = self.config.page_size, self.pools.room()
        pages = sum(ceil_pages(seq_len, page_size) - ceil_pages(start, page_size) for _, start, seq_len in batch)
        continuing = [entry.run for entry, _, _ in batch if entry.run is not None]
        fresh = [entry for entry, _, _ in batch if entry.run is None and not entry.resumed]
        rows = len(fresh)
        if not self.engine.rows_are_kept:
            rows += len(continuing)
            room = room._replace(rows=room.rows + sum(not run.stashed for run in continuing))
        states = sum((entry.req.mamba_pool_idx is None) + self.config.tracking_states for entry in fresh)
        pages = self._reckoned(pages, [seq_len - start for _, start, seq_len in batch])
        self.scheduling.check_room(self.pools.need(pages, rows, states), room)

    def _reckoned(self, pages: int, positions: list[int]) -> int:
        """The free pages that the scheduler requires for so many new positions of each request.

        If the allocator estimates, so does the scheduler: a failing allocation ends the server.
        """
        if self.pools.window is None or not self.engine.estimates_room or self.config.page_size == 1:
            return pages
        return ceil_pages(sum(positions), self.config.page_size) + len(positions)

    def _admit(self, entry: Entry, start: int, seq_len: int) -> None:
        """Act as the scheduler when it admits a request to a prefill batch, before it allocates."""
        req, run = entry.req, entry.run
        if run is not None:
            if not run.stashed:
                self._stash_without_cache(run, req)
            req.init_next_round_input()
        else:
            if not entry.resumed:
                self._cut_at_window(req, start)
            self.engine.lock(self.tree_cache, req)
            if self.pools.states is not None and not entry.resumed:
                self._look_for_branch(req, start)
                if req.mamba_pool_idx is None:
                    self._take_state(entry, start)
        self.engine.set_extend(req, start, seq_len)
        if seq_len < len(entry.tokens):
            self.engine.count_chunk(req, 1)

    def _cut_at_window(self, req: Any, locked: int) -> None:
        """Cut the node in which the window before `locked` begins.

        SGLang locks the window of whole nodes. In any tree another prompt may have made a node that ends where the
        window begins. Here there is always such a node, so that a lock covers the same pages as in the specification.
        """
        reach = ceil_align(self.config.sliding_window, self.config.page_size)
        if reach and self.config.prefix_cache and locked > reach:
            self.engine.matched(self.prefix_cache, self.engine.full_ids(req)[: locked - reach])

    def _look_for_branch(self, req: Any, matched: int) -> None:
        """Note the current end of the cached pages, if it is past the last cached state: states are missing there."""
        found = self.engine.matched(self.prefix_cache, self.engine.full_ids(req)[:-1])
        req.mamba_branching_seqlen = found.mamba_branching_seqlen if len(found.device_indices) == matched else None

    def _stash_without_cache(self, run: Run, req: Any) -> None:
        """Continue after a chunk that was not handed to the prefix cache: only its positions are noted."""
        rows = self.pool.req_to_token
        req.prefix_indices = rows[req.req_pool_idx, : run.seq_len].to(dtype=self.engine.torch.int64, copy=True)
        self._let_go_of_row_between_chunks(req)

    def _let_go_of_row_between_chunks(self, req: Any) -> None:
        """The scheduler of releases before 17850 frees a chunked request's row after each chunk."""
        if not self.engine.rows_are_kept:
            self.pool.free(req.req_pool_idx, **({} if self.pools.states is None else {"free_mamba_cache": False}))

    def _allocate_prefill(self, batch: list[tuple[Entry, int, int]]) -> None:
        seq_lens = self.engine.int64([seq_len for _, _, seq_len in batch])
        fields = self.engine.batch(
            [entry.req for entry, _, _ in batch],
            self.tree_cache,
            prefix_lens=[start for _, start, _ in batch],
            extend_lens=[seq_len - start for _, start, seq_len in batch],
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            extend_num_tokens=sum(seq_len - start for _, start, seq_len in batch),
        )
        self._set_server_args()
        with refused_without_room():
            _, _, rows = self.engine.allocation.alloc_for_extend(fields)
        for (entry, _, seq_len), row in zip(batch, rows, strict=True):
            entry.req.req_pool_idx = int(row)
            entry.req.kv_committed_len = entry.req.kv_allocated_len = seq_len
            entry.req.is_retracted = False
            if self.config.tracking_states:
                self.engine.track_extend(self.pool, entry.req, self.config.page_size)


@contextmanager
def refused_without_room() -> Iterator[None]:
    """SGLang's allocation raises if there is no room. There is room: it was checked before."""
    try:
        yield
    except RuntimeError as error:
        raise Refusal("CAP-1", str(error).partition("\n")[0]) from error
