"""Runs sglang-jax's own scheduler, in its normal or its overlapping loop, on random requests and aborts.

The scheduler with its loops, batches, policy, tables, allocators and radix tree are the checkout's. A stub replaces the
part that needs an accelerator: the worker answers random tokens, in overlap those of a launch when the next is queued.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvattach.sglang_jax.modules import Engine
from kvlab.sglang_jax.server import EOS, Worker, aligned, arguments, logits, scheduler

MOST_LOOPS = 1_000
STUCK = "the requests never finish"


@dataclass(frozen=True)
class Shape:
    """How big one run is; lengths in tokens."""

    page_size: int
    pages: int
    running: int
    chunk: int
    budget: int
    alphabet: int
    overlap: bool
    mixed: bool
    """Whether requests decode in the launches that prefill."""
    radix: bool
    conservativeness: float
    aborts: float
    pauses: float = 0.0
    """How often the server gets a pause request; running requests then stay, or are all retracted."""

    @classmethod
    def drawn(cls, rng: random.Random) -> "Shape":
        """A memory so small that prompts are evicted and requests retracted, an alphabet so small that they share."""
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


@dataclass
class Seen:
    """Counts of the events that a run has reached: they show that it was not idle."""

    loops: int = 0
    finished: int = 0
    aborted: int = 0
    paused: int = 0
    failed: list[str] = field(default_factory=list)


class _Done(BaseException):
    """Nothing arrives any more, and nothing is left to do."""


class _Worker(Worker):
    """Answers random tokens."""

    def __init__(self, engine: Engine, shape: Shape, rng: random.Random) -> None:
        size = shape.pages * shape.page_size
        super().__init__(engine, rows=shape.running, context=size, pages=shape.pages, page_size=shape.page_size)
        self._engine, self._shape, self._rng = engine, shape, rng
        self._context = size
        self._results: deque[list[int]] = deque()
        self._futures = 0
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
        numpy, drawn = self._engine.numpy, self._rng
        count = len(batch.seq_lens)
        tokens = [EOS if drawn.random() < 0.05 else drawn.randint(1, self._shape.alphabet) for _ in range(count)]
        if not self._shape.overlap:
            return logits(), numpy.array(tokens, dtype=numpy.int32), 0
        self._results.append(tokens)
        self._futures += count
        return None, numpy.arange(-self._futures, -self._futures + count, dtype=numpy.int32), 0

    def resolve_last_batch_result(self, *_: Any) -> tuple[Any, list[int], int]:
        return logits(), self._results.popleft(), 0


class _Traffic:
    """The scheduler's input: requests that share prompts, and aborts of any of them, at any moment."""

    def __init__(self, engine: Engine, shape: Shape, rng: random.Random, requests: int, seen: Seen) -> None:
        self._engine, self._shape, self._rng, self._left, self._seen = engine, shape, rng, requests, seen
        self._longest = shape.pages * shape.page_size - 2 * shape.page_size
        self._stems = [[rng.randint(1, shape.alphabet) for _ in range(self._longest)] for _ in range(3)]
        self._live: list[str] = []
        self._next = 0
        self.idle: Callable[[], bool] = lambda: False
        self._idled = 0
        self._paused = False

    def recv_requests(self) -> list[Any]:
        self._seen.loops += 1
        if self._seen.loops > MOST_LOOPS:
            raise RuntimeError(STUCK)
        self._idled = self._idled + 1 if self.idle() and not self._paused else 0
        if self._idled > 2 and not self._left:
            raise _Done
        messages: list[Any] = []
        while self._left and self._rng.random() < 0.4:
            messages.append(self._request())
            self._left -= 1
        if self._live and self._rng.random() < self._shape.aborts:
            self._seen.aborted += 1
            rid = self._live.pop(self._rng.randrange(len(self._live)))
            messages.append(self._engine.messages.AbortReq(rid=rid))
        if self._paused or self._rng.random() < self._shape.pauses:
            messages += self._pause()
        return messages

    def _pause(self) -> list[Any]:
        """The server pauses, or it goes on, sooner or later."""
        if not self._paused:
            self._seen.paused += 1
            self._paused = True
            return [self._engine.messages.PauseGenerationReqInput(mode=self._rng.choice(["in_place", "retract"]))]
        self._paused = self._rng.random() < 0.7
        return [] if self._paused else [self._engine.messages.ContinueGenerationReqInput()]

    def send_pyobj(self, said: Any) -> None:
        for rid, reason in zip(getattr(said, "rids", ()), getattr(said, "finished_reasons", ()), strict=False):
            if reason is not None and rid in self._live:
                self._live.remove(rid)
                self._seen.finished += 1

    def wait_for_new_requests(self, *_: Any) -> None:
        """Return at once."""

    def _request(self) -> Any:
        rng = self._rng
        output = rng.randint(1, max(1, self._longest // 4))
        prompt = rng.randint(1, max(1, self._longest // 2))
        shared = rng.randint(0, prompt)
        tokens = rng.choice(self._stems)[:shared]
        tokens = tokens + [rng.randint(1, self._shape.alphabet) for _ in range(prompt - shared)]
        self._next += 1
        # A name ends where it ends: an abort is for all that begin with its name.
        rid = f"r{self._next}."
        self._live.append(rid)
        sampling = self._engine.sampling.SamplingParams(max_new_tokens=output, ignore_eos=rng.random() < 0.3)
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
            stream=False,
        )


def run(engine: Engine, seed: int, requests: int = 12, shape: Shape | None = None) -> Seen:
    """Drive one scheduler until all its requests have left, or until it gives up; the same seed gives the same run.

    An exception of the engine ends the run and is reported as `failed`.
    """
    rng = random.Random(seed)
    drawn = Shape.drawn(rng)
    seen = Seen()
    try:
        _loop(engine, shape or drawn, rng, requests, seen)
    except _Done:
        pass
    except (AssertionError, IndexError, KeyError, RuntimeError, ValueError) as error:
        seen.failed.append(f"{type(error).__name__}: {error}")
    return seen


def _loop(engine: Engine, shape: Shape, rng: random.Random, requests: int, seen: Seen) -> None:
    traffic = _Traffic(engine, shape, rng, requests, seen)
    server = arguments(
        page_size=shape.page_size,
        longest=shape.pages * shape.page_size,
        chunk=shape.chunk,
        overlap=shape.overlap,
        radix=shape.radix,
        mixed=shape.mixed,
        ratio=shape.conservativeness,
    )
    made = scheduler(engine, server, _Worker(engine, shape, rng), traffic)
    traffic.idle = lambda: _idle(made)
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
