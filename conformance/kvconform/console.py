"""How commands speak: exit statuses, standard output, progress, and one line for what is wrong."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console

from kvconform.errors import LONGEST, short
from kvconform.findings.wording import printable

if TYPE_CHECKING:
    from rich.progress import Progress

CONFORMS, BROKEN, UNUSABLE, FAULTY = 0, 1, 2, 70
"""Exit statuses: all conforms; a rule is broken or the implementation failed; the input or the call is wrong; kvspec
itself failed (sysexits.h calls it EX_SOFTWARE)."""


class Forms(NamedTuple):
    """In which forms a command tells what came out."""

    verbose: bool = False
    """Tables of what was judged, too."""
    quiet: bool = False
    """The last line only."""
    json: bool = False
    """JSON instead of words."""
    junit: Path | None = None
    sarif: Path | None = None
    html: Path | None = None
    """Files that are written besides."""


class Output(Console):
    """Standard output. A reader who has seen enough ends the command quietly, as SIGPIPE does in other programs."""

    def __init__(self) -> None:
        """Write to a terminal as wide as it is, and elsewhere in 120 columns."""
        # In a file or a pipe there is no edge of the screen to keep to; 120 columns hold every table.
        super().__init__(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)

    def on_broken_pipe(self) -> None:
        """End the command."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + 13)


class Told(NamedTuple):
    """Where a command prints."""

    verdict: Console
    """What came out, in a line."""
    details: Console
    """All else."""
    verbose: bool = False


def complain(reason: str) -> None:
    """Say on standard error, in one line, what is wrong with the input or the call."""
    print(f"kvspec: {printable(short(reason, 2 * LONGEST))}", file=sys.stderr)


def progress_bar() -> "Progress":
    """A progress bar on standard error, seen only on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
