"""Runs mini-sglang's own scheduler, in its normal or its overlapping loop, on random requests and aborts.

The scheduler, its tables, its radix cache, the engine's `forward_batch` and its sampler are the checkout's. Stubs
replace the parts that need a GPU: the model returns the logits of the expected tokens, and the two streams are those of
`kvlab.device`.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvattach.mini_sglang.modules import Engine
from kvattach.patches import Patches
from kvcheck import Finding
from kvlab.device import Stream, advance, stood_in
from kvlab.tokens import Reason, Tokens, ignored
from kvlab.traffic import EOS, Traffic, until_done

MOST_LOOPS = 20_000
VOCABULARY = 4096
"""The number of tokens of the model. The checkout's own sampler takes logits."""


@dataclass(frozen=True)
class Shape:
    """The sizes of one run; lengths in tokens."""

    page_size: int
    pages: int
    rows: int
    budget: int
    alphabet: int
    overlap: bool
    aborts: float

    @classmethod
    def drawn(cls, rng: random.Random) -> "Shape":
        """A memory small enough for evictions, and an alphabet small enough for shared prefixes."""
        page_size = rng.choice([1, 2, 4, 16])
        return cls(
            page_size=page_size,
            pages=rng.randint(12, 40),
            rows=rng.randint(2, 6),
            budget=rng.choice([3, 8, 32, 128]),
            alphabet=rng.choice([2, 3, 50]),
            overlap=rng.random() < 0.7,
            aborts=rng.choice([0.0, 0.0, 0.1]),
        )


class _Model:
    """Compares the inputs of a pass with the expected tokens, and returns the logits of the next ones."""

    def __init__(self, torch: Any, context: Any, tokens: Tokens) -> None:
        self._torch, self._context, self._tokens = torch, context, tokens

    def forward(self) -> Any:
        batch = self._context.batch
        Stream.current.queue(getattr(batch, "kvspec_late", None))
        taken, positions = batch.input_ids.tolist(), batch.positions.tolist()
        logits = self._torch.zeros((batch.padded_size, VOCABULARY))
        for row, req in enumerate(batch.reqs):
            count, name = req.extend_len, str(req.uid)
            self._tokens.consume(name, positions[0], taken[:count], "_forward")
            logits[row, self._tokens.sample(name, positions[count - 1] + 1)] = 1.0
            del taken[:count], positions[:count]
        return logits


class _Attention:
    """An attention backend whose launch copies the table, as the checkout's backends do."""

    def prepare_metadata(self, batch: Any) -> None:
        batch.attn_metadata = None


class _Tokenizer:
    eos_token_id = EOS


def _cpu_engine(engine: Engine, tokens: Tokens) -> type:
    """The checkout's `Engine` with another `__init__`: sizes instead of a GPU's memory, and a stub for the model."""
    base: Any = engine.engine.Engine

    class CpuEngine(base):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            torch = engine.torch
            self.device = torch.device("cpu")
            self.stream = torch.cuda.Stream()
            self.ctx = engine.core.Context(config.page_size)
            engine.core.set_global_ctx(self.ctx)
            self.tp_cpu_group = None
            self.num_pages = config.num_page_override
            self.max_seq_len = self.num_pages * config.page_size
            self.page_table = torch.zeros((config.max_running_req + 1, self.max_seq_len), dtype=torch.int32)
            self.ctx.kvspec_launches = self.stream
            self.ctx.page_table = self.page_table
            self.ctx.attn_backend = self.attn_backend = _Attention()
            self.sampler = engine.sample.Sampler(self.device, VOCABULARY)
            self.model = _Model(torch, self.ctx, tokens)
            self.graph_runner = engine.graph.GraphRunner(
                self.stream, self.device, self.model, self.attn_backend, [], None, 0, 0, 0, dummy_req=None
            )

    return CpuEngine


class _Traffic(Traffic):
    """The scheduler's input."""

    def __init__(self, engine: Engine, shape: Shape, rng: random.Random, requests: int, tokens: Tokens) -> None:
        super().__init__(rng, requests, shape.pages * shape.page_size - 1, shape.alphabet, running=shape.rows)
        self._engine, self._shape, self._tokens = engine, shape, tokens
        self.texts = tokens.texts
        self.idle: Callable[[], None] = lambda: None

    def receive(self, blocking: bool = False) -> list[Any]:
        self.loop(MOST_LOOPS)
        if blocking:
            self.idle()
            if not self.left:
                self.end()
        messages = self.arriving(self._request, least=int(blocking))
        if (uid := self.aborted(self._shape.aborts)) is not None:
            messages.append(self._engine.message.AbortBackendMsg(uid=uid))
        return messages

    def answered(self, reply: list[Any]) -> None:
        for message in reply:
            if message.uid not in self.gone:
                reason: Reason = "done" if message.finished else ""
                self._tokens.answer(str(message.uid), [message.next_token], "_process_last_data", reason)
            if message.finished:
                self.finished(message.uid)

    def _request(self) -> Any:
        output = self.length(4)
        tokens = self.prompt(self.length(2))
        self.live.append(uid := self.number())
        ends = self.rng.random() >= 0.3
        self._tokens.arrive(str(uid), tokens, output, ends=ends)
        return self._engine.message.UserMsg(
            uid=uid,
            input_ids=self._engine.torch.tensor(tokens, dtype=self._engine.torch.int32),
            sampling_params=self._engine.core.SamplingParams(max_tokens=output, ignore_eos=not ends),
        )


def run(
    engine: Engine,
    seed: int,
    requests: int = 20,
    shape: Shape | None = None,
    report: Callable[[Finding], None] = ignored,
) -> None:
    """Drive one scheduler until all requests have ended, or until it raises; the same seed gives the same run.

    `report` takes findings on tokens.
    """
    rng = random.Random(seed)
    drawn = Shape.drawn(rng)
    shape = shape or drawn
    tokens = Tokens(seed, report, size=VOCABULARY)
    with without_gpu(engine, seed, tokens):
        until_done(partial(_loop, engine, shape, rng, requests, tokens))


@contextmanager
def without_gpu(engine: Engine, seed: int, tokens: Tokens) -> Iterator[None]:
    """Let the engine's scheduler be made with the stubs; the model samples `tokens`."""
    engine.core._GLOBAL_CTX = None
    with Patches() as patches, stood_in(engine.torch, seed), engine.torch.inference_mode():
        patches.set(engine.scheduler, "load_tokenizer", lambda _: _Tokenizer())
        patches.set(engine.package, "Engine", _cpu_engine(engine, tokens))
        yield


def _loop(engine: Engine, shape: Shape, rng: random.Random, requests: int, tokens: Tokens) -> None:
    config = engine.config.SchedulerConfig(
        model_path="",
        tp_info=None,
        dtype=engine.torch.float32,
        offline_mode=True,
        max_running_req=shape.rows,
        page_size=shape.page_size,
        num_page_override=shape.pages,
        max_extend_tokens=shape.budget,
    )
    scheduler = engine.scheduler.Scheduler(config)
    traffic = _Traffic(engine, shape, rng, requests, tokens)
    traffic.idle = scheduler.run_when_idle
    scheduler.receive_msg, scheduler.send_result = traffic.receive, traffic.answered
    data = None
    if not shape.overlap:
        engine.torch.cuda.set_stream(scheduler.engine.stream)
        scheduler.engine.stream.wait_stream(scheduler.stream)
    while True:
        if shape.overlap:
            data = scheduler.overlap_loop(data)
        else:
            scheduler.normal_loop()
        advance(rng, 4)
