"""Defects of requests and rows that show only under a condition that few traces meet: each has a vector of its own."""

from collections.abc import Sequence
from typing import Any

from kvconform.gallery.mutants.bug import Bug, Engine, StateEngine, WindowEngine
from kvref.manager.prefill import Prefill
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.request import KvRecord, Run, SessionSlot
from kvref.session_cache import SessionCache, SessionMatch
from kvspec.events import ExtendAnswer, Refusal, ReleaseAnswer
from kvspec.lengths import Lengths


class _RoomFromTheSequence(Engine):
    def _check_decode_room(self, growing: list[Run], n: int) -> None:
        try:
            super()._check_decode_room(growing, n)
        except Refusal as refusal:
            tables, size = self.pool.req_to_token, self.config.page_size
            behind = sum(len(run.tokens) <= len(tables[run.kv.req_pool_idx]) * size for run in growing)
            refusal.refused.pages_short = max(1, refusal.refused.pages_short - behind)
            raise


class _RetractedChunkGoesOn(Engine):
    def retract(self, req: str) -> ReleaseAnswer:
        run = self.running.get(req)
        answer = super().retract(req)
        if run is not None and run.mid_prefill and run.request.slot is None:
            run.request.prefix_len = run.seq_len
        return answer


class _RetractEvicts(Engine):
    def retract(self, req: str) -> ReleaseAnswer:
        run = self.running.get(req)
        answer = super().retract(req)
        if run is not None and not self.allocator.available:
            self.tree_cache.evict(1)
            answer.freed = [*(answer.freed or []), *self._freed()]
        return answer


class _ClampsTheRequestAlone(SessionCache):
    def __init__(self, *parts: Any, **policies: Any) -> None:
        super().__init__(*parts, **policies)
        self.before: dict[str, tuple[Lengths, list[int]]] = {}

    def _lend(self, slot: SessionSlot, kv: KvRecord, key_len: int) -> SessionMatch:
        self.before.setdefault(slot.name, (kv.lengths, self.pool.req_to_token[kv.req_pool_idx].copy()))
        return super()._lend(slot, kv, key_len)


class _AbortBringsLengthsBack(Engine):
    session_class = _ClampsTheRequestAlone
    session_cache: _ClampsTheRequestAlone

    def abort(self, req: str) -> ReleaseAnswer:
        request, ran = self.requests.get(req), req in self.running
        answer = super().abort(req)
        slot = None if request is None else request.slot
        before = None if slot is None else self.session_cache.before.pop(slot.name, None)
        if slot is not None and slot.kv is not None and before is not None and not ran:
            slot.kv.lengths, self.pool.req_to_token[slot.kv.req_pool_idx] = before
        return answer

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        answer = super().extend(reqs)
        for slot in (self.requests[req].slot for req, _ in reqs):
            if slot is not None:
                self.session_cache.before.pop(slot.name, None)
        return answer


class _FlushesAtAnyRelease(ReqToTokenPool):
    def free(self, row: int) -> None:
        self._free += self._withheld
        self._withheld.clear()
        super().free(row)


class _RowFlushedByAnotherRelease(Engine):
    pool_class = _FlushesAtAnyRelease


class _OneRowBrought(Engine):
    def _alloc_rows(self, batch: list[Prefill]) -> list[int]:
        if sum(prefill.run is None and prefill.row is not None for prefill in batch) > 1:
            raise Refusal("BATCH-1", "more than one request brings a row")
        return super()._alloc_rows(batch)


class _TwoRowsBrought(Engine):
    def _alloc_rows(self, batch: list[Prefill]) -> list[int]:
        if sum(prefill.row is not None for prefill in batch) > 2:
            raise Refusal("BATCH-1", "more than two requests bring a row")
        return super()._alloc_rows(batch)


class _TakesTwoAlong(ReqToTokenPool):
    def alloc(self, brought: Sequence[int | None]) -> list[int] | None:
        rows = super().alloc(brought)
        kept = [place for place, row in enumerate(brought) if row is not None]
        if rows is not None and len(kept) > 2 and self._free:
            rows[kept[2]] = self._take_free_row()
        return rows


class _ThirdRowNotKept(Engine):
    pool_class = _TakesTwoAlong


class _ChunkOfAChunkCacheKept(Engine):
    def retract(self, req: str) -> ReleaseAnswer:
        run = self.running.get(req)
        if run is not None and run.mid_prefill and run.request.slot is None and not self.config.prefix_cache:
            del self.pool.req_to_token[run.kv.req_pool_idx][-1:]
        return super().retract(req)


class _RefusalForgetsTheMatch(Engine):
    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        try:
            return super().extend(reqs)
        except Refusal as refusal:
            if refusal.refused.rule == "STORE-5":
                for req, _ in reqs:
                    self.requests[req].prefix_len = None
            raise


class _ThreeAskForOneLess(Engine):
    def _check_room(self, *, pages: int = 0, rows_short: int = 0, states: int = 0) -> None:
        try:
            super()._check_room(pages=pages, rows_short=rows_short, states=states)
        except Refusal as refusal:
            refused = refusal.refused
            if self._batch > 2 and self.config.page_size >= 16 and refused.pages_short:
                refused.pages_short -= 1
            raise

    _batch = 0

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        self._batch = len(reqs)
        try:
            return super().extend(reqs)
        finally:
            self._batch = 0


