"""Small files with large numbers cost little: time and memory follow what a file contains, not the numbers in it."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kvcli.main import run_command

pytestmark = pytest.mark.slow

HUGE = 2**31 - 1
HEADER = {"num_pages": HUGE, "num_rows": HUGE, "max_context_len": HUGE}
PREFILLED: list[dict[str, object]] = [
    {"op": "submit", "req": "a", "tokens": [1, 2], "obs": {}},
    {"op": "match_prefix", "req": "a", "obs": {}},
    {"op": "extend", "reqs": [["a", 2]], "obs": {}},
    {"op": "launch", "launch": 1, "reqs": ["a"], "obs": {}},
    {"op": "complete", "launch": 1, "tokens": {"a": 3}, "obs": {}},
]
FILES: dict[str, tuple[list[dict[str, object]], int]] = {
    "a run of all pages": ([*PREFILLED, {"op": "retract", "req": "a", "obs": {"freed": [[1, HUGE]]}}], 2),
    "a decode of a thousand million": ([*PREFILLED, {"op": "decode", "reqs": ["a"], "n": 10**9, "obs": {}}], 2),
    "a snapshot that reports nothing": ([*PREFILLED, {"op": "snapshot", "obs": {}}], 0),
    "a snapshot of a free pool": ([{"op": "snapshot", "obs": {"free_pages": [[1, HUGE]]}}], 0),
    "a snapshot that lacks a page": ([{"op": "snapshot", "obs": {"free_pages": [[1, HUGE - 1]]}}], 1),
    "a snapshot with a page twice": ([{"op": "snapshot", "obs": {"free_pages": [[1, HUGE - 1], [5, HUGE - 4]]}}], 2),
    "a row of all slots": ([{"op": "snapshot", "obs": {"rows": {"0": [[4, HUGE]]}}}], 2),
    "a finding in a huge pool": ([*PREFILLED, {"op": "retract", "req": "a", "obs": {"freed": [7, 8]}}], 1),
    "an eviction of all": ([{"op": "evict", "n": HUGE, "obs": {"evicted": []}}], 0),
}


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))


def check(path: Path) -> subprocess.CompletedProcess[str]:
    """`kvspec check` with a gigabyte of address space and ten seconds of processor time."""
    command = [sys.executable, "-m", "kvcli", "check", str(path)]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=_limit, check=False)


@pytest.mark.parametrize("name", FILES)
def test_a_small_file_with_large_numbers(name: str, tmp_path: Path) -> None:
    operations, status = FILES[name]
    header: dict[str, object] = {"kvspec": 2, "producer": "a test", "config": {"page_size": 4, **HEADER}}
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *operations)))
    done = check(path)
    assert done.returncode == status, done.stdout + done.stderr
    if status == 2:
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("page_size", "more", "status"), [(1, 0, 0), (1, 1, 2), (2, 1, 0)])
def test_a_request_may_fill_a_million_pages_and_no_more(
    page_size: int, more: int, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = {"kvspec": 2, "producer": "a test", "config": {"page_size": page_size, **HEADER}}
    tokens = "0" + ",1" * (2**20 - 1 + more)
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{json.dumps(header)}\n{{"op":"submit","req":"a","tokens":[{tokens}],"obs":{{}}}}\n')
    assert run_command(["check", str(path)]) == status
    assert capsys.readouterr().err == (
        f"kvspec: {path}:2: the number of pages that the tokens fill is 1,048,577, more than the 1,048,576 that one "
        "operation may have\n"
        if status == 2
        else ""
    )


def test_a_memory_level_file_with_large_numbers(tmp_path: Path) -> None:
    header = {"kvspec": 2, "level": "memory", "producer": "a test", "pools": {"kv": {"num_pages": HUGE}}}
    path = tmp_path / "trace.jsonl"
    counted = {"op": "count", "pool": "kv", "free": [[1, HUGE]], "held": 0}
    path.write_text(json.dumps(header) + "\n" + json.dumps(counted) + "\n")
    assert check(path).returncode == 0
    taken = {"op": "take", "holder": "a", "pool": "kv", "pages": [[1, HUGE]]}
    path.write_text(json.dumps(header) + "\n" + json.dumps(taken) + "\n")
    done = check(path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_the_description_of_a_page_is_bounded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = {"kvspec": 2, "level": "memory", "producer": "a test", "pools": {"kv": {"num_pages": 1 << 16}}}
    path = tmp_path / "trace.jsonl"

    def reading(holder: str, pages: list[object]) -> int:
        read = {"op": "begin", "id": 1, "reads": [{"pool": "kv", "pages": pages, "holder": holder}]}
        path.write_text(json.dumps(header) + "\n" + json.dumps(read) + "\n")
        return run_command(["check", str(path)])

    # A gigabyte of words, if each of the pages were reported with the name.
    assert reading("x" * 20_000, [[1, 1 << 16]]) == 2
    assert "parts of long names" in capsys.readouterr().err
    # Two thousand findings of one event are not reported one by one beside it.
    assert reading("x", list(range(1, 2001))) == 1
    assert len(capsys.readouterr().out) < 20_000
