"""`kvspec run`: runs vectors of both levels and reports the outcome."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from kvconform.console import BROKEN, CONFORMS, Forms, progress_bar
from kvconform.errors import InputError, LoadError
from kvconform.features import UnknownFeatureError, lacks, needs, vector_under, why_not
from kvconform.findings.baseline import Baseline, read_baseline
from kvconform.findings.finding import Finding
from kvconform.findings.formats import to_json, write
from kvconform.findings.outcome import Case, Report, Verdict
from kvconform.findings.summary import show_baseline, show_gaps, show_run
from kvconform.findings.text import show_finding
from kvconform.findings.wording import counted
from kvconform.implementations import load, method_of
from kvconform.levels.memory.vectors import (
    Result,
    case_of,
    finding_of_vector,
    run_memory_vectors,
    show_memory_run,
    summed_up,
)
from kvconform.levels.requests.minimise import shortest_of_run
from kvconform.levels.requests.rendering import finding_of, place_of
from kvconform.node import shown_stderr
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.runs.card import make_card, write_card
from kvconform.traces.codec import TraceWriter, Vector, read_vector
from kvconform.traces.memory import MemoryVector, level_of_file, read_memory_vector
from kvconform.vectors.files import FOLDER, memory_vector_files, own_name, vector_file, vector_files
from kvconform.vectors.runner import Evidence, Factory, Failure, Outcome, run_vector, unchecked_rules
from kvspec.events import Operation, Snapshot
from kvspec.rules import ALL_RULES, NAMES, RULES
from kvtrace.operations import Header


class Task(NamedTuple):
    """The arguments of `kvspec run`."""

    vectors: Sequence[Path] | None
    """`None`: kvspec's own."""
    impl: str
    record: Path | None = None
    baseline_file: Path | None = None
    word: str | None = None
    """Only vectors that have it in their name, their folder or their rules; of a rule's id see `rule`."""
    first: bool = False
    """Stop at the first that does not conform."""
    card: Path | None = None
    """Where the report card is written."""

    @property
    def rule(self) -> str | None:
        """The rule that `word` names: then every vector counts that checks it, whatever it was written for."""
        word = NAMES.get(self.word or "", (self.word or "").upper())
        return word if word in ALL_RULES else None


class Ran(NamedTuple):
    """Vectors of the request level with their outcomes."""

    results: list[tuple[Vector, Outcome]]
    unsupported: list[tuple[Vector, frozenset[str]]]
    failed: list[tuple[Vector, Outcome]]
    """Of the results those with a finding that is not known."""


def run_vectors(out: Console, task: Task, forms: Forms) -> int:
    """Run vectors and report the outcome; the exit status.

    Raises:
        InputError: a file cannot be used.
        LoadError: the implementation cannot be had, or supports none of the vectors.
        OSError: a file cannot be written.
    """
    # Vectors of the memory level ask no implementation.
    own = [*vector_files(), *(memory_vector_files() if task.impl == "reference" else ())]
    paths = [file for path in task.vectors or () for file in _found(path)] or own
    if not paths:
        raise LoadError(f"there are no vectors in {FOLDER}")
    memory_paths = [path for path in paths if level_of_file(path) == "memory"]
    memory = [vector for vector in map(read_memory_vector, memory_paths) if _wanted(vector, task)]
    others = (read_vector(path) for path in paths if path not in memory_paths)
    read = [vector for vector in others if _wanted(vector, task)]
    if not (memory or read):
        raise LoadError(f"there is no vector about {task.word!r}")
    factory = load(task.impl) if read else None
    baseline = read_baseline(task.baseline_file)
    checked = [
        (vector, result)
        for vector, result in run_memory_vectors(memory, first=task.first)
        if task.rule is None or result.checked.get(task.rule) or task.rule in result.found
    ]
    missed = [finding_of_vector(vector, result) for vector, result in checked if result.mismatch is not None]
    report = Report("run", task.impl, [case_of(vector, result) for vector, result in checked], missed)
    ran = Ran([], [], [])
    if factory is not None and not (task.first and missed):
        ran = _run_all(read, factory, task, baseline)
        _report(report, ran, factory)
    if not report.cases:
        raise LoadError(f"no vector checks {task.rule}")
    write(report, junit=forms.junit, sarif=forms.sarif, html=forms.html, out=forms.out)
    if forms.json:
        out.print(to_json(report), markup=False, highlight=False, soft_wrap=True)
    else:
        _show(out, report, checked, ran, baseline, forms)
    if task.card is None:
        return CONFORMS if report.conforms else BROKEN
    if factory is None:
        raise LoadError("a report card is about vectors of the request level, and there are none")
    card = make_card(report, factory, baseline)
    write_card(card, task.card)
    return CONFORMS if report.conforms and not card.broken else BROKEN


def _found(path: Path) -> list[Path]:
    """The files of a folder, the file, or where there is none kvspec's own vector of that name."""
    if path.is_dir():
        if not (files := vector_files(path)):
            raise InputError(path, 0, "there are no vectors in this folder")
        return files
    return [path if path.exists() or path.name != str(path) or path.suffix else vector_file(path.name)]


def _wanted(vector: Vector | MemoryVector, task: Task) -> bool:
    """Whether a vector has the word; vectors that check a rule are known when they have run."""
    if task.word is None or task.rule is not None:
        return True
    words = (vector.name, vector.path.parent.name, *vector.header.rules)
    return any(task.word.casefold() in one.casefold() for one in words)


