"""A recording that ends in the middle can be checked: the disk was full, or the engine was killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from kvcli.main import run_command
from kvconform.errors import InputError
from kvconform.traces.memory import open_trace
from kvspec.memory import Pool
from kvtrace.header import MemoryHeader
from kvtrace.sink import BLOCK, Sink

pytestmark = pytest.mark.slow

RECORDING = [sys.executable, "-m", "tests.kvtrace.recording"]
KILLED = 15


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


def test_a_compressed_batch_that_was_cut_off_is_read_up_to_its_last_block(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "trace.jsonl.zst", part_bytes=1 << 30, max_bytes=1 << 30, keep=1, max_waiting=10_000)
    lines = [b'{"op":"take","holder":"a","pool":"kv","pages":[%d]}' % number for number in range(1, 2001)]
    sink.begin(MemoryHeader(2, "memory", "a test", {"kv": Pool(1, 2000)}))
    for line in lines:
        sink.put(lambda line=line: line)  # type: ignore[misc]
    sink.close()
    (file,) = sink.files
    whole = file.read_bytes()
    events, wrong = read(file)
    assert (events, wrong) == (2000, "")
    spoiled = most = 0
    for cut in range(len(whole) - 1, 200, -23):
        file.write_bytes(whole[:cut])
        left, wrong = read(file)
        assert wrong == "" or "middle of a frame" in wrong
        spoiled += bool(wrong)
        most = max(most, events - left)
        events = left
    assert spoiled > 10
    # From one cut to the next at most what one block holds is lost, and the last line of it.
    assert most <= BLOCK // len(lines[0]) + 2


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


def test_a_killed_process_leaves_all_but_the_last_line(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) / "trace.jsonl" for number in range(KILLED)]
    for path in paths:
        path.parent.mkdir()
    subprocess.run([*RECORDING, *paths], check=True)
    recorded = 0
    for path in paths:
        files = sorted(path.parent.iterdir())
        for file in files:
            whole = file.read_bytes().count(b"\n")
            events, wrong = read(file)
            assert wrong in ("", "no event follows the header", "the file is empty") or wrong.startswith("truncated")
            assert events == max(whole - 1, 0)
            recorded += events
    assert recorded > 10 * KILLED
