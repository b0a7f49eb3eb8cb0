"""SGLang from 0.5.16 on behind the protocol, whose requests have a record, and whose servers build one tree."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvconform.engines.matrix.findings import ReleaseReport
from kvconform.engines.matrix.task import Task
from kvconform.engines.releases import folder_of
from kvconform.engines.sglang.between import is_between
from kvconform.engines.sglang.unified import is_unified

NEWEST = {"last-token", "retracted-twice", "retract-finishes", "empty-lend"}
HYBRID = {"window-branch", "state-branch", "state-ahead", "slot-exchanged"}
RELEASES = {
    "0.5.16": NEWEST | HYBRID - {"window-branch"} | {"session-stuck"},
    "0.5.20": NEWEST | HYBRID | {"session-stuck"},
    "0.5.22": NEWEST | HYBRID | {"waiting-abort-finishes"},
    "0.5.23": NEWEST | HYBRID | {"waiting-abort-finishes"},
}
"""Release -> what explains what the vectors find."""


@pytest.mark.parametrize("release", RELEASES)
def test_what_the_vectors_find_in_it_is_explained(release: str, tmp_path: Path) -> None:
    folder = folder_of(release)
    if not (folder / "sglang").is_dir():
        pytest.skip(f"sglang {release} is not there: kvspec engines install sglang=={release}")
    if any(importlib.util.find_spec(needed) is None for needed in ("torch", "triton", "numpy")):
        pytest.skip("torch, triton or numpy is not installed; SGLang's classes need them")
    task = Task("sglang", release, str(folder), str(tmp_path), seconds=0, seed=0)
    command = [sys.executable, "-m", "kvconform.engines.matrix.worker", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    report = msgspec.json.decode(done.stdout, type=ReleaseReport)
    explained = {one.explanation for one in report.found}
    assert explained == RELEASES[release]
    assert len(report.conform) > 60
    for policy in ("first_turn_chunks_published", "turn_counted_as_its_session"):
        assert (policy in report.conform) == (release in ("0.5.22", "0.5.23"))
    assert "chunk_cache" in report.conform
    for pool in ("swa_duplicate_publish", "state_kept_over_turns"):
        assert pool in report.conform
    assert report.reached["row not withheld"] > 0


def test_a_release_is_told_by_what_it_has(tmp_path: Path) -> None:
    memory = tmp_path / "sglang" / "srt" / "mem_cache"
    memory.mkdir(parents=True)
    assert not is_unified(tmp_path)
    (memory / "unified_radix_cache.py").touch()
    assert is_unified(tmp_path)
    (memory / "chunk_cache.py").touch()
    assert not is_unified(tmp_path)


def test_a_release_between_is_told_by_what_its_servers_build(tmp_path: Path) -> None:
    memory = tmp_path / "sglang" / "srt" / "mem_cache"
    memory.mkdir(parents=True)
    (memory / "chunk_cache.py").touch()
    assert not is_between(tmp_path)
    plain, swa, one = (
        f"from sglang.srt.mem_cache.{module} import {tree}\n"
        for module, tree in (
            ("radix_cache", "RadixCache"),
            ("swa_radix_cache", "SWARadixCache"),
            ("unified_radix_cache", "UnifiedRadixCache"),
        )
    )
    for built, between in ((plain, False), (plain + swa + one, False), (plain + one, True), (one, True)):
        (memory / "registry.py").write_text(built)
        assert is_between(tmp_path) == between, built
