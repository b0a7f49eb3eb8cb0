"""Requests whose outputs are what the digest model samples, and a scheduler that runs them."""

import random
from collections.abc import Iterator

from kvcuda.digest import PLAIN, Layers, generate
from kvcuda.digest_step import DigestStep
from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvref.scheduler.req import GenerateReq
from kvspec.events import Config


def requests(seed: int, count: int, longest: int, layers: Layers = PLAIN) -> Iterator[GenerateReq]:
    """Plain requests and turns of sessions; many prompts share a beginning. Lengths in tokens.

    `layers` are those of the model that samples.
    """
    draw = random.Random(seed)
    shared = [[draw.randrange(1000) for _ in range(longest // 2)] for _ in range(2)]
    histories: dict[str, list[int]] = {"s0": [], "s1": []}
    for number in range(count):
        session = draw.choice([None, None, *histories])
        prompt = histories[session] if session else []
        if not prompt:
            prompt = draw.choice(shared)[: draw.randrange(longest // 2)]
        prompt = [*prompt, *(draw.randrange(1000) for _ in range(draw.randint(1, longest // 2)))]
        outputs = generate(prompt, draw.randint(1, longest // 3), layers)
        last_turn = len(prompt) > longest
        if session:
            histories[session] = [*prompt, *outputs]
        if session and last_turn:
            del histories[session]
            histories[f"s{number + 2}"] = []
        yield GenerateReq(f"r{number}", [*prompt], outputs, session, last_turn)


def run(step: DigestStep, memory: Config, reqs: Iterator[GenerateReq], config: SchedulerConfig) -> Scheduler:
    """Run requests to their end."""
    scheduler = Scheduler(step, memory, reqs, config)
    scheduler.run()
    return scheduler
