"""Whatever stands in a file, checking it ends with status 0, 1 or 2; `make mutants` tries 10,000 files."""

from itertools import islice
from pathlib import Path

import pytest

from kvconform.levels.memory import checking
from tests.conformance.traces.mutating import bases, faults, mutants

pytestmark = pytest.mark.slow


def test_no_mutated_file_makes_kvspec_fail(tmp_path: Path) -> None:
    statuses, wrong = faults(150, 1, tmp_path)
    assert not wrong
    assert statuses[0] + statuses[1] > 20 and statuses[2] > 20


def test_the_same_seed_makes_the_same_files() -> None:
    assert list(islice(mutants(3), 20)) == list(islice(mutants(3), 20)) != list(islice(mutants(4), 20))


def test_a_wrong_end_of_a_check_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError

    monkeypatch.setattr(checking, "_read", fails)
    statuses, wrong = faults(120, 1, tmp_path)
    assert statuses[70] == len(wrong) > 0
    assert len(bases()) > 20
