"""Replays a vector against an implementation."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from kvcheck import Checker
from kvconform.oracle import Model
from kvconform.oracle.fastpath import QuickModel
from kvconform.protocol import Implementation
from kvconform.proxy import ImplementationFailed, OracleProxy, RuleBroken, make
from kvconform.traces.codec import Vector
from kvconform.traces.expect import Expectations, Mismatch
from kvspec.events import Complete, Config, Decode, Extend, Launch, Operation, Refusal
from kvspec.rules import Violation

Factory = Callable[[Config], Implementation]
"""Makes a fresh implementation of the given sizes."""


class ExpectationFailed(Exception):
    """The answer at `step`, counted from 1, is permitted but differs from the vector's expectation."""

    def __init__(self, mismatch: Mismatch, step: int, op: Operation[Any]) -> None:
        """Add the place to the mismatch."""
        super().__init__(mismatch.what)
        self.mismatch = mismatch
        self.step = step
        self.op = op


Failure = RuleBroken | ImplementationFailed | ExpectationFailed
"""A failure, with its step."""


class Evidence(NamedTuple):
    """Counts of a model's checks, by rule, and of its events."""

    checked: Counter[str]
    unchecked: Counter[str]
    """How often an answer lacked a value that a rule needs."""
    unreported: frozenset[tuple[str, str]]
    """Rules that could not be checked, with the fields that were left out."""
    reached: Counter[str]
    """Events that were reached: a check that never met its case has shown nothing."""

    def fields_for(self, rule: str) -> list[str]:
        """The fields that a rule needs and that were left out."""
        return sorted(field for other, field in self.unreported if other == rule)

    @classmethod
    def of(cls, model: Model) -> "Evidence":
        """The evidence of `model` so far."""
        checked, unchecked, reached, chosen = map(
            Counter, (model.state.checked, model.state.unchecked, model.state.reached, model.state.chosen)
        )
        return cls(checked, unchecked, frozenset(model.state.unreported), reached + chosen)

    @classmethod
    def together(cls, parts: Iterable["Evidence"]) -> "Evidence":
        """The sum of the evidence of several models."""
        checked, unchecked, reached = Counter[str](), Counter[str](), Counter[str]()
        unreported = set[tuple[str, str]]()
        for part in parts:
            checked += part.checked
            unchecked += part.unchecked
            unreported |= part.unreported
            reached += part.reached
        return cls(checked, unchecked, frozenset(unreported), reached)


class Outcome(NamedTuple):
    """The result of a vector or a trace."""

    operations: int
    """The number of checked operations, including the failing one."""
    evidence: Evidence
    finding: Failure | None
    line: int
    """The line of the last checked operation."""


def run_vector(
    vector: Vector,
    factory: Factory,
    record: Callable[[Operation[Any]], object] | None = None,
    *,
    figures: bool = True,
) -> Outcome:
    """Carry out a vector's operations on a fresh implementation, up to the first finding.

    Every answer and expectation is checked, and a snapshot after each operation. Expectations are for an implementation
    that does no more than requested: after a permitted other choice (`NotedState.chosen`), the first different number
    ends the comparison, and only the rules check the rest. `record` gets each operation with its answer, including
    snapshots. `figures` as in `OracleProxy`.
    """
    model = QuickModel(vector.header.config, checker=Checker)
    expectations = Expectations()
    finding: Failure | None = None
    done, expected = 0, True
    try:
        proxy = OracleProxy(
            make(factory, vector.header.config), model, record=record, snapshot_every=1, figures=figures
        )
        for step in vector.steps:
            done += 1
            op = unanswered(step.op)
            carry_out(proxy, op)
            if step.expect is None or not expected:
                continue
            try:
                expectations.check(op, step.expect, model, proxy.seen)
            except Mismatch as mismatch:
                if any(model.state.chosen.values()):
                    expected = False
                    continue
                raise ExpectationFailed(mismatch, done, op) from None
    except (RuleBroken, ImplementationFailed, ExpectationFailed) as found:
        finding = found
    line = vector.steps[done - 1].line if done else 1
    return Outcome(done, Evidence.of(model), finding, line)


def unchecked_rules(vector: Vector, outcome: Outcome) -> list[str]:
    """The rules that a vector exercises, but that no answer had enough values to check."""
    checked, unchecked = outcome.evidence.checked, outcome.evidence.unchecked
    return [rule for rule in vector.header.rules if unchecked[rule] and not checked[rule]]


def carry_out(proxy: OracleProxy, op: Operation[Any]) -> None:
    """Carry out `op`; a correct refusal is one of its outcomes."""
    try:
        proxy(op)
    except Refusal:
        return


def unanswered(op: Operation[Any]) -> Operation[Any]:
    """The operation without its answer."""
    return msgspec.structs.replace(op, obs=None, refused=None)


class Counterexample(NamedTuple):
    """A list of operations that ends in a finding."""

    operations: Sequence[Operation[Any]]
    """The operations with their answers. The last one has the finding."""
    finding: RuleBroken | ImplementationFailed
    must_refuse: bool = False
    """Whether the implementation failed at an operation that it should have refused."""


def try_out(
    operations: Sequence[Operation[Any]],
    config: Config,
    factory: Factory,
    snapshot_every: int = 1,
    *,
    figures: bool = True,
) -> Counterexample | None:
    """Carry operations out on a fresh implementation as `run_vector` does, and return the counterexample, if any.

    A snapshot costs as much as there are tokens in memory: use 0 (none) with real prompts. `figures` as in the proxy.
    """
    done: list[Operation[Any]] = []
    model = QuickModel(config, checker=Checker)
    try:
        proxy = OracleProxy(make(factory, config), model, snapshot_every=snapshot_every, figures=figures)
        for asked in operations:
            done.append(unanswered(asked))
            carry_out(proxy, done[-1])
    except (RuleBroken, ImplementationFailed) as finding:
        if finding.op is not None and finding.op is not done[-1]:
            done.append(finding.op)  # the snapshot after the last operation
        return Counterexample(done, finding, isinstance(finding, ImplementationFailed) and _must_refuse(model, done))
    return None


def _must_refuse(model: Model, done: list[Operation[Any]]) -> bool:
    """Whether `model`, which has not seen the last operation yet, refuses it."""
    try:
        for op in done[-1:]:
            model.step(unanswered(op))
    except Refusal:
        return True
    return False


def check_again(operations: Sequence[Operation[Any]], config: Config) -> Counterexample | None:
    """Check recorded operations by a fresh model, and return the counterexample, if any."""
    model = QuickModel(config)
    for step, op in enumerate(operations, start=1):
        try:
            model.step(op)
        except Violation as violation:
            return Counterexample(operations[:step], RuleBroken(violation, step, op))
    return None


def names_in(op: Operation[Any]) -> Iterable[str]:
    """The requests and sessions that an operation names."""
    match op:
        case Extend():
            return [req for req, _ in op.reqs]
        case Decode() | Launch():
            return op.reqs
        case Complete():
            return op.sampled
    return [name for name in (getattr(op, "req", None), getattr(op, "session", None)) if name is not None]
