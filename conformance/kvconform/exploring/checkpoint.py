"""A file from which an interrupted exploration resumes: the exhausted scopes, and the tree of the current scope.

The file is for the command that wrote it, on the same machine. It is read only if the same code wrote it for the same
scopes; otherwise the exploration begins anew.
"""

import hashlib
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import kvcheck
import kvconform
import kvspec
from kvconform.exploring.scope import Scope

EVERY = 30.0
"""The least seconds between two writes of the tree, which is written after a complete level."""


class Grown(NamedTuple):
    """A search tree with only complete levels."""

    scope: str
    seconds: float
    """The seconds spent on it so far."""
    tree: dict[str, Any]
    frontier: list[bytes]
    """The states to expand next, in order."""


class Checkpoint:
    """The scopes and states explored so far, in a file."""

    def __init__(self, path: Path, scopes: Sequence[Scope], *, checker: bool) -> None:
        """Read the file, if it exists and belongs to this exploration.

        Raises:
            OSError: it cannot be read.
        """
        self._path = path
        self._mark = _mark(scopes, checker=checker)
        self.complete: dict[str, Any] = {}
        """Scope in which every rule holds -> its result."""
        self.grown: Grown | None = None
        """The tree of the current scope."""
        self._written = time.monotonic()
        if path.is_file():
            with path.open("rb") as file:
                if file.read(len(self._mark)) == self._mark:
                    self.complete, self.grown = pickle.load(file)

    def tree_of(self, scope: str) -> Grown | None:
        """The tree of a scope, if it is the current one."""
        return self.grown if self.grown is not None and self.grown.scope == scope else None

    def after_level(self, grown: Callable[[], Grown]) -> None:
        """A level is complete: write the tree, if the last write was long ago."""
        if time.monotonic() - self._written >= EVERY:
            self.grown = grown()
            self._write()

    def after_scope(self, scope: str, result: Any) -> None:
        """A scope is exhausted, and every rule holds."""
        self.complete[scope] = result
        self.grown = None
        self._write()

    def remove(self) -> None:
        """All scopes are exhausted: remove the file."""
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        """Write the file atomically."""
        part = self._path.with_name(f"{self._path.name}.part")
        with part.open("wb") as file:
            file.write(self._mark)
            pickle.dump((self.complete, self.grown), file, pickle.HIGHEST_PROTOCOL)
        part.replace(self._path)
        self._written = time.monotonic()


def _mark(scopes: Sequence[Scope], *, checker: bool) -> bytes:
    """A digest of the code, the scopes and the options: a search with other ones may differ."""
    fields = [sorted(field) if isinstance(field, frozenset) else field for scope in scopes for field in scope]
    found = hashlib.sha256(repr((sys.version, checker, fields)).encode())
    for package in (kvspec, kvcheck, kvconform):
        for path in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            found.update(path.read_bytes())
    return found.digest()
