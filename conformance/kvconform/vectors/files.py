"""Finds the vectors in the folders of their topics."""

from pathlib import Path

from kvconform.errors import InputError, like
from kvconform.traces.codec import Vector, read_vector

FOLDER = Path(__file__).parent
"""The vectors that come with kvspec, one folder a topic."""

MEMORY = "memory"
"""The topic of the memory level: the memory checker checks its vectors, without an implementation."""


def vector_files(folder: Path | None = None) -> list[Path]:
    """The vector files in `folder` and in the folders below it, by name; without a folder kvspec's own.

    Those of the memory level are not included: see `memory_vector_files`.
    """
    if folder is None:
        return [path for path in vector_files(FOLDER) if FOLDER / MEMORY not in path.parents]
    return sorted(folder.rglob("*.jsonl*"), key=lambda path: (path.name, path))


def memory_vector_files() -> list[Path]:
    """The vectors of the memory level that come with kvspec, by name."""
    return vector_files(FOLDER / MEMORY)


def vector_file(name: str) -> Path:
    """The file of kvspec's own vector of that name, of either level.

    Raises:
        InputError: there is no such file and no such vector.
    """
    own = {path.stem: path for path in (*vector_files(), *memory_vector_files())}
    if name not in own:
        raise InputError(Path(name), 0, f"no such file, and no vector of that name{like(name, own)}")
    return own[name]


def own_name(path: Path) -> str:
    """The name of a vector that comes with kvspec; empty for other files, and for a file given by path."""
    return path.stem if path.is_absolute() and path.is_relative_to(FOLDER) else ""


def read_vectors() -> list[Vector]:
    """The vectors that come with kvspec, by name."""
    return [read_vector(path) for path in vector_files()]
