"""The device manager, read back after each operation, conforms."""

from pathlib import Path

import pytest
from hypothesis import settings

from kvconform.features import lacks, needs
from kvconform.fuzzing.fuzz import Budget, fuzz
from kvconform.fuzzing.machine import machine
from kvconform.oracle import Model
from kvconform.proxy import OracleProxy
from kvconform.traces.codec import read_vector
from kvconform.vectors.files import vector_files
from kvconform.vectors.runner import carry_out, run_vector
from kvcuda.manager import Manager
from kvspec.events import Config
from tests.marks import one_in
from tests.walk import RandomDraw, proposals

pytestmark = pytest.mark.slow

VECTORS = vector_files()
LACKING = {
    "row_free_under_a_launch_that_copied_it",
    "resumed_row_written_in_order",
    "first_turn_chunks_published",
    "turn_counted_as_its_session",
    "overshoot_published",
    "room_is_estimated",
    "overshoot_published_twice",
    "swa_turn_counts_for_its_session",
}
"""Vectors of policies that kvcuda does not have: its launches read rows until they complete, a session's first turn
publishes once, what a turn has counts as its own, tokens past a stop are not published, and nothing is estimated."""


def test_all_vectors_but_those_of_other_policies_are_supported() -> None:
    assert {path.stem for path in VECTORS if needs(read_vector(path)) & lacks(Manager)} == LACKING


@pytest.mark.parametrize("path", VECTORS[::8], ids=[path.stem for path in VECTORS[::8]])
def test_vector_conforms(path: Path) -> None:
    """Some of them: `make conformance` replays all, and `test_canary_guards` all under the canary."""
    vector = read_vector(path)
    if path.stem not in LACKING:
        outcome = run_vector(vector, Manager)
        assert outcome.finding is None, outcome.finding
        assert outcome.operations


CONFIGS = {
    "pages of 2": Config(2, 14, 3, 17),
    "pages of 1": Config(1, 12, 4, 8),
    "pages of 16": Config(16, 20, 3, 128),
    "pages of 3": Config(3, 9, 2, 25),
    "no prefix cache": Config(4, 12, 3, 32, prefix_cache=False),
}


def walk(config: Config, due: set[str], count: int) -> None:
    """Random walks of `count` proposals each, at most six, until they have come by everything that is `due`."""
    missing = set(due)
    for seed in range(6):
        model = Model(config)
        proxy = OracleProxy(Manager(config), model, snapshot_every=1)
        for op in proposals(model.state, RandomDraw(seed), count):
            carry_out(proxy, op)
        assert model.state.checked["PAGE-3"] > count // 3
        missing -= {name for name, times in model.state.reached.items() if times}
        if not missing:
            return
    pytest.fail(f"never came by {missing}")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_no_violation_is_found_by_fuzzing(config: Config) -> None:
    walk(config, {"row withheld", "prefix published"} if config.prefix_cache else {"row withheld"}, 300)


TOMBSTONES = {
    "window evicted",
    "tombstone left",
    "tombstone revived",
    "match cut short by a tombstone",
    "window eviction stopped at a lock",
}
STATES = {"state published", "state evicted", "state given back", "match ends where a state is"}
HYBRID = {
    "window of a page": (Config(2, 14, 3, 17, sliding_window=2, num_window_pages=12), TOMBSTONES),
    "window of more pages": (Config(2, 14, 3, 21, sliding_window=5, num_window_pages=14), TOMBSTONES),
    "window, pages of 1": (Config(1, 12, 4, 12, sliding_window=2, num_window_pages=11), TOMBSTONES),
    "window, no prefix cache": (
        Config(4, 12, 3, 32, prefix_cache=False, sliding_window=4, num_window_pages=8),
        {"window evicted"},
    ),
    "states": (Config(2, 14, 3, 17, num_states=10), STATES),
    "states, pages of 1": (Config(1, 12, 4, 9, num_states=8), STATES),
    "states, no prefix cache": (Config(4, 12, 3, 32, prefix_cache=False, num_states=3), {"state without a row"}),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("config", "due"), one_in(2, HYBRID.values()), ids=HYBRID)
def test_no_violation_of_hybrid_pools_is_found_by_fuzzing(config: Config, due: set[str]) -> None:
    walk(config, due, 400)


class TestMachine(machine(Manager).TestCase):  # type: ignore[misc]
    """Each operation by a rule of its own."""

    settings = settings(max_examples=12, stateful_step_count=20, deadline=None)


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(5))
def test_no_violation_is_found_by_long_fuzzing(seed: int) -> None:
    fuzzed = fuzz(Manager, Budget(30), seed, lambda tally, seconds: None)
    assert fuzzed.failure is None, fuzzed.failure