class _RetractMovesTheCursor(WindowEngine):
    def retract(self, req: str) -> ReleaseAnswer:
        run = self.running.get(req)
        answer = super().retract(req)
        if run is not None and run.request.resumed and self._swa is not None and run.kv.swa_evicted_seqlen:
            run.kv.swa_evicted_seqlen += self.config.page_size
        return answer


class _FourStatesAreTooMany(StateEngine):
    def _check_room(self, *, pages: int = 0, rows_short: int = 0, states: int = 0) -> None:
        if states == self.pool.states.available == 4:
            raise Refusal("CAP-1", "state slots are missing", states_short=1)
        super()._check_room(pages=pages, rows_short=rows_short, states=states)


BUGS = (
    Bug(
        name="room-from-the-sequence",
        title="A refused decode step counts the short pages from the tokens known so far, which lag under overlap.",
        source=("17850",),
        rule="CAP-1",
        symptom="The scheduler evicts and retracts too little, and is refused again.",
        factory=_RoomFromTheSequence,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="retracted-chunk-goes-on",
        title="A request that is retracted between two chunks goes on where it was, without another match.",
        source=("994",),
        rule="OP-1",
        symptom="It reads a prefix that is not locked for it, and that may be gone.",
        factory=_RetractedChunkGoesOn,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="retract-evicts",
        title="A retract that leaves no page free evicts a cached one, and answers it among those that it freed.",
        source=("994",),
        rule="PAGE-1",
        also=("STORE-1",),
        symptom="Cached prefixes vanish beside the accounting of evictions.",
        factory=_RetractEvicts,
        synthetic=True,
    ),
    Bug(
        name="abort-brings-lengths-back",
        title="A match cuts the lengths of the turn, not of its slot: an abort before the run brings them back.",
        source=("22862",),
        rule="LEN-1",
        also=(
            "PAGE-1",
            "PAGE-2",
            "PAGE-3",
            "TAIL-1",
        ),
        symptom="The slot names pages that are free, and frees them again when it is closed.",
        factory=_AbortBringsLengthsBack,
        synthetic=True,
    ),
    Bug(
        name="row-flushed-by-another-release",
        title="Any release of a row frees all rows that are withheld.",
        source=("17850",),
        rule="RACE-1",
        also=("ROW-1",),
        symptom="A request that finishes gives the row of another one away under the launch that reads it.",
        factory=_RowFlushedByAnotherRelease,
        synthetic=True,
    ),
    Bug(
        name="one-resumed-turn-in-a-batch",
        title="A batch in which two resumed turns bring their rows is refused, as if one of them were a second chunk.",
        source=("994",),
        rule="OP-1",
        also=("BATCH-1",),
        symptom="Sessions that become ready together wait for each other, or an assertion ends the engine.",
        factory=_OneRowBrought,
        synthetic=True,
    ),
    Bug(
        name="third-row-refused",
        title="An assertion that a batch has at most two chunked requests counts every request that brings a row.",
        source=("994",),
        rule="OP-1",
        also=("BATCH-1",),
        symptom="Three sessions become ready together, and the assertion ends the engine.",
        factory=_TwoRowsBrought,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="third-row-not-kept",
        title="Of the rows that a batch brings, only the first two are kept.",
        source=("17850",),
        rule="ROW-2",
        also=(
            "ROW-1",
            "ROW-3",
        ),
        symptom="The third session reads a row that was never written for it.",
        factory=_ThirdRowNotKept,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="last-chunk-page-kept",
        title="Without a prefix store a request that is retracted amid its chunks keeps the page of the last one.",
        source=("994",),
        rule="PAGE-1",
        also=("TAIL-2",),
        symptom="Each such retract loses a page, until the server restarts.",
        factory=_ChunkOfAChunkCacheKept,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="refusal-forgets-the-match",
        title="An extend that is refused since its match was evicted forgets the match.",
        source=("994",),
        rule="OP-1",
        symptom="A refused operation has changed something: the retry is refused for another reason.",
        factory=_RefusalForgetsTheMatch,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="three-ask-for-one-less",
        title="A batch of three large prompts that does not fit says that one page less is short than is.",
        source=("17850",),
        rule="CAP-1",
        symptom="The scheduler makes too little room, and is refused again.",
        factory=_ThreeAskForOneLess,
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="retract-moves-the-cursor",
        title="A retract of a resumed turn moves its window cursor on by a page.",
        source=("20070",),
        rule="SWA-2",
        also=(
            "SWA-1",
            "SWA-3",
            "ACC-2",
        ),
        symptom="The window page there is never freed.",
        factory=_RetractMovesTheCursor,
        pool="sliding_window",
        traffic=False,
        synthetic=True,
    ),
    Bug(
        name="four-states-are-too-many",
        title="A batch that needs just the four state slots that are free is refused.",
        source=("17850",),
        rule="CAP-1",
        also=("OP-1",),
        symptom="The last slots are never used.",
        factory=_FourStatesAreTooMany,
        pool="recurrent_states",
        traffic=False,
        synthetic=True,
    ),
)
