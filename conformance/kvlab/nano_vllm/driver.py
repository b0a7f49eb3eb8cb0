"""Runs nano-vllm's own scheduler on random requests; a forward pass samples by a rule instead of a model."""

import random
from dataclasses import dataclass, field
from typing import Any

from kvattach.nano_vllm.modules import Engine
from kvlab.nano_vllm.engine import Config

EOS = 0
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Shape:
    """How big one run is; lengths in tokens."""

    block_size: int
    blocks: int
    max_running: int
    batched_tokens: int
    requests: int
    alphabet: int

    @classmethod
    def drawn(cls, rng: random.Random, requests: int) -> "Shape":
        """A memory small enough that requests are preempted, and an alphabet small enough that they share."""
        block_size = rng.choice([2, 4, 8])
        return cls(
            block_size=block_size,
            blocks=rng.randint(10, 24),
            max_running=rng.randint(2, 6),
            batched_tokens=rng.choice([3, 8, 32, 128]),
            requests=requests,
            alphabet=rng.choice([2, 3, 50]),
        )


@dataclass
class Seen:
    """Counts of the events that a run has reached: they show that it was not idle."""

    steps: int = 0
    finished: int = 0
    preempted: int = 0
    chunks: int = 0
    hits: int = 0
    failed: list[str] = field(default_factory=list)


def run(engine: Engine, seed: int, requests: int = 20) -> Seen:
    """Drive one scheduler until all its requests have finished; the same seed gives the same run.

    An exception of the engine ends the run and is reported as `failed`.
    """
    rng = random.Random(seed)
    shape = Shape.drawn(rng, requests)
    sequence = engine.sequence.Sequence
    sequence.block_size = shape.block_size
    scheduler = engine.scheduler.Scheduler(
        Config(shape.max_running, shape.batched_tokens, EOS, shape.block_size, shape.blocks)
    )
    seen = Seen()
    longest = shape.blocks * shape.block_size
    stems = [[rng.randint(1, shape.alphabet) for _ in range(longest)] for _ in range(3)]
    try:
        _drive(engine, scheduler, rng, shape, stems, seen)
    except (AssertionError, IndexError, KeyError) as error:
        seen.failed.append(f"{type(error).__name__}: {error}")
    return seen


def _drive(
    engine: Engine, scheduler: Any, rng: random.Random, shape: Shape, stems: list[list[int]], seen: Seen
) -> None:
    left, longest = shape.requests, len(stems[0])
    while not scheduler.is_finished() or left:
        while left and (scheduler.is_finished() or rng.random() < 0.4):
            scheduler.add(_request(engine, rng, stems, longest))
            left -= 1
        _step(scheduler, rng, shape, seen)
        if seen.steps > MOST_STEPS:
            raise AssertionError("the requests never finish")


def _request(engine: Engine, rng: random.Random, stems: list[list[int]], longest: int) -> Any:
    output = rng.randint(1, max(1, longest // 3))
    prompt = rng.randint(1, longest - output)
    shared = rng.randint(0, prompt)
    tokens = rng.choice(stems)[:shared] + [rng.randint(1, 3) for _ in range(prompt - shared)]
    sampling = engine.sampling_params.SamplingParams(max_tokens=output, ignore_eos=rng.random() < 0.5)
    return engine.sequence.Sequence(tokens, sampling)


def _step(scheduler: Any, rng: random.Random, shape: Shape, seen: Seen) -> None:
    before = {seq.seq_id for seq in scheduler.running}
    fresh = {seq.seq_id for seq in scheduler.waiting if not seq.block_table}
    sequences, prefill = scheduler.schedule()
    seen.steps += 1
    seen.preempted += sum(seq.seq_id in before for seq in scheduler.waiting)
    seen.chunks += sum(seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens for seq in sequences)
    seen.hits += sum(seq.seq_id in fresh and seq.num_cached_tokens > 0 for seq in sequences)
    tokens = [EOS if rng.random() < 0.05 else 1 + sum(seq.token_ids) % shape.alphabet for seq in sequences]
    scheduler.postprocess(sequences, tokens, prefill)
    seen.finished += sum(seq.is_finished for seq in sequences)
