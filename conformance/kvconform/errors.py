"""Errors of an input, in one line. The command line ends with them, and needs no other import for that."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

LONGEST = 300
"""The most characters of a reason that are printed. A name from a file may be as long as a line of the file."""


def short(text: str, longest: int = LONGEST) -> str:
    """A text in one line. If it is too long, its middle is left out."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 55]} ... {line[-50:]}"


def like(name: str, names: Iterable[str]) -> str:
    """The name of `names` that is most like an unknown one, as the end of a message; empty if none is like it."""
    close = get_close_matches(name, list(names), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


class LoadError(Exception):
    """An implementation that cannot be loaded. The message says why in one line."""


class InputError(Exception):
    """A file that cannot be used; the message is one line, `file:line: reason`."""

    def __init__(self, file: Path, line: int, reason: str) -> None:
        """Name the file, the line (0 if it is the file itself), and the reason."""
        place = f"{file}:{line}" if line else f"{file}"
        super().__init__(f"{place}: {short(reason)}")
        self.file = file
        self.line = line
        self.reason = reason


class NodeFault(Exception):
    """A node in another process that ended, was late, or gave no usable answer; the message names the operation."""

    def __init__(self, reason: str, *, late: bool = False) -> None:
        """Give the reason; `late` if there was no answer in time."""
        super().__init__(reason)
        self.late = late
        self.stderr: list[str] = []
        """The last lines of the node's standard error."""
