"""Fuzzing from the command line: the state machine, run until something breaks or the time is up."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kvconform.checked import ImplementationFailed, RuleBroken
from kvconform.features import lacks
from kvconform.findings.accepted import Accepted
from kvconform.findings.shrink import Shrunk, kind, shrink
from kvconform.fuzzing.machine import Failure, Tally, machine
from kvconform.fuzzing.walks import supported
from kvconform.vectors.runner import Demonstration, Factory, try_out
from kvspec.events import Config, Operation, Snapshot

ROUND = settings(
    max_examples=20,
    stateful_step_count=100,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
"""One round: short, so that the time limit is kept to within a second. Shrinking is left to
`kvconform.findings.shrink`, which works on operations rather than on Hypothesis's choices and so needs far fewer
attempts."""

SHRINK_SECONDS = 20.0


class Kind:
    """Failures of the same kind: the same rule or exception, at the same operation."""

    def __init__(self, failure: Failure) -> None:
        """The first one."""
        self.failure = failure
        self.count = 1


class Fuzzed(NamedTuple):
    """How a fuzzing run ended."""

    tally: Tally
    seconds: float
    """Until the time was up, or something broke."""
    kinds: list[Kind]
    """What broke, in the order in which it first did."""

    @property
    def failure(self) -> Failure | None:
        """What broke first."""
        return self.kinds[0].failure if self.kinds else None


Progress = Callable[[Tally, float], object]
"""Is given the tally and the seconds after each round."""


def fuzz(factory: Factory, seconds: float, seed: int, progress: Progress) -> Fuzzed:
    """Run the state machine of an implementation for `seconds`, or until it fails.

    The same seed draws the same sizes and operations.
    """
    tally = Tally()
    elapsed = 0.0
    for tally, elapsed in _rounds(factory, seconds, seed):
        progress(tally, elapsed)
        if tally.failure is not None:
            return Fuzzed(tally, elapsed, [Kind(tally.failure)])
    return Fuzzed(tally, elapsed, [])


def fuzz_on(factory: Factory, seconds: float, seed: int, progress: Progress, accepted: Accepted) -> Fuzzed:
    """Run the state machine of an implementation for `seconds`, whatever breaks.

    A run ends where something breaks, and the next one begins. What is accepted is counted there.
    """
    tally = Tally()
    elapsed = 0.0
    kinds: dict[object, Kind] = {}
    for tally, elapsed in _rounds(factory, seconds, seed):
        progress(tally, elapsed)
        if tally.failure is None:
            continue
        finding = tally.failure.finding
        broken = finding.rule.id if isinstance(finding, RuleBroken) else ""
        during = "" if finding.op is None else str(finding.op.__struct_config__.tag)
        if not accepted.take(broken, during, str(finding)):
            cause = broken if isinstance(finding, RuleBroken) else type(finding.original)
            known = kinds.setdefault((cause, during), Kind(tally.failure))
            known.count += known.failure is not tally.failure
        tally.failure = None
    return Fuzzed(tally, elapsed, list(kinds.values()))


def _rounds(factory: Factory, seconds: float, seed: int) -> Iterator[tuple[Tally, float]]:
    """The tally and the seconds so far, after each round; the failure of a round is in the tally."""
    start = time.monotonic()
    fuzzed = machine(factory)
    for round_number in count():
        seeded = hypothesis.seed(seed * 1_000_003 + round_number)(fuzzed)
        # A failure is in the tally, complete; the exception is what Hypothesis makes of it.
        with contextlib.suppress(RuleBroken, ImplementationFailed, hypothesis.errors.Flaky):
            run_state_machine_as_test(seeded, settings=ROUND)
        yield fuzzed.tally, time.monotonic() - start
        if time.monotonic() - start >= seconds:
            return


def shortest(failure: Failure, factory: Factory) -> Shrunk | None:
    """The fewest operations that still fail in the same way; `None` if the failure does not show again."""
    operations = [op for op in failure.operations if not isinstance(op, Snapshot)]
    attempt = partial(_try_supported, config=failure.config, factory=factory, lacking=lacks(factory))
    return shrink(operations, attempt, kind, SHRINK_SECONDS)


def _try_supported(
    operations: Sequence[Operation[Any]], config: Config, factory: Factory, lacking: frozenset[str]
) -> Demonstration | None:
    return try_out(operations, config, factory) if not lacking or supported(operations, config, lacking) else None
