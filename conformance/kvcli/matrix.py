"""`kvspec matrix`: the rules that releases of real engines break."""

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
    from kvlab.matrix.report import AnyReport
    from kvlab.matrix.report import Level as OneLevel


BEHIND_THE_PROTOCOL = ("sglang", "sglang-jax")
"""Engines that have an adapter."""


class Level(StrEnum):
    """How an engine is checked."""

    request = "request"
    memory = "memory"
    both = "both"


def matrix(
    engine: Annotated[
        str,
        typer.Argument(
            metavar="ENGINE", help="vllm, sglang, sglang-jax, mini-sglang, nano-vllm, transformers, lmcache or max."
        ),
    ],
    releases: Annotated[
        list[str],
        typer.Argument(
            metavar="VERSION|PATH",
            help="A version on the package index, the path of a checkout, or 'installed'.",
        ),
    ],
    level: Annotated[
        Level,
        typer.Option(
            help="request: its classes, driven by an adapter (sglang, sglang-jax). memory: its scheduler, with hooks."
        ),
    ] = Level.both,
    seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds of random walks for each release at each level. Each known issue of the memory level with "
            "a search of its own may add as many.",
        ),
    ] = 20.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same walks.")] = 0,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for results, and the shortest trace of each finding.")
    ] = Path("matrix"),
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the releases; by default in the user's cache folder.")
    ] = None,
    again: Annotated[bool, typer.Option("--no-cache", help="Check again, even if DIR already has a result.")] = False,
    as_json: Json = False,
    junit: Junit = None,
    sarif: Sarif = None,
    html: Html = None,
) -> None:
    """Check releases of a real engine, and print the rules that each breaks in one table.

    Each release runs in a process of its own, and is reported when it is done. At the request level it runs all
    vectors that it supports, then random walks. At the memory level its own scheduler is driven with hooks, first
    for each known issue, then at random. A missing version is fetched, as by 'kvspec engines install'. The shortest
    trace of each finding is written to DIR. Results are kept there: a second run checks only new releases. A
    release that cannot be driven is "not supported", with the reason, and is no finding.

    Exit status: 0 if every finding is explained, 1 if one is not, 2 if no release is supported at any level.

        kvspec matrix sglang 0.5.8.post1 0.5.10 0.5.11

        kvspec matrix vllm 0.22.1 0.33.0

        kvspec matrix mini-sglang ../mini-sglang
    """
    from kvlab.matrix.check import checked
    from kvlab.matrix.report import compare, line
    from kvlab.matrix.table import show
    from kvlab.trial import ATTACHED

    if engine not in ATTACHED:
        raise typer.BadParameter(f"no engine {engine!r}; these are known: {', '.join(ATTACHED)}")
    if level is Level.request and engine not in BEHIND_THE_PROTOCOL:
        raise typer.BadParameter(f"{engine} is not behind the protocol: only {' and '.join(BEHIND_THE_PROTOCOL)} are")
    reports: list[AnyReport] = []
    console = Output()
    each = Console(quiet=True) if as_json else console
    with until_interrupted():
        for release in releases:
            for one in _levels(engine, level):
                with _waiting(f"{engine} {release}, {'requests' if one == 'request' else 'as it runs'}"):
                    reports.append(checked(one, engine, release, seconds, seed, out, cache, again=again))
                each.print(Text(line(reports[-1])), soft_wrap=True)
    compare(reports)
    if as_json or junit or sarif or html:
        from kvconform.findings.formats import to_json, write
        from kvlab.matrix.outcome import report_of

        outcome = report_of(engine, reports)
        write(outcome, junit=junit, sarif=sarif, html=html)
        if as_json:
            console.print(to_json(outcome), markup=False, highlight=False, soft_wrap=True)
    if not as_json:
        show(Output(), reports)
        if out.is_dir():
            console.print(
                Text(f"The shortest traces of findings, with descriptions, are written to {out}."), soft_wrap=True
            )
    if all(report.not_supported is not None for report in reports) and not caught():
        raise typer.Exit(UNUSABLE)
    raise typer.Exit(CONFORMS if all(report.explained for report in reports) else BROKEN)


def _levels(engine: str, level: Level) -> "list[OneLevel]":
    """The levels to check an engine at; only those that have an adapter have requests."""
    of_requests: list[OneLevel] = ["request"] if engine in BEHIND_THE_PROTOCOL and level is not Level.memory else []
    of_memory: list[OneLevel] = ["memory"] if level is not Level.request else []
    return of_requests + of_memory


@contextmanager
def _waiting(for_: str) -> Iterator[None]:
    """Something that moves on standard error meanwhile, if it is a terminal."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        progress.add_task(for_, total=None)
        yield
