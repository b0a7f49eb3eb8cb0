"""Puts a defect of a table, such as `kvref_mutants.py`, into the module that it is written for."""

from pathlib import Path
from typing import Protocol

ROOT = Path(__file__).resolve().parents[2]
KVREF = ROOT / "reference" / "kvref"
KVCUDA = ROOT / "cuda_impl" / "kvcuda"
NODE = ROOT / "conformance" / "examples" / "node"


class Defect(Protocol):
    """A text in a module that is replaced; it occurs there once."""

    @property
    def module(self) -> str:
        """Path below the package."""

    @property
    def old(self) -> str:
        """The text that is replaced."""

    @property
    def new(self) -> str:
        """The text that takes its place."""


def changed(package: Path, defect: Defect) -> str:
    """The text of a package's module with the defect in it.

    Raises:
        ValueError: the text that is to be replaced does not occur exactly once.
    """
    text = (package / defect.module).read_text()
    if text.count(defect.old) != 1:
        raise ValueError(f"{defect.module} has {text.count(defect.old)} times: {defect.old!r}")
    return text.replace(defect.old, defect.new)
