"""Every embedded vector is well made, and the reference conforms to it."""

from collections import Counter
from pathlib import Path

import pytest

from kvconform.traces.codec import read_vector
from kvconform.traces.expect import Expect
from kvconform.vectors.files import vector_files
from kvconform.vectors.runner import Evidence, rules_unjudged, run_vector
from kvref import Manager
from kvspec.events import Evict
from kvspec.model.state import CHOICES
from tests.conformance.vectors.lazy import Lazy, NeverGivesBack
from tests.conformance.vectors.silent import Silent

PATHS = vector_files()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_reference_conforms_to(path: Path) -> None:
    vector = read_vector(path)
    outcome = run_vector(vector, Manager)
    assert outcome.finding is None
    assert outcome.operations == len(vector.steps)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
@pytest.mark.parametrize("engine", [Lazy, NeverGivesBack])
def test_vectors_are_not_stricter_than_the_rules(path: Path, engine: type[Manager]) -> None:
    assert run_vector(read_vector(path), engine).finding is None


def test_who_tells_nothing_conforms_only_where_refusals_are_all_there_is_to_judge() -> None:
    vectors = [read_vector(path) for path in PATHS]
    outcomes = [
        (one, run_vector(one, Silent)) for one in vectors if not any(isinstance(s.op, Evict) for s in one.steps)
    ]
    assert all(outcome.finding is None for _, outcome in outcomes), "what is not told is not judged"
    assert {one.name for one, outcome in outcomes if not rules_unjudged(one, outcome)} == {
        "chunk_after_a_retracted_chunk",
        "chunk_sampling",
        "context_limit",
        "discipline_without_memory",
        "last_chunk_beside_first_chunk",
        "launch_of_an_earlier_run",
        "launches_complete_in_order",
        "resumed_row_read_by_the_newest",
        "resumed_row_still_read",
        "row_capacity_miss",
        "session_discipline",
        "state_takes_no_speculative_step",
    }


def test_of_the_reference_nothing_is_left_unjudged() -> None:
    assert not any(rules_unjudged(vector, run_vector(vector, Manager)) for vector in map(read_vector, PATHS))


def reached_by(engine: type[Manager]) -> Counter[str]:
    """What all vectors together make of an implementation."""
    return Evidence.together(run_vector(read_vector(path), engine).evidence for path in PATHS).reached


def test_the_lazy_implementation_makes_every_choice_that_is_open() -> None:
    """But for one, which it is too lazy for and the reference makes."""
    eager = {"first turn published early"}
    lazy, reference = reached_by(NeverGivesBack), reached_by(Manager)
    assert {choice for choice in CHOICES if lazy[choice]} == set(CHOICES) - eager
    assert {choice for choice in CHOICES if reference[choice]} >= eager


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_vector_expects_something_and_tells_where_it_comes_from(path: Path) -> None:
    vector = read_vector(path)
    assert vector.header.source
    assert sum(step.expect not in (None, Expect()) for step in vector.steps) >= 2
