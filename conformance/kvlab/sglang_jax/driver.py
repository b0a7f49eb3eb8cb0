"""Runs sglang-jax's own scheduler, in its normal or its overlapping loop, on random requests and aborts.

The scheduler with its loops, batches, policy, tables, allocators and radix tree are the checkout's. A stub replaces the
part that needs an accelerator: the worker returns the expected tokens; with overlap those of a launch when the next is
queued.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvattach.sglang_jax.modules import Engine
from kvcheck import Finding
from kvlab.sglang_jax.server import Worker, aligned, arguments, logits, scheduler
from kvlab.tokens import Reason, Tokens, ignored
from kvlab.traffic import Done, PausingTraffic, until_done

MOST_LOOPS = 1_000
PAD = 1
"""The token of a row without a request."""


@dataclass(frozen=True)
class Shape:
    """The sizes of one run; lengths in tokens."""

    page_size: int
    pages: int
    running: int
    chunk: int
    budget: int
    alphabet: int
    overlap: bool
    mixed: bool
    """Whether prefill launches also decode."""
    radix: bool
    conservativeness: float
    aborts: float
    pauses: float = 0.0
    """The probability of a pause request; running requests then stay, or are all retracted."""

    @classmethod
    def drawn(cls, rng: random.Random) -> "Shape":
        """A memory small enough for evictions and retractions, and an alphabet small enough for shared prefixes."""
        page_size = rng.choice([1, 1, 2, 4, 8])
        return cls(
            page_size=page_size,
            pages=rng.randint(16, 48) * (4 if page_size == 1 else 1),
            running=rng.randint(2, 6),
            chunk=page_size * rng.choice([1, 2, 4, 50]) if rng.random() < 0.8 else -1,
            budget=rng.choice([16, 64, 256]),
            alphabet=rng.choice([2, 3, 50]),
            overlap=rng.random() < 0.7,
            mixed=rng.random() < 0.3,
            radix=rng.random() < 0.9,
            conservativeness=rng.choice([0.0, 0.1, 1.0]),
            aborts=rng.choice([0.0, 0.0, 0.1]),
        )


class _Worker(Worker):
    """Compares the inputs of a launch with the expected tokens, and returns the next ones."""

    def __init__(self, engine: Engine, shape: Shape, tokens: Tokens) -> None:
        size = shape.pages * shape.page_size
        super().__init__(engine, rows=shape.running, context=size, pages=shape.pages, page_size=shape.page_size)
        self._engine, self._shape, self._tokens = engine, shape, tokens
        self._context = size
        self._results: deque[list[int]] = deque()
        self._futures = 0
        self._sampled: dict[int, int] = {}
        """Placeholder of a token before its launch is done -> the token."""
        self.names: list[str] = []
        """The requests of the next launch."""
        # Jax takes an aligned array without a copy; otherwise the machine's allocator would decide that.
        self.rows.req_to_token = aligned(engine, self.rows.req_to_token)
        if hasattr(self.rows, "init_cache_loc_host_buffer"):
            self.rows.init_cache_loc_host_buffer(self.get_precompile_paddings()[2][-1])
            self.rows.cache_loc_host_buf = aligned(engine, self.rows.cache_loc_host_buf)

    def get_worker_info(self) -> tuple[Any, ...]:
        shape, size = self._shape, self._context
        return self.info(tokens=size, budget=shape.budget, running=shape.running, longest=size - 1, chunk=shape.chunk)

    def get_precompile_paddings(self) -> tuple[list[int], list[int], list[int]]:
        return [self._context], [self._shape.running], [self._shape.running * (self._context + self._shape.page_size)]

    def forward_batch_generation(self, batch: Any, *_: Any, **__: Any) -> tuple[Any, Any, int]:
        numpy, count = self._engine.numpy, len(batch.seq_lens)
        tokens = self._due(batch) + [PAD] * (count - len(self.names))
        if not self._shape.overlap:
            return logits(), numpy.array(tokens, dtype=numpy.int32), 0
        self._results.append(tokens)
        self._futures += count
        self._sampled.update(enumerate(tokens, -self._futures))
        return None, numpy.arange(-self._futures, -self._futures + count, dtype=numpy.int32), 0

    def _due(self, batch: Any) -> list[int]:
        """Check the inputs of a launch, and sample the expected tokens."""
        taken = [self._sampled.get(token, token) for token in batch.input_ids.tolist()]
        stops, prefixes = batch.seq_lens.tolist(), batch.extend_prefix_lens
        tokens = []
        for row, name in enumerate(self.names):
            start = stops[row] - 1 if prefixes is None else int(prefixes[row])
            self._tokens.consume(name, start, taken[: stops[row] - start], "run_batch")
            del taken[: stops[row] - start]
            tokens.append(self._tokens.sample(name, stops[row]))
        return tokens

    def resolve_last_batch_result(self, *_: Any) -> tuple[Any, list[int], int]:
        return logits(), self._results.popleft(), 0


class _Traffic(PausingTraffic):
    """The scheduler's input."""

    def __init__(self, engine: Engine, shape: Shape, rng: random.Random, requests: int, tokens: Tokens) -> None:
        longest = shape.pages * shape.page_size - 2 * shape.page_size
        super().__init__(rng, requests, longest, shape.alphabet, running=shape.running)
        self._engine, self._shape, self._tokens = engine, shape, tokens
        self.texts = tokens.texts
        self.is_idle: Callable[[], bool] = lambda: False

    def recv_requests(self) -> list[Any]:
        self.loop(MOST_LOOPS)
        if self.idle(self.is_idle()):
            if self._shape.pauses:
                raise Done  # requests that a pause forgets show as leaks
            self.end()
        messages = self.arriving(self._request)
        if (rid := self.aborted(self._shape.aborts)) is not None:
            messages.append(self._engine.messages.AbortReq(rid=rid))
        return messages + self.pausing(self._engine.messages, self._shape.pauses)

    def send_pyobj(self, said: Any) -> None:
        for number, rid in enumerate(getattr(said, "rids", ())):
            reason = said.finished_reasons[number]
            if rid not in self.gone:
                done: Reason = "done" if reason is not None else ""
                self._tokens.answer(rid, said.output_ids[number], "stream_output", done)
            if reason is not None:
                self.finished(rid)

    def wait_for_new_requests(self, *_: Any) -> None:
        """Return at once."""

    def _request(self) -> Any:
        output = self.length(4)
        tokens = self.prompt(self.length(2))
        # The dot ends the name: an abort applies to all requests with its name as a prefix.
        self.live.append(rid := f"r{self.number()}.")
        ends = self.rng.random() >= 0.3
        self._tokens.arrive(rid, tokens, output, ends=ends)
        sampling = self._engine.sampling.SamplingParams(max_new_tokens=output, ignore_eos=not ends)
        sampling.normalize(None)
        return self._engine.messages.TokenizedGenerateReqInput(
            rid=rid,
            text="",
            input_ids=tokens,
            sampling_params=sampling,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=True,
        )


