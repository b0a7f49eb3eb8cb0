"""Runs MAX's own scheduler on random requests and aborts: its batches, its cache manager and its compiled pool.

A stub replaces the pipeline. It runs no model, and gives each request its expected token. With a host tier, the driver
decides when transfers make progress. At the end no block may be held, and the last prompts are served once more.
"""

import queue
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy

from kvattach.hooks import is_error
from kvattach.max.hooks import DRAFTER, Attached
from kvattach.max.modules import Engine
from kvcheck import Finding
from kvlab.max.adapters import Adapters
from kvlab.max.cache import Leaf, make
from kvlab.max.device import Pipeline
from kvlab.max.drafts import Drafting, Kind, pipeline
from kvlab.max.tier import Tier
from kvlab.tokens import Reason, Tokens, ignored
from kvlab.traffic import EOS, Done, Traffic

MOST_STEPS = 4_000
LONGEST = 12
"""The longest request in blocks, if the memory has room for it."""


@dataclass(frozen=True)
class Shape:
    """The sizes of one run: lengths in tokens, memory in huge blocks."""

    leaves: dict[str, Leaf]
    page_size: int
    huge_blocks: int
    replicas: int
    batch: int
    budget: int
    chunked: bool
    mixed: bool
    """Whether a pass computes prompts together with decodes."""
    overlap: bool
    caching: bool
    alphabet: int
    aborts: float
    salts: int = 1
    host: int = 0
    """Blocks of each leaf in the host tier; 0: there is none."""
    failures: float = 0.0
    """The probability that a load from the host tier fails."""
    resets: float = 0.0
    """The probability per step of a reset of the prefix cache."""
    least: int = 0
    """The shortest chunk of a prompt; 0: no minimum."""
    piece: int = 0
    """The longest chunk of a prompt in one pass; 0: the whole budget."""
    every: int = 1
    """While other requests decode, only every so many passes compute prompts."""
    balanced: bool = False
    """Whether a prompt waits for the replica that has cached the most of it."""
    adapters: int = 0
    """Names of LoRA adapters."""
    slots: int = 1
    """The most adapters that are active at once."""
    reloads: float = 0.0
    """The probability per step that an adapter that no request uses gets other weights under its name."""
    drafting: Drafting | None = None

    def adapted(self, rng: random.Random) -> "Shape":
        """The same with adapters. MAX refuses these with a prefix cache, with overlap and with replicas."""
        return replace(
            self,
            caching=False,
            overlap=False,
            replicas=1,
            host=0,
            resets=0.0,
            balanced=False,
            adapters=rng.randint(1, 4),
            slots=rng.randint(1, 3),
            reloads=rng.choice([0.0, 0.1, 0.3]),
        )

    def drafted(self, rng: random.Random) -> "Shape":
        """The same with drafts, as models of MAX have them.

        Beside recurrent states a drafter has KV of its own, and a step that computes prompts verifies nothing. Only one
        that proposes blocks has states beside a prefix cache.
        """
        states = any(leaf.kind == "recurrent" for leaf in self.leaves.values())
        kinds: list[Kind] = ["sequential", "block"] if states else ["sequential", "block", "shared"]
        drafting = Drafting(
            rng.choice(kinds),
            drafts := rng.randint(1, 4),
            () if rng.random() < 0.6 else tuple(rng.randint(0, drafts) for _ in range(self.batch)),
            0 if states else rng.choice([0, 0, drafts, rng.randint(1, drafts)]),
        )
        window = drafting.kind == "block" and rng.random() < 0.3
        leaf = Leaf("window", rng.randint(1, 3), rng.randint(2, 4 * self.page_size)) if window else Leaf("full")
        bare = states and drafting.kind != "block"
        return replace(
            self,
            leaves=self.leaves if drafting.kind == "shared" else self.leaves | {DRAFTER: leaf},
            huge_blocks=self.huge_blocks + rng.randint(4, 12),
            budget=max(self.budget, drafting.mixed + 1),
            mixed=self.mixed or drafting.mixed > 0,
            caching=self.caching and not bare,
            host=0 if bare else self.host,
            resets=0.0 if bare else self.resets,
            drafting=drafting,
        )

    @classmethod
    def drawn(cls, rng: random.Random) -> "Shape":
        """A memory small enough for evictions, and prompts with common prefixes."""
        page_size, batch = rng.choice([2, 4, 8]), rng.randint(1, 5)
        return cls(
            leaves=_leaves(rng, page_size),
            page_size=page_size,
            huge_blocks=rng.randint(5, 20),
            replicas=rng.choice([1, 1, 1, 2]),
            batch=batch,
            budget=max(batch, rng.choice([4, 8, 16, 64])),
            chunked=rng.random() < 0.8,
            mixed=rng.random() < 0.5,
            overlap=rng.random() < 0.7,
            caching=rng.random() < 0.9,
            alphabet=rng.choice([2, 3, 50]),
            aborts=rng.choice([0.0, 0.05, 0.15]),
            salts=rng.choice([1, 1, 2]),
            host=rng.choice([0, 4, 12, 40]),
            failures=rng.choice([0.0, 0.1, 0.4]),
            resets=rng.choice([0.0, 0.0, 0.03]),
            least=rng.choice([0, 0, 2]),
            piece=rng.choice([0, 0, 2 * page_size]),
            every=rng.choice([1, 1, 3]),
            balanced=rng.random() < 0.5,
        )


