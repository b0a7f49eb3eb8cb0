"""The results of all releases of one engine, for a terminal: rules by release, and known issues by release."""

import string
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from kvconform.features import FEATURES
from kvlab.issues import issues_of
from kvlab.matrix.findings import RAISES
from kvlab.matrix.report import AnyReport, Found, MemoryReport, RequestReport, named
from kvspec.rules import RULES

MARKS = string.ascii_letters[26:] + string.ascii_letters[:26]

R = TypeVar("R", bound=AnyReport)


def show(console: Console, reports: Sequence[AnyReport]) -> None:
    """Print a table for each level. No column is cut off; a narrower terminal wraps the lines."""
    requests = [one for one in reports if isinstance(one, RequestReport) and one.not_supported is None]
    memory = [one for one in reports if isinstance(one, MemoryReport)]
    console.width = max(console.width, 24 + 9 * len(requests), 32 + 10 * len(memory))
    if requests:
        _show_requests(console, requests)
    if memory:
        _show_memory(console, memory)


def _table(
    first: str,
    reports: Sequence[R],
    rows: Sequence[tuple[str, Callable[[R], Text | str]]],
    sums: Sequence[tuple[str, Callable[[R], Text | str]]],
    *,
    justify: JustifyMethod,
    width: int,
    title: str | None = None,
) -> Table:
    """A column for each release; below the rows the sums."""
    table = Table(title=title, box=box.SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    for report in reports:
        table.add_column(report.release, justify=justify, overflow="fold", min_width=width)
    for part in (rows, sums):
        for name, cell in part:
            table.add_row(name, *map(cell, reports))
        table.add_section()
    return table


def _show_requests(console: Console, reports: Sequence[RequestReport]) -> None:
    marks = _marks(reports)
    rules = [rule for rule in (*RULES, RAISES) if any(one.checked.get(rule) or _of(one, rule) for one in reports)]
    rows = [(rule, lambda report, rule=rule: _cell(report, rule, marks)) for rule in rules]
    sums: list[tuple[str, Callable[[RequestReport], str]]] = [
        ("vectors: conform", lambda report: str(len(report.conform))),
        ("vectors: fail", lambda report: str(len(report.fail))),
        ("vectors: not supported", lambda report: str(len(report.skipped))),
        ("random walks", lambda report: f"{report.walks:,}"),
        ("operations", lambda report: f"{report.operations:,}"),
    ]
    console.print(_table("rule", reports, rows, sums, justify="center", width=6, title="Rule by release"))
    console.print(Text("A dot: checked, and it held. Nothing: never checked. A question mark: broken, not explained."))
    _show_legend(console, reports[0].engine, marks)
    for report in reports:
        for found in report.found:
            if found.explanation is None:
                _show_unexplained(console, report, f"{found.operation}: {found.what} ({found.file})")
    _show_lacking(console, reports)


def _show_memory(console: Console, reports: Sequence[MemoryReport]) -> None:
    if any(report.not_supported is None for report in reports):
        console.print(Text(f"{reports[0].engine} as it runs: events until a known defect was found"))
        rows = [(name, lambda report, name=name: _known(report, name)) for name in named(reports)]
        sums: list[tuple[str, Callable[[MemoryReport], Text | str]]] = [
            ("not explained", _unexplained),
            ("runs", lambda report: _number(report, report.runs)),
            ("events", lambda report: _number(report, report.events)),
        ]
        console.print(_table("known defect", reports, rows, sums, justify="right", width=7))
        console.print(Text("A dot: looked for, and not found. Nothing: not supported."))
        console.print(Text("Missed: the release has it by the table of known issues, and these runs did not show it."))
    for report in reports:
        for group in report.unexplained:
            first = f"{group.code} ({group.times:,}), first at event {group.event:,} (seed {group.seed})"
            _show_unexplained(console, report, f"{first}: {group.what}" + (f" ({group.file})" if group.file else ""))
        for goal in report.missed:
            text = Text(f"Never reached: {report.engine} {report.release}, {goal}", "bold red")
            console.print(text, soft_wrap=True)


def _show_unexplained(console: Console, report: AnyReport, what: str) -> None:
    text = Text(f"Not explained: {report.engine} {report.release}, {what}", "bold red")
    console.print(text, soft_wrap=True)


def _known(report: MemoryReport, name: str) -> Text:
    if report.not_supported is not None or name not in report.known:
        return Text("")
    shown = report.known[name]
    if shown is not None:
        return Text(f"{shown.event:,}", "bold red")
    has = any(one.id == name and one.covers(report.release) for one in issues_of(report.engine).at("memory"))
    return Text("missed", "yellow") if has else Text("·", "green")


def _unexplained(report: MemoryReport) -> Text:
    if report.not_supported is not None:
        return Text("")
    return Text(str(len(report.unexplained)), "bold red" if report.unexplained else "green")


def _number(report: MemoryReport, number: int) -> str:
    return f"{number:,}" if report.not_supported is None else ""


def _marks(reports: Sequence[RequestReport]) -> dict[str, str]:
    """Explanation in use -> a letter, in the order of the table of issues."""
    used = {found.explanation for report in reports for found in report.found}
    ids = [issue.id for issue in issues_of(reports[0].engine).at("requests") if issue.id in used]
    return dict(zip(ids, MARKS, strict=False))


def _of(report: RequestReport, rule: str) -> list[Found]:
    return [found for found in report.found if found.rule == rule]


def _cell(report: RequestReport, rule: str, marks: dict[str, str]) -> Text:
    found = _of(report, rule)
    if not found:
        return Text("·" if report.checked.get(rule) else "", "green")
    letters = sorted({"?" if one.explanation is None else marks[one.explanation] for one in found})
    return Text(" ".join(letters), "bold red")


def _show_legend(console: Console, engine: str, marks: dict[str, str]) -> None:
    for issue in issues_of(engine).at("requests"):
        if issue.id in marks:
            heading = Text.assemble((marks[issue.id], "bold"), f"  {issue.title} ({issue.id})")
            console.print(heading, soft_wrap=True)
            until = f"until {issue.fixed}" if issue.fixed else "on"
            whose = "the engine's" if issue.kind == "engine" else "the specification is stricter"
            fixed = f"; fixed by pull request {issue.pull}" if issue.pull else ""
            console.print(Text(f"   {issue.since} {until}; {whose}{fixed}"), soft_wrap=True)
            console.print(Text(f"   {issue.since}: {', '.join(issue.lines)}"), soft_wrap=True)


def _show_lacking(console: Console, reports: Sequence[RequestReport]) -> None:
    """Print the unsupported features once, with the releases that lack them."""
    for feature, words in FEATURES.items():
        lacking = [report.release for report in reports if feature in report.lacks]
        # A release with rows is not run without rows, and does not lack this feature.
        if lacking and feature != "rowless":
            everywhere = len(lacking) == len(reports)
            who = "all of them" if everywhere else ", ".join(lacking)
            console.print(Text(f"Not in {who}: {words} ({feature})."), soft_wrap=True)
