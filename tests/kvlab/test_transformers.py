"""transformers' own continuous batching with a real model: nothing is found, no token is wrong, each fault shows.

It runs in a process of its own: other engines stand in for transformers.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
]


BLOCKED = """
import json, runpy, sys
import kvattach.standstill as standstill
from kvattach.transformers import live
from kvlab.drives import CheckedTrace

standstill.PATIENCE = 1.0
checked = CheckedTrace()
live.attach(checked)
if sys.argv[2]:
    from kvattach.patches import Patches
    from kvattach.transformers.modules import imported
    from kvlab.transformers.fixes import fix
    fix(imported(), Patches())
runpy.run_path(sys.argv[1])["main"]()
print(json.dumps([[finding.code, finding.message] for _, finding in checked.found]))
"""


@pytest.mark.parametrize("fixed", ["", "fixed"])
def test_requests_that_wait_for_a_cancelled_one_are_a_finding(fixed: str) -> None:
    script = Path(__file__).parents[2] / "conformance" / "found" / "transformers" / "blocked_for_ever.py"
    command = [sys.executable, "-c", BLOCKED, str(script), fixed]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=environment)
    finished, cancelled, found = [line for line in done.stdout.splitlines() if line]
    assert finished == "one is finished: the other has 44 of 44 tokens, a new one 4 of 4"
    if fixed:
        assert cancelled == "one is cancelled: the other has 44 of 44 tokens, a new one 4 of 4"
        assert json.loads(found) == []
        return
    assert cancelled == "one is cancelled: the other has 29 of 44 tokens, a new one 0 of 4"
    ((code, message),) = json.loads(found)
    assert code == "MEM-FAILED/stuck"
    assert message.endswith("2 requests wait, and 0 are active")


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
