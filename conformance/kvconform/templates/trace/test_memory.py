"""The engine's memory events conform to the memory model."""

import subprocess
import sys
from pathlib import Path

import pytest
from toy_loop import main


@pytest.mark.parametrize("fixed", [False, True])  # begin with your own loop here; the toy without its bug passes
def test_the_loop_conforms_to_the_memory_model(tmp_path: Path, fixed: bool) -> None:
    """Record, then check; a finding is shown whole."""
    main(str(tmp_path / "trace.jsonl"), fixed=fixed)
    command = [sys.executable, "-m", "kvcli", "check", str(tmp_path / "trace.001.jsonl")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
