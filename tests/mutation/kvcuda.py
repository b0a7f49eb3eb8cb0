"""Puts the defects of `kvcuda_mutants.py` into a copy of kvcuda, one at a time, and prints which test notices each.

python tests/mutation/kvcuda.py [TEXT]    # TEXT: only mutants of modules, or with texts, that have it in them

Exit status 1 where a mutant passes all of tests/cuda_impl, vectors and walks included, and is not explained; or where
one that is said to be out of sight is noticed.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutation.defects import KVCUDA, ROOT, changed
from tests.mutation.kvcuda_mutants import MUTANTS, Mutant

COPIES = ROOT / "build" / "mutation-kvcuda"
PACKAGES = ("spec", "reference", "cuda_impl", "conformance")
SHARPEST = (
    "memory",
    "windows",
    "moves",
    "shuffled",
    "states",
    "streams",
    "graph",
    "hybrid_digest",
    "digest",
    "conformance",
)
"""Which test files come behind the one that a mutant names; the others follow."""
SECONDS = 1800
"""After these a mutant hangs."""

_NOT_RUN = (3, 4, 5)
"""Exit statuses of pytest that say nothing of the mutant: an error of its own, of the call, or no tests."""


class Verdict(NamedTuple):
    """The result of a mutant."""

    noticed_by: str
    """A test, or how else the run ended; empty if every test passed."""
    seconds: float


def attempt(number: int, mutant: Mutant) -> Verdict:
    """Run the tests on a copy with the defect in it.

    Raises:
        RuntimeError: pytest could not be run.
    """
    copy = COPIES / str(number)
    shutil.rmtree(copy, ignore_errors=True)
    for folder in (*PACKAGES, "tests", "benchmarks"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    (copy / "cuda_impl" / "kvcuda" / mutant.module).write_text(changed(KVCUDA, mutant))
    suite = copy / "tests" / "cuda_impl"
    file, _, test = mutant.first.partition("::")
    every = [str(suite / f"test_{name}.py") for name in SHARPEST]
    every += sorted({*map(str, suite.glob("test_*.py"))} - {*every, str(suite / "test_compile.py")})
    begin = time.monotonic()
    try:
        noticed_by = _failure(copy, [f"{suite}/test_{file}.py" + (f"::{test}" if test else "")]) if file else ""
        noticed_by = noticed_by or _failure(copy, every)
    finally:
        shutil.rmtree(copy)
    return Verdict(noticed_by, time.monotonic() - begin)


def _failure(copy: Path, tests: list[str]) -> str:
    """The first test that fails on a copy, or how else its run ended; empty if all pass.

    Raises:
        RuntimeError: pytest could not be run.
    """
    environment = {**os.environ, "PYTHONPATH": ":".join(str(copy / folder) for folder in PACKAGES), "CI": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    if done.returncode == 0:
        return ""
    if done.returncode in _NOT_RUN:
        raise RuntimeError(f"pytest could not be run: {done.stderr or done.stdout}")
    failed = re.search(r"^(?:FAILED|ERROR) \S*?test_(\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else f"pytest ended with {done.returncode}"


def main(wanted: str = "") -> int:
    """Try all mutants, or those with `wanted` in them; the exit status."""
    chosen = [mutant for mutant in MUTANTS if wanted in mutant.module + mutant.old + mutant.new]
    print(f"{len(chosen)} mutants", flush=True)
    wrong = explained = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for mutant, verdict in zip(chosen, pool.map(attempt, range(len(chosen)), chosen), strict=True):
            as_expected = bool(verdict.noticed_by) != bool(mutant.unseen)
            wrong += not as_expected
            explained += bool(as_expected and mutant.unseen)
            print(
                f"{'' if as_expected else 'WRONG '}{mutant.module}: {_one_line(mutant.old)} -> {_one_line(mutant.new)}"
            )
            print(
                f"    {verdict.noticed_by or f'passes all tests: {mutant.unseen}'} ({verdict.seconds:.0f} s)",
                flush=True,
            )
    print(f"{len(chosen) - wrong - explained} noticed, {explained} out of sight, {wrong} not as expected")
    return int(wrong > 0)


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "nothing"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
