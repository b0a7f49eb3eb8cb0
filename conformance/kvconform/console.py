"""The console of the commands: exit statuses, standard output, progress, and one line for an error."""

import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO

from rich.console import Console

from kvconform.errors import LONGEST, short
from kvconform.findings.wording import printable

if TYPE_CHECKING:
    from rich.progress import Progress

CONFORMS, BROKEN, UNUSABLE, FAULTY = 0, 1, 2, 70
"""Exit statuses: all conforms; a rule is broken or the implementation failed; the input or the call is wrong; kvspec
itself failed (sysexits.h calls it EX_SOFTWARE)."""


Described = Literal["none", "causes", "all"]
"""Findings whose course of events is described: none, those without a cause among the others, or all."""


class Forms(NamedTuple):
    """The forms in which a command reports its results."""

    verbose: bool = False
    """Also print tables of the checked rules, and describe findings that may only follow from others."""
    quiet: bool = False
    """Print only the last line."""
    json: bool = False
    """Print JSON instead of text."""
    junit: Path | None = None
    sarif: Path | None = None
    html: Path | None = None
    """Files to write besides."""
    out: Path | None = None
    """A folder for the traces and vectors that show each finding."""

    @property
    def described(self) -> Described:
        """The findings that these forms describe."""
        if self.quiet and not (self.json or self.junit or self.sarif or self.html or self.out):
            return "none"
        return "all" if self.verbose else "causes"


_ODD = re.compile(
    "[\x00-\x09\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufff9-\ufffb]"
)
"""Control characters except line ends, and marks that change the direction of text. The escapes are rich's own."""


class Shown(io.TextIOBase):
    """A stream to which names from files are written: characters that act on a terminal are escaped as in JSON."""

    def __init__(self, stream: TextIO | None) -> None:
        """Write to `stream`; if it is closed, write nowhere."""
        self._stream = stream or Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
        self._terminal = self._stream.isatty()
        # Colours are escapes; FORCE_COLOR asks for them in a pipe, too.
        self._coloured = self._terminal or bool(os.environ.get("FORCE_COLOR"))

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the stream."""
        return self._stream.encoding or "utf-8"

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._terminal

    def fileno(self) -> int:
        """That of the stream."""
        return self._stream.fileno()

    def flush(self) -> None:
        """Flush the stream."""
        self._stream.flush()

    def writable(self) -> bool:
        """Whether the stream can be written: always."""
        return True

    def write(self, text: str, /) -> int:
        """Write printable characters; escape the rest as JSON does."""
        shown = _ODD.sub(_escaped, text)
        if not self._coloured:
            shown = shown.replace("\x1b", "\\u001b")
        self._stream.write(shown.encode(self.encoding, "backslashreplace").decode(self.encoding))
        return len(text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


@contextmanager
def shown() -> Iterator[None]:
    """Standard output and error for any terminal width, without characters that act on a terminal."""
    if not os.environ.get("COLUMNS", "80").isdigit() or int(os.environ.get("COLUMNS", "80")) < 1:
        del os.environ["COLUMNS"]
    with redirect_stdout(Shown(sys.stdout)), redirect_stderr(Shown(sys.stderr)):
        yield


class Output(Console):
    """Standard output. A reader that closes the pipe ends the command quietly, as SIGPIPE does in other programs."""

    def __init__(self) -> None:
        """Write to a terminal as wide as it is, and elsewhere in 120 columns."""
        # In a file or a pipe there is no edge of the screen to keep to; 120 columns hold every table.
        super().__init__(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)

    def on_broken_pipe(self) -> None:
        """End the command."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + 13)


def written_out() -> OSError | None:
    """Flush standard output. Returns the error if it cannot be written; the unwritten text is then dropped."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


class Consoles(NamedTuple):
    """The consoles of a command."""

    verdict: Console
    """For the result, in a line."""
    details: Console
    """For all else."""
    verbose: bool = False
    described: Described = "causes"


def complain(reason: str) -> None:
    """Print an error of the input or the call on standard error, in one line."""
    print(f"kvspec: {printable(short(reason, 2 * LONGEST))}", file=sys.stderr)


def progress_bar() -> "Progress":
    """A progress bar on standard error, seen only on a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
