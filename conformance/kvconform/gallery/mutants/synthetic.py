"""Defects that no document describes, each made to break one rule: they can still happen.

Every rule must be able to fail, and the source documents describe no defect of some. These mutants are as small as the
others, and found by the same means. Their `source` is where the *rule* comes from.
"""

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.manager.prefill import Prefill
from kvref.radix_cache import RadixCache
from kvref.request import KvRecord, Request, SessionSlot
from kvref.scheduler import Scheduler
from kvref.scheduler.req import Req, Session
from kvref.session_cache import SessionCache, SessionMatch
from kvref.tree_node import TreeNode
from kvspec.events import CacheUnfinished, DecodeAnswer, Done, PublishAnswer
from kvspec.pages import Runs, ceil_pages, compress, expand
from kvspec.tokens import Tokens


class _AllocatedFallsBehind(Engine):
    def decode(self, reqs: list[str], n: int = 1) -> DecodeAnswer:
        before = {req: self.running[req].kv.kv_allocated_len for req in reqs if req in self.running}
        answer = super().decode(reqs, n)
        for req, allocated in before.items():
            self.running[req].kv.kv_allocated_len = allocated
        return answer


class _PagesCountedFromTheExtend(Engine):
    def _prefill(self, prefill: Prefill, row: int) -> list[int]:
        pages = super()._prefill(prefill, row)
        counted = ceil_pages(prefill.seq_len - prefill.prefix_len, self.config.page_size)
        surplus = self.allocator.alloc(min(counted - len(pages), self.allocator.available))
        self.pool.req_to_token[row] += surplus
        return pages + surplus


class _SlotsCountedOn(Engine):
    def _slots_of(self, kv: KvRecord) -> Runs:
        slots, first = expand(super()._slots_of(kv)), kv.cache_protected_len
        return compress([*slots[:first], *(slots[first] + step for step in range(len(slots) - first))])


class _TakesTheFrontPage(RadixCache):
    def _evict_leaf(self, leaf: TreeNode) -> None:
        super()._evict_leaf(self._split(leaf, 1) if len(leaf.value) > 1 else leaf)


class _FrontPageEvicted(Engine):
    tree_class = _TakesTheFrontPage


class _MatchesAllTokens(SessionCache):
    def match_prefix(self, request: Request) -> SessionMatch:
        match = super().match_prefix(request)
        matched = len(self.inner.match_prefix(request.tokens.pages).pages) * self.inner.page_size
        return SessionMatch(matched, matched, None) if match.lent is None else match


class _LastTokenMatched(Engine):
    session_class = _MatchesAllTokens


class _SecondTurnAccepted(Engine):
    def _slot_for_turn(self, session: str, tokens: Tokens) -> SessionSlot:
        slot = self._slot(session)
        turn, slot.turn = slot.turn, None
        try:
            return super()._slot_for_turn(session, tokens)
        finally:
            slot.turn = turn


class _SubmitsTurnsAtOnce(Scheduler):
    def _await_next_turn(self, session: Session) -> None:
        if session.turns:
            session.turn = None
        super()._await_next_turn(session)


class _ChunkBesideAChunk(Engine):
    def _check_chunking(self, batch: list[Prefill]) -> None:
        chunked, self.chunked = self.chunked, set()
        try:
            super()._check_chunking(batch)
        finally:
            self.chunked = chunked


class _BeginsBesideAChunk(Scheduler):
    def _plan_prefill(self, limit: int, room: int) -> list[tuple[Req, int]]:
        chunked_req, self.chunked_req = self.chunked_req, None
        batch = super()._plan_prefill(limit, room)
        self.chunked_req = chunked_req
        return batch if any(seq_len < req.length for req, seq_len in batch) else super()._plan_prefill(limit, room)


class _VerifiedInFlight(Engine):
    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        run = self.running.get(req)
        if run is not None and run.unverified and not run.verifiable and not run.prepared_end:
            run.verifiable = 1
            for launch in self.launches:
                launch.drafted.pop(req, None)
        return super().verify(req, accepted, tokens)


class _VerifiesAtLaunch(Scheduler):
    def _launch(self, prefill: list[tuple[Req, int]], decode: list[Req]) -> None:
        super()._launch(prefill, decode)
        for req in decode if self.config.drafts else ():
            self._verify(req)


