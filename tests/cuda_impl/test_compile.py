"""The kernels compile for an H100, which needs no GPU, and spill no register; the README shows what they take."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN_FOR = "3.7.1"
"""The release of Triton whose figures the README shows."""


@pytest.mark.slow
@pytest.mark.long
def test_kernels_compile_and_spill_nothing() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(ROOT / "build" / "triton")}
    command = [sys.executable, "-m", "tests.cuda_impl.compiled"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines()]
    assert len(rows) == 31
    assert [row for row in rows if row[3] != "0"] == []
    if version("triton") == SHOWN_FOR:
        readme = (ROOT / "cuda_impl" / "README.md").read_text(encoding="utf-8")
        for variant in dict.fromkeys(row[1] for row in rows):
            registers = [row[2] for row in rows if row[1] == variant]
            assert f"| {variant} | {' | '.join(registers)} |\n" in readme
