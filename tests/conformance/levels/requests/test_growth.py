"""The cost of a trace of operations follows its size: twice the size is at most 2.6 times the work, and the memory.

Work is counted in lines of the oracle and the model, so that no busy machine changes it.
"""

import os
import sys
import tracemalloc
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import kvconform
import kvspec
from kvconform.findings.baseline import Baseline
from kvconform.levels.requests.recovery import check_whole
from kvspec.events import Event
from tests.conformance.levels.requests.shapes import SHAPES, operations
from tests.marks import one_in

pytestmark = pytest.mark.slow

SIZE = 240 if os.environ.get("KVSPEC_HOSTILE") else 80
MOST = 2.6
"""Times the work and memory that twice the size may cost."""
LITTLE = 100_000
"""Bytes that are no matter."""

BY_PAGE = {"one_request_is_retracted_again_and_again"}
"""Shapes in which each operation takes or frees all pages: it costs these, and twice as many are twice that."""

ROOTS = tuple(str(Path(str(package.__file__)).parent) for package in (kvconform, kvspec))


def checked(name: str, ops: list[Event]) -> None:
    """Check the operations of a shape; nothing is found."""
    whole = check_whole(SHAPES[name][0], enumerate(ops, start=2), Baseline())
    assert (whole.operations, whole.found) == (len(ops), [])


def cost(name: str, size: int) -> tuple[int, int]:
    """The lines that checking a shape runs, and the bytes that it takes at most."""
    ops, lines = operations(name, size), 0
    assert all(op.refused is None for op in ops)

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if frame.f_code.co_filename.startswith(ROOTS) else None

    sys.settrace(count)
    try:
        checked(name, ops)
    finally:
        sys.settrace(None)
    tracemalloc.start()
    try:
        checked(name, ops)
        return lines, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", one_in(3, SHAPES))
def test_twice_the_size_is_no_more_than_twice_the_work_and_somewhat(name: str) -> None:
    (lines, peak), (more, higher) = cost(name, SIZE), cost(name, 2 * SIZE)
    handled = 2 if name in BY_PAGE else 1
    assert more <= MOST * handled * lines, (lines, more)
    assert higher <= MOST * peak + LITTLE, (peak, higher)
