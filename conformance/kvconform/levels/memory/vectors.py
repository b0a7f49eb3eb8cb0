"""Replays vectors of the memory level: the memory checker makes the findings that a vector expects, and no others."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvcheck import Checker, Malformed
from kvcheck import Finding as Broken
from kvcheck.words import describe
from kvconform.console import Forms
from kvconform.errors import InputError
from kvconform.findings.baseline import Baseline
from kvconform.findings.finding import Finding, Place
from kvconform.findings.outcome import Case, Report, Verdict
from kvconform.findings.wording import printable
from kvconform.levels.level import Ran, Task
from kvconform.levels.memory.rendering import Renderer
from kvconform.traces.memory import MemoryStep, MemoryVector
from kvconform.vectors.files import own_name
from kvconform.vectors.runner import Factory
from kvspec.rules import MEMORY_RULES


class Result(NamedTuple):
    """The result of a vector."""

    events: int
    """The number of checked events."""
    found: frozenset[str]
    """The rules with findings, expected or not."""
    mismatch: str | None
    """The difference from the vector's expectation, at the last checked event."""
    checked: dict[str, int]
    """Rule -> how often it was checked."""


def run_memory_vector(vector: MemoryVector) -> Result:
    """Check the events of a vector, up to the first one whose findings are not the expected ones.

    Raises:
        InputError: an event is one that no engine can mean.
    """
    watching = Checker(vector.header.pools)
    found: set[str] = set()
    for number, step in enumerate(vector.steps, start=1):
        try:
            findings = watching.step(step.event)
        except Malformed as error:
            raise InputError(vector.path, step.line, str(error)) from error
        found.update(finding.rule for finding in findings)
        mismatch = mismatch_of(step, findings)
        if mismatch is not None:
            return Result(number, frozenset(found), mismatch, watching.checked)
    return Result(len(vector.steps), frozenset(found), None, watching.checked)


def mismatch_of(step: MemoryStep, findings: Sequence[Broken]) -> str | None:
    """The difference between an event's findings and the expected ones, in words; `None` if there is none."""
    expected = {expect.rule for expect in step.expects}
    for finding in findings:
        if finding.rule not in expected:
            return f"{finding.rule} is not expected to be broken: {describe(finding)}"
    for expect in step.expects:
        first = next((finding for finding in findings if finding.rule == expect.rule), None)
        if first is None:
            return f"{expect.rule} is expected to be broken, and is not"
        for due, found, where in (
            (expect.page, first.page, "at page"),
            (expect.code, first.code, "as"),
            (expect.holder, first.holder, "by holder"),
        ):
            if due is not None and found != due:
                return f"{expect.rule} is expected to be broken {where} {due}, not {found}"
    return None


def run(vectors: Sequence[MemoryVector], task: Task, _: Baseline, __: Factory | None, report: Report) -> Ran:
    """Check vectors; `first` stops at the first vector that fails.

    Raises:
        InputError: an event is one that no engine can mean.
    """
    results = list[tuple[MemoryVector, Result]]()
    for vector in vectors:
        result = run_memory_vector(vector)
        if task.rule is None or result.checked.get(task.rule) or task.rule in result.found:
            results.append((vector, result))
            verdict: Verdict = "conforms" if result.mismatch is None else "fails"
            report.cases.append(Case(vector.name, verdict, str(vector.path), "memory", result.events))
        if result.mismatch is not None:
            report.findings.append(_finding(vector, result))
            if task.first:
                break
    right, events = len(results) - len(report.findings), sum(result.events for _, result in results)
    failed = f"{len(report.findings)} failed, " if report.findings else ""
    summary = f"the memory checker: {failed}{right} passed; {events:,} events checked."
    return Ran(bool(report.findings), partial(_show, results), summary if results else "")


def _finding(vector: MemoryVector, result: Result) -> Finding:
    """The finding of a vector that fails, with the vector as its trace."""
    renderer = Renderer(vector.header.pools)
    for step in vector.steps[: result.events]:
        renderer.step(step.line, step.event)
    last = vector.steps[result.events - 1]
    kind = str(last.event.__struct_config__.tag)
    return Finding(
        kind="expectation",
        what=result.mismatch or "",
        place=Place(str(vector.path), last.line, result.events, kind, own_name(vector.path)),
        trace=renderer.trace(),
        note="A vector's expectations hold for it as it is: no part of it can be left out.",
    )


def _show(results: Sequence[tuple[MemoryVector, Result]], console: Console, forms: Forms) -> None:
    """Print the vectors by rule."""
    if not forms.verbose:
        return
    table = Table("rule", "checked", "found in", "holds in", title="Memory vectors by rule", box=box.SIMPLE_HEAD)
    for rule in MEMORY_RULES:
        about = [(vector.name, result) for vector, result in results if rule in vector.header.rules]
        found = [name for name, result in about if rule in result.found]
        holds = [name for name, result in about if rule not in result.found]
        if about:
            count = sum(result.checked.get(rule, 0) for _, result in about)
            table.add_row(rule, f"{count:,}", *(Text(printable(", ".join(names))) for names in (found, holds)))
    console.print(table)
