"""sglang-jax's scheduler behind the protocol.

Its own scheduler does the work: it admits and cuts prompts, frees or keeps a chunked request's row, counts the pages of
a decode step, retracts, and processes results. The protocol decides which requests are in a batch and how far a chunk
goes: the adapter sets the scheduler's budgets accordingly. The scheduler gets the result of each request separately.

- The scheduler publishes, ends and releases when it processes a result; the protocol has an operation for each. So a
  result is held until the next operation is known: a publication, the end, or another step.
- `abort` of a running request is the release of one that fits no more after all others were retracted. A client's abort
  finishes a request and publishes what it has.
- Launches are only noted: no forward pass runs.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

from kvattach.patches import Patches
from kvattach.sglang_jax.modules import Engine
from kvconform.scheduler_state import Entry, Room, Run
from kvlab.sglang_jax.adapter.inspection import UNLIMITED, Memory
from kvlab.sglang_jax.server import logits
from kvspec.events import (
    CompleteAnswer,
    DecodeAnswer,
    Done,
    EvictAnswer,
    ExtendAnswer,
    MatchAnswer,
    PublishAnswer,
    Refusal,
    ReleaseAnswer,
)
from kvspec.pages import Runs, ceil_pages, compress
from kvspec.rules import Violation
from kvspec.tokens import Element

KEYED = 1 << 28
"""The first of the token ids that stand for the tokens of a page key."""


@dataclass(eq=False)
class Pass:
    """A request's part of a launch."""

    entry: Entry
    run: Run
    decodes: bool
    slots: Any
    """The slots that it writes."""


