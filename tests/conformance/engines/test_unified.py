"""SGLang from 0.5.22 on, whose sessions' records are the tree's, behind the protocol."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvconform.engines.matrix.findings import ReleaseReport
from kvconform.engines.matrix.task import Task
from kvconform.engines.releases import folder_of
from kvconform.engines.sglang.unified import is_unified

RELEASES = ("0.5.22", "0.5.23")


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
    assert explained == {"last-token", "retracted-twice", "retract-finishes", "empty-lend"}
    assert len(report.conform) > 60
    assert "first_turn_chunks_published" in report.conform
    assert report.reached["row not withheld"] > 0


def test_a_release_is_told_by_what_it_has(tmp_path: Path) -> None:
    memory = tmp_path / "sglang" / "srt" / "mem_cache"
    memory.mkdir(parents=True)
    assert not is_unified(tmp_path)
    (memory / "unified_radix_cache.py").touch()
    assert is_unified(tmp_path)
    (memory / "chunk_cache.py").touch()
    assert not is_unified(tmp_path)
