"""Where the vectors are: the one place that looks for them, whatever folder of its topic each lies in."""

from pathlib import Path

from kvconform.traces.codec import Vector, read_vector

FOLDER = Path(__file__).parent
"""The vectors that come with kvspec, one folder a topic."""


def vector_files(folder: Path | None = None) -> list[Path]:
    """The vector files in `folder` and in the folders below it, by name; without a folder kvspec's own."""
    return sorted((FOLDER if folder is None else folder).rglob("*.jsonl*"), key=lambda path: (path.name, path))


def vector_file(name: str) -> Path:
    """The file of kvspec's own vector of that name.

    Raises:
        KeyError: there is none.
    """
    return {path.stem: path for path in vector_files()}[name]


def read_vectors() -> list[Vector]:
    """The vectors that come with kvspec, by name."""
    return [read_vector(path) for path in vector_files()]
