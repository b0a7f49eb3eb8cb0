"""`kvspec init`: the first files of a check of the user's engine."""

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
    way: Annotated[Way, typer.Option(help="How kvspec observes the engine.")] = Way.adapter,
) -> int:
    """Write a check that runs as it is, to adapt to your engine: code, a test, a CI job, a README.

    attach: a test that runs vLLM's scheduler with kvspec's hooks in it. For another Python engine you write a file of
    hooks: conformance/docs/attach.md shows two.

    trace: the engine, in any language, writes one line for each memory event, in production too.

    adapter: a class with one method for each operation, for a memory manager that can be called alone. It comes with a
    toy engine that has a bug; kvspec finds it.

        kvspec init check_kv

        kvspec init check_kv --way trace
    """
    from kvconform.templates import start

    for path in start(way.value, folder):
        typer.echo(f"{folder / path}")
    typer.echo(f"\nNext: cd {folder}; {NEXT[way]}")
    return CONFORMS
