"""Prefill: a whole batch of requests gets rows, pages and locks, or nothing happens."""

from typing import NamedTuple

import numpy as np

from kvcuda.device_manager.state import ManagerState, check_batch
from kvcuda.memory import Copy
from kvcuda.prefix_tree import Match
from kvcuda.records import KvRecord, Request, Run
from kvcuda.row_table import ints
from kvspec import lengths
from kvspec.batch import Chunking, broken_rule
from kvspec.events import ExtendAnswer, Refusal
from kvspec.pages import new_pages


class Prefill(NamedTuple):
    """One request of a prefill batch. Lengths in tokens."""

    request: Request
    run: Run | None
    """Its run, if an earlier chunk has begun it."""
    base: KvRecord | Match
    """Its prefix: a record, of its run or lent by a slot, or a match in the prefix store."""
    prefix_len: int
    seq_len: int

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
        self._check_room(batch)
        copies: list[Copy] = []
        states: dict[str, list[int]] = {}
        rows = [self._begin(prefill, copies, states) for prefill in batch]
        starts, ends = ints([prefill.prefix_len for prefill in batch]), ints([seq_len for _, seq_len in reqs])
        out = self.memory.extend(ints(rows), starts, ends, copies)
        self._note_prepared(ints(rows), starts, out + np.cumsum(ends - starts) - (ends - starts))
        return ExtendAnswer(
            {req: row for (req, _), row in zip(reqs, rows, strict=True)},
            states=states if self.states.size else None,  # type: ignore[arg-type]
        )

    def _check_prefill(self, req: str, seq_len: int) -> Prefill:
        """One request of a prefill batch, or a refusal."""
        request = self._request(req)
        run = self.running.get(req)
        base: KvRecord | Match
        if run is not None:
            if not run.mid_prefill:
                raise Refusal("OP-1", f"the prefill of {req} is complete")
            if self.rows.prepared[run.kv.row]:
                raise Refusal("LAUNCH-1", f"the last chunk of {req} is not launched yet")
            base, prefix_len = run.kv, run.seq_len
        elif request.prefix_len is None:
            raise Refusal("OP-1", f"{req} has not matched its prefix")
        elif request.resumed:
            base, prefix_len = self.holders[req], request.prefix_len
            if self.rows.read_len(base.row) > prefix_len:
                raise Refusal("RACE-1", f"a launch in flight reads what {req} would overwrite from {prefix_len} on")
        else:
            prefix_len = request.prefix_len
            base = self.holdings.tree.match(request.tokens.pages[: prefix_len // self.config.page_size])
            if base.pages * self.config.page_size < prefix_len:
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

    def _check_room(self, batch: list[Prefill]) -> None:
        """Refuse a prefill batch whose pages, rows or state slots are not free (17850)."""
        pages = sum(new_pages(prefill.prefix_len, prefill.seq_len, self.config.page_size) for prefill in batch)
        fresh = [prefill.request for prefill in batch if not isinstance(prefill.base, KvRecord)]
        states = sum(self.states.a_run - bool(request.state) for request in fresh) if self.states.size else 0
        pages_short, rows_short = max(0, pages - self.memory.available), max(0, len(fresh) - self.rows.available)
        window_short, states_short = self.memory.windows.short(pages), max(0, states - self.states.available)
        if pages_short or rows_short or window_short or states_short:
            raise Refusal(
                "CAP-1",
                f"{pages} pages, {len(fresh)} rows and {states} state slots are needed; {pages_short} pages, "
                f"{rows_short} rows, {window_short} window pages and {states_short} state slots are short",
                pages_short=pages_short,
                rows_short=rows_short,
                window_short=window_short,
                states_short=states_short,
            )

    def _begin(self, prefill: Prefill, copies: list[Copy], states: dict[str, list[int]]) -> int:
        """The host's side of one request of a batch that fits; returns its row.

        [0, prefix_len)         matched, lent, or written by an earlier chunk: kept. The match of a fresh row is added
                                to `copies`
        [prefix_len, seq_len)   gets slots

        A request with a fresh row takes the state slots that it still lacks; they are added to `states`.
        """
        request, run, base, prefix_len, seq_len = prefill
        rows, page_size = self.rows, self.config.page_size
        if isinstance(base, KvRecord):
            kv = base
            rows.set_lengths(kv.row, lengths.extend(rows.lengths(kv.row), seq_len, page_size))
        else:
            early = [request.state] if request.state else []
            new = [self.states.take() for _ in range(self.states.a_run - len(early))]
            if new:
                states[request.name] = new
            kv = self.holders[request.name] = KvRecord(rows.take(), base.last_node, early + new)
            request.state = 0
            rows.set_lengths(kv.row, lengths.begin(prefix_len, seq_len, page_size))
            self.holdings.tree.lock(base.last_node)
            position = 0
            for place, count in base.runs:
                copies.append(Copy(kv.row, position, position + count * page_size, place))
                position += count * page_size
        row = kv.row
        if run is None:
            run = self.running[request.name] = Run(request, kv, prefix_len)
            rows.launched[row] = prefix_len
            request.prefix_len = None
            request.extended = True
        run.seq_len = seq_len
        rows.prepared[row] = seq_len
        rows.drafts[row] = 0
        rows.promised[row] = len(request.tokens)
        run.mid_prefill = prefill.is_chunk
        if run.mid_prefill:
            self.chunked.add(request.name)
        else:
            self.chunked.discard(request.name)
        return row
