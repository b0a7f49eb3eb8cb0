"""LMCache's engine from its wheel: nothing is found but what is known, and planted defects are."""

from pathlib import Path

import pytest

from kvlab.lmcache.fixes import FIXES
from kvlab.matrix.memory import Driving
from kvlab.matrix.report import Task
from kvlab.releases import folder_of
from kvlab.stubs import EngineError
from kvlab.trial import trial_of
from tests.kvlab.test_trials import trial

pytestmark = pytest.mark.slow

RELEASE = "0.5.6"


@pytest.fixture(scope="module")
def release() -> Path:
    place = folder_of(RELEASE, engine="lmcache")
    if not place.is_dir():
        pytest.skip(f"'kvspec engines install lmcache=={RELEASE}' has not been run")
    return place


def test_a_folder_without_lmcache_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="holds no LMCache"):
        trial_of("lmcache", tmp_path)


def test_it_conforms_without_its_known_defects(release: Path) -> None:
    done = trial("lmcache", release, "--runs", "15", "--without-known")
    assert done.returncode == 0, done.stdout + done.stderr


def test_planted_defects_are_found(release: Path) -> None:
    done = trial("lmcache", release, "--runs", "30", "--without-known", command="inject")
    assert "13 of 13 injected faults found" in done.stdout, done.stdout + done.stderr


def test_each_known_defect_is_found(release: Path, tmp_path: Path) -> None:
    of = trial_of("lmcache", release)
    driving = Driving(Task("memory", "lmcache", RELEASE, str(release), str(tmp_path), 60.0, 0), of)
    driving.search()
    assert driving.report.known.keys() == FIXES.keys()
    assert all(driving.report.known.values()), driving.report.known
