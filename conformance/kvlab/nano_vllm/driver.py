"""Runs nano-vllm's own scheduler on random requests; a forward pass samples the tokens that are due."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from kvattach.nano_vllm.modules import Engine
from kvcheck import Finding
from kvlab.nano_vllm.engine import Config
from kvlab.tokens import Reason, Tokens, ignored
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


def run(engine: Engine, seed: int, requests: int = 20, report: Callable[[Finding], None] = ignored) -> str:
    """Drive one scheduler until all its requests have finished; the same seed gives the same run.

    `report` takes findings on tokens. The result is the error that ended the run, or nothing.
    """
    rng = random.Random(seed)
    shape = Shape.drawn(rng)
    engine.sequence.Sequence.block_size = shape.block_size
    scheduler = engine.scheduler.Scheduler(
        Config(shape.max_running, shape.batched_tokens, EOS, shape.block_size, shape.blocks)
    )
    tokens = Tokens(seed, report)
    traffic = Traffic(rng, requests, shape.blocks * shape.block_size, shape.alphabet)
    traffic.texts = tokens.texts
    return until_done(partial(_drive, engine, scheduler, traffic, tokens))


def _drive(engine: Engine, scheduler: Any, traffic: Traffic, tokens: Tokens) -> None:
    while not scheduler.is_finished() or traffic.left:
        traffic.loop(MOST_STEPS)
        for request in traffic.arriving(partial(_request, engine, traffic, tokens), least=int(scheduler.is_finished())):
            scheduler.add(request)
        sequences, prefill = scheduler.schedule()
        sampled = [_sampled(tokens, sequence, prefill) for sequence in sequences]
        before = [sequence.num_tokens for sequence in sequences]
        scheduler.postprocess(sequences, sampled, prefill)
        for sequence, known in zip(sequences, before, strict=True):
            reason: Reason = "done" if sequence.is_finished else ""
            tokens.answer(str(sequence.seq_id), sequence.token_ids[known:], "postprocess", reason)


def _sampled(tokens: Tokens, sequence: Any, prefill: bool) -> int:
    """Simulate the model's runner for one sequence, with the inputs of `prepare_prefill` or `prepare_decode`."""
    start = sequence.num_cached_tokens if prefill else len(sequence) - 1
    taken = sequence[start : start + sequence.num_scheduled_tokens] if prefill else [sequence.last_token]
    tokens.consume(str(sequence.seq_id), start, taken, "schedule")
    return tokens.sample(str(sequence.seq_id), start + len(taken))


def _request(engine: Engine, traffic: Traffic, tokens: Tokens) -> Any:
    output = traffic.length(3)
    prompt, ends = traffic.prompt(traffic.rng.randint(1, traffic.longest - output)), traffic.rng.random() < 0.5
    made = engine.sequence.Sequence(
        prompt, engine.sampling_params.SamplingParams(max_tokens=output, ignore_eos=not ends)
    )
    tokens.arrive(str(made.seq_id), prompt, output, ends=ends)
    return made
