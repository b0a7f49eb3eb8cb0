"""SGLang from 0.5.16 on behind the protocol, whose requests have a record, and whose servers build one tree."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvlab.matrix.report import RequestReport, Task
from kvlab.sglang.adapter.between import is_between
from kvlab.sglang.adapter.unified import is_unified
from tests.kvlab.checkout import release_of

NEWEST = {"last-token", "retracted-twice", "retract-finishes", "empty-lend"}
HYBRID = {"window-branch", "state-branch", "state-ahead", "state-in-flight", "slot-exchanged"}
RELEASES = {
    "0.5.16": NEWEST | HYBRID - {"window-branch"} | {"session-stuck"},
    "0.5.20": NEWEST | HYBRID | {"session-stuck"},
    "0.5.22": NEWEST | HYBRID | {"waiting-abort-finishes"},
    "0.5.23": NEWEST | HYBRID | {"waiting-abort-finishes"},
}
"""Release -> what explains what the vectors find."""


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_what_the_vectors_find_in_it_is_explained(release: str, tmp_path: Path) -> None:
    folder = release_of(release)
    if any(importlib.util.find_spec(needed) is None for needed in ("torch", "triton", "numpy")):
        pytest.skip("torch, triton or numpy is not installed; SGLang's classes need them")
    task = Task("request", "sglang", release, str(folder), str(tmp_path), seconds=0, seed=0)
    command = [sys.executable, "-m", "kvlab.matrix.worker", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    report = msgspec.json.decode(done.stdout.splitlines()[-1], type=RequestReport)
    explained = {one.explanation for one in report.found}
    assert explained == RELEASES[release]
    assert len(report.conform) > 60
    for policy in ("first_turn_chunks_published", "turn_counted_as_its_session"):
        assert (policy in report.conform) == (release in ("0.5.22", "0.5.23"))
    assert "chunk_cache" in report.conform
    for pool in ("swa_duplicate_publish", "state_kept_over_turns"):
        assert pool in report.conform
    assert report.reached["row not withheld"] > 0


WINDOW_LEFT_BY_A_DUPLICATE = {
    "config": {
        "page_size": 2,
        "num_pages": 12,
        "num_rows": 3,
        "max_context_len": 12,
        "sliding_window": 1,
        "num_window_pages": 12,
    },
    "steps": [
        {"op": "submit", "req": "a", "tokens": [1, 0, 0, 0, 0, 0, 0, 0, 0]},
        {"op": "match_prefix", "req": "a"},
        {"op": "submit", "req": "b", "tokens": [1, 0, 0, 0, 0, 0, 0]},
        {"op": "extend", "reqs": [["a", 9]]},
        {"op": "launch", "launch": 1, "reqs": ["a"]},
        {"op": "complete", "launch": 1, "tokens": {"a": 0}},
        {"op": "cache_unfinished", "req": "a"},
        {"op": "match_prefix", "req": "b"},
        {"op": "extend", "reqs": [["b", 7]]},
        {"op": "launch", "launch": 2, "reqs": ["b"]},
        {"op": "complete", "launch": 2, "tokens": {"b": 0}},
        {"op": "cache_unfinished", "req": "b"},
    ],
}
"""The second prompt leaves its first page's window behind as it publishes; the store has that page without a window."""

ABORTED_OUT_OF_ITS_SESSION = {
    "config": {"page_size": 1, "num_pages": 12, "num_rows": 2, "max_context_len": 8},
    "steps": [
        {"op": "open_session", "session": "s"},
        {"op": "submit", "req": "t", "tokens": [0, 0], "session": "s"},
        {"op": "match_prefix", "req": "t"},
        {"op": "extend", "reqs": [["t", 2]]},
        {"op": "launch", "launch": 1, "reqs": ["t"]},
        {"op": "complete", "launch": 1, "tokens": {"t": 1}},
        {"op": "retract", "req": "t"},
        {"op": "match_prefix", "req": "t"},
        {"op": "extend", "reqs": [["t", 3]]},
        {"op": "launch", "launch": 2, "reqs": ["t"]},
        {"op": "retract", "req": "t"},
        {"op": "abort", "req": "t"},
    ],
}
"""A turn that is retracted twice has lost its session; aborting it is no business of the session's then."""


PLAIN_STEP_AFTER_DRAFTS = {
    "config": {
        "page_size": 4,
        "num_pages": 4,
        "num_rows": 2,
        "max_context_len": 12,
        "sliding_window": 4,
        "num_window_pages": 4,
        "room": "estimated",
    },
    "steps": [
        {"op": "submit", "req": "a", "tokens": [1]},
        {"op": "submit", "req": "b", "tokens": [1, 2, 3, 4, 5, 6, 7, 8]},
        {"op": "match_prefix", "req": "a"},
        {"op": "match_prefix", "req": "b"},
        {"op": "extend", "reqs": [["a", 1]]},
        {"op": "launch", "launch": 1, "reqs": ["a"]},
        {"op": "complete", "launch": 1, "tokens": {"a": 0}},
        {"op": "decode", "reqs": ["a"], "n": 2},
        {"op": "extend", "reqs": [["b", 8]]},
        {"op": "launch", "launch": 2, "reqs": ["b"]},
        {"op": "complete", "launch": 2, "tokens": {"b": 0}},
        {"op": "decode", "reqs": ["b"]},
    ],
}
"""A plain step takes the last page where drafts were asked for before, and no page more is reckoned for it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "steps", "says"),
    [
        ("0.5.23", WINDOW_LEFT_BY_A_DUPLICATE, "1 passed"),
        ("0.5.23", ABORTED_OUT_OF_ITS_SESSION, "SESS-5"),
        ("0.5.9", PLAIN_STEP_AFTER_DRAFTS, "1 passed"),
    ],
    ids=["window", "abort", "room"],
)
def test_what_its_scheduler_does_is_played(release: str, steps: dict[str, Any], says: str, tmp_path: Path) -> None:
    release_of(release)
    vector = tmp_path / "played.jsonl"
    fields = {"producer": "a test", "description": "Played.", "rules": ["SWA-2"]}
    header = {"kvspec": 2, **fields, "config": steps["config"]}
    vector.write_text("".join(json.dumps(line) + "\n" for line in [header, *steps["steps"]]))
    command = [sys.executable, "-m", "kvcli", "run", "--impl", "kvlab.sglang.adapter:Adapter", str(vector)]
    environment = os.environ | {"KVSPEC_SGLANG": release}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert says in done.stdout, done.stdout + done.stderr


def test_a_release_is_recognised_by_its_attributes(tmp_path: Path) -> None:
    memory = tmp_path / "sglang" / "srt" / "mem_cache"
    memory.mkdir(parents=True)
    assert not is_unified(tmp_path)
    (memory / "unified_radix_cache.py").touch()
    assert is_unified(tmp_path)
    (memory / "chunk_cache.py").touch()
    assert not is_unified(tmp_path)


def test_a_release_between_is_recognised_by_the_objects_that_its_servers_build(tmp_path: Path) -> None:
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
