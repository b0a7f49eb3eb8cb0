"""Defects of the rows of `req_to_token`: freed too early, kept too long, handed out to half a batch."""

from collections.abc import Sequence

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.manager.prefill import Prefill
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.request import KvRecord, Request, Run
from kvref.session_cache import SessionCache, SessionMatch
from kvspec.events import Refusal, ReleaseAnswer
from kvspec.lengths import Lengths


class _RowFreedBetweenChunks(Engine):
    def _alloc_rows(self, batch: list[Prefill]) -> list[int]:
        rows, tables = super()._alloc_rows(batch), self.pool.req_to_token
        for place, prefill in enumerate(batch):
            if prefill.run is not None:
                table = tables[rows[place]]
                self.pool._free.insert(0, rows[place])
                rows[place] = prefill.run.kv.req_pool_idx = self.pool._take_free_row()
                tables[rows[place]] = table
        return rows


class _RowsGivenByHalves(Engine):
    def _alloc_rows(self, batch: list[Prefill]) -> list[int]:
        try:
            return super()._alloc_rows(batch)
        except Refusal as refusal:
            for prefill in batch:
                if refusal.refused.rows_short and prefill.row is None and self.pool.available:
                    row = self.pool._take_free_row()
                    self.holders[prefill.request.name] = KvRecord(row, Lengths(0, 0, 0), self.tree_cache.root)
            raise


class _StaleRowIndex(Engine):
    def _end_run(self, run: Run) -> None:
        super()._end_run(run)
        self.holders[run.name] = run.kv


class _FreesReadRows(ReqToTokenPool):
    def free(self, row: int) -> None:
        self._free.append(row)


class _RowFreedWhileRead(Engine):
    pool_class = _FreesReadRows


class _RowFreedTwice(Engine):
    def finish(self, req: str) -> ReleaseAnswer:
        run = self.running.get(req)
        answer = super().finish(req)
        if run is not None and run.request.slot is None:
            self.pool.free(run.kv.req_pool_idx)
        return answer


class _LendsNothing(SessionCache):
    def match_prefix(self, request: Request) -> SessionMatch:
        slot = request.slot
        if slot is not None and slot.kv is not None and len(request.tokens) == 1:
            return self._lend(slot, slot.kv, 0)
        return super().match_prefix(request)


class _EmptySlotKeepsItsRow(Engine):
    session_class = _LendsNothing


class _CountsBroughtRows(ReqToTokenPool):
    def rows_short(self, brought: Sequence[int | None]) -> int:
        return max(0, len(brought) - len(self._free))


class _BroughtRowsCounted(Engine):
    pool_class = _CountsBroughtRows


class _ForgetsWithheldRows(ReqToTokenPool):
    def end_read(self) -> None:
        self._reads.popleft()
        self._withheld = {row for row in self._withheld if self.is_read(row)}


class _WithheldRowLost(Engine):
    pool_class = _ForgetsWithheldRows


BUGS = (
    Bug(
        name="withheld-row-lost",
        title="A row that was withheld for a launch is not withheld any more once that completes, nor is it free.",
        source=("17850",),
        rule="ROW-1",
        symptom="Each request that is aborted in flight costs a row, until nothing is admitted.",
        factory=_WithheldRowLost,
        also=("ACC-1",),
        synthetic=True,
    ),
    Bug(
        name="row-freed-between-chunks",
        title="A chunked request gives its row back after each chunk and takes a new one for the next.",
        source=("17850",),
        rule="ROW-2",
        symptom="With the rows all taken, another request's matched indices are written into the row that the forward "
        "pass of the earlier chunk still reads: wrong output, rarely, and never twice in the same place.",
        factory=_RowFreedBetweenChunks,
    ),
    Bug(
        name="rows-given-by-halves",
        title="A batch that lacks a row leaves those rows assigned that it could get.",
        source=("17850",),
        rule="ROW-3",
        symptom="The batch is put off, but some of its requests keep a row without KV. When they are admitted later "
        "they bring it, or get a second one, and the first is never freed.",
        factory=_RowsGivenByHalves,
    ),
    Bug(
        name="stale-row-index",
        title="A request that lets its row go keeps the row's number.",
        source=("17850",),
        rule="ROW-4",
        symptom="The next release of the same request frees a row that has been handed to another request by then.",
        factory=_StaleRowIndex,
    ),
    Bug(
        name="row-freed-twice",
        title="The row of a finished request is freed with its tokens' publication, and again at the end.",
        source=("17850",),
        rule="ROW-1",
        symptom="The row is in the free list twice: two requests of one batch write the same block table.",
        factory=_RowFreedTwice,
        synthetic=True,
    ),
    Bug(
        name="empty-slot-keeps-its-row",
        title="A turn that keeps no position of its session's slot is lent the slot's row all the same.",
        source=("17850",),
        rule="ROW-4",
        symptom="A request without KV brings a row to its batch, which the allocator's assertion does not expect.",
        factory=_EmptySlotKeepsItsRow,
        also=("ROW-3",),
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="brought-rows-counted",
        title="A batch is refused unless there is a free row for each request, for those too that bring one.",
        source=("17850",),
        rule="CAP-1",
        symptom="With all rows taken, a chunked request waits for a row although it has one.",
        factory=_BroughtRowsCounted,
        also=("ROW-3",),
        synthetic=True,
    ),
    Bug(
        name="row-freed-while-read",
        title="A row goes back to the free list when its request ends, though a launch in flight reads it.",
        source=("17850",),
        rule="RACE-1",
        symptom="With overlap, a new request's indices are written into the row under the running kernel: an index "
        "out of bounds in IndexKernel.cu, or another request's tokens.",
        factory=_RowFreedWhileRead,
    ),
)