class _PublishedBeforeLaunch(Engine):
    def cache_unfinished(self, req: str, chunked: bool = False) -> PublishAnswer:
        run = self._run(req)
        prepared_end, run.prepared_end = run.prepared_end, 0
        try:
            return super().cache_unfinished(req, chunked)
        finally:
            run.prepared_end = prepared_end


class _PublishesBeforeLaunch(Scheduler):
    def _launch(self, prefill: list[tuple[Req, int]], decode: list[Req]) -> None:
        if self.chunked_req is not None and prefill:
            self.step(CacheUnfinished(self.chunked_req.name, chunked=True))
        super()._launch(prefill, decode)


BUGS = (
    Bug(
        name="allocated-falls-behind",
        title="A decode step raises the committed length and forgets the allocated one.",
        source=("22862", "994"),
        rule="LEN-1",
        symptom="The committed length runs past the allocated one: what is freed by the allocated length at the end "
        "leaves out all that was decoded.",
        factory=_AllocatedFallsBehind,
        synthetic=True,
    ),
    Bug(
        name="pages-counted-from-the-extend",
        title="The pages of an extend are counted as if it began at a page border.",
        source=("20070",),
        rule="PAGE-2",
        symptom="A chunk that begins inside a page gets one page too many; behind it, the block table has a page that "
        "no position belongs to.",
        factory=_PagesCountedFromTheExtend,
        synthetic=True,
    ),
    Bug(
        name="slots-counted-on",
        title="The slots of a row's private pages are counted on from the first, as if the pages were neighbours.",
        source=("20070",),
        rule="PAGE-3",
        symptom="All is well while the pool is fresh. Once pages come back out of order, kernels that index by slot "
        "read and write pages of another request.",
        factory=_SlotsCountedOn,
        synthetic=True,
    ),
    Bug(
        name="front-page-evicted",
        title="Eviction takes the first page of a cached text, not its last.",
        source=("20070",),
        rule="STORE-1",
        symptom="The pages behind the hole are never matched again and never evicted: the pool shrinks with every "
        "eviction.",
        factory=_FrontPageEvicted,
        synthetic=True,
    ),
    Bug(
        name="last-token-matched",
        title="All tokens of a prompt are looked up in the prefix store, the last one too.",
        source=("22862",),
        rule="STORE-4",
        symptom="A prompt that is cached whole has nothing left to compute: there are no logits to sample from.",
        factory=_LastTokenMatched,
        synthetic=True,
    ),
    Bug(
        name="second-turn-accepted",
        title="A turn of a session is accepted while another one is in flight.",
        source=("20476",),
        rule="SESS-1",
        symptom="Both turns resume the same slot and write the same row: each reads the other's tokens.",
        factory=_SecondTurnAccepted,
        scheduler=_SubmitsTurnsAtOnce,
        synthetic=True,
    ),
    Bug(
        name="chunk-beside-a-chunk",
        title="Only the batch itself is asked for chunked requests, not whether another one waits for its next chunk.",
        source=("20476",),
        rule="BATCH-2",
        symptom="Two batches leave a request each in the middle of its prefill. One is continued; the other keeps its "
        "row and pages for good.",
        factory=_ChunkBesideAChunk,
        scheduler=_BeginsBesideAChunk,
        synthetic=True,
    ),
    Bug(
        name="verified-in-flight",
        title="Drafts are verified as soon as their launch is handed over, not when it has completed.",
        source=("22862",),
        rule="SPEC-1",
        symptom="Positions count as valid that the device has not written, accepted by logits that are not there yet.",
        factory=_VerifiedInFlight,
        scheduler=_VerifiesAtLaunch,
        synthetic=True,
    ),
    Bug(
        name="published-before-launch",
        title="A chunk is published when it is prepared, before its launch is handed over.",
        source=("17850",),
        rule="LAUNCH-1",
        symptom="Another request matches pages that were never filled, and goes on from them: fluent nonsense.",
        factory=_PublishedBeforeLaunch,
        scheduler=_PublishesBeforeLaunch,
        synthetic=True,
    ),
)
