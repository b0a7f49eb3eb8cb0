"""What is wrong with an input, told in one line; the command line ends with it, and imports nothing else for it."""

from pathlib import Path

LONGEST = 300
"""Characters of a reason that are told. What a file names may be as long as a line of it."""


def short(text: str, longest: int = LONGEST) -> str:
    """A text in one line, its middle left out where it is too long."""
    told = " ".join(text.split())
    return told if len(told) <= longest else f"{told[: longest - 55]} ... {told[-50:]}"


class LoadError(Exception):
    """An implementation that cannot be had; the message is one line that says why."""


class InputError(Exception):
    """A file that cannot be used; the message is one line, `file:line: reason`."""

    def __init__(self, file: Path, line: int, reason: str) -> None:
        """Name the file, the line (0 if it is the file itself), and what is wrong."""
        place = f"{file}:{line}" if line else f"{file}"
        super().__init__(f"{place}: {short(reason)}")
        self.file = file
        self.line = line
        self.reason = reason
