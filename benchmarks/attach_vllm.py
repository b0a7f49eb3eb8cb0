"""The cost of hooks and recording in vLLM's own scheduler: decode steps of 32 requests of 1,000 tokens.

python benchmarks/attach_vllm.py FOLDER-OF-A-WHEEL
"""

import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvattach.hooks import Hooks
from kvlab.vllm.engine import make_request, make_scheduler
from kvlab.vllm.release import prepare
from kvlab.vllm.workload import Workload
from kvtrace.writer import TraceWriter

WORK = Workload(blocks=4000, groups=(("full", 16, 0),), budget=8192, running=32, launches=1)
STEPS = 400
ROUNDS = 10


def step(scheduler: Any) -> float:
    """One decode step of every request; processor time of the scheduler, in microseconds."""
    from vllm.v1.outputs import ModelRunnerOutput

    start = time.thread_time()
    output = scheduler.schedule()
    took = time.thread_time() - start
    names = list(output.num_scheduled_tokens)
    places = {name: number for number, name in enumerate(names)}
    sampled = [[5] if not scheduler.requests[name].is_prefill_chunk else [] for name in names]
    result = ModelRunnerOutput(req_ids=names, req_id_to_index=places, sampled_token_ids=sampled)
    start = time.thread_time()
    scheduler.update_from_output(output, result)
    return 1_000_000 * (took + time.thread_time() - start)


def steps() -> float:
    """The fastest tenth of the steps of 32 requests with 1,000 tokens each, in microseconds.

    The slower ones measure other processes of the machine.
    """
    scheduler = make_scheduler(WORK)
    for number in range(32):
        prompt = [1 + (number * 7 + token * token) % 997 for token in range(1000)]
        scheduler.add_request(make_request(WORK, f"r{number}", prompt, STEPS + 50))
    for _ in range(20):
        step(scheduler)
    return statistics.quantiles([step(scheduler) for _ in range(STEPS)], n=10)[0]


class Silent:
    """A trace that takes events and does nothing with them."""

    def header(self, producer: str, pools: Any, host: str | None = None) -> None:
        """Nothing."""

    def emit(self, *events: Any) -> None:
        """Nothing."""


def hooked(trace: Any) -> float:
    """The same as `steps`, with hooks that emit into a trace."""
    from kvattach.vllm.hooks import Attached

    hooks: Hooks = Attached(trace).hooks
    took = steps()
    hooks.detach()
    assert hooks.problem is None, hooks.problem
    return took


def recorded() -> float:
    """The same with a recording; its writer's thread is not counted."""
    with tempfile.TemporaryDirectory() as scratch:
        writer = TraceWriter(Path(scratch) / "trace.jsonl")
        took = hooked(writer)
        writer.close()
        assert writer.problem is None, writer.problem
    return took


ARMS: dict[str, Callable[[], float]] = {
    "without hooks": steps,
    "hooks alone": lambda: hooked(Silent()),
    "recorded": recorded,
}


def main(folder: Path) -> None:
    """Measure the arms in turns, and print the median of each."""
    logging.disable(logging.CRITICAL)
    prepare(folder)
    took: dict[str, list[float]] = {name: [] for name in ARMS}
    for _ in range(ROUNDS):
        for name, arm in ARMS.items():
            took[name].append(arm())
    plain = statistics.median(took["without hooks"])
    for name, times in took.items():
        median, least, most = statistics.median(times), min(times), max(times)
        print(f"{name}: {median:.0f} us a step (+{median - plain:.0f}; {least:.0f} to {most:.0f})")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
