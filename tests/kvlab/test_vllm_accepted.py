"""vLLM's older model runner with drafts and states: the counts of accepted tokens, moved while they are copied."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvattach.patches import Patches
from kvattach.vllm.accepted import Rows
from kvlab.drives import CheckedTrace
from kvlab.vllm import counts
from kvlab.vllm.offloading import attached, prepared
from kvlab.vllm.servers import driven
from kvlab.vllm.workload import counts_workload
from tests.kvlab.checkout import release_of

RELEASES = ("0.22.1", "0.33.0")
SEEDS = range(7)
SHOWN = 12
"""The seed of a drive that finds them."""
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
    assert called("-m", "tests.kvlab.test_vllm_accepted", str(release_of(release, "vllm"))) == json.dumps(
        {"overlapped": CODES, "one after the other": []}
    )


@pytest.mark.slow
def test_a_drive_finds_them_as_a_known_issue_and_nothing_without_it() -> None:
    issue, release = "counts-moved-early", str(release_of("0.33.0", "vllm"))
    engines = ("-m", "kvcli", "engines")
    assert called(*engines, "reproduce", release, issue).startswith(f"{issue}: MEM-RACE/")
    drive = (*engines, "drive", "vllm", release, "--runs", "1", "--seed", str(SHOWN))
    assert f"(as in known issue {issue})" in " ".join(called(*drive, status=1).split())
    assert " 0 findings" in called(*drive, "--without-known")


def called(*arguments: str, status: int = 0) -> str:
    """The output of Python in a process of its own, which holds one release."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout.strip()


def main(place: str) -> None:
    """Print what is found with each of the fixes, where launches overlap, and without any where they do not."""
    prepared(Path(place))
    works = [counts_workload(seed) for seed in SEEDS]

    def found(*, overlapped: bool, fixes: str = "") -> list[str]:
        trace = CheckedTrace()
        with Patches() as patches:
            for fix in fixes.split():
                getattr(counts, fix)(patches)
            hooks = attached(trace, offloading=False)
            try:
                for work in works:
                    if (work.launches > 1) is overlapped:
                        driven(work, hooks, trace.find)
            finally:
                hooks.detach()
        return sorted({finding.code for _, finding in trace.found})

    shown = {fixes: found(overlapped=True, fixes=fixes) for fixes in CODES}
    print(json.dumps({"overlapped": shown, "one after the other": found(overlapped=False)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
