"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Impl = Annotated[str, typer.Option(help="What to check: 'reference', 'cuda', 'module:Class' or 'bug:NAME'.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print the tables of what was judged, too.")]
Accept = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Findings that are known (TOML): counted, and not failed.")
]
