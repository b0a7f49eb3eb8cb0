"""Vectors of the request level, run on an implementation."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from kvconform.console import Forms, progress_bar
from kvconform.errors import LoadError
from kvconform.features import UnknownFeatureError, lacks, needs, vector_under, why_not
from kvconform.findings.baseline import Baseline
from kvconform.findings.finding import Finding, Place
from kvconform.findings.outcome import Case, Report, Verdict
from kvconform.findings.summary import show_gaps, show_run
from kvconform.findings.wording import counted
from kvconform.levels.level import Ran, Task
from kvconform.levels.requests.minimise import shortest_of_run
from kvconform.levels.requests.rendering import finding_of, place_of
from kvconform.node import shown_stderr
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.traces.codec import TraceWriter, Vector
from kvconform.vectors.files import own_name
from kvconform.vectors.runner import Evidence, Factory, Failure, Outcome, run_vector, unchecked_rules
from kvspec.events import Operation, Snapshot
from kvspec.rules import RULES
from kvtrace.operations import Header


class Results(NamedTuple):
    """Vectors of the request level with their outcomes."""

    run: list[tuple[Vector, Outcome]]
    unsupported: list[tuple[Vector, frozenset[str]]]
    failed: list[tuple[Vector, Outcome]]
    """The vectors with an unknown finding."""


def run(vectors: Sequence[Vector], task: Task, baseline: Baseline, factory: Factory | None, report: Report) -> Ran:
    """Run vectors on an implementation.

    Raises:
        LoadError: the implementation supports none of them.
    """
    assert factory is not None
    results = _run_all(vectors, factory, task, baseline)
    _report(report, results, factory)

    def show(out: Console, forms: Forms) -> None:
        if forms.verbose and results.run:
            show_run(out, results.run, results.unsupported)
        if not forms.quiet:
            show_gaps(out, results.run, results.unsupported, verbose=forms.verbose)

    summary = f"{task.impl}: {_in_numbers(results, baseline)}" if results.run else ""
    return Ran(bool(results.failed), show, summary)


def _checks(vector: Vector, outcome: Outcome, rule: str) -> bool:
    """Whether a vector declares a rule, or has checked it."""
    finding = outcome.finding
    broken = isinstance(finding, RuleBroken) and finding.rule.id == rule
    return rule in vector.header.rules or bool(outcome.evidence.checked[rule]) or broken


def _run_all(vectors: Sequence[Vector], factory: Factory, task: Task, baseline: Baseline) -> Results:
    if task.record is not None:
        task.record.mkdir(parents=True, exist_ok=True)
    lacking = _lacking(factory, task.impl)
    results = Results([], [], [])
    with progress_bar() as progress:
        for given in progress.track(vectors, description="vectors"):
            vector = vector_under(factory, given)
            if lacking and (missing := needs(vector) & lacking):
                if task.rule is None or task.rule in vector.header.rules:
                    results.unsupported.append((vector, missing))
                continue
            outcome = _run_one(vector, factory, task.impl, task.record)
            if task.rule is not None and not _checks(vector, outcome, task.rule):
                continue
            results.run.append((vector, outcome))
            if not _conforms(outcome, baseline):
                results.failed.append((vector, outcome))
                if task.first:
                    break
    if not results.run and task.rule is None:
        missing = frozenset[str]().union(*(lacking for _, lacking in results.unsupported))
        raise LoadError(f"implementation {task.impl!r} supports none of these vectors: {why_not(missing)}")
    return results


def _report(report: Report, results: Results, factory: Factory) -> None:
    """Add the outcomes to a report."""
    failed = {id(outcome) for _, outcome in results.failed}
    for vector, outcome in results.run:
        verdict: Verdict = "fails" if id(outcome) in failed else "conforms" if outcome.finding is None else "known"
        silent = unchecked_rules(vector, outcome) if verdict == "conforms" else []
        left_out = (f"{', '.join(outcome.evidence.fields_for(rule))} ({rule})" for rule in silent)
        verdict, reason = ("partly checked", f"not reported: {'; '.join(left_out)}") if silent else (verdict, "")
        report.cases.append(Case(vector.name, verdict, str(vector.path), events=outcome.operations, reason=reason))
    for vector, missing in results.unsupported:
        report.cases.append(Case(vector.name, "not supported", str(vector.path), reason=why_not(missing)))
    evidence = Evidence.together(outcome.evidence for _, outcome in results.run)
    report.checked, report.unchecked = dict(evidence.checked), dict(evidence.unchecked)
    report.unreported = {rule: evidence.fields_for(rule) for rule in evidence.unchecked}
    report.findings += findings_of(results.failed, factory)


def _in_numbers(results: Results, baseline: Baseline) -> str:
    """The outcome of all vectors in one line."""
    partly = [unchecked_rules(vector, outcome) for vector, outcome in results.run if outcome.finding is None]
    silent = [rules for rules in partly if rules]
    known = sum(outcome.finding is not None for _, outcome in results.run) - len(results.failed)
    rules = ", ".join(rule for rule in RULES if any(rule in rules for rules in silent))
    counts = [f"{len(results.failed)} failed"] * bool(results.failed)
    counts.append(f"{len(results.run) - len(results.failed) - known - len(silent)} passed")
    counts += [f"{len(silent)} passed in part ({rules} not checked)"] * bool(silent)
    counts += [f"{known} failed as known ({counted(baseline.count.total(), 'finding')})"] * bool(known)
    counts += [f"{len(results.unsupported)} skipped"] * bool(results.unsupported)
    operations = sum(outcome.operations for _, outcome in results.run)
    return f"{', '.join(counts)}; {operations:,} operations checked."


def findings_of(failed: Sequence[tuple[Vector, Outcome]], factory: Factory) -> list[Finding]:
    """The findings of failed vectors. Vectors with the same failure share the finding of the shortest run."""
    groups: dict[object, list[tuple[Vector, Outcome]]] = {}
    for vector, outcome in failed:
        if outcome.finding is not None:
            groups.setdefault(_same(outcome.finding), []).append((vector, outcome))
    findings = []
    for group in groups.values():
        group.sort(key=lambda one: one[1].operations)
        finding = finding_of_run(*group[0], factory)
        finding.also = [
            place_of(outcome.finding, vector.path, outcome.line, own_name(vector.path))
            for vector, outcome in group[1:]
            if outcome.finding is not None
        ]
        findings.append(finding)
    return findings


def _same(failure: Failure) -> object:
    """The rule and the operation of a finding: findings that agree in both are probably one defect."""
    match failure:
        case RuleBroken():
            return failure.rule.id, type(failure.op)
        case ImplementationFailed():
            return type(failure.original), type(failure.op)
    return failure


def finding_of_run(vector: Vector, outcome: Outcome, factory: Factory) -> Finding:
    """The finding of a failed vector, with the shortest part that shows it."""
    failure = outcome.finding
    assert failure is not None
    shortest = shortest_of_run(vector, outcome, factory)
    place = place_of(failure, vector.path, outcome.line, own_name(vector.path))
    original = _carried_out(vector, failure, factory) if shortest.counterexample is None else ()
    finding = finding_of(failure, vector.header.config, place, shortest, original)
    finding.raised = finding.raised or shown_stderr(factory)
    finding.method = _method_of(factory, place.operation)
    return finding


def _carried_out(vector: Vector, failure: Failure, factory: Factory) -> list[tuple[int, Operation[Any]]]:
    """The operations of a vector with their answers and lines, up to the failed one.

    The vector runs once more for the answers; the last operation keeps the answer that failed.
    """
    done: list[Operation[Any]] = []
    if failure.op is None:
        return []
    run_vector(vector, factory, done.append)
    asked = [op for op in done if not isinstance(op, Snapshot)][: failure.step - 1]
    lines = [step.line for step in vector.steps]
    return [*zip(lines, asked, strict=False), (lines[failure.step - 1], failure.op)]


def _conforms(outcome: Outcome, baseline: Baseline) -> bool:
    """Whether a vector has no finding, or only a known one."""
    match outcome.finding:
        case RuleBroken() as broken:
            return baseline.take(broken.code, str(broken.op.__struct_config__.tag))
        case finding:
            return finding is None


def _lacking(factory: Factory, impl: str) -> frozenset[str]:
    try:
        return lacks(factory)
    except UnknownFeatureError as error:
        raise LoadError(f"implementation {impl!r}: {error}") from error


def _run_one(vector: Vector, factory: Factory, impl: str, folder: Path | None) -> Outcome:
    if folder is None:
        return run_vector(vector, factory)
    header = Header(vector.header.kvspec, impl, vector.header.config)
    with TraceWriter(folder / f"{vector.name}.jsonl", header) as writer:
        return run_vector(vector, factory, writer.write)


def _method_of(factory: Factory, operation: str) -> Place | None:
    """The source line of the adapter's method for an operation; `None` if the adapter is not a class."""
    method = getattr(factory, operation, None) if isinstance(factory, type) else None
    try:
        method = inspect.unwrap(method) if method is not None else None
        file = inspect.getsourcefile(method) if method is not None else None
        line = inspect.getsourcelines(method)[1] if method is not None else 0
    except (OSError, TypeError):  # it has no source in Python
        return None
    return None if file is None else Place(file, line, operation=operation)
