"""transformers' own continuous batching with a real model: nothing is found, no token is wrong, each fault shows.

It runs in a process of its own: other engines stand in for transformers.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
]


def test_a_real_model_conforms_and_each_fault_is_found_by_its_events() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.kvlab.real_model"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    clean, *faults = map(json.loads, done.stdout.splitlines())
    assert clean["events"] > 3_000
    assert clean["found"] == []
    assert len(faults) == 13
    # A wrong token, or the engine's own exception, would be MEM-FAILED.
    assert not [fault for fault in faults if fault["first"] is None or fault["first"][0].startswith("MEM-FAILED")]
