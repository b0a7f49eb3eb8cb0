"""A recording that ends in the middle can be checked: the disk was full, or the engine was killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvconform.cli import run_command
from kvconform.errors import InputError
from kvconform.traces.memory import open_trace

RECORDING = [sys.executable, "-m", "tests.conformance.memory.recording"]
KILLED = 50


def read(path: Path) -> tuple[int, str]:
    """How many events can be read, and what is wrong with the rest."""
    events = 0
    try:
        with open_trace(path) as trace:
            for _ in trace:
                events += 1
    except InputError as error:
        return events, error.reason
    return events, ""


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("limit", [20_001, 70_013])
def test_a_full_disk_leaves_whole_lines(limit: int, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"trace.jsonl{suffix}"
    done = subprocess.run([*RECORDING, path, "--limit", str(limit)], capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    last = sorted(tmp_path.iterdir())[-1]
    assert last.stat().st_size <= limit
    events, wrong = read(last)
    assert wrong in ("", "no event follows the header", "the file is empty")
    if not suffix:
        assert events > 50
        assert last.read_bytes().endswith(b"}\n")
        assert run_command(["check", str(last)]) == 0


def test_whoever_is_killed_leaves_all_but_the_last_line(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) / "trace.jsonl" for number in range(KILLED)]
    for path in paths:
        path.parent.mkdir()
    subprocess.run([*RECORDING, *paths], check=True)
    told = 0
    for path in paths:
        files = sorted(path.parent.iterdir())
        for file in files:
            whole = file.read_bytes().count(b"\n")
            events, wrong = read(file)
            assert wrong in ("", "no event follows the header", "the file is empty") or wrong.startswith("truncated")
            assert events == max(whole - 1, 0)
            told += events
    assert told > 10 * KILLED
