"""The table of rules by release, and what its letters stand for."""

import string
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvconform.features import FEATURES
from kvlab.matrix.requests.findings import RAISES, Explained, Found, ReleaseReport, explanations
from kvspec.rules import RULES

MARKS = string.ascii_letters[26:] + string.ascii_letters[:26]


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
                line = (
                    f"Not explained: {report.engine} {report.release}, {found.operation}: {found.what} ({found.file})"
                )
                console.print(Text(line, "bold red"), soft_wrap=True)


def _show_lacking(console: Console, reports: Sequence[ReleaseReport]) -> None:
    """Say once what is not supported, and by which releases."""
    for feature, words in FEATURES.items():
        lacking = [report.release for report in reports if feature in report.lacks]
        # Who has rows does not run without them, and misses nothing.
        if lacking and feature != "rowless":
            everywhere = len(lacking) == len(reports)
            who = "all of them" if everywhere else ", ".join(lacking)
            console.print(Text(f"Not in {who}: {words} ({feature})."), soft_wrap=True)
