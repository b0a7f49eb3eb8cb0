"""The output of `kvspec fuzz`: the counts of a run, and the shortest trace of each failure."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from kvconform.findings.baseline import read_baseline
from kvconform.findings.finding import Finding, Place
from kvconform.findings.formats import write
from kvconform.findings.outcome import Case, Report, Verdict
from kvconform.findings.summary import show_baseline
from kvconform.findings.text import show_finding
from kvconform.fuzzing.fuzz import Budget, Fuzzed, finding_from, fuzz_on, shortest
from kvconform.fuzzing.reach import missed
from kvconform.fuzzing.run import Tally
from kvconform.levels.requests.minimise import SECONDS, effort_for_one
from kvconform.signals import caught
from kvconform.traces.codec import TraceWriter
from kvconform.vectors.runner import Factory
from kvspec.events import Config, Operation
from kvspec.rules import RULES
from kvtrace.header import VERSION
from kvtrace.operations import Header


def fuzz_and_show(
    console: Console,
    progress: Progress,
    factory: Factory,
    impl: str,
    budget: Budget,
    carried_out: Iterator[tuple[Tally, float]],
    out: Path,
    baseline_file: Path | None,
    html: Path | None = None,
) -> bool:
    """Take runs and print their results. Returns whether no rule was broken, except findings that `accept` lists.

    The shortest trace of a failure is written to `out`, those of further kinds to files beside it. With `html` a page
    shows all of them.

    Raises:
        InputError: `accept` is invalid.
    """
    baseline = read_baseline(baseline_file)
    deadline = time.monotonic() + budget.seconds
    with progress:
        task = progress.add_task("fuzzing", total=1)

        def look(tally: Tally, elapsed: float) -> None:
            spent = max(elapsed / budget.seconds, tally.steps / budget.operations)
            line = f"{tally.steps:,} operations of {len(tally.operations)} kinds, {len(tally.checked)} rules checked"
            progress.update(task, completed=spent, description=line)

        fuzzed = fuzz_on(carried_out, budget, look, baseline)
    show_fuzz(console, fuzzed)
    report = Report("fuzz", impl, checked=dict(fuzzed.tally.checked))
    verdict: Verdict = "fails" if fuzzed.kinds else "conforms"
    report.cases.append(Case(impl, verdict, events=fuzzed.tally.steps))
    for number, kind in enumerate(fuzzed.kinds, start=1):
        path = out if number == 1 else _numbered(out, number)
        left = (deadline - time.monotonic()) / (len(fuzzed.kinds) - number + 1)
        seconds = 0.0 if caught() else max(0.0, min(SECONDS, left / 2))  # the rest of the time is for rendering it
        found = shortest(kind.failure, factory, effort_for_one(seconds))
        finding, operations = finding_from(kind.failure, factory, found)
        finding.count = kind.count
        report.findings.append(finding)
        show_and_write(console, finding, operations, kind.failure.config, impl, path)
    write(report, html=html)
    show_baseline(console, baseline)
    if not fuzzed.kinds:
        console.print(Text(f"{impl}: no rule was broken in {fuzzed.tally.steps:,} operations."), soft_wrap=True)
    return not fuzzed.kinds


def _numbered(path: Path, number: int) -> Path:
    """`failure.2.jsonl` for the second of `failure.jsonl`."""
    stem, dot, suffixes = path.name.partition(".")
    return path.with_name(f"{stem}.{number}{dot}{suffixes}")


def show_fuzz(console: Console, fuzzed: Fuzzed) -> None:
    """Print the counts of a fuzzing run."""
    tally = fuzzed.tally
    table = Table("operation", "times", title="Fuzzing", box=box.SIMPLE_HEAD)
    for operation, times in tally.operations.most_common():
        table.add_row(operation, f"{times:,}")
    console.print(table)
    checked = ", ".join(f"{rule} ({tally.checked[rule]:,})" for rule in RULES if tally.checked[rule])
    reached = ", ".join(f"{what} ({count:,})" for what, count in sorted(tally.reached.items()))
    console.print(Text(f"Rules checked: {checked or 'none'}."), soft_wrap=True)
    console.print(Text(f"On the way: {reached or 'nothing'}."), soft_wrap=True)
    for goal in missed(tally.reached, tally.steps) if tally.operations["open_session"] else ():
        console.print(Text(f"Not often enough: {goal}.", style="red"), soft_wrap=True)
    console.print(
        f"{tally.steps:,} operations in {tally.runs:,} runs and {fuzzed.seconds:.1f} s.",
        highlight=False,
        soft_wrap=True,
    )


def show_and_write(
    console: Console, finding: Finding, operations: Sequence[Operation[Any]], config: Config, impl: str, out: Path
) -> None:
    """Print a finding, and write the operations that show it to `out`, which it names as its place."""
    finding.place = Place(str(out), len(operations) + 1, len(operations), finding.place.operation)
    show_finding(console, finding)
    written = f"The trace is in {out}."
    try:
        with TraceWriter(out, Header(VERSION, impl, config)) as writer:
            for op in operations:
                writer.write(op)
    except OSError as error:
        written = f"The trace could not be written: {out}: {error.strerror}."
    console.print(Text(f"{impl}: does not conform. {written}"), soft_wrap=True)
