"""Traffic and scenarios on the device manager under the canary, until something is found: prints what, or `silent`."""

import random
import zlib
from typing import Any

import pytest

from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvref.scheduler.req import GenerateReq
from kvspec.events import Config
from tests.cuda_impl.guarded import GuardedStep
from tests.cuda_impl.shuffled import shuffle
from tests.cuda_impl.simulated_streams import DrawnStreams, SimulatedStreams
from tests.cuda_impl.traffic import requests
from tests.mutation.canary_scenes import scenarios

BUSY = SchedulerConfig(
    chunked_prefill_size=8, max_prefill_tokens=24, overlap=True, retract_interval=3, abort_interval=5, close_interval=9
)
DRAFTS = SchedulerConfig(drafts=3, overlap=True, retract_interval=4, max_prefill_tokens=24, chunked_prefill_size=8)
RUNS: list[tuple[Config, SchedulerConfig, Any]] = [
    (Config(4, 40, 5, 64), BUSY, lambda: SimulatedStreams(lazy="forward")),
    (Config(2, 40, 5, 64, sliding_window=5, num_window_pages=50), BUSY, lambda: DrawnStreams(seed=2)),
    (Config(4, 40, 5, 64), DRAFTS, lambda: SimulatedStreams(lazy="scheduler")),
    (Config(4, 40, 5, 64, num_states=21), BUSY, lambda: SimulatedStreams(lazy="forward")),
    (Config(1, 90, 5, 64), BUSY, lambda: DrawnStreams(seed=1)),
]
"""Memories, modes and streams, those first that show most."""


def with_shared_prefix(seed: int) -> list[GenerateReq]:
    """Requests that come together with one prompt: what they publish are duplicates of each other's pages."""
    draw = random.Random(seed)
    prompt = [draw.randrange(1000) for _ in range(11)]
    return [
        GenerateReq(f"same{number}", [*prompt, *range(number)], [draw.randrange(1000) for _ in range(6)])
        for number in range(5)
    ]


def first_found() -> str:
    """The canary's first finding, or the exception of the manager itself, in a line."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("memory.EXTEND_BLOCK", 4), ("memory.JOB_BLOCK", 2), ("moves.MOVE_BLOCK", 2)):
            patch.setattr(f"kvcuda.{name}", value)
        patch.setattr("kvcuda.canary.canary.BLOCK", 64)
        for number, (config, mode, streams) in enumerate(RUNS):
            shuffle(patch, zlib.crc32(str(number).encode()))
            traffic = [*with_shared_prefix(number), *requests(seed=number + 1, count=9, longest=20)]
            step = GuardedStep(config, traffic, streams=streams())
            try:
                Scheduler(step, config, iter(traffic), mode).run()
                found = step.guard.found()
            except Exception as error:
                # A finding from before it counts first.
                found = step.guard.canary.poll()
                if not found:
                    return _raised(error)
            if found:
                return f"run {number}: {found[0]}"
        for name, found_in in scenarios(patch):
            try:
                if found := found_in():
                    return f"{name}: {found[0]}"
            except Exception as error:
                return _raised(error)
    return "silent"


def _raised(error: Exception) -> str:
    return f"raised: {type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    print(first_found())
