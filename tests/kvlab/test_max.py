"""MAX's own scheduler and cache from its wheel: nothing is found but what is known, and planted defects are."""

from pathlib import Path

import pytest

from kvlab.matrix.memory import Driving
from kvlab.matrix.report import Task
from kvlab.max.fixes import FIXES
from kvlab.releases import folder_of
from kvlab.stubs import EngineError
from kvlab.trial import trial_of
from tests.kvlab.test_trials import trial

pytestmark = pytest.mark.slow

RELEASE = "26.7.0"


@pytest.fixture(scope="module")
def release() -> Path:
    place = folder_of(RELEASE, engine="max")
    if not place.is_dir():
        pytest.skip(f"'kvspec engines install max=={RELEASE}' has not been run")
    return place


def test_a_folder_without_max_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="holds no MAX"):
        trial_of("max", tmp_path)


def test_it_conforms_without_its_known_defects(release: Path) -> None:
    done = trial("max", release, "--runs", "25", "--without-known")
    assert done.returncode == 0, done.stdout + done.stderr


def test_planted_defects_are_found(release: Path) -> None:
    done = trial("max", release, "--runs", "40", "--without-known", command="inject")
    assert "20 of 20 injected faults found" in done.stdout, done.stdout + done.stderr


def test_each_known_defect_is_found(release: Path, tmp_path: Path) -> None:
    of = trial_of("max", release)
    driving = Driving(Task("memory", "max", RELEASE, str(release), str(tmp_path), 60.0, 0), of)
    driving.search()
    assert driving.report.known.keys() == FIXES.keys()
    assert all(driving.report.known.values()), driving.report.known


def test_its_goals_are_reached(release: Path, tmp_path: Path) -> None:
    of = trial_of("max", release)
    driving = Driving(Task("memory", "max", RELEASE, str(release), str(tmp_path), 10.0, 0), of)
    driving.walk()
    assert not driving.report.missed, driving.report.missed
