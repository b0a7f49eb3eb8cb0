"""A release's classes behind the protocol: all vectors that it supports, then random walks."""

from pathlib import Path

from kvconform.features import lacks, needs, vector_under
from kvconform.fuzzing.walks import Walker, shortest
from kvconform.proxy import RuleBroken
from kvconform.traces.codec import Vector
from kvconform.vectors.files import read_vectors
from kvconform.vectors.runner import Evidence, ExpectationFailed, Factory, Outcome, run_vector
from kvlab.matrix.findings import Findings
from kvlab.matrix.report import RequestReport, Task
from kvspec.events import Report


def check(task: Task) -> RequestReport:
    """Run the vectors and the walks, and write what they find.

    Raises:
        EngineError: the release cannot be had.
    """
    factory = _adapter(task)
    missing = lacks(factory)
    findings = Findings(task.release, task.engine, getattr(factory, "repaired", frozenset()))
    report = RequestReport(task.engine, task.release, lacks=sorted(missing))
    evidence: list[Evidence] = []
    for vector in (vector_under(factory, vector) for vector in read_vectors()):
        lacking = needs(vector) & missing
        if lacking:
            report.skipped[vector.name] = sorted(lacking)
            continue
        outcome = _run(vector, factory)
        evidence.append(outcome.evidence)
        report.operations += outcome.operations
        (report.fail if outcome.finding else report.conform).append(vector.name)
        if outcome.finding is not None:
            _shorten(findings, vector, outcome, factory, missing)
        if _of_figures_beside(vector, outcome):
            # A wrong figure changes no state, so the findings behind it are reported, too.
            outcome = _run(vector, factory, figures=False)
            report.operations += outcome.operations
            if outcome.finding is not None:
                _shorten(findings, vector, outcome, factory, missing, figures=False)

    walker = Walker(factory, missing, task.seed)
    for shown, config in walker.findings(task.seconds):
        findings.add(shown, config, "a random walk")
    report.walks = walker.walks
    report.operations += walker.operations
    together = Evidence.together([*evidence, walker.evidence])
    report.checked, report.reached = dict(together.checked), dict(together.reached)
    report.found = findings.write(Path(task.out) / task.release)
    return report


def _adapter(task: Task) -> Factory:
    folder = None if task.folder is None else Path(task.folder)
    if task.engine == "sglang-jax":
        from kvlab.sglang_jax.adapter import adapter as adapter_of_sglang_jax

        return adapter_of_sglang_jax(folder)
    from kvlab.sglang.adapter import adapter

    return adapter(folder)


def _of_figures_beside(vector: Vector, outcome: Outcome) -> bool:
    """Whether the finding of a vector is about figures that were compared beside a snapshot."""
    if not isinstance(outcome.finding, RuleBroken) or not outcome.operations:
        return False
    return isinstance(outcome.finding.op, Report) and not isinstance(vector.steps[outcome.operations - 1].op, Report)


def _run(vector: Vector, factory: Factory, *, figures: bool = True) -> Outcome:
    """Run a vector; if only its expectations fail, run it without them.

    The expected numbers are those of an implementation that releases as early as the rules permit. A release may keep
    more of a window, or evict more than requested; then the check of its answers suffices.
    """
    outcome = run_vector(vector, factory, figures=figures)
    if not isinstance(outcome.finding, ExpectationFailed):
        return outcome
    steps = [step._replace(expect=None) for step in vector.steps]
    return run_vector(vector._replace(steps=steps), factory, figures=figures)


def _shorten(
    findings: Findings,
    vector: Vector,
    outcome: Outcome,
    factory: Factory,
    missing: frozenset[str],
    *,
    figures: bool = True,
) -> None:
    """The shortest part of a vector with the same finding."""
    operations = [step.op for step in vector.steps[: outcome.operations]]
    shown = shortest(operations, vector.header.config, factory, missing, figures=figures)
    if shown is not None:
        findings.add(shown, vector.header.config, f"vector {vector.name}")
