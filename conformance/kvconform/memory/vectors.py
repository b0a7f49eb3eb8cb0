"""Replays vectors of the memory level: the law finds what a vector expects, where it expects it, and nothing else."""

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvconform.errors import InputError
from kvconform.findings.wording import printable
from kvconform.traces.memory import MemoryStep, MemoryVector
from kvspec.memory import Finding, Law, Malformed
from kvspec.memory_rules import MEMORY_RULES


class Result(NamedTuple):
    """How a vector came out."""

    events: int
    """Events that were judged."""
    found: frozenset[str]
    """The rules that were found to be broken, as expected or not."""
    mismatch: str | None
    """`line: what`, where it is not as the vector expects."""


def run_memory_vector(vector: MemoryVector) -> Result:
    """Judge the events of a vector, up to the first one that does not make the findings that are expected of it.

    Raises:
        InputError: an event is one that no engine can mean.
    """
    law = Law(vector.header.pools)
    found: set[str] = set()
    for number, step in enumerate(vector.steps, start=1):
        try:
            findings = law.step(step.event)
        except Malformed as error:
            raise InputError(vector.path, step.line, str(error)) from error
        found.update(finding.rule for finding in findings)
        mismatch = _mismatch(step, findings)
        if mismatch is not None:
            return Result(number, frozenset(found), f"{step.line}: {mismatch}")
    return Result(len(vector.steps), frozenset(found), None)


def _mismatch(step: MemoryStep, findings: Sequence[Finding]) -> str | None:
    expected = {expect.rule for expect in step.expects}
    for finding in findings:
        if finding.rule not in expected:
            return f"{finding.rule} is not expected to be broken: {finding.what}"
    for expect in step.expects:
        pages = [finding.page for finding in findings if finding.rule == expect.rule]
        if not pages:
            return f"{expect.rule} is expected to be broken, and is not"
        if expect.page is not None and pages[0] != expect.page:
            return f"{expect.rule} is expected to be broken at page {expect.page}, not {pages[0]}"
    return None


def show_memory_run(console: Console, results: Sequence[tuple[MemoryVector, Result]], verbose: bool) -> None:
    """Print what is not as expected; the vectors by rule only if `verbose`."""
    table = Table("rule", "found in", "holds in", title="Memory vectors by rule", box=box.SIMPLE_HEAD)
    for rule in MEMORY_RULES:
        about = [(vector.name, result) for vector, result in results if rule in vector.header.rules]
        found = [name for name, result in about if rule in result.found]
        holds = [name for name, result in about if rule not in result.found]
        if about:
            table.add_row(rule, *(Text(printable(", ".join(names))) for names in (found, holds)))
    if verbose:
        console.print(table)
    for vector, result in results:
        if result.mismatch is not None:
            console.print(Text(printable(f"{vector.path}:{result.mismatch}"), "bold red"), soft_wrap=True)
    right = sum(result.mismatch is None for _, result in results)
    events = sum(result.events for _, result in results)
    console.print(
        f"the law: {right} of {len(results)} memory vectors come out as expected; {events:,} events checked.",
        highlight=False,
        soft_wrap=True,
    )
