"""Checks a request-level trace to its end: after a finding the model continues from the expected state.

It carries out the operation again without the recorded answer, so the rest of the trace is checked against the state
that the specification requires. For an operation that should have been refused, or an eviction of pages that could
not be evicted, that state is unknown: the state is lost, and the check ends.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from kvconform.errors import InputError
from kvconform.findings.baseline import Baseline
from kvconform.oracle.fastpath import QuickModel
from kvconform.proxy import RuleBroken
from kvconform.signals import Interrupted
from kvconform.vectors.runner import Counterexample, Evidence
from kvspec.events import Config, EvictAnswer, Operation, Refusal, Report, Snapshot
from kvspec.rules import Violation


class Found:
    """Findings of one rule at one kind of operation."""

    def __init__(self, finding: RuleBroken, line: int) -> None:
        """Begin with the first finding, on `line`."""
        self.finding = finding
        self.line = line
        self.count = 1


class Whole(NamedTuple):
    """The result of a trace."""

    operations: int
    """The number of checked operations."""
    evidence: Evidence
    found: list[Found]
    """The findings in the order of their first occurrence, without known ones. All may follow from the first."""
    first: RuleBroken | None
    """The first finding of all, known or not."""
    lost: str | None
    """Where and why the check ended before the trace."""
    problem: InputError | None
    """The invalid line; all lines before it are checked."""


class Recovery:
    """A model that continues after a finding, as long as it knows the state."""

    def __init__(self, config: Config) -> None:
        """An empty memory manager of the given sizes."""
        self.model = QuickModel(config)
        self.lost: str | None = None

    def step(self, op: Operation[Any]) -> Violation | None:
        """Check one operation and its answer. Returns the violation, if any."""
        try:
            self.model.step(op)
        except Violation as violation:
            self._resync(op)
            return violation
        return None

    def _resync(self, op: Operation[Any]) -> None:
        # Refused operations change nothing, and neither do reports and snapshots.
        if op.refused is not None or op.obs is None or isinstance(op, (Report, Snapshot)):
            return
        if isinstance(op.obs, EvictAnswer):
            self.lost = "which pages are still published is not known any more"
            return
        try:
            self.model.step(replace(op, obs=type(op.obs)()))
        except (Violation, Refusal):
            self.lost = "it was carried out, and what came of it is not known"


def check_whole(
    config: Config,
    operations: Iterable[tuple[int, Operation[Any]]],
    baseline: Baseline,
    progress: Callable[[int], object] = lambda _: None,
    *,
    first_only: bool = False,
) -> Whole:
    """Check recorded operations, each with its line, to the end or until the state is lost.

    `first_only` stops at the first unknown finding.
    """
    recovery = Recovery(config)
    found: dict[tuple[str, type], Found] = {}
    first: RuleBroken | None = None
    problem: InputError | None = None
    steps = 0
    try:
        for steps, (line, op) in enumerate(operations, start=1):
            violation = recovery.step(op)
            if violation is not None:
                broken = RuleBroken(violation, steps, op)
                first = first or broken
                if not baseline.take(broken.code, str(op.__struct_config__.tag)):
                    known = found.setdefault((broken.rule.id, type(op)), Found(broken, line))
                    known.count += known.finding is not broken
                    if first_only:
                        break
                if recovery.lost is not None:
                    recovery.lost = f"line {line}: {recovery.lost}"
                    break
            if steps % 1000 == 0:
                progress(steps)
    except InputError as error:
        problem = error
    except Interrupted:
        pass  # the operations checked so far are reported
    return Whole(steps, Evidence.of(recovery.model), list(found.values()), first, recovery.lost, problem)


def check_later(operations: Sequence[Operation[Any]], config: Config, said: set[str]) -> Counterexample | None:
    """The counterexample of the last operation, if all findings before it are in `said`."""
    recovery = Recovery(config)
    for step, op in enumerate(operations, start=1):
        violation = recovery.step(op)
        if violation is None:
            continue
        if step == len(operations):
            return Counterexample(operations, RuleBroken(violation, step, op))
        if str(violation) not in said or recovery.lost is not None:
            return None
    return None
