"""`kvspec soak`: endless traffic in every combination of the scheduler's modes, with every answer checked."""

import random
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import count, product
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from kvconform.features import lacks, needs_of_config, needs_of_steps, under
from kvconform.fuzzing.fuzz import Budget, finding_from, shortest
from kvconform.fuzzing.run import Failure
from kvconform.fuzzing.summary import show_and_write
from kvconform.gallery.mutants.bug import Pool
from kvconform.gallery.replaying import Run, carry_out, sizes, traffic, with_pool
from kvconform.levels.requests.minimise import effort_for_one
from kvconform.signals import until_interrupted
from kvconform.traces.codec import TraceWriter
from kvconform.vectors.runner import Factory
from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import Config
from kvtrace.header import VERSION
from kvtrace.operations import Header

SWITCHES: dict[str, tuple[dict[str, object], ...]] = {
    "overlap": ({}, {"overlap": 1}, {"overlap": 3, "completion_seed": 1}),
    "mixed chunk": ({}, {"mixed_chunk": True}),
    "speculative": ({}, {"drafts": 1}, {"drafts": 3}),
    "chunks": ({}, {"max_prefill_tokens": 24, "chunked_prefill_size": 7}),
    "forced retract": ({}, {"retract_interval": 1}, {"retract_interval": 4}),
    "aborts and closes": ({}, {"abort_interval": 5, "close_interval": 7}),
}
"""Mode of the scheduler -> the settings to try; `{}` is off."""

WITHOUT_SCHEDULER = "The same operations did not show it again without the scheduler."

PAGE_SIZES = (1, 4, 16, 64)
POOLS: tuple[Pool, ...] = ("", "sliding_window", "recurrent_states")


class Combination(NamedTuple):
    """One way to run."""

    mode: SchedulerConfig
    page_size: int
    prefix_cache: bool
    pool: Pool
    """The pool of the memory besides pages and rows."""


def combinations() -> Iterator[Combination]:
    """All combinations of modes, page sizes, radix cache or chunk cache, and memories."""
    for settings in product(*SWITCHES.values()):
        merged: dict[str, object] = {}
        for setting in settings:
            merged.update(setting)
        mode = SchedulerConfig(**merged)  # type: ignore[arg-type]
        for page_size, prefix_cache, pool in product(PAGE_SIZES, (True, False), POOLS):
            if not (mode.drafts and pool == "recurrent_states"):
                yield Combination(mode, page_size, prefix_cache, pool)


class Soaked(NamedTuple):
    """The result of one run of traffic."""

    combination: Combination
    config: Config
    operations: Counter[str]
    """The operations carried out and checked; none if the implementation lacks a feature that the run needs."""
    failure: Failure | None


def run_of(seed: int, number: int) -> tuple[Combination, Run]:
    """One of infinitely many runs: every combination in turn, with other sizes and requests each time."""
    every = _every()
    draw = random.Random(seed * 1_000_003 + number)
    combination = every[number % len(every)]
    drawn = sizes(draw)
    config = msgspec.structs.replace(
        drawn,
        page_size=combination.page_size,
        num_pages=max(2, drawn.num_pages * drawn.page_size // combination.page_size),
        prefix_cache=combination.prefix_cache,
    )
    config = with_pool(config, combination.pool, draw)
    return combination, Run(config, combination.mode, list(traffic(draw, config)))


@cache
def _every() -> list[Combination]:
    return list(combinations())


def soak_run(factory: Factory, seed: int, number: int, folder: Path | None = None) -> Soaked:
    """Carry out one run with every answer checked. Its trace goes into `folder`, if given.

    An implementation without sessions gets only requests that are not turns. A run ends when it needs a lacking
    feature.

    Raises:
        OSError: the trace cannot be written.
    """
    combination, run = run_of(seed, number)
    lacking, run = lacks(factory), run._replace(config=under(factory, run.config))
    if (needs_of_config(run.config) | needs_of_steps(run.mode.overlap, run.mode.drafts)) & lacking:
        return Soaked(combination, run.config, Counter(), None)
    if "sessions" in lacking:
        run = run._replace(traffic=[request for request in run.traffic if request.session is None])
    done, finding = carry_out(factory, Scheduler, run, checker=True, lacking=lacking)
    if folder is not None:
        with TraceWriter(folder / f"run-{number:05}.jsonl.zst", Header(VERSION, "kvspec soak", run.config)) as writer:
            for op in done:
                writer.write(op)
    operations = Counter(str(op.__struct_config__.tag) for op in done)
    failure = None if finding is None else Failure(run.config, done, finding)
    return Soaked(combination, run.config, operations, failure)


def soaked(factory: Factory, seed: int, folder: Path | None = None) -> Iterator[Soaked]:
    """Endless runs of traffic, one after the other."""
    return (soak_run(factory, seed, number, folder) for number in count())


def soak(
    console: Console,
    progress: Progress,
    endless: Iterator[Soaked],
    factory: Factory,
    impl: str,
    budget: Budget,
    out: Path,
) -> bool:
    """Take runs of traffic up to the budget or the first finding, and print them. Returns whether none was found.

    The shortest trace of a finding is printed, and written to `out`.
    """
    start = time.monotonic()
    elapsed = 0.0
    failed: Soaked | None = None
    operations: Counter[str] = Counter()
    tried: Counter[Combination] = Counter()
    with progress:
        task = progress.add_task("soaking", total=1)
        with until_interrupted():
            while elapsed < budget.seconds and operations.total() < budget.operations:
                one = next(endless)
                elapsed = time.monotonic() - start
                if not one.operations and one.failure is None:
                    continue
                operations.update(one.operations)
                tried[one.combination] += 1
                spent = max(elapsed / budget.seconds, operations.total() / budget.operations)
                progress.update(task, completed=spent, description=f"{operations.total():,} operations")
                if one.failure is not None:
                    failed = one
                    break
    _show(console, operations, tried, elapsed)
    if failed is None or failed.failure is None:
        console.print(f"{impl}: no rule was broken.", highlight=False)
        return True
    console.print(f"{failed.combination}: {failed.config}", highlight=False, soft_wrap=True)
    found = shortest(failed.failure, factory, effort_for_one(), WITHOUT_SCHEDULER)
    finding, fewest = finding_from(failed.failure, factory, found)
    show_and_write(console, finding, fewest, failed.config, impl, out)
    return False


def _show(console: Console, operations: Counter[str], tried: Counter[Combination], seconds: float) -> None:
    table = Table("operation", "times", title="Soak", box=box.SIMPLE_HEAD)
    for operation, times in operations.most_common():
        table.add_row(operation, f"{times:,}")
    console.print(table)
    every = len(_every())
    console.print(
        f"{operations.total():,} operations in {tried.total():,} runs and {seconds:,.0f} s; "
        f"{len(tried)} of {every} combinations of modes.",
        highlight=False,
        soft_wrap=True,
    )
