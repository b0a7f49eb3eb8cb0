"""`kvspec vectors`: the vectors as files for other languages."""

import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kvconform.console import Output

app = typer.Typer(no_args_is_help=True, help="Export the vectors as files, for test runners in any language.")


class Size(StrEnum):
    """Which vectors are exported."""

    small = "small"
    standard = "standard"
    full = "full"


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write; a new or an empty folder.")],
    size: Annotated[
        Size,
        typer.Option(
            help="small: for each rule the shortest vector that exercises it. standard: all. full: walks, too, that "
            "cover each transition of small systems (two minutes, 120 MB)."
        ),
    ] = Size.standard,
) -> None:
    """Write the vectors of both levels, an answer key for each, and a manifest.

    A version of kvspec always writes the same bytes. The chapter "Interpreting the vectors" says how to run them.

        kvspec vectors export build/vectors
    """
    from kvconform.runs.exporting import export as export_to

    manifest = export_to(folder, size.value, partial(print, "kvspec:", file=sys.stderr, flush=True))
    Output().print(f"{len(manifest.vectors)} vectors in {folder}, digest {manifest.digest}", soft_wrap=True)
