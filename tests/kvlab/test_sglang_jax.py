"""sglang-jax behind the protocol, before and after its pull requests 1008 and 994, where there are checkouts.

They are folders of the one that KVSPEC_CHECKOUTS names, called by their commits: sglang-jax-24e19642 and so on.
"""

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from kvlab.matrix.findings import explanation
from kvlab.matrix.report import Found, RequestReport, Task
from kvlab.stubs import EngineError
from tests.kvlab.checkout import checkout_of

ROWS = {f"row_kept_over_chunks_p{size}" for size in (1, 4, 16, 64)}
CHUNKS = {"middle_chunk_samples_nothing"}
ROOM = {"decode_capacity_miss", "decode_up_to_page_border"}


def checked(commit: str, out: Path) -> RequestReport:
    """The vectors' findings in a checkout, in a process of its own; the test is skipped without it, and says why."""
    try:
        folder = checkout_of(f"sglang-jax-{commit}")
    except EngineError as error:
        pytest.skip(str(error))
    task = Task("request", "sglang-jax", commit, str(folder), str(out), seconds=0, seed=0)
    command = [sys.executable, "-m", "kvlab.matrix.worker", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=RequestReport)


@pytest.mark.parametrize(
    ("commit", "fail", "conform"),
    [
        ("24e19642", ROWS | CHUNKS | ROOM, set[str]()),
        ("00c60d51", CHUNKS | ROOM, ROWS),
        ("5b7150bd", set[str](), ROWS | CHUNKS | ROOM),
        ("cddbf6f1", set[str](), ROWS | CHUNKS | ROOM),
    ],
)
def test_vectors_find_what_the_pull_requests_mend(
    commit: str, fail: set[str], conform: set[str], tmp_path: Path
) -> None:
    report = checked(commit, tmp_path)
    assert fail <= set(report.fail) if fail else not report.fail
    assert conform <= set(report.conform)
    assert not [one for one in report.found if one.explanation is None]
    assert len(report.conform) + len(report.fail) > 30


def test_vectors_find_injected_defects() -> None:
    try:
        folder = checkout_of("sglang-jax-5b7150bd")
    except EngineError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "kvcli", "engines", "inject", "sglang-jax", str(folder), "--level", "request"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "vectors find 10 of 10 injected faults" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commit", "between", "ends"), [("24e19642", r"[1-9]\d*", r"\d+"), ("00c60d51", "0", r"[1-9]\d*")]
)
def test_a_row_that_is_handed_on_between_chunks_races_with_a_launch_that_got_the_rows(
    commit: str, between: str, ends: str
) -> None:
    try:
        folder = checkout_of(f"sglang-jax-{commit}")
    except EngineError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.kvlab.jax_rows", str(folder), "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    expected = f"{between} rows handed on between chunks, {ends} at an end"
    assert re.match(expected, done.stdout), done.stdout + done.stderr


JAX = "sglang-jax"


def test_what_a_pull_request_mends_explains_nothing_where_it_is_there() -> None:
    chunk = Found("CHUNK-1", "complete", "CHUNK-1: a token is taken", "a random walk", ["complete"])
    assert explanation(chunk, "24e19642", JAX) == "chunk-not-counted"
    assert explanation(chunk, "5b7150bd", JAX, frozenset({"994", "1008"})) is None
    assert explanation(chunk, "0.5.10", "sglang") is None


def test_what_a_finding_has_to_show_to_be_explained() -> None:
    trace = ["extend", "launch", "complete", "decode", "launch", "finish"]
    freed = Found("STORE-5", "finish", "STORE-5: a page was freed", "a random walk", trace, part="freed.early")
    assert explanation(freed, "00c60d51", JAX) == "slot-in-flight"
    freed.trace.remove("decode")
    assert explanation(freed, "00c60d51", JAX) is None
    trace = ["extend", "launch", "complete", "extend", "launch", "complete", "cache_unfinished", "snapshot"]
    named = Found("PAGE-3", "snapshot", "PAGE-3: another slot", "a random walk", trace, part="rows.slot")
    assert explanation(named, "00c60d51", JAX, frozenset({"1008"})) == "unaligned-protected"
    assert explanation(named, "cddbf6f1", JAX, frozenset({"994", "1008", "1401"})) is None
    trace.remove("extend")
    assert explanation(named, "00c60d51", JAX) is None
