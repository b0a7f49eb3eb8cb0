"""`kvspec matrix`: which rules releases of real engines break."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from kvcli.options import Html, Json, Junit, Sarif
from kvconform.console import BROKEN, CONFORMS, UNUSABLE, Output
from kvconform.signals import caught, until_interrupted

if TYPE_CHECKING:
    from kvlab.matrix.memory.report import DrivenReport
    from kvlab.matrix.requests.findings import ReleaseReport


BEHIND_THE_PROTOCOL = ("sglang", "sglang-jax")
"""Engines that have an adapter."""


class Level(StrEnum):
    """How an engine is checked."""

    requests = "requests"
    memory = "memory"
    both = "both"


def matrix(
    engine: Annotated[
        str, typer.Argument(metavar="ENGINE", help="vllm, sglang, sglang-jax, mini-sglang or nano-vllm.")
    ],
    releases: Annotated[
        list[str],
        typer.Argument(
            metavar="VERSION|PATH",
            help="Releases: a version on the package index, a checkout's path, or 'installed'.",
        ),
    ],
    level: Annotated[
        Level,
        typer.Option(
            help="requests: its classes behind the protocol, for sglang and sglang-jax. memory: the engine as it runs."
        ),
    ] = Level.both,
    seconds: Annotated[
        float, typer.Option(min=0, help="How long to walk at random through each release, at each level.")
    ] = 20.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same walks.")] = 0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where results are kept, and the shortest trace of each finding.")
    ] = Path("matrix"),
    cache: Annotated[Path | None, typer.Option(metavar="DIR", help="Where releases are kept.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Check what was checked before, too.")] = False,
    as_json: Json = False,
    junit: Junit = None,
    sarif: Sarif = None,
    html: Html = None,
) -> None:
    """Check releases of a real engine, and print them in one table.

    Each release runs in a process of its own, and is told of when it is done. Behind the protocol: all vectors that it
    supports, then random walks. As it runs: its own scheduler driven with hooks, first for each known defect, then at
    random. A version that is not there yet is fetched, as 'kvspec engines install' does. For each finding the shortest
    trace is written to DIR, and results are kept there: a second run does only what is new. A release that cannot be
    driven is "not supported", with the reason, and is no finding.

    Exit status: 0 if every finding is explained, 1 if one is not, 2 if no release is supported at any level.

        kvspec matrix sglang 0.5.8.post1 0.5.10 0.5.11

        kvspec matrix vllm 0.22.1 0.33.0

        kvspec matrix mini-sglang ../mini-sglang
    """
    from kvlab.matrix.memory.check import driven
    from kvlab.matrix.memory.report import line
    from kvlab.trial import ATTACHED

    if engine not in ATTACHED:
        raise typer.BadParameter(f"no engine {engine!r}; these are known: {', '.join(ATTACHED)}")
    if level is Level.requests and engine not in BEHIND_THE_PROTOCOL:
        raise typer.BadParameter(f"{engine} is not behind the protocol: only {' and '.join(BEHIND_THE_PROTOCOL)} are")
    checked_reports: list[ReleaseReport] = []
    driven_reports: list[DrivenReport] = []
    unchecked: dict[str, str] = {}
    console = Output()
    each = Console(quiet=True) if as_json else console
    with until_interrupted():
        for release in releases:
            if engine in BEHIND_THE_PROTOCOL and level is not Level.memory:
                with _waiting(f"{engine} {release}, requests"):
                    report = _requests(engine, release, seconds, seed, out, cache, again=again)
                if isinstance(report, str):
                    unchecked[release] = report
                else:
                    checked_reports.append(report)
                each.print(Text(_line(engine, release, report)), soft_wrap=True)
            if level is not Level.requests:
                with _waiting(f"{engine} {release}, as it runs"):
                    run = driven(engine, release, seconds, seed, out, cache, again=again)
                driven_reports.append(run)
                each.print(Text(line(run)), soft_wrap=True)
    if as_json or junit or sarif or html:
        from kvconform.findings.formats import to_json, write
        from kvlab.matrix.outcome import report_of

        told = report_of(engine, checked_reports, driven_reports, unchecked)
        write(told, junit=junit, sarif=sarif, html=html)
        if as_json:
            console.print(to_json(told), markup=False, highlight=False, soft_wrap=True)
    if not as_json:
        _show(checked_reports, driven_reports, out)
    supported = bool(checked_reports) or any(run.not_supported is None for run in driven_reports)
    explained = all(found.explanation for report in checked_reports for found in report.found)
    explained = explained and all(run.explained for run in driven_reports)
    if not supported and not caught():
        raise typer.Exit(UNUSABLE)
    raise typer.Exit(CONFORMS if explained else BROKEN)


def _requests(
    engine: str, release: str, seconds: float, seed: int, out: Path, cache: Path | None, *, again: bool
) -> "ReleaseReport | str":
    """What is found in a release behind the protocol, or why it is not supported."""
    from kvlab.matrix.requests.check import NotChecked, checked

    try:
        return checked(engine, release, seconds, seed, out, cache, again=again)
    except NotChecked as error:
        return str(error)


def _line(engine: str, release: str, report: "ReleaseReport | str") -> str:
    """What is printed of a release behind the protocol when it is done."""
    if isinstance(report, str):
        return f"{engine} {release}, requests: not supported: {report}"
    found = sum(one.explanation is None for one in report.found)
    told = f"{engine} {release}, requests: {len(report.conform)} vectors conform, {len(report.fail)} fail, "
    told += f"{len(report.not_supported)} are not supported; {report.operations:,} operations; "
    return told + f"{len(report.found)} findings, {found or 'none'} not explained"


@contextmanager
def _waiting(for_: str) -> Iterator[None]:
    """Something that moves on standard error meanwhile, if anybody looks."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        progress.add_task(for_, total=None)
        yield


def _show(checked_reports: "list[ReleaseReport]", driven_reports: "list[DrivenReport]", out: Path) -> None:
    """The tables. A release's column must not be cut off; a terminal that is narrower wraps the lines."""
    from kvlab.matrix.memory.table import show_driven
    from kvlab.matrix.requests.table import show_matrix

    console = Output()
    if checked_reports:
        wide = Console(width=max(console.width, 24 + 9 * len(checked_reports)))
        show_matrix(wide, checked_reports)
    if driven_reports:
        wide = Console(width=max(console.width, 32 + 10 * len(driven_reports)))
        show_driven(wide, driven_reports)
    console.print(Text(f"The shortest traces and their stories are in {out}."), soft_wrap=True)
