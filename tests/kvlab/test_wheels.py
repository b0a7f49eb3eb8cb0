"""LMCache and MAX from their wheels: nothing is found but the known issues, and injected defects are."""

from pathlib import Path
from typing import NamedTuple

import pytest

from kvlab.lmcache import fixes as lmcache_fixes
from kvlab.matrix.memory import Driving
from kvlab.matrix.report import Task
from kvlab.max import fixes as max_fixes
from kvlab.stubs import EngineError
from kvlab.trial import trial_of
from tests.kvlab.checkout import release_of
from tests.kvlab.test_trials import trial

pytestmark = pytest.mark.slow


class Wheel(NamedTuple):
    """A release, and how many runs are clean and find its injected defects."""

    engine: str
    name: str
    release: str
    fixes: set[str]
    clean: int
    runs: int
    injected: int

    def folder(self) -> Path:
        """Where the release is; without it the test is skipped."""
        return release_of(self.release, self.engine)

    def driving(self, folder: Path, seconds: float) -> Driving:
        """The matrix's drive of the release."""
        place = self.folder()
        task = Task("memory", self.engine, self.release, str(place), str(folder), seconds, 0)
        return Driving(task, trial_of(self.engine, place))


LEFT = lmcache_fixes.FIXES.keys() - {"images-share-chunks"}
"""The known issues that the newest release has."""
LMCACHE = Wheel("lmcache", "LMCache", "0.5.6", LEFT, clean=15, runs=30, injected=13)
MAX = Wheel("max", "MAX", "26.7.0", {*max_fixes.FIXES}, clean=25, runs=70, injected=35)

each = pytest.mark.parametrize("wheel", [LMCACHE, MAX], ids=["lmcache", "max"])


@each
def test_a_folder_without_the_engine_is_named(wheel: Wheel, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=f"holds no {wheel.name}"):
        trial_of(wheel.engine, tmp_path)


@each
def test_it_conforms_without_its_known_defects(wheel: Wheel) -> None:
    done = trial(wheel.engine, wheel.folder(), "--runs", str(wheel.clean), "--without-known")
    assert done.returncode == 0, done.stdout + done.stderr


@each
def test_injected_defects_are_found(wheel: Wheel) -> None:
    done = trial(wheel.engine, wheel.folder(), "--runs", str(wheel.runs), "--without-known", command="inject")
    assert f"{wheel.injected} of {wheel.injected} injected faults found" in done.stdout, done.stdout + done.stderr


@each
def test_each_known_defect_is_found(wheel: Wheel, tmp_path: Path) -> None:
    driving = wheel.driving(tmp_path, 60.0)
    driving.search()
    assert {name for name, found in driving.report.known.items() if found} == wheel.fixes


@each
def test_its_goals_are_reached(wheel: Wheel, tmp_path: Path) -> None:
    driving = wheel.driving(tmp_path, 10.0)
    driving.walk()
    assert not driving.report.missed, driving.report.missed


def test_images_share_chunks_until_lmcache_0_5_4() -> None:
    done = trial("lmcache", release_of("0.5.4", "lmcache"), "--runs", "15")
    assert "images-share-chunks" in done.stdout, done.stdout + done.stderr
