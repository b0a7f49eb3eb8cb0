"""Runs nano-vllm's own scheduler on random requests; a forward pass samples by a rule instead of a model."""

import random
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvattach.nano_vllm.modules import Engine
from kvlab.nano_vllm.engine import Config
from kvlab.traffic import EOS, Traffic, until_done

MOST_STEPS = 20_000


@dataclass(frozen=True)
class Shape:
    """How big one run is; lengths in tokens."""

    block_size: int
    blocks: int
    max_running: int
    batched_tokens: int
    alphabet: int

    @classmethod
    def drawn(cls, rng: random.Random) -> "Shape":
        """A memory small enough that requests are preempted, and an alphabet small enough that they share."""
        block_size = rng.choice([2, 4, 8])
        return cls(
            block_size=block_size,
            blocks=rng.randint(10, 24),
            max_running=rng.randint(2, 6),
            batched_tokens=rng.choice([3, 8, 32, 128]),
            alphabet=rng.choice([2, 3, 50]),
        )


def run(engine: Engine, seed: int, requests: int = 20) -> str:
    """Drive one scheduler until all its requests have finished; the same seed gives the same run.

    The result is the error that ended the run, or nothing.
    """
    rng = random.Random(seed)
    shape = Shape.drawn(rng)
    engine.sequence.Sequence.block_size = shape.block_size
    scheduler = engine.scheduler.Scheduler(
        Config(shape.max_running, shape.batched_tokens, EOS, shape.block_size, shape.blocks)
    )
    traffic = Traffic(rng, requests, shape.blocks * shape.block_size, shape.alphabet)
    return until_done(partial(_drive, engine, scheduler, shape, traffic))


def _drive(engine: Engine, scheduler: Any, shape: Shape, traffic: Traffic) -> None:
    while not scheduler.is_finished() or traffic.left:
        traffic.loop(MOST_STEPS)
        for request in traffic.arriving(partial(_request, engine, traffic), least=int(scheduler.is_finished())):
            scheduler.add(request)
        sequences, prefill = scheduler.schedule()
        tokens = [EOS if traffic.rng.random() < 0.05 else 1 + sum(seq.token_ids) % shape.alphabet for seq in sequences]
        scheduler.postprocess(sequences, tokens, prefill)


def _request(engine: Engine, traffic: Traffic) -> Any:
    output = traffic.length(3)
    tokens = traffic.prompt(traffic.rng.randint(1, traffic.longest - output))
    sampling = engine.sampling_params.SamplingParams(max_tokens=output, ignore_eos=traffic.rng.random() < 0.5)
    return engine.sequence.Sequence(tokens, sampling)
