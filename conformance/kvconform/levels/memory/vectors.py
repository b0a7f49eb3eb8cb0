"""Replays vectors of the memory level: the memory checker makes the findings that a vector expects, and no others."""

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvcheck import Checker, Malformed
from kvcheck import Finding as Broken
from kvcheck.words import describe
from kvconform.errors import InputError
from kvconform.findings.finding import Finding, Place
from kvconform.findings.outcome import Case, Verdict
from kvconform.findings.wording import printable
from kvconform.levels.memory.rendering import Renderer
from kvconform.traces.memory import MemoryStep, MemoryVector
from kvconform.vectors.files import own_name
from kvspec.rules import MEMORY_RULES


class Result(NamedTuple):
    """How a vector came out."""

    events: int
    """Events that were checked."""
    found: frozenset[str]
    """The rules that were found to be broken, as expected or not."""
    mismatch: str | None
    """The difference from the vector's expectation, at the last event that was checked."""
    checked: dict[str, int]
    """How often each rule was checked."""


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
    """The difference of an event's findings from those that its vector expects, in words; `None` if there is none."""
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


def run_memory_vectors(vectors: Sequence[MemoryVector], *, first: bool = False) -> list[tuple[MemoryVector, Result]]:
    """Check vectors; `first` stops at the first that does not come out as expected.

    Raises:
        InputError: an event is one that no engine can mean.
    """
    results = []
    for vector in vectors:
        results.append((vector, run_memory_vector(vector)))
        if first and results[-1][1].mismatch is not None:
            break
    return results


def case_of(vector: MemoryVector, result: Result) -> Case:
    """How a vector came out, for a report."""
    verdict: Verdict = "conforms" if result.mismatch is None else "fails"
    return Case(vector.name, verdict, str(vector.path), "memory", result.events)


def finding_of_vector(vector: MemoryVector, result: Result) -> Finding:
    """The finding of a vector that does not come out as expected, with the vector as its trace."""
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


def show_memory_run(console: Console, results: Sequence[tuple[MemoryVector, Result]]) -> None:
    """Print the vectors by rule."""
    table = Table("rule", "checked", "found in", "holds in", title="Memory vectors by rule", box=box.SIMPLE_HEAD)
    for rule in MEMORY_RULES:
        about = [(vector.name, result) for vector, result in results if rule in vector.header.rules]
        found = [name for name, result in about if rule in result.found]
        holds = [name for name, result in about if rule not in result.found]
        if about:
            count = sum(result.checked.get(rule, 0) for _, result in about)
            table.add_row(rule, f"{count:,}", *(Text(printable(", ".join(names))) for names in (found, holds)))
    console.print(table)


def summed_up(results: Sequence[tuple[MemoryVector, Result]]) -> str:
    """How all of them came out, in a line."""
    right = sum(result.mismatch is None for _, result in results)
    events = sum(result.events for _, result in results)
    failed = f"{len(results) - right} failed, " if right < len(results) else ""
    return f"the memory checker: {failed}{right} passed; {events:,} events checked."
