"""The table of known defects by release, and what nobody has explained."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvlab.matrix.memory.report import DrivenReport, named


def show_driven(console: Console, reports: Sequence[DrivenReport]) -> None:
    """Print the table of one engine's releases, and below it what is not explained."""
    if any(report.not_supported is None for report in reports):
        console.print(Text(f"{reports[0].engine} as it runs: events until a known defect was found"))
        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("known defect", no_wrap=True)
        for report in reports:
            table.add_column(report.release, justify="right", overflow="fold", min_width=7)
        for name in named(reports):
            table.add_row(name, *(_cell(report, name) for report in reports))
        table.add_section()
        table.add_row("not explained", *(_unexplained(report) for report in reports))
        table.add_row("runs", *(_number(report, report.runs) for report in reports))
        table.add_row("events", *(_number(report, report.events) for report in reports))
        console.print(table)
        console.print(Text("A dot: looked for, and not found. Nothing: not supported."))
    for report in reports:
        for group in report.unexplained:
            what = f"Not explained: {report.engine} {report.release}, {group.rule} {group.times} times, first at event "
            what += f"{group.event:,} (seed {group.seed}): {group.what}" + (f" ({group.file})" if group.file else "")
            console.print(Text(what, "bold red"), soft_wrap=True)


def _cell(report: DrivenReport, name: str) -> Text:
    if report.not_supported is not None or name not in report.known:
        return Text("")
    shown = report.known[name]
    return Text("·", "green") if shown is None else Text(f"{shown.event:,}", "bold red")


def _unexplained(report: DrivenReport) -> Text:
    if report.not_supported is not None:
        return Text("")
    return Text(str(len(report.unexplained)), "bold red" if report.unexplained else "green")


def _number(report: DrivenReport, number: int) -> str:
    return f"{number:,}" if report.not_supported is None else ""
