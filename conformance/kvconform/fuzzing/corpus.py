"""Runs that begin like a vector: rare states that the documents describe, followed by random operations.

The vectors of a search come in random order, each once before any is repeated.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

from kvconform.fuzzing.style import Chance, Draw
from kvconform.traces.codec import read_vector
from kvconform.vectors.files import vector_files
from kvconform.vectors.runner import unanswered
from kvspec.events import Config, Operation, Snapshot

STEPS = (3, 6, 12)
"""The numbers of proposals that follow a vector."""

OF = 8
"""One run of so many begins empty. Within 20,000 operations each vector begins one of the others."""

NOISE = 16
"""When a vector is repeated, one of so many of its operations is left out, and as many random ones are proposed."""


class Beginning(NamedTuple):
    """The memory of a vector, and the operations to begin with; `None` stands for a random one."""

    config: Config | None
    operations: Sequence[Operation[Any] | None]


NOTHING = Beginning(None, ())
"""A random, empty memory."""


def beginnings(seed: int) -> Iterator[Beginning]:
    """All vectors unchanged, so that each rare state is reached; then all repeatedly, varied."""
    draw = Chance(seed)
    files = vector_files()
    for again in count():
        draw.random.shuffle(files)
        for path in files:
            vector = read_vector(path)
            operations = [unanswered(step.op) for step in vector.steps if not isinstance(step.op, Snapshot)]
            yield Beginning(vector.header.config, list(_varied(operations, draw)) if again else operations)


def _varied(operations: Sequence[Operation[Any]], draw: Draw) -> Iterator[Operation[Any] | None]:
    """Most of a vector's operations, among random ones; it may end early."""
    for op in operations[: draw.choice((len(operations), draw.integer(0, len(operations))))]:
        if draw.integer(1, NOISE) == 1:
            yield None
        if draw.integer(1, NOISE) > 1:
            yield op
