"""A proxy of an implementation that checks each answer against the oracle."""

from collections.abc import Callable
from typing import Any

import msgspec

from kvcheck import Finding
from kvcheck.words import describe
from kvconform.oracle import Model
from kvconform.protocol import ANSWERS, CALLS, Implementation
from kvconform.traces.expect import NOTHING, Seen
from kvspec.events import A, Operation, Refusal, Report, Snapshot
from kvspec.rules import Violation

_POOLS = {"rows": "rows", "window": "window pages", "states": "state slots"}
"""Pool of the memory level -> its name at the request level. All other pools are `pages` there."""


class RuleBroken(Violation):
    """An answer broke a rule at `step`, counted from 1. `op` carries that answer."""

    def __init__(self, violation: Violation, step: int, op: Operation[Any]) -> None:
        """Add the place to the model's finding."""
        found, what = violation.finding, violation.what
        if isinstance(found, Finding):
            what = f"{found.pool}: {describe(found)}" if found.pool else describe(found)
        wrong = violation.wrong
        if isinstance(found, Finding) and isinstance(found.page, int):
            wrong = {_POOLS.get(found.pool or "", "pages"): [found.page]}
        compared = {"expected": violation.expected, "observed": violation.observed}
        super().__init__(violation.code, what, **compared, part=violation.part, wrong=wrong, finding=found)
        self.step = step
        self.op = op


class ImplementationFailed(Exception):
    """The implementation raised something other than a Refusal, or its answer has the wrong type.

    `step` counts from 1 and `op` is the operation it failed at; 0 and `None` when it could not even be made.
    `original` is the exception that it raised.
    """

    def __init__(self, step: int, op: Operation[Any] | None, original: BaseException) -> None:
        """Blame `original` on the implementation."""
        super().__init__(f"{type(original).__name__}: {original}")
        self.step = step
        self.op = op
        self.original = original


def make(factory: Callable[..., Implementation], *args: object) -> Implementation:
    """A fresh implementation, `factory(*args)`.

    Raises:
        ImplementationFailed: it could not be made.
    """
    try:
        return factory(*args)
    except (Exception, SystemExit) as error:
        raise ImplementationFailed(0, None, error) from error


class OracleProxy:
    """Carries operations out on an implementation and checks each answer by the model; a `kvspec.events.Step`."""

    def __init__(
        self,
        implementation: Implementation,
        model: Model,
        *,
        record: Callable[[Operation[Any]], object] | None = None,
        snapshot_every: int = 0,
        figures: bool = True,
    ) -> None:
        """Check `implementation` by `model`; both must be fresh.

        `record` receives each operation with its answer, before the check. After every `snapshot_every` operations a
        snapshot is compared as well; 0: never. With `figures` a report is compared beside the snapshot, and recorded
        only if it breaks a rule.
        """
        self.model = model
        self.steps = 0
        """Operations so far, without the snapshots taken in between."""
        self.seen = NOTHING
        """The last snapshot and figures of the implementation."""
        self._implementation = implementation
        self._record = record
        self._snapshot_every = snapshot_every
        self._figures = figures

    def __call__(self, op: Operation[A], /) -> A:
        """Carry `op` out, set its `obs` or `refused`, and return the answer.

        Raises:
            Refusal: the implementation refused it, rightly.
            RuleBroken: the answer, or the refusal, is not allowed.
            ImplementationFailed: the implementation raised anything else, or gave no answer.
        """
        self.steps += 1
        try:
            answer = self._perform(op)
        except Refusal:
            self._look()
            raise
        self._look()
        return answer

    def _look(self) -> None:
        """Compare a snapshot and the figures, if they are due: a refused operation must have changed nothing."""
        if self._snapshot_every and self.steps % self._snapshot_every == 0:
            snapshot = self._perform(Snapshot())
            self.seen = Seen(snapshot, self._perform(Report(), beside=True) if self._figures else NOTHING.figures)

    def _perform(self, op: Operation[A], *, beside: bool = False) -> A:
        try:
            answer: A = CALLS[type(op)](self._implementation, op)  # type: ignore[assignment]
        except Refusal as refusal:
            op.refused = refusal.refused
            self._check(op)
            raise
        except (Exception, SystemExit) as error:
            raise ImplementationFailed(self.steps, op, error) from error
        if not isinstance(answer, ANSWERS[type(op)]):
            raise ImplementationFailed(self.steps, op, _no_answer(op, repr(answer)))
        op.obs = answer
        self._check(op, beside=beside)
        return answer

    def _check(self, op: Operation[Any], *, beside: bool = False) -> None:
        try:
            if self._record is not None and not beside:
                self._record(op)
            self.model.step(op)
        except Violation as violation:
            if self._record is not None and beside:
                self._record(op)
            raise RuleBroken(violation, self.steps, op) from None
        except Exception as error:
            # Only here, because this check costs more than all others: a malformed answer is the implementation's
            # failure, and any other error is ours.
            reason = _malformed(op)
            if reason is None:
                raise
            op.obs = None
            raise ImplementationFailed(self.steps, op, _no_answer(op, reason)) from error


def _no_answer(op: Operation[Any], reason: str) -> TypeError:
    return TypeError(f"{op.__struct_config__.tag} did not answer a valid {ANSWERS[type(op)].__name__}: {reason}")


def _malformed(op: Operation[Any]) -> str | None:
    """Why the types inside an answer differ from their declarations; `None` if they do not."""
    try:
        msgspec.convert(msgspec.to_builtins(op.obs), ANSWERS[type(op)] | None)
    except (TypeError, ValueError, OverflowError) as error:
        return str(error)
    return None
