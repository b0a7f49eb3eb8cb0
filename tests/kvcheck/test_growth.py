"""The cost of a trace follows its size: twice the size is at most 2.6 times the work, and the memory.

Work is counted in lines of the memory checker, so that no busy machine changes it. `make hostile` takes larger traces,
and files of 100 kB, each of which `kvspec check` reads in 5 seconds and 300 MB.
"""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import kvcheck
from kvcheck import Checker, Malformed
from kvspec.memory import Pool
from kvspec.memory.events import Count, Take
from kvtrace.header import VERSION, MemoryHeader, encode
from tests.kvcheck.shapes import SHAPES
from tests.marks import one_in

pytestmark = pytest.mark.slow

LARGE = bool(os.environ.get("KVSPEC_HOSTILE"))
SIZE = 300 if LARGE else 100
MOST = 2.6
"""Times the work and memory that twice the size may cost."""
LITTLE = 100_000
"""Bytes that are no matter."""
FILE, SECONDS, BYTES = 100_000, 5.0, 300 << 20

RANGES, NAMES = "stand for others in more than 256 ranges", "page 1 of kv has more than 256 names"
ABOVE = {
    "unify_of_ranges": RANGES,
    "unify_of_ranges_of_two_labels": RANGES,
    "unify_of_ranges_that_shrink": RANGES,
    "many_keys_on_one_page_that_is_written": NAMES,
    "keys_of_one_page_are_dropped": NAMES,
    "a_page_changes_hands_that_has_many_names": NAMES,
    "a_plan_with_many_names_loses_its_holder_again_and_again": NAMES,
    "a_page_with_many_names_is_overwritten_with_something_else": NAMES,
    "a_page_with_many_names_is_shared_and_let_go": NAMES,
    "many_hosts": "a trace of more than 256 hosts",
}
"""Shapes that grow up to a limit, and are refused beyond it."""

BY_PAGE = {
    "a_run_is_taken_and_given_back_again_and_again",
    "one_table_changes_hands_again_and_again",
    "single_pages_change_hands_together_again_and_again",
    "many_tables_change_hands_again_and_again",
    "a_page_of_units_is_published_for_more_slots_each_time",
    "a_page_of_units_is_published_and_dropped_again_and_again",
    "a_page_is_remapped_again_and_again_beside_another_stream",
    "many_tables_that_were_read_leave_a_page_beside_another_stream",
    "a_page_that_many_streams_read_is_used_beside_another_stream",
}
"""Shapes in which each event handles all pages, tables, streams or labels: it costs these, and twice as many are twice
that."""

ROOT = str(Path(kvcheck.__file__).parent)


def steps(name: str, size: int) -> None:
    """Check the events of a shape."""
    pools, shape = SHAPES[name]
    checker = Checker(pools)
    for event in shape(size):
        checker.step(event)


def lines(name: str, size: int) -> int:
    """The lines of the memory checker that a shape runs."""
    counted = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal counted
        counted += event == "line"
        return count if frame.f_code.co_filename.startswith(ROOT) else None

    sys.settrace(count)
    try:
        steps(name, size)
    finally:
        sys.settrace(None)
    return counted


def peak(name: str, size: int) -> int:
    """The bytes that a shape takes at most."""
    tracemalloc.start()
    try:
        steps(name, size)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", one_in(3, [name for name in SHAPES if name not in ABOVE]))
def test_twice_the_size_is_no_more_than_twice_the_work_and_somewhat(name: str) -> None:
    once, twice = lines(name, SIZE), lines(name, 2 * SIZE)
    handled = 2 if name in BY_PAGE else 1
    assert twice <= MOST * handled * once, (once, twice)
    less, more = peak(name, SIZE), peak(name, 2 * SIZE)
    assert more <= MOST * less + LITTLE, (less, more)


@pytest.mark.parametrize("name", ABOVE)
def test_a_shape_with_a_limit_is_refused_beyond_it(name: str) -> None:
    pools, shape = SHAPES[name]
    checker = Checker(pools)
    with pytest.raises(Malformed, match=ABOVE[name]):
        for event in shape(300):
            checker.step(event)


def test_a_list_of_the_largest_pool_is_looked_through() -> None:
    checker = Checker({"kv": Pool(num_pages=(1 << 63) - 1)})
    assert not checker.step(Take("a", "kv", [2]))
    (found,) = checker.step(Count("kv", free=[(3, 1 << 40)]))
    first = 3 + (1 << 40)
    assert (found.code, found.pages) == ("MEM-COUNT/missing", (1, *range(first, first + 7)))


def written(name: str, path: Path) -> None:
    """Write the largest shape that a file of `FILE` bytes holds, about."""
    pools, shape = SHAPES[name]
    size, whole = FILE // 20, b""
    while not whole or len(whole) > FILE:
        header = encode(MemoryHeader(VERSION, "memory", "a shape", dict(pools)))
        whole = b"".join(line + b"\n" for line in (header, *map(encode, shape(size))))
        size = size * 4 // 5
    path.write_bytes(whole)


@pytest.mark.skipif(not LARGE, reason="make hostile")
@pytest.mark.parametrize("name", SHAPES)
def test_no_file_of_100_kilobytes_takes_long_or_much(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    written(name, path)
    command = [sys.executable, "-c", "from kvcli.main import main; main()", "check", "--quiet", str(path)]
    code = f"import resource as r, subprocess as s; d = s.run({command!r}); u = r.getrusage(r.RUSAGE_CHILDREN)"
    code += "; print(u.ru_utime + u.ru_stime, u.ru_maxrss * 1024, d.returncode)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, memory, status = map(float, done.stdout.splitlines()[-1].split())
    assert status in (0, 1, 2), done
    assert seconds <= SECONDS
    assert memory <= BYTES
