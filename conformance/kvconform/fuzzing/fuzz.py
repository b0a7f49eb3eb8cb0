"""Fuzzing from the command line: one run after the other, until something breaks or the budget is spent."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, count
from typing import Any, NamedTuple

from kvconform.features import lacks, needs_of_config, under
from kvconform.findings.baseline import Baseline
from kvconform.findings.finding import Finding
from kvconform.fuzzing import corpus
from kvconform.fuzzing.coverage import Coverage, kind_of
from kvconform.fuzzing.run import Failure, Run, Tally
from kvconform.fuzzing.style import Chance
from kvconform.fuzzing.swarm import swarm
from kvconform.fuzzing.walks import supported
from kvconform.levels.minimising import Effort
from kvconform.levels.requests.minimise import SECONDS, Shortest, kind, shortest_by
from kvconform.levels.requests.rendering import finding_of, place_of
from kvconform.node import shown_stderr
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.signals import until_interrupted
from kvconform.vectors.runner import Counterexample, Factory, try_out
from kvspec.events import Config, Operation, Snapshot

STEPS = (80, 160, 320)
"""Operations proposed in a run. Short runs start afresh more often; long runs combine more."""

CHOICE = 4
"""Runs that are drawn if there is a coverage to choose by; one of them is carried out."""

NOT_REPEATABLE = (
    "It did not show again when the same operations were tried again: the implementation is not repeatable."
)


class Kind:
    """Failures of the same kind: the same rule or exception, at the same operation."""

    def __init__(self, failure: Failure) -> None:
        """The first failure of its kind."""
        self.failure = failure
        self.count = 1


class Budget(NamedTuple):
    """The limits of a search: it ends when one of the two is spent."""

    seconds: float = float("inf")
    operations: float = float("inf")
    """Unlike seconds, this limit gives the same result on a busy machine."""


class Fuzzed(NamedTuple):
    """How a fuzzing run ended."""

    tally: Tally
    seconds: float
    """Until the time was up, or something broke."""
    kinds: list[Kind]
    """Kinds of failures, in the order in which they first occurred."""

    @property
    def failure(self) -> Failure | None:
        """The first failure."""
        return self.kinds[0].failure if self.kinds else None


Progress = Callable[[Tally, float], object]
"""Receives the tally and the seconds after each run."""


def fuzz(factory: Factory, budget: Budget, seed: int, progress: Progress) -> Fuzzed:
    """Run operations on an implementation until the budget is spent, or until it fails.

    The same seed draws the same sizes and operations.
    """
    tally = Tally()
    elapsed = 0.0
    for tally, elapsed in runs(factory, budget, seed):
        progress(tally, elapsed)
        if tally.failure is not None:
            return Fuzzed(tally, elapsed, [Kind(tally.failure)])
    return Fuzzed(tally, elapsed, [])


def fuzz_on(
    carried_out: Iterator[tuple[Tally, float]], budget: Budget, progress: Progress, baseline: Baseline
) -> Fuzzed:
    """Carry out all runs. A failure ends only its own run. Findings of the baseline are only counted."""
    tally = Tally()
    elapsed = 0.0
    kinds: dict[object, Kind] = {}
    with until_interrupted():
        for tally, elapsed in carried_out:
            progress(tally, elapsed)
            if tally.failure is None:
                continue
            finding = tally.failure.finding
            broken = finding.rule.id if isinstance(finding, RuleBroken) else ""
            during = "" if finding.op is None else str(finding.op.__struct_config__.tag)
            if not baseline.take(finding.code if isinstance(finding, RuleBroken) else "", during):
                cause = broken if isinstance(finding, RuleBroken) else type(finding.original)
                known = kinds.setdefault((cause, during), Kind(tally.failure))
                known.count += known.failure is not tally.failure
            tally.failure = None
            # The rest of the time is for shortening the failures.
            if elapsed >= budget.seconds - min(len(kinds) * SECONDS, budget.seconds / 4):
                break
    return Fuzzed(tally, elapsed, list(kinds.values()))


def runs(
    factory: Factory, budget: Budget, seed: int, coverage: Coverage | None = None
) -> Iterator[tuple[Tally, float]]:
    """The tally and the seconds so far, after each run. A run's failure is in the tally.

    With `coverage` each run is of a kind that has reached little so far. The events that it reaches are noted there.
    """
    start = time.monotonic()
    tally, lacking, vectors = Tally(), lacks(factory), corpus.beginnings(seed)
    for number in count():
        draw = Chance(seed * 1_000_003 + number)
        begun = next(vectors) if number % corpus.OF else corpus.NOTHING
        drawn = swarm(draw, lacking, begun.config)
        if coverage is not None:
            drawn = coverage.choose([drawn, *(swarm(draw, lacking, begun.config) for _ in range(1, CHOICE))])
        drawn = drawn._replace(config=under(factory, drawn.config))
        if needs_of_config(drawn.config) & lacking:
            continue
        before = Counter[str]() if coverage is None else tally.reached.copy()
        # The tally has all of the failure.
        run = None
        with contextlib.suppress(RuleBroken, ImplementationFailed):
            run = Run(factory, drawn, lacking, tally)
            steps = [None] * draw.choice(corpus.STEPS if begun.operations else STEPS)
            for op in chain(begun.operations, steps):
                run.step(draw, op)
                if tally.steps >= budget.operations or time.monotonic() - start >= budget.seconds:
                    break
            run.end(reuse=begun is corpus.NOTHING)
        if coverage is not None:
            coverage.note(kind_of(drawn), tally.reached - before)
        yield tally, time.monotonic() - start
        if run is None and not tally.steps:
            return  # the implementation cannot be made: no operation was drawn
        if tally.steps >= budget.operations or time.monotonic() - start >= budget.seconds:
            return


def shortest(failure: Failure, factory: Factory, effort: Effort, unrepeated: str = NOT_REPEATABLE) -> Shortest:
    """The fewest operations that still fail in the same way.

    `unrepeated` says why the same operations alone may not show it.
    """
    operations = [op for op in failure.operations if not isinstance(op, Snapshot)]
    attempt = partial(_try_supported, config=failure.config, factory=factory, lacking=lacks(factory))
    found = Shortest(None, "It was interrupted before fewer operations were looked for.")
    with until_interrupted():
        found = shortest_by(operations, attempt, kind, effort, unrepeated=unrepeated)
    return found


def finding_from(failure: Failure, factory: Factory, found: Shortest) -> tuple[Finding, Sequence[Operation[Any]]]:
    """The finding of a run that failed, and the shortest operations that were found to show it."""
    shown = found.counterexample or Counterexample(failure.operations, failure.finding)
    place = place_of(failure.finding, "a drawn run")
    finding = finding_of(shown.finding, failure.config, place, found, enumerate(shown.operations, start=2))
    finding.raised = finding.raised or shown_stderr(factory)
    return finding, shown.operations


def _try_supported(
    operations: Sequence[Operation[Any]], config: Config, factory: Factory, lacking: frozenset[str]
) -> Counterexample | None:
    return try_out(operations, config, factory) if not lacking or supported(operations, config, lacking) else None
