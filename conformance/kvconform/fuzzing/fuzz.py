"""Fuzzing from the command line: the state machine, run until something breaks or the time is up."""

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kvconform.checked import ImplementationFailed, RuleBroken
from kvconform.features import lacks
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


class Fuzzed(NamedTuple):
    """How a fuzzing run ended."""

    tally: Tally
    seconds: float
    """Until the time was up, or something broke."""

    @property
    def failure(self) -> Failure | None:
        """What broke."""
        return self.tally.failure


def fuzz(factory: Factory, seconds: float, seed: int, progress: Callable[[Tally, float], object]) -> Fuzzed:
    """Run the state machine of an implementation for `seconds`, or until it fails.

    The same seed draws the same sizes and operations. `progress` is given the tally and the seconds after each round.
    """
    start = time.monotonic()
    fuzzed = machine(factory)
    round_number = 0
    elapsed = 0.0
    while elapsed < seconds and fuzzed.tally.failure is None:
        seeded = hypothesis.seed(seed * 1_000_003 + round_number)(fuzzed)
        # A failure is in the tally, complete; the exception is what Hypothesis makes of it.
        with contextlib.suppress(RuleBroken, ImplementationFailed, hypothesis.errors.Flaky):
            run_state_machine_as_test(seeded, settings=ROUND)
        round_number += 1
        elapsed = time.monotonic() - start
        progress(fuzzed.tally, elapsed)
    return Fuzzed(fuzzed.tally, elapsed)


def shortest(failure: Failure, factory: Factory) -> Shrunk | None:
    """The fewest operations that still fail in the same way; `None` if the failure does not show again."""
    operations = [op for op in failure.operations if not isinstance(op, Snapshot)]
    attempt = partial(_try_supported, config=failure.config, factory=factory, lacking=lacks(factory))
    return shrink(operations, attempt, kind, SHRINK_SECONDS)


def _try_supported(
    operations: Sequence[Operation[Any]], config: Config, factory: Factory, lacking: frozenset[str]
) -> Demonstration | None:
    return try_out(operations, config, factory) if not lacking or supported(operations, config, lacking) else None
