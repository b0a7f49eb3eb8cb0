"""What is wrong with an input, told in one line; the command line ends with it, and imports nothing else for it."""

from pathlib import Path


class LoadError(Exception):
    """An implementation that cannot be had; the message is one line that says why."""


class InputError(Exception):
    """A file that cannot be used; the message is one line, `file:line: reason`."""

    def __init__(self, file: Path, line: int, reason: str) -> None:
        """Name the file, the line (0 if it is the file itself), and what is wrong."""
        place = f"{file}:{line}" if line else f"{file}"
        super().__init__(f"{place}: {' '.join(reason.split())}")
        self.file = file
        self.line = line
        self.reason = reason
