"""Prefill: a whole batch of requests gets rows, pages and locks, or nothing happens."""

from typing import NamedTuple

from kvref.manager.state import ManagerState, check_batch, given
from kvref.radix_cache import MatchResult
from kvref.request import KvRecord, Request, Run
from kvref.state_pool import source_of_state
from kvspec import lengths
from kvspec.batch import Chunking, broken_rule
from kvspec.events import ExtendAnswer, Refusal
from kvspec.pages import ceil_pages


class Prefill(NamedTuple):
    """One request of a prefill batch. Lengths in tokens."""

    request: Request
    run: Run | None
    """Its run, if an earlier chunk has begun it."""
    base: KvRecord | MatchResult
    """Its prefix: a record, of its run or lent by a slot, or a match in the prefix store."""
    prefix_len: int
    seq_len: int

    @property
    def row(self) -> int | None:
        """The row that it brings; `None` if it needs one."""
        return self.base.req_pool_idx if isinstance(self.base, KvRecord) else None

    @property
    def is_chunk(self) -> bool:
        """Whether more of the prompt is still to come."""
        return self.seq_len < len(self.request.tokens)


class Prefilling(ManagerState):
    """`extend`, and its checks before it changes anything."""

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """Prefill each request up to its `seq_len`: rows, pages and locks for the whole batch, or nothing (17850).

        Raises:
            Refusal: some request cannot be extended so, the batch breaks BATCH-1 or BATCH-2, or it does not fit.
        """
        batch = [self._check_prefill(req, seq_len) for req, seq_len in reqs]
        self._check_chunking(batch)
        rows = self._alloc_rows(batch)
        pages: dict[str, list[int]] = {}
        states: dict[str, list[int]] = {}
        states_from: dict[str, int] = {}
        for prefill, row in zip(batch, rows, strict=True):
            name = prefill.request.name
            if self.config.num_states and prefill.prefix_len:
                states_from[name] = self._source_of_state(prefill)
            pages[name] = self._prefill(prefill, row)
            if prefill.row is None:
                states[name] = self.pool.states.alloc_extend_states(self.holders[name], prefill.request)
        return ExtendAnswer(
            {req: row for (req, _), row in zip(reqs, rows, strict=True)},
            given(pages),
            self._window_sides(pages),
            *((given(states), states_from) if self.config.num_states else ()),
        )

    def _check_prefill(self, req: str, seq_len: int) -> Prefill:
        """One request of a prefill batch, or a refusal."""
        request = self._request(req)
        run = self.running.get(req)
        base: KvRecord | MatchResult
        if run is not None:
            if not run.mid_prefill:
                raise Refusal("OP-1", f"the prefill of {req} is complete")
            if run.prepared_end:
                raise Refusal("LAUNCH-1", f"the last chunk of {req} is not launched yet")
            base, prefix_len = run.kv, run.seq_len
        elif request.prefix_len is None:
            raise Refusal("OP-1", f"{req} has not matched its prefix")
        elif request.resumed:
            base, prefix_len = self.holders[req], request.prefix_len
            if self.pool.read_len(base.req_pool_idx) > prefix_len:
                raise Refusal("RACE-1", f"a launch in flight reads what {req} would overwrite from {prefix_len} on")
        else:
            prefix_len = request.prefix_len
            base = self.tree_cache.match_prefix(request.tokens.pages[: prefix_len // self.config.page_size])
            if len(base.pages) * self.config.page_size < prefix_len:
                raise Refusal("STORE-5", f"what {req} matched has been evicted: match again")
        if not prefix_len < seq_len <= len(request.tokens):
            raise Refusal("OP-1", f"seq_len {seq_len} of {req} is not in {prefix_len + 1}..{len(request.tokens)}")
        if seq_len > self.config.max_context_len:
            raise Refusal("LEN-1", f"{req} would grow to {seq_len}, past {self.config.max_context_len}")
        return Prefill(request, run, base, prefix_len, seq_len)

    def _check_chunking(self, batch: list[Prefill]) -> None:
        """Refuse an empty batch, a request that is named twice, and a batch that breaks BATCH-1 or BATCH-2 (20476)."""
        names = [prefill.request.name for prefill in batch]
        check_batch(names)
        chunks = [prefill for prefill in batch if prefill.is_chunk]
        chunking = Chunking(
            continuing=sum(prefill.run is not None for prefill in batch),
            newly_chunked=sum(prefill.run is None for prefill in chunks),
            left=len(self.chunked.difference(names)) + len(chunks),
        )
        rule = broken_rule(chunking)
        if rule is not None:
            raise Refusal(rule, f"in the middle of their prefill: {chunking}")

    def _alloc_rows(self, batch: list[Prefill]) -> list[int]:
        """The row of each request, or a refusal if rows or pages do not suffice for all of them (17850)."""
        brought = [prefill.row for prefill in batch]
        page_size = self.config.page_size
        needed = sum(
            self.allocator.pages_missing(ceil_pages(prefill.prefix_len, page_size), prefill.seq_len)
            for prefill in batch
        )
        states = self.pool.states
        self._check_room(
            pages=needed,
            rows_short=self.pool.rows_short(brought),
            states=sum(states.states_missing(prefill.request) for prefill in batch if prefill.row is None),
        )
        rows = self.pool.alloc(brought)
        assert rows is not None, "there is room"
        return rows

    def _source_of_state(self, prefill: Prefill) -> int:
        """The slot with the recurrent state that a request continues (17850)."""
        if prefill.run is not None:
            return prefill.run.kv.states[0]
        if isinstance(prefill.base, KvRecord):
            return source_of_state(prefill.base, prefill.prefix_len)
        slot = prefill.base.last_node.mamba_value
        assert slot is not None, "a match ends where a state is"
        return slot

    def _prefill(self, prefill: Prefill, row: int) -> list[int]:
        """Extend one request of a batch that fits, and return its new pages.

        [0, prefix_len)         matched, lent, or written by an earlier chunk: kept
        [prefix_len, seq_len)   gets slots: first in the page that prefix_len cuts, then in new pages
        """
        request, run, base, prefix_len, seq_len = prefill
        page_size = self.config.page_size
        table = self.pool.req_to_token[row]
        if isinstance(base, KvRecord):
            kv = base
            kv.lengths = lengths.extend(kv.lengths, seq_len, page_size)
        else:
            kv = KvRecord(row, lengths.begin(prefix_len, seq_len, page_size), base.last_node)
            self.tree_cache.inc_lock_ref(base.last_node)
            table += base.pages
            self.holders[request.name] = kv
        if run is None:
            run = self.running[request.name] = Run(request, kv, prefix_len)
            request.prefix_len = None
            request.extended = True
        run.seq_len = run.prepared_end = seq_len
        run.promised_len = len(request.tokens)
        run.mid_prefill = prefill.is_chunk
        if run.mid_prefill:
            self.chunked.add(request.name)
        else:
            self.chunked.discard(request.name)
        return self.allocator.alloc_extend(table, seq_len)