def _leaves(rng: random.Random, page_size: int) -> dict[str, Leaf]:
    """The leaves of one model; the sizes of their blocks differ."""
    window = partial(rng.randint, 2, 4 * page_size)
    ratio = partial(rng.choice, [1, 2, 3, 4])
    leaves = {"full": Leaf("full", ratio()), "window": Leaf("window", ratio(), window())}
    states = {"state": Leaf("recurrent", ratio()), "conv": Leaf("scratch", ratio())}
    return rng.choice(
        [
            {"full": leaves["full"]},
            {"full": leaves["full"], "scales": Leaf("full", ratio())},
            leaves,
            {"window": leaves["window"], "far": Leaf("window", ratio(), window())},
            {"full": leaves["full"], "state": states["state"]},
            {"full": leaves["full"]} | states,
            leaves | states,
            {"state": states["state"]},
        ]
    )


@dataclass
class _Clients:
    """The clients of one run, their requests and their answers."""

    engine: Engine
    attached: Attached
    tokens: Tokens
    traffic: Traffic
    shape: Shape
    longest: int
    requests: "queue.SimpleQueue[Any]" = field(default_factory=queue.SimpleQueue)
    cancels: "queue.SimpleQueue[Any]" = field(default_factory=queue.SimpleQueue)
    left: set[str] = field(default_factory=set)
    """Requests whose clients have disconnected."""
    prompts: list[tuple[list[int], str | None]] = field(default_factory=list)
    adapters: Adapters | None = None

    def ask(self, prompt: list[int] | None = None, salt: str | None = None) -> None:
        """Send a request with this prompt, or with a random one."""
        traffic, of, rng = self.traffic, self.engine.context, self.traffic.rng
        if prompt is None:
            prompt = traffic.prompt(rng.randint(1, self.longest - 1))[: self.longest - 1]
            salt = rng.choice([None, *(f"salt {number}" for number in range(1, self.shape.salts))])
            self.prompts.append((prompt, salt))
        name, most, ends = f"r{traffic.number()}", rng.randint(1, self.longest - len(prompt)), rng.random() < 0.7
        self.tokens.arrive(name, prompt, most, ends=ends)
        traffic.live.append(name)
        eos = of.EOSTracker(eos_token_ids={EOS} if ends else set())
        self.requests.put(
            of.TextContext(
                request_id=self._id(name),
                max_length=len(prompt) + most,
                tokens=of.TokenBuffer(numpy.array(prompt, dtype=numpy.int64)),
                eos_tracker=eos,
                cache_salt=salt,
                model_name="" if self.adapters is None else self.adapters.chosen(name),
            )
        )

    def _id(self, name: str) -> Any:
        return self.engine.request.RequestID(name)

    def arrive(self) -> None:
        """Clients send requests, or disconnect."""
        self.traffic.arriving(self.ask)
        name = self.traffic.aborted(self.shape.aborts)
        if name is not None:
            self.left.add(name)
            self.cancels.put([self._id(name)])

    def put_nowait(self, results: dict[Any, Any]) -> None:
        """Take the scheduler's answers."""
        for request, result in results.items():
            name = str(request)
            if name in self.left or result.result is None:
                continue
            self.attached.delivered(name)
            reason: Reason = "done" if result.is_done else ""
            self.tokens.answer(name, result.result.tokens, "_schedule", reason)
            if result.is_done:
                self.traffic.finished(name)


def run(
    engine: Engine,
    attached: Attached,
    seed: int,
    requests: int = 25,
    shape: Shape | None = None,
    report: Callable[[Finding], None] = ignored,
) -> str:
    """Drive one scheduler until all requests have ended. Returns the error that it raised, if any.

    The same seed gives the same run. `report` takes findings on tokens.
    """
    rng = random.Random(seed)
    drawn = Shape.drawn(rng)
    try:
        _loop(engine, attached, shape or drawn, rng, requests, Tokens(seed, report))
    except Done:
        pass
    except BaseException as error:
        if not is_error(error) or isinstance(error, (AttributeError, TypeError, NameError)):
            raise
        return f"{type(error).__name__}: {error}"
    return ""


