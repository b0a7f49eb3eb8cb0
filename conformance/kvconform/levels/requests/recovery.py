"""A request-level trace judged to its end: after a finding the model takes for granted what it expected.

What an operation was answered is then not told any more, so that the rest is judged by what the specification says
must be the case. Where that is not known (an operation that should have been refused, victims of an eviction that
were none) the state is lost, and judging ends.
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
        """The first of them, on `line`."""
        self.finding = finding
        self.line = line
        self.count = 1


class Whole(NamedTuple):
    """How a trace came out."""

    operations: int
    """Operations that were judged."""
    evidence: Evidence
    found: list[Found]
    """In the order in which they were first met, without what is accepted. All but the first may follow from it."""
    first: RuleBroken | None
    """The very first finding, known or not."""
    lost: str | None
    """Where and why judging ended before the trace did."""
    problem: InputError | None
    """The line that could not be used; all before it is judged."""


class Mending:
    """A model that goes on after a finding, as long as it knows the state."""

    def __init__(self, config: Config) -> None:
        """An empty memory manager of the given sizes."""
        self.model = QuickModel(config)
        self.lost: str | None = None

    def step(self, op: Operation[Any]) -> Violation | None:
        """Judge one operation and its answer, and move on."""
        try:
            self.model.step(op)
        except Violation as violation:
            self._mend(op)
            return violation
        return None

    def _mend(self, op: Operation[Any]) -> None:
        # What was refused changed nothing, and neither do looks.
        if op.refused is not None or op.obs is None or isinstance(op, (Report, Snapshot)):
            return
        if isinstance(op.obs, EvictAnswer):
            self.lost = "which pages are still published is not known any more"
            return
        try:
            self.model.step(replace(op, obs=type(op.obs)()))
        except (Violation, Refusal):
            self.lost = "it was carried out, and what came of it is not known"


def judge_whole(
    config: Config,
    operations: Iterable[tuple[int, Operation[Any]]],
    baseline: Baseline,
    progress: Callable[[int], object] = lambda _: None,
    *,
    first_only: bool = False,
) -> Whole:
    """Judge recorded operations, each with its line, to the end or until the state is lost.

    With `first_only` up to the first finding that is not known.
    """
    mending = Mending(config)
    found: dict[tuple[str, type], Found] = {}
    first: RuleBroken | None = None
    problem: InputError | None = None
    steps = 0
    try:
        for steps, (line, op) in enumerate(operations, start=1):
            violation = mending.step(op)
            if violation is not None:
                broken = RuleBroken(violation, steps, op)
                first = first or broken
                if not baseline.take(broken.code, str(op.__struct_config__.tag)):
                    known = found.setdefault((broken.rule.id, type(op)), Found(broken, line))
                    known.count += known.finding is not broken
                    if first_only:
                        break
                if mending.lost is not None:
                    mending.lost = f"line {line}: {mending.lost}"
                    break
            if steps % 1000 == 0:
                progress(steps)
    except InputError as error:
        problem = error
    except Interrupted:
        pass  # what was judged by then is told
    return Whole(steps, Evidence.of(mending.model), list(found.values()), first, mending.lost, problem)


def judge_later(operations: Sequence[Operation[Any]], config: Config, said: set[str]) -> Counterexample | None:
    """What the last operation shows, if nothing but `said` is found on the way; for a finding that is not the first."""
    mending = Mending(config)
    for step, op in enumerate(operations, start=1):
        violation = mending.step(op)
        if violation is None:
            continue
        if step == len(operations):
            return Counterexample(operations, RuleBroken(violation, step, op))
        if str(violation) not in said or mending.lost is not None:
            return None
    return None
