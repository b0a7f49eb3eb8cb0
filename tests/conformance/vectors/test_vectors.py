"""Every embedded vector is well made, and the reference conforms to it."""

from pathlib import Path

import pytest

from kvconform.traces.codec import read_vector
from kvconform.traces.expect import Expect
from kvconform.vectors.files import vector_files
from kvconform.vectors.runner import run_vector
from kvref import Manager

PATHS = vector_files()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_reference_conforms_to(path: Path) -> None:
    vector = read_vector(path)
    outcome = run_vector(vector, Manager)
    assert outcome.finding is None
    assert outcome.operations == len(vector.steps)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_vector_expects_something_and_tells_where_it_comes_from(path: Path) -> None:
    vector = read_vector(path)
    assert vector.header.source
    assert sum(step.expect not in (None, Expect()) for step in vector.steps) >= 2