def _loop(engine: Engine, attached: Attached, shape: Shape, rng: random.Random, requests: int, tokens: Tokens) -> None:
    most = LONGEST * shape.page_size
    tier = Tier(engine, attached, rng, shape.host, shape.failures) if shape.host else None
    cache = make(
        engine,
        shape.leaves,
        page_size=shape.page_size,
        huge_blocks=shape.huge_blocks,
        replicas=shape.replicas,
        batch=shape.batch,
        longest=most,
        budget=shape.budget if shape.chunked else None,
        caching=shape.caching,
        connector=tier,
        drafts=shape.drafting.drafts if shape.drafting else 0,
        at_once=shape.drafting.at_once if shape.drafting else 0,
    )
    room = cache.effective_max_seq_length
    slack = engine.params.spec_decode_cache_slack(cache.params)
    longest = most if room is None else min(most, room - slack)
    if longest < 2:
        return
    traffic = Traffic(rng, requests, longest, shape.alphabet, running=shape.batch)
    traffic.texts = tokens.texts
    clients = _Clients(engine, attached, tokens, traffic, shape, longest)
    if shape.adapters:
        clients.adapters = Adapters(engine, shape.adapters, shape.slots, rng)
    attached.lora = None if clients.adapters is None else clients.adapters.manager
    attached.drafting = shape.drafting is not None
    scheduler = _scheduler(engine, attached, shape, cache, clients)
    while traffic.left or traffic.live:
        traffic.loop(MOST_STEPS)
        clients.arrive()
        _step(scheduler, tier, rng)
        if rng.random() < shape.resets:
            cache.reset_prefix_cache()
        if clients.adapters is not None and rng.random() < shape.reloads:
            bound = map(str, scheduler.batch_constructor._bound_requests)
            clients.adapters.replace([*traffic.live, *bound])
        attached.counted()
    _drain(scheduler, tier)
    attached.idle()
    for prompt, salt in clients.prompts[-6:]:
        clients.ask(prompt, salt)
        while traffic.live:
            traffic.loop(MOST_STEPS)
            _step(scheduler, tier, rng)
    _drain(scheduler, tier)
    attached.idle()


def _scheduler(engine: Engine, attached: Attached, shape: Shape, cache: Any, clients: _Clients) -> Any:
    config = engine.config.TokenGenerationSchedulerConfig(
        max_batch_size=shape.batch,
        target_tokens_per_batch_ce=shape.budget,
        enable_chunked_prefill=shape.chunked,
        enable_in_flight_batching=shape.mixed,
        data_parallel_degree=shape.replicas,
        chunked_prefill_min_chunk_size=shape.least,
        max_request_input_tokens=shape.piece,
        prefill_schedule_interval=shape.every,
        dp_ce_balance_timeout_ms=0.0 if shape.balanced else -1.0,
        num_speculative_tokens=shape.drafting.drafts if shape.drafting else 0,
        spec_decode_mixed_verify_width=shape.drafting.mixed if shape.drafting else 0,
    )
    made = engine.scheduler.TokenGenerationScheduler(
        config,
        _pipeline(engine, attached, shape, cache, clients),
        request_queue=clients.requests,
        response_queue=clients,
        cancel_queue=clients.cancels,
        kv_cache=cache,
    )
    made.scheduler_logger = SimpleNamespace(log_metrics=lambda **_: None)
    return made


def _pipeline(engine: Engine, attached: Attached, shape: Shape, cache: Any, clients: _Clients) -> Any:
    if shape.drafting is None:
        return Pipeline(engine, attached, clients.tokens, cache, overlap=shape.overlap, adapters=clients.adapters)
    return pipeline(
        engine,
        attached,
        clients.tokens,
        cache,
        shape.drafting,
        overlap=shape.overlap,
        replicas=shape.replicas,
        batch=shape.batch,
        longest=clients.longest,
    )


def _step(scheduler: Any, tier: Tier | None, rng: random.Random) -> None:
    scheduler.run_iteration()
    if tier is not None:
        tier.advance(rng)


def _drain(scheduler: Any, tier: Tier | None) -> None:
    """Wait for the last pass, for cancelled requests, and for copies."""
    for _ in range(4):
        scheduler.run_iteration()
        if tier is not None:
            tier.finish()