def run(
    engine: Engine,
    seed: int,
    requests: int = 12,
    shape: Shape | None = None,
    report: Callable[[Finding], None] = ignored,
) -> None:
    """Drive one scheduler until all requests have ended, or until it raises; the same seed gives the same run.

    `report` takes findings on tokens.
    """
    rng = random.Random(seed)
    drawn = Shape.drawn(rng)
    until_done(partial(_loop, engine, shape or drawn, rng, requests, Tokens(seed, report)))


def _loop(engine: Engine, shape: Shape, rng: random.Random, requests: int, tokens: Tokens) -> None:
    traffic = _Traffic(engine, shape, rng, requests, tokens)
    server = arguments(
        page_size=shape.page_size,
        longest=shape.pages * shape.page_size,
        chunk=shape.chunk,
        overlap=shape.overlap,
        radix=shape.radix,
        mixed=shape.mixed,
        ratio=shape.conservativeness,
    )
    worker = _Worker(engine, shape, tokens)
    made = scheduler(engine, server, worker, traffic)
    run_batch = made.run_batch

    def named(batch: Any) -> Any:
        worker.names = [req.rid for info in batch.reqs_info for req in info.reqs or ()]
        return run_batch(batch)

    made.run_batch = named
    traffic.is_idle = lambda: _idle(made)
    if shape.overlap:
        made.event_loop_overlap()
    else:
        made.event_loop_normal()


def _idle(scheduler: Any) -> bool:
    return (
        not scheduler.waiting_queue
        and scheduler.running_batch.is_empty()
        and not scheduler.last_batch
        and not any(scheduler.chunked_reqs)
        and not getattr(scheduler, "result_queue", ())
    )
