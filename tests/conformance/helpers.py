"""Small vectors, and implementations that are broken in a known way."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvconform.oracle.fastpath import QuickModel
from kvconform.proxy import RuleBroken
from kvconform.traces.codec import TraceReader, Vector, read_vector
from kvconform.vectors.files import vector_files
from kvconform.vectors.runner import Evidence, Outcome
from kvref.manager import Manager
from kvspec.events import Done, ReleaseAnswer
from kvspec.rules import Violation

HEADER: dict[str, Any] = {
    "kvspec": 2,
    "producer": "test",
    "config": {"page_size": 4, "num_pages": 16, "num_rows": 2, "max_context_len": 64},
}
VECTOR = HEADER | {"description": "A request lives.", "rules": ["PAGE-1"], "source": "994"}

LIFE: list[dict[str, Any]] = [
    {"op": "submit", "req": "r", "tokens": [1, 2, 3, 4, 5, 6]},
    {"op": "match_prefix", "req": "r"},
    {"op": "extend", "reqs": [["r", 6]]},
    {"op": "launch", "launch": 1, "reqs": ["r"]},
    {"op": "complete", "launch": 1, "tokens": {"r": 7}},
    {"op": "finish", "req": "r"},
]
"""A request from its submission to its end: it publishes one page and frees one."""

RECORDED: list[dict[str, Any]] = [
    LIFE[0] | {"obs": {}},
    LIFE[1] | {"obs": {"prefix_len": 0, "protected_len": 0, "freed": []}},
    LIFE[2] | {"obs": {"rows": {"r": 0}, "pages": {"r": [[1, 2]]}}},
    LIFE[3] | {"obs": {}},
    LIFE[4] | {"obs": {}},
    LIFE[5] | {"obs": {"freed": [2]}},
]
"""The same with the answers of a correct implementation."""


def with_refusals() -> Iterator[Vector]:
    """The vectors of the request level in which something must be refused."""
    for vector in map(read_vector, vector_files()):
        if any(step.expect is not None and step.expect.refused for step in vector.steps):
            yield vector


def lines(*objects: dict[str, Any]) -> bytes:
    """JSON Lines."""
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


def write(path: Path, *objects: dict[str, Any]) -> Path:
    """A file of JSON Lines."""
    path.write_bytes(lines(*objects))
    return path


class KeepsPages(Manager):
    """Says that finish freed nothing."""

    def finish(self, req: str) -> ReleaseAnswer:
        super().finish(req)
        return ReleaseAnswer(())


class Raises(Manager):
    """Fails at the end of the first request."""

    def finish(self, req: str) -> ReleaseAnswer:
        raise KeyError(f"lost {req}")


class RaisesAtLaunch(Manager):
    """Fails whenever something is launched, whether it is to be refused or not."""

    def launch(self, launch: int, reqs: list[str]) -> Done:
        raise KeyError(launch)


class CannotBeMade(Manager):
    """Has no memory."""

    def __init__(self, config: object) -> None:
        raise MemoryError("no device")


class Silent(Manager):
    """Returns nothing from finish."""

    def finish(self, req: str) -> ReleaseAnswer:
        return None  # type: ignore[return-value]


class WrongType(Manager):
    """Answers a page number as text."""

    def finish(self, req: str) -> ReleaseAnswer:
        super().finish(req)
        return ReleaseAnswer(["2"])  # type: ignore[list-item]


def check_trace(trace: TraceReader) -> Outcome:
    """Check a recorded trace up to the first broken rule."""
    model = QuickModel(trace.header.config)
    line = steps = 0
    for steps, (line, op) in enumerate(trace, start=1):
        try:
            model.step(op)
        except Violation as violation:
            return Outcome(steps, Evidence.of(model), RuleBroken(violation, steps, op), line)
    return Outcome(steps, Evidence.of(model), None, line)
