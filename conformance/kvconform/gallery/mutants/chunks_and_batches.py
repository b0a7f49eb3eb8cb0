"""Defects of the composition of a prefill batch, and of the definition of a chunk."""

from kvconform.gallery.mutants.bug import Bug, Engine
from kvref.manager.prefill import Prefill
from kvref.scheduler import Scheduler
from kvref.scheduler.req import Req
from kvspec.events import CompleteAnswer, Refusal


class _TwoNewChunksInABatch(Engine):
    def _check_chunking(self, batch: list[Prefill]) -> None:
        if self.chunked or len({prefill.request.name for prefill in batch}) < len(batch) or not batch:
            super()._check_chunking(batch)


class _BeginsTwoChunks(Scheduler):
    def _plan_prefill(self, limit: int, room: int) -> list[tuple[Req, int]]:
        batch = super()._plan_prefill(limit, room)
        planned = [req for req, _ in batch]
        for req in self.waiting_queue:
            if self.chunked_req is None and len(batch) < limit and req not in planned and req.session is None:
                self._match(req)
                batch.append((req, req.prefix_len + 1))
        return batch


class _LastChunkForbidsFirstChunk(Engine):
    def _check_chunking(self, batch: list[Prefill]) -> None:
        super()._check_chunking(batch)
        if sum(prefill.run is not None or prefill.is_chunk for prefill in batch) > 1:
            raise Refusal("BATCH-1", "only one chunked request may reuse its row in a batch")


class _ContinuingChunkSamples(Engine):
    def complete(self, launch: int, tokens: dict[str, int]) -> CompleteAnswer:
        continuing = {req: token for req, token in tokens.items() if req in self.chunked}
        done = super().complete(launch, {req: token for req, token in tokens.items() if req not in continuing})
        for req, token in continuing.items():
            self.running[req].tokens.append(token)
        return done


class _SamplesAtContinuingChunks(Scheduler):
    begun: Req | None = None

    def _launch(self, prefill: list[tuple[Req, int]], decode: list[Req]) -> None:
        super()._launch(prefill, decode)
        req = self.chunked_req
        if req is not None and prefill and req is self.begun:
            self._flights[-1].prefill.append(req)
        self.begun = req


BUGS = (
    Bug(
        name="two-new-chunks-in-a-batch",
        title="Only earlier batches are asked for a chunked request: one batch may begin two.",
        source=("20476",),
        rule="BATCH-1",
        symptom="The scheduler continues one of them; the other keeps its row and pages and is never heard of again.",
        factory=_TwoNewChunksInABatch,
        scheduler=_BeginsTwoChunks,
    ),
    Bug(
        name="last-chunk-forbids-first-chunk",
        title="A batch with the last chunk of one request and the first of another is forbidden.",
        source=("20476",),
        rule="OP-1",
        symptom='Two streaming turns meet in a batch, and the assertion "only one chunked request may reuse '
        'req_pool_idx" takes the server down.',
        factory=_LastChunkForbidsFirstChunk,
        also=("BATCH-1",),
    ),
    Bug(
        name="continuing-chunk-samples",
        title="Only the first chunk of a prompt counts as a chunk: the ones that continue it sample a token each.",
        source=("994",),
        rule="CHUNK-1",
        symptom='Long prompts grow by one made-up token a chunk; long generations end in "to to to to".',
        factory=_ContinuingChunkSamples,
        scheduler=_SamplesAtContinuingChunks,
    ),
)
