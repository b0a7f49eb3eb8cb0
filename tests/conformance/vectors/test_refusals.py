"""Whatever an implementation must refuse, some vector asks of it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvconform.oracle import Model
from kvconform.vectors.runner import unanswered
from kvspec import model
from kvspec.events import Refusal
from tests.conformance.helpers import with_refusals

Place = tuple[str, int]
"""Where the model refuses something: a file, and a line of it."""


def reasons() -> Iterator[tuple[Place, range]]:
    """Every place at which the model refuses, and the lines of the statement there."""
    for path in Path(model.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and ast.unparse(node).startswith("raise Refusal("):
                yield (path.name, node.lineno), range(node.lineno, (node.end_lineno or node.lineno) + 1)


def place_of(refusal: Refusal) -> Place:
    """Where a refusal was raised."""
    trace = refusal.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    return Path(trace.tb_frame.f_code.co_filename).name, trace.tb_lineno


def refused_in_vectors() -> Iterator[Place]:
    """The places at which the model refuses an operation of a vector."""
    for vector in with_refusals():
        watching = Model(vector.header.config)
        for step in vector.steps:
            try:
                watching.step(unanswered(step.op))
            except Refusal as refusal:
                yield place_of(refusal)


@pytest.mark.slow
def test_each_reason_for_a_refusal_is_met_by_a_vector() -> None:
    met = set(refused_in_vectors())
    places = dict(reasons())
    assert len(places) > 50
    assert [place for place, lines in places.items() if not met & {(place[0], line) for line in lines}] == []
