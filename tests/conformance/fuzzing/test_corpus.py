"""Runs that begin as a vector does."""

from itertools import islice

from kvconform.fuzzing.corpus import beginnings
from kvconform.vectors.files import read_vectors, vector_files
from kvconform.vectors.runner import unanswered
from kvspec.events import Snapshot


def test_each_vector_begins_a_run_before_any_comes_again() -> None:
    count = len(vector_files())
    first = list(islice(beginnings(3), count))
    whole = [
        (vector.header.config, [unanswered(step.op) for step in vector.steps if not isinstance(step.op, Snapshot)])
        for vector in read_vectors()
    ]
    assert all((begun.config, begun.operations) in whole for begun in first)
    assert all(any(pair == (begun.config, begun.operations) for begun in first) for pair in whole)
    assert [begun.config for begun in first] != [config for config, _ in whole], "the order is random"


def test_a_vector_that_comes_again_is_varied() -> None:
    count = len(vector_files())
    both = list(islice(beginnings(3), 2 * count))
    first, again = both[:count], both[count:]
    kept = [op for begun in again for op in begun.operations]
    assert None in kept, "some operations are random"
    assert count < len(kept) < sum(len(begun.operations) for begun in first), "some are left out, or end early"
