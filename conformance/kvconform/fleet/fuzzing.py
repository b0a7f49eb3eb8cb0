"""`kvspec fuzz --ray` and `kvspec soak --ray`: different draws on each worker, and merged results."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from time import monotonic
from typing import Any, NamedTuple

from kvconform.fleet.cluster import Cluster
from kvconform.fuzzing.coverage import Coverage
from kvconform.fuzzing.fuzz import Budget, runs
from kvconform.fuzzing.run import Failure, Tally
from kvconform.implementations import load
from kvconform.traffic.soak import Soaked, soak_run
from kvconform.vectors.runner import Factory, try_out
from kvspec.events import Config, Operation, Snapshot

OPERATIONS = 5_000
"""The number of operations of a part: some seconds of work."""
RUNS = 10
"""The number of runs of traffic in a part."""


class Part(NamedTuple):
    """The results of one worker."""

    runs: int
    operations: Counter[str]
    checked: Counter[str]
    reached: Counter[str]
    failed: list[tuple[Config, list[Operation[Any]]]]
    """The first failure of each kind: the sizes, and the operations."""
    coverage: Coverage
    """The coverage of its runs, by their kinds."""


def fuzz_part(part: tuple[int, Coverage], impl: str, seed: int) -> Part:
    """Fuzz for some seconds, with draws of no other part, in the kinds with the least coverage so far."""
    number, known = part
    failed: dict[object, Failure] = {}
    tally, coverage = Tally(), known.copy()
    for tally, _ in runs(load(impl), Budget(operations=OPERATIONS), (seed << 32) + number, coverage):
        if tally.failure is not None:
            finding = tally.failure.finding
            failed.setdefault((str(finding).partition(":")[0], type(finding.op)), tally.failure)
            tally.failure = None
    done = [(failure.config, list(failure.operations)) for failure in failed.values()]
    return Part(tally.runs, tally.operations, tally.checked, tally.reached, done, coverage.since(known))


def fuzzed(cluster: Cluster, factory: Factory, impl: str, budget: Budget, seed: int) -> Iterator[tuple[Tally, float]]:
    """As `kvconform.fuzzing.fuzz.runs`: the tally and the seconds so far, after each part, and after each failure.

    A failing run of a worker is repeated here to get its answers.
    """
    start, tally, coverage = monotonic(), Tally(), Coverage()
    # Each part gets the coverage of all finished parts when it is sent, a few seconds after the previous one.
    parts = ((number, coverage.copy()) for number in count())
    for done in cluster.as_done(partial(fuzz_part, impl=impl, seed=seed), parts):
        part = done.result
        coverage.add(part.coverage)
        tally.runs += part.runs
        for total, more in ((tally.operations, part.operations), (tally.checked, part.checked)):
            total.update(more)
        tally.reached.update(part.reached)
        for config, operations in part.failed:
            asked = [op for op in operations if not isinstance(op, Snapshot)]
            shown = try_out(asked, config, factory)
            if shown is not None:
                tally.failure = Failure(config, shown.operations, shown.finding)
                yield tally, monotonic() - start
        tally.failure = None
        yield tally, monotonic() - start
        if tally.steps >= budget.operations or monotonic() - start >= budget.seconds:
            return


def soak_part(number: int, impl: str, seed: int) -> tuple[list[Soaked], int | None]:
    """Some runs of traffic up to a finding, and the number of the run with the finding."""
    factory = load(impl)
    soaked: list[Soaked] = []
    for one in range(number * RUNS, (number + 1) * RUNS):
        done = soak_run(factory, seed, one)
        if done.failure is not None:
            return soaked, one
        soaked.append(done)
    return soaked, None


def soaked(cluster: Cluster, factory: Factory, impl: str, seed: int) -> Iterator[Soaked]:
    """Endless runs of traffic, as they are done. A run with a finding is repeated here to get it."""
    for done in cluster.as_done(partial(soak_part, impl=impl, seed=seed), count()):
        whole, failed = done.result
        yield from whole
        if failed is not None:
            yield soak_run(factory, seed, failed)
