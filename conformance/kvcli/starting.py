"""`kvspec init`: the first files of a check of one's own."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kvconform.console import CONFORMS


class Way(StrEnum):
    """How kvspec reaches an engine."""

    adapter = "adapter"
    trace = "trace"
    attach = "attach"


NEXT = {
    Way.adapter: "kvspec run --impl toy_engine:Adapter --html finding.html",
    Way.trace: "python toy_loop.py trace.jsonl; kvspec check trace.001.jsonl --html finding.html",
    Way.attach: "pytest  # of vLLM; hooks for another engine: conformance/docs/attach.md",
}
"""The command to call then, in the folder."""


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or an empty folder.")],
    way: Annotated[Way, typer.Option(help="How kvspec is to reach the engine.")] = Way.adapter,
) -> int:
    """Write a check that runs, to be filled with an engine of your own: code, a test, a job, a README.

    attach: a test of vLLM's scheduler as it runs, with kvspec's hooks in it. Hooks for another Python engine are a file
    of your own: conformance/docs/attach.md shows two.

    trace: the engine writes what it does to memory, one event a line, in any language. In production too.

    adapter: a class with one method an operation, for a manager of memory that stands alone. The toy engine that is
    written has a bug, and kvspec finds it.

        kvspec init check_kv

        kvspec init check_kv --way trace
    """
    from kvconform.templates import start

    for path in start(way.value, folder):
        typer.echo(f"{folder / path}")
    typer.echo(f"\nNext: cd {folder}; {NEXT[way]}")
    return CONFORMS
