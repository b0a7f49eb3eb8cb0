"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Impl = Annotated[str, typer.Option(help="What to check: 'reference', 'cuda', 'module:Class' or 'bug:NAME'.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print the tables of what was judged, too.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print one line: what came out.")]
First = Annotated[bool, typer.Option("--first", "-x", help="Stop at the first finding.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead ('kvspec schema report').")]
Junit = Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit's XML, too.")]
Html = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page that shows it, too: one file.")]
Sarif = Annotated[Path | None, typer.Option(metavar="FILE", help="Write SARIF, for annotations, too.")]
Accept = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Findings that are known (TOML): counted, and not failed.")
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Spread the work over a cluster of Ray: 'auto', HOST:PORT, or 'local' for this machine alone.",
    ),
]
