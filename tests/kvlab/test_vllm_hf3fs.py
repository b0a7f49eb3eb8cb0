"""vLLM's `HF3FSKVConnector`: its known issues show, and with their fixes nothing does: `make engine-tests`."""

import json
import subprocess
import sys

import pytest

from kvlab.vllm.workload import HF3FS, files_workload
from tests.kvlab.checkout import release_of

ISSUES = {
    "files-without-keys": "MEM-CONTENT/other",
    "files-after-resume": "MEM-NAME/content",
    "files-after-preemption": "MEM-RACE/read",
    "files-end-twice": "MEM-FAILED/assertion",
    "files-failed-load": "MEM-WRITTEN/unwritten",
    "files-failed-save": "MEM-OVERWRITE/content",
}

FIXED = """
import json, logging, sys
from dataclasses import replace
from pathlib import Path
from kvattach.patches import Patches
from kvlab.drives import CheckedTrace
from kvlab.vllm.issues import fix
from kvlab.vllm.offloading import attached, prepared
from kvlab.vllm.servers import driven
from kvlab.vllm.workload import files_workload

logging.disable(logging.CRITICAL)
prepared(Path(sys.argv[1]))
fix(Patches())
checked = CheckedTrace()
hooks = attached(checked, offloading=True)
for seed in range(6):
    driven(replace(files_workload(seed, False), failing=0.15 * (seed % 2)), checked.find)
print(json.dumps([hooks.events, hooks.problem, [finding.code for _, finding in checked.found]]))
"""


def test_its_workloads_have_one_group_and_no_drafts() -> None:
    for work in map(files_workload, range(20)):
        assert (work.offload, work.groups, work.drafts, work.reset) == (HF3FS, (("full", 4, 0),), 0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.22.1", "0.33.0"])
def test_a_key_without_adapter_and_salt_shows_where_the_block_is_loaded(version: str) -> None:
    _shows(version, "files-without-keys")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ISSUES)[1:])
def test_each_other_issue_shows(name: str) -> None:
    _shows("0.33.0", name)


def _shows(version: str, name: str) -> None:
    folder = str(release_of(version, "vllm"))
    command = [sys.executable, "-m", "kvcli", "engines", "reproduce", folder, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.startswith(f"{name}: {ISSUES[name]} at event "), done.stdout + done.stderr


@pytest.mark.slow
def test_with_their_fixes_nothing_is_found() -> None:
    command = [sys.executable, "-c", FIXED, str(release_of("0.33.0", "vllm"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    events, problem, found = json.loads(done.stdout)
    assert events > 15_000
    assert problem is None
    assert found == []
