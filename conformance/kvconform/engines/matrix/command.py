"""`kvspec matrix`: the vectors and random walks against several releases of an engine, as one table."""

import string
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from kvconform.engines.matrix.findings import RAISES, Explained, Found, ReleaseReport, explanations
from kvconform.engines.matrix.task import Task
from kvconform.engines.releases import NotFetched, fetch, folder_of
from kvconform.features import FEATURES
from kvspec.rules import RULES

INSTALLED = "installed"
"""Stands for the release that is installed beside kvspec."""

ALL_EXPLAINED, UNEXPLAINED = 0, 1

MARKS = string.ascii_letters[26:] + string.ascii_letters[:26]


def matrix(
    engine: Annotated[str, typer.Argument(metavar="ENGINE", help="The engine; 'sglang' is the one that is known.")],
    releases: Annotated[
        list[str], typer.Argument(metavar="VERSION", help="Releases; 'installed' is the one beside kvspec.")
    ],
    seconds: Annotated[float, typer.Option(min=0, help="How long to walk at random through each release.")] = 20.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same walks.")] = 0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write the shortest trace of each finding, and its story.")
    ] = Path("matrix"),
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Where releases are kept.")] = None,
) -> None:
    """Check releases of a real engine, and print one table: rule by release.

    Each release runs in a process of its own: all vectors that it supports, then random walks. A release that is not
    there yet is fetched, as 'kvspec engines install' does. For each finding the shortest trace is written to DIR,
    and beside it a story: what happened, why, and where in the engine.

    Exit status: 0 if every finding is explained, 1 if one is not.

        kvspec matrix sglang 0.5.8.post1 0.5.10 0.5.11
    """
    if engine != "sglang":
        raise typer.BadParameter(f"no engine {engine!r}; 'sglang' is the one that is known")
    reports = []
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        for release in releases:
            shown = progress.add_task(f"sglang {release}", total=None)
            reports.append(_check(release, seconds, seed, out, cache))
            progress.remove_task(shown)
    # A release's column must not be cut off; a terminal that is narrower wraps the lines.
    console = Console(width=max(Console().width, 24 + 9 * len(reports)))
    show_matrix(console, reports)
    console.print(Text(f"The shortest traces and their stories are in {out}."), soft_wrap=True)
    all_explained = all(found.explanation is not None for report in reports for found in report.found)
    raise typer.Exit(ALL_EXPLAINED if all_explained else UNEXPLAINED)


def _check(release: str, seconds: float, seed: int, out: Path, cache: Path | None) -> ReleaseReport:
    folder = None
    if release != INSTALLED:
        try:
            folder = folder_of(release, cache)
            folder = folder if (folder / "sglang").is_dir() else fetch(release, cache)
        except NotFetched as error:
            raise typer.BadParameter(str(error)) from error
    task = Task(release, None if folder is None else str(folder), str(out), seconds, seed)
    command = [sys.executable, "-m", "kvconform.engines.matrix.worker", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise typer.BadParameter(f"sglang {release} could not be checked: {last}")
    return msgspec.json.decode(done.stdout, type=ReleaseReport)


def show_matrix(console: Console, reports: Sequence[ReleaseReport]) -> None:
    """Print the table, and below it what its letters stand for."""
    marks = _marks(reports)
    table = Table(title="Rule by release", box=box.SIMPLE_HEAD)
    table.add_column("rule", no_wrap=True)
    for report in reports:
        table.add_column(report.release, justify="center", overflow="fold", min_width=6)
    for rule in (*RULES, RAISES):
        if any(report.judged.get(rule) or _of(report, rule) for report in reports):
            table.add_row(rule, *(_cell(report, rule, marks) for report in reports))
    table.add_section()
    table.add_row("vectors: conform", *(str(len(report.conform)) for report in reports))
    table.add_row("vectors: fail", *(str(len(report.fail)) for report in reports))
    table.add_row("vectors: not supported", *(str(len(report.not_supported)) for report in reports))
    table.add_row("random walks", *(f"{report.walks:,}" for report in reports))
    table.add_row("operations", *(f"{report.operations:,}" for report in reports))
    console.print(table)
    console.print(Text("A dot: judged, and it held. Nothing: never judged. A question mark: broken, not explained."))
    _show_legend(console, marks)
    _show_unexplained(console, reports)
    _show_lacking(console, reports)


def _marks(reports: Sequence[ReleaseReport]) -> dict[str, str]:
    """A letter for each explanation that is used, in the order in which they are written down."""
    used = {found.explanation for report in reports for found in report.found}
    ids = dict.fromkeys(explained.id for explained in explanations() if explained.id in used)
    return dict(zip(ids, MARKS, strict=False))


def _of(report: ReleaseReport, rule: str) -> list[Found]:
    return [found for found in report.found if found.rule == rule]


def _cell(report: ReleaseReport, rule: str, marks: dict[str, str]) -> Text:
    found = _of(report, rule)
    if not found:
        return Text("·" if report.judged.get(rule) else "", "green")
    letters = sorted({"?" if one.explanation is None else marks[one.explanation] for one in found})
    return Text(" ".join(letters), "bold red")


def _show_legend(console: Console, marks: dict[str, str]) -> None:
    for explained in explanations():
        if explained.id in marks:
            heading = Text.assemble((marks[explained.id], "bold"), f"  {explained.title} ({explained.id})")
            console.print(heading, soft_wrap=True)
            whose = "the engine's" if explained.kind == "engine" else "the specification is stricter"
            fixed = f"; fixed by pull request {explained.fixed}" if explained.fixed else ""
            console.print(Text(f"   {_releases(explained)}; {whose}{fixed}"), soft_wrap=True)
            console.print(Text(f"   {explained.since}: {', '.join(explained.lines)}"), soft_wrap=True)


def _releases(explained: Explained) -> str:
    return f"{explained.since} on" if explained.before is None else f"{explained.since} until {explained.before}"


def _show_unexplained(console: Console, reports: Sequence[ReleaseReport]) -> None:
    for report in reports:
        for found in report.found:
            if found.explanation is None:
                line = f"Not explained: sglang {report.release}, {found.operation}: {found.what} ({found.file})"
                console.print(Text(line, "bold red"), soft_wrap=True)


def _show_lacking(console: Console, reports: Sequence[ReleaseReport]) -> None:
    """Say once what is not supported, and by which releases."""
    for feature, words in FEATURES.items():
        lacking = [report.release for report in reports if feature in report.lacks]
        if lacking:
            everywhere = len(lacking) == len(reports)
            who = "all of them" if everywhere else ", ".join(lacking)
            console.print(Text(f"Not in {who}: {words} ({feature})."), soft_wrap=True)
