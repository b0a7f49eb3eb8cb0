"""The vectors of ways out are what the model makes of them, and every two things meet in one of them."""

from itertools import combinations, product
from pathlib import Path

import pytest

from kvconform.traces.codec import read_vector
from kvconform.vectors.files import FOLDER
from kvconform.vectors.runner import run_vector
from kvref import Manager
from kvref.req_to_token_pool import ReqToTokenPool
from kvspec.events import Config
from tests.conformance.vectors.cases import FACTORS, Case, cases
from tests.conformance.vectors.pairwise import main

pytestmark = pytest.mark.slow

STORED = FOLDER / "ways-out"


def test_writing_them_anew_gives_the_same(tmp_path: Path) -> None:
    main(tmp_path)
    written, stored = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (tmp_path, STORED))
    assert written == stored, "run `python -m tests.conformance.vectors.pairwise`, and read the difference"


IMPOSSIBLE = {
    (("way", "close"), ("session", "none")),
    (("way", "preempt"), ("session", "none")),
    (("way", "finish"), ("phase", "chunk")),
    (("way", "preempt"), ("phase", "chunk")),
    (("pool", "states"), ("phase", "drafts")),
    *((("in_flight", number), ("readers", which)) for number in (0, 1) for which in ("oldest", "newest")),
}
"""A plain request has no session, one amid its prompt is not done, states take no step back, and of one launch all
are both the oldest and the newest."""


def test_every_two_values_meet_in_a_vector() -> None:
    met = {pair for case in cases() for pair in combinations(case._asdict().items(), 2)}
    wanted = {
        ((one, first), (other, second))
        for one, other in combinations(Case._fields, 2)
        for first, second in product(FACTORS[one], FACTORS[other])
    }
    assert wanted - met == IMPOSSIBLE


def test_resumed_turns_share_batches() -> None:
    """Of two and of three, each of which brings its row."""
    beside = {case.batch for case in cases() if case.mates == "turns" and case.session == "later"}
    assert beside == {1, 2, 3}


class OneLaunchTooShort(ReqToTokenPool):
    """A row that is let go is free again when the first of the launches that read it has completed."""

    def end_read(self) -> None:
        completed = self._reads[0]
        super().end_read()
        for row in self._withheld & completed.keys():
            self._withheld.remove(row)
            self._free.append(row)


class Hasty(Manager):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.pool = OneLaunchTooShort(config.num_rows, config.num_states, config.tracking_states)
        self.tree_cache.pool = self.session_cache.pool = self.pool


def test_a_row_that_is_free_one_launch_too_early_is_found_only_with_more_launches_in_flight() -> None:
    found = {
        case.in_flight for case in cases() if run_vector(read_vector(STORED / f"{case.name}.jsonl"), Hasty).finding
    }
    assert found == {2, 3}