class Adapter(Memory):
    """The memory of one scheduler."""

    admits: ClassVar[Any]
    repaired: ClassVar[frozenset[str]]
    """The checkout's pull requests that fix known issues."""

    def __init__(self, *args: Any) -> None:
        """Begin with nothing prepared, in flight or held."""
        super().__init__(*args)
        self._prepared: dict[str, Pass] = {}
        self._flying: dict[int, list[Pass]] = {}
        self._held: dict[str, tuple[Pass, int]] = {}
        """Request -> its last result, which the scheduler has not processed yet."""
        self._last: dict[str, tuple[Pass, int]] = {}
        """Request -> its last result."""

    # Waiting

    def open_session(self, session: str) -> Done:
        """There are no streaming sessions."""
        raise Refusal(None, "sglang-jax has no streaming sessions")

    def close_session(self, session: str) -> ReleaseAnswer:
        """There are no streaming sessions."""
        raise Refusal("OP-1", f"there is no session {session}")

    preempt = close_session

    def submit(self, req: str, tokens: list[Element], session: str | None) -> Done:
        """Make the scheduler's request."""
        sequence = self.scheduling.check_submit(req, tokens, session)
        sampling = self.engine.sampling.SamplingParams(max_new_tokens=1 << 20, ignore_eos=True)
        sampling.normalize(None)
        made = self.engine.batch.Req(
            req, "", self.scheduling.ids(sequence, KEYED), sampling, dp_rank=0, vocab_size=1 << 30
        )
        self.scheduling.entries[req] = Entry(req, sequence, session, made)
        return Done()

    def match_prefix(self, req: str) -> MatchAnswer:
        """Match as a scheduling round does for each waiting request."""
        entry = self.scheduling.entry(req)
        if entry.run is not None:
            raise Refusal("OP-1", f"request {req} is running")
        before = self._free()
        entry.req.init_next_round_input(self.tree)
        entry.prefix_len = len(entry.req.prefix_indices)
        return MatchAnswer(entry.prefix_len, entry.prefix_len, self._freed(before))

    # Prefill

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """Let the scheduler admit and prepare a prefill batch."""
        batch = [(*self.scheduling.check_prefill(req, seq_len), seq_len) for req, seq_len in reqs]
        self.scheduling.check_chunking(reqs)
        going_on = [entry for entry, _, _ in batch if entry.run is not None]
        fresh = [(entry, start, seq_len) for entry, start, seq_len in batch if entry.run is None]
        for entry, start, _ in fresh:
            with _matching_up_to(entry.req, start):
                entry.req.init_next_round_input(self.tree)
            if len(entry.req.prefix_indices) < start:
                raise Refusal("STORE-5", f"what {entry.name} matched has been evicted: match again")
        self._check_prefill_room(batch)
        for entry in going_on:
            assert entry.run is not None, "it goes on"
            if not entry.run.stashed:
                self._between_chunks(entry)
        # A chunked prompt is the last one of its batch: it uses up the budget.
        fresh.sort(key=lambda one: one[2] < len(one[0].tokens))
        made = self._prepare_prefill(going_on, fresh, dict(reqs))
        info, at = made.reqs_info[0], 0
        rows: dict[str, int] = {}
        pages: dict[str, Runs] = {}
        for place, req in enumerate(info.reqs):
            entry = self.scheduling.entries[req.rid]
            start, seq_len = int(info.prefix_lens[place]), int(info.seq_lens[place])
            run, slots = entry.prefill(int(req.req_pool_idx), seq_len), info.out_cache_loc[at : at + seq_len - start]
            self._prepared[entry.name] = Pass(entry, run, False, slots)
            at += seq_len - start
            rows[entry.name] = int(req.req_pool_idx)
            if new := self._pages_of(req, start, seq_len):
                pages[entry.name] = compress(new)
        return ExtendAnswer(rows, pages)

    def _prepare_prefill(
        self, going_on: list[Entry], fresh: list[tuple[Entry, int, int]], wanted: dict[str, int]
    ) -> Any:
        """The scheduler's batch of these requests."""
        self.admits.wanted = {
            name: seq_len for name, seq_len in wanted.items() if seq_len < len(self.scheduling.entries[name].tokens)
        }
        self.scheduler.chunked_reqs = [going_on[0].req if going_on else None]
        self.scheduler.waiting_queue = [entry.req for entry, _, _ in fresh]
        limits = {entry.name: start for entry, start, _ in fresh}
        with ExitStack() as matching:
            for req in self.scheduler.waiting_queue:
                matching.enter_context(_matching_up_to(req, limits[req.rid]))
            made = self.engine.scheduler.Scheduler.get_new_batch_prefill(self.scheduler)
        if made is None or {req.rid for req in made.reqs_info[0].reqs} != wanted.keys():
            raise RuntimeError(f"the scheduler admits {'no request' if made is None else made.reqs_info[0].reqs}")
        return made

    def _check_prefill_room(self, batch: list[tuple[Entry, int, int]]) -> None:
        size, room = self.config.page_size, self._room()
        pages = sum(ceil_pages(seq_len, size) - ceil_pages(start, size) for _, start, seq_len in batch)
        self.scheduling.check_room(Room(pages, sum(entry.run is None for entry, _, _ in batch)), room)

    def _between_chunks(self, entry: Entry) -> None:
        """Act as a scheduling round on a request in the middle of its prompt, before it makes a batch."""
        made = self.scheduler
        made.chunked_reqs, made.waiting_queue, made.last_batch = [entry.req], [], None
        made.get_new_batch_prefill = lambda: None
        self.engine.scheduler.Scheduler.get_next_batch_to_run(made)
        del made.get_new_batch_prefill

    def cache_unfinished(self, req: str, chunked: bool) -> PublishAnswer:
        """Publish as the scheduler does between two chunks, or when it processes the token that follows the prompt."""
        entry, run = self.scheduling.check_unfinished(req, chunked)
        before = self._free()
        held = self._held.get(req)
        if chunked and not run.stashed:
            self._between_chunks(entry)
            run.stashed = True
        elif held is not None and not held[0].decodes:
            self._take_in(req)
        else:
            self.tree.cache_unfinished_req(entry.req)
        return PublishAnswer(self._protected(entry), self._freed(before))

    # Running

    def decode(self, reqs: list[str], n: int) -> DecodeAnswer:
        """Let the scheduler prepare one decode step, if it finds room."""
        if n != 1:
            raise Refusal("OP-1", f"n is {n}")
        self.scheduling.check_batch(reqs)
        size, batch = self.config.page_size, []
        for name in reqs:
            entry, run = self.scheduling.running(name)
            self.scheduling.check_decode(name, n, run.committed)
            batch.append((entry, run))
        for name in reqs:
            self._take_in(name, publish=False)
        made = self._batch([entry for entry, _ in batch])
        if not made.check_decode_mem():
            needed = sum(run.committed % size == 0 for _, run in batch)
            short = max(1, needed - self._room().pages)
            raise Refusal("CAP-1", f"needed: {needed} pages, free: {self._room().pages}", pages_short=short)
        made.prepare_for_decode()
        pages: dict[str, Runs] = {}
        for place, (entry, run) in enumerate(batch):
            slots = made.reqs_info[0].out_cache_loc[place : place + 1]
            self._prepared[entry.name] = Pass(entry, run, True, slots)
            run.committed += 1
            run.prepared_end = run.committed
            if new := self._pages_of(entry.req, run.committed - 1, run.committed):
                pages[entry.name] = compress(new)
        return DecodeAnswer(pages)

    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        """There are no speculative steps here."""
        raise Refusal("SPEC-1", f"{req} has no speculative step to verify")

    def launch(self, launch: int, reqs: list[str]) -> Done:
        """Note a forward pass."""
        self.scheduling.launch(launch, reqs)
        self._flying[launch] = [self._prepared.pop(req) for req in reqs]
        return Done()

    def complete(self, launch: int, tokens: dict[str, int]) -> CompleteAnswer:
        """Hold the sampled tokens. Let the scheduler process those of a chunk, or of a request that has left."""
        flight = self.scheduling.complete(launch, tokens)
        for part in self._flying.pop(launch):
            name, req = part.entry.name, part.entry.req
            goes_on = self.scheduling.entries.get(name) is part.entry and part.entry.run is part.run
            if goes_on and name in flight.sampled:
                self._take_in(name, publish=False)
                part.entry.tokens.append(tokens[name])
                self._held[name] = self._last[name] = part, tokens[name]
            elif goes_on or req.finished():
                known = len(req.output_ids)
                self._process(part, 0)
                if len(req.output_ids) > known:
                    raise Violation(
                        "CHUNK-1",
                        f"the launch of a chunk of {name} samples nothing, and the scheduler takes a token from it",
                        expected=f"{known} sampled tokens",
                        observed=f"{len(req.output_ids)} sampled tokens",
                    )
        return CompleteAnswer()

    def _take_in(self, name: str, *, publish: bool = True) -> None:
        """Let the scheduler process the result of a request that continues, if there is one."""
        if (held := self._held.pop(name, None)) is not None:
            stash = self.tree.cache_unfinished_req if publish else (lambda *_, **__: None)
            with _set(self.tree, "cache_unfinished_req", stash):
                self._process(*held)

    def _process(self, part: Pass, token: int) -> None:
        """Hand the scheduler one request's part of a launch's result."""
        batch = self._batch([part.entry.req])
        info = batch.reqs_info[0]
        info.out_cache_loc, batch.per_dp_bs_size, batch.bid = part.slots, 1, 0
        modes = self.engine.batch.ForwardMode
        batch.forward_mode = modes.DECODE if part.decodes else modes.EXTEND
        self.scheduler.tp_worker.token = token
        result = SimpleNamespace(
            logits_output=logits(),
            next_token_ids=[token],
            extend_input_len_per_req=None,
            extend_logprob_start_len_per_req=None,
            cache_miss_count=0,
            next_draft_input=None,
            bid=0,
        )
        own = self.engine.scheduler.Scheduler
        process = own.process_batch_result_decode if part.decodes else own.process_batch_result_prefill
        process(self.scheduler, batch, result)

    def _batch(self, batch: list[Any]) -> Any:
        """A batch of running requests, as the scheduler keeps it between steps."""
        reqs = [one.req if isinstance(one, Entry) else one for one in batch]
        made = self.engine.batch.ScheduleBatch.init_new(
            [reqs],
            self.rows,
            self.allocator,
            self.tree,
            self.scheduler.model_config,
            enable_overlap=True,
            dp_size=1,
            mesh=self.scheduler.mesh,
            spec_algorithm=self.scheduler.spec_algorithm,
        )
        info, numpy = made.reqs_info[0], self.engine.numpy
        if all(isinstance(one, Entry) for one in batch):
            info.req_pool_indices = numpy.array([req.req_pool_idx for req in reqs], dtype=numpy.int32)
            info.seq_lens = numpy.array([one.run.committed for one in batch], dtype=numpy.int32)
            info.seq_lens_sum = int(info.seq_lens.sum())
            info.sampling_info = self.engine.batch.SamplingBatchInfo.from_schedule_batch(
                info, self.scheduler.model_config.vocab_size, batch=made
            )
        return made

    # The ways out

    def finish(self, req: str) -> ReleaseAnswer:
        """The held token ends the request: the scheduler processes it, publishes and releases."""
        entry, _ = self.scheduling.check_finish(req)
        before = self._free()
        part, token = self._last[req]
        if self._held.pop(req, None) is None:
            entry.req.output_ids.pop()
        entry.req.sampling_params.max_new_tokens = len(entry.req.output_ids) + 1
        self._process(part, token)
        self.scheduling.end_run(entry)
        self.scheduling.leave(entry, finished=True)
        return ReleaseAnswer(self._freed(before))

    def retract(self, req: str) -> ReleaseAnswer:
        """Release without publishing, and wait again."""
        entry, _ = self.scheduling.running(req)
        return ReleaseAnswer(self._release(entry))

    def abort(self, req: str) -> ReleaseAnswer:
        """A waiting request is dropped. A running one is released like one that no longer fits."""
        entry = self.scheduling.entry(req)
        freed: Runs = []
        if entry.run is not None:
            freed = self._release(entry)
        else:
            self.scheduler.waiting_queue = [entry.req]
            self.scheduler.abort_request(self.engine.messages.AbortReq(rid=req))
        self.scheduling.leave(entry, finished=False)
        return ReleaseAnswer(freed)

    def _release(self, entry: Entry) -> Runs:
        """Retract a request, as the scheduler does when a decode step does not fit."""
        self._take_in(entry.name, publish=False)
        before = self._free()
        self._batch([entry]).release_req(0, 0, 0, self.scheduler.server_args)
        self._prepared.pop(entry.name, None)
        self.scheduling.end_run(entry)
        entry.prefix_len = None
        return self._freed(before)

    def evict(self, n: int) -> EvictAnswer:
        """Evict from the tree."""
        if n < 1:
            raise Refusal("OP-1", f"n is {n}")
        before, asked = self._free(), getattr(self.engine.base, "EvictParams", None)
        tokens = n * self.config.page_size
        type(self.tree).evict(self.tree, tokens if asked is None else asked(num_tokens=tokens))
        return EvictAnswer(self._freed(before))


