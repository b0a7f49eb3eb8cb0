"""vLLM's older model runner with drafts and states: the counts of accepted tokens, moved while they are copied."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kvattach.patches import Patches
from kvattach.vllm.accepted import Accepted, Rows
from kvlab.device import Event, Stream
from kvlab.drives import CheckedTrace
from tests.kvlab.checkout import release_of

RELEASES = ("0.28.0", "0.33.0")
SEEDS = range(7)
CODES = {
    "": ["MEM-CONTENT/other", "MEM-RACE/read", "MEM-RACE/write"],
    "await_counts": ["MEM-CONTENT/other"],
    "keep_order": ["MEM-CONTENT/other", "MEM-RACE/read", "MEM-RACE/write"],
    "await_counts keep_order": [],
}
"""Fixes -> what is found; where launches do not overlap, nothing is."""


def test_each_access_to_a_row_is_seen_with_the_function_that_makes_it() -> None:
    seen = list[tuple[str, list[int], bool]]()
    counts = np.array([1, 4, 2, 1], dtype=np.int32)
    rows = Rows(counts, lambda *access: seen.append(access))

    def swap_states() -> None:
        rows[1], rows[2] = rows[2], rows[1]

    def read() -> list[int]:
        return list(map(int, [*rows[:2], *rows[np.array([3, 0])]]))

    swap_states()
    assert counts.tolist() == [1, 2, 4, 1]
    assert read() == [1, 2, 1, 1]
    assert seen == [
        *[("swap_states", [row], False) for row in (2, 1)],
        *[("swap_states", [row], True) for row in (1, 2)],
        ("read", [0, 1], False),
        ("read", [0, 3], False),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_counts_whose_rows_move_before_they_are_copied_give_another_state(release: str) -> None:
    command = [sys.executable, "-m", "tests.kvlab.test_vllm_accepted", str(release_of(release, "vllm"))]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert not done.returncode, done.stderr
    assert json.loads(done.stdout) == {"overlapped": CODES, "one after the other": []}


def main(place: str) -> None:
    """Print what is found with each of the fixes, where launches overlap, and without any where they do not."""
    from kvlab.vllm.release import prepare_runners

    prepare_runners(Path(place))
    from kvlab.vllm import accepted

    works = [accepted.workload(seed) for seed in SEEDS]

    def found(*, overlapped: bool, fixes: str = "") -> list[str]:
        trace = CheckedTrace()
        with Patches() as patches:
            for fix in accepted.FIXES:
                if fix.__name__ in fixes.split():
                    fix(patches)
            cuda = SimpleNamespace(current_stream=lambda: Stream.current)
            hooks = Accepted(trace, Stream, Event, cuda).hooks
            try:
                for work in works:
                    if (work.launches > 1) is overlapped:
                        accepted.run(work, trace.find)
            finally:
                hooks.detach()
            assert hooks.problem is None
        return sorted({finding.code for _, finding in trace.found})

    shown = {fixes: found(overlapped=True, fixes=fixes) for fixes in CODES}
    print(json.dumps({"overlapped": shown, "one after the other": found(overlapped=False)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