def _checks(vector: Vector, outcome: Outcome, rule: str) -> bool:
    """Whether a vector was to check a rule, or did."""
    finding = outcome.finding
    broken = isinstance(finding, RuleBroken) and finding.rule.id == rule
    return rule in vector.header.rules or bool(outcome.evidence.checked[rule]) or broken


def _run_all(read: list[Vector], factory: Factory, task: Task, baseline: Baseline) -> Ran:
    if task.record is not None:
        task.record.mkdir(parents=True, exist_ok=True)
    lacking = _lacking(factory, task.impl)
    ran = Ran([], [], [])
    with progress_bar() as progress:
        for given in progress.track(read, description="vectors"):
            vector = vector_under(factory, given)
            if lacking and (missing := needs(vector) & lacking):
                if task.rule is None or task.rule in vector.header.rules:
                    ran.unsupported.append((vector, missing))
                continue
            outcome = _run_one(vector, factory, task.impl, task.record)
            if task.rule is not None and not _checks(vector, outcome, task.rule):
                continue
            ran.results.append((vector, outcome))
            if not _conforms(outcome, baseline):
                ran.failed.append((vector, outcome))
                if task.first:
                    break
    if not ran.results and task.rule is None:
        missing = frozenset[str]().union(*(lacking for _, lacking in ran.unsupported))
        raise LoadError(f"implementation {task.impl!r} supports none of these vectors: {why_not(missing)}")
    return ran


def _report(report: Report, ran: Ran, factory: Factory) -> None:
    """Add the outcomes to a report."""
    failed = {id(outcome) for _, outcome in ran.failed}
    for vector, outcome in ran.results:
        verdict: Verdict = "fails" if id(outcome) in failed else "conforms" if outcome.finding is None else "known"
        silent = unchecked_rules(vector, outcome) if verdict == "conforms" else []
        left_out = (f"{', '.join(outcome.evidence.fields_for(rule))} ({rule})" for rule in silent)
        verdict, reason = ("partly checked", f"not reported: {'; '.join(left_out)}") if silent else (verdict, "")
        report.cases.append(Case(vector.name, verdict, str(vector.path), events=outcome.operations, reason=reason))
    for vector, missing in ran.unsupported:
        report.cases.append(Case(vector.name, "not supported", str(vector.path), reason=why_not(missing)))
    evidence = Evidence.together(outcome.evidence for _, outcome in ran.results)
    report.checked, report.unchecked = dict(evidence.checked), dict(evidence.unchecked)
    report.unreported = {rule: evidence.fields_for(rule) for rule in evidence.unchecked}
    report.findings += findings_of(ran.failed, factory)


def _show(
    out: Console,
    report: Report,
    checked: Sequence[tuple[MemoryVector, Result]],
    ran: Ran,
    baseline: Baseline,
    forms: Forms,
) -> None:
    """Print the outcomes."""
    if forms.verbose and checked:
        show_memory_run(out, checked)
    if forms.verbose and ran.results:
        show_run(out, ran.results, ran.unsupported)
    if not forms.quiet:
        show_gaps(out, ran.results, ran.unsupported, verbose=forms.verbose)
        for finding in report.findings:
            show_finding(out, finding)
        show_baseline(out, baseline)
    if checked:
        out.print(Text(summed_up(checked)), soft_wrap=True)
    if ran.results:
        out.print(f"{report.subject}: {_in_numbers(ran, baseline)}", soft_wrap=True)


def _in_numbers(ran: Ran, baseline: Baseline) -> str:
    """The outcome of all vectors in one line."""
    partly = [unchecked_rules(vector, outcome) for vector, outcome in ran.results if outcome.finding is None]
    silent = [rules for rules in partly if rules]
    known = sum(outcome.finding is not None for _, outcome in ran.results) - len(ran.failed)
    rules = ", ".join(rule for rule in RULES if any(rule in rules for rules in silent))
    counts = [f"{len(ran.failed)} failed"] * bool(ran.failed)
    counts.append(f"{len(ran.results) - len(ran.failed) - known - len(silent)} passed")
    counts += [f"{len(silent)} passed in part ({rules} not checked)"] * bool(silent)
    counts += [f"{known} failed as known ({counted(baseline.count.total(), 'finding')})"] * bool(known)
    counts += [f"{len(ran.unsupported)} skipped"] * bool(ran.unsupported)
    operations = sum(outcome.operations for _, outcome in ran.results)
    return f"{', '.join(counts)}; {operations:,} operations checked."


def findings_of(failed: Sequence[tuple[Vector, Outcome]], factory: Factory) -> list[Finding]:
    """The findings of failed vectors; vectors that show the same share one, by the vector that shows it first."""
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
    """The rule and the operation of a finding: findings that agree in both are most likely one defect."""
    match failure:
        case RuleBroken():
            return failure.rule.id, type(failure.op)
        case ImplementationFailed():
            return type(failure.original), type(failure.op)
    return failure


def finding_of_run(vector: Vector, outcome: Outcome, factory: Factory) -> Finding:
    """The finding of a failed vector, by the shortest part that shows it."""
    failure = outcome.finding
    assert failure is not None
    shortest = shortest_of_run(vector, outcome, factory)
    place = place_of(failure, vector.path, outcome.line, own_name(vector.path))
    original = _carried_out(vector, failure, factory) if shortest.counterexample is None else ()
    finding = finding_of(failure, vector.header.config, place, shortest, original)
    finding.raised = finding.raised or shown_stderr(factory)
    finding.method = method_of(factory, place.operation)
    return finding


def _carried_out(vector: Vector, failure: Failure, factory: Factory) -> list[tuple[int, Operation[Any]]]:
    """The operations of a vector with their answers and lines, up to the one with the finding.

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