def admission(engine: Engine) -> Any:
    """The checkout's own admission of requests, with budgets that give the requested batch."""

    class Admission(engine.policy.PrefillAdder):  # type: ignore[misc, name-defined]
        wanted: ClassVar[dict[str, int]] = {}
        """Request -> the end of its chunk."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.page_size = 1  # a chunk may end within a page
            self.rem_input_tokens = UNLIMITED

        def rem_total_tokens_for_dp(self, dp_rank: int) -> int:
            return UNLIMITED

        cur_rem_tokens_for_dp = rem_total_tokens_for_dp

        def add_chunked_req(self, req: Any) -> Any:
            self._allow(req)
            return super().add_chunked_req(req)

        def add_one_req(self, req: Any) -> Any:
            self._allow(req)
            super().add_one_req(req)
            return engine.policy.AddReqResult.CONTINUE

        def _allow(self, req: Any) -> None:
            wanted = self.wanted.get(req.rid)
            allowed = UNLIMITED if wanted is None else wanted - len(req.prefix_indices)
            self.rem_chunk_tokens, self.rem_chunk_tokens_list = allowed, [allowed]

    return Admission


@contextmanager
def _set(owner: Any, name: str, value: object) -> Iterator[None]:
    """Temporarily set an attribute of one object."""
    with Patches() as patches:
        patches.set(owner, name, value)
        yield


def _matching_up_to(req: Any, limit: int) -> Any:
    """Limit a request's match to its earlier one: others may have published meanwhile."""
    whole = type(req).adjust_max_prefix_ids
    return _set(req, "adjust_max_prefix_ids", lambda: whole(req)[:limit])
