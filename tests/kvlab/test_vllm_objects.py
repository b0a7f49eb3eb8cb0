"""LMCache's connector of several processes below vLLM: its known issues show, and with their fixes nothing does."""

import json
import subprocess
import sys

import pytest

from kvlab.vllm.workload import LMCACHE, objects_workload
from tests.kvlab.checkout import release_of

ISSUES = {
    "objects-without-adapter": "MEM-CONTENT/other",
    "objects-old-blocks": "MEM-NAME/",
    "objects-left-behind": "MEM-RACE/",
    "objects-earlier-store": "MEM-RACE/",
    "objects-end-twice": "MEM-FAILED/assertion",
    "objects-part-of-chunk": "MEM-NAME/unwritten",
    "objects-failed-load": "MEM-NAME/unwritten",
    "objects-hit-lost": "MEM-RACE/",
    "failed-load-reserves": "MEM-FAILED/stuck",
}
EARLIER = {
    ("0.5.4", "objects-whole-prompt"): "MEM-CONTENT/other",
    ("0.5.5", "objects-whole-prompt"): "MEM-CONTENT/other",
    ("0.5.5", "objects-failure-by-blocks"): "MEM-FAILED/assertion",
    ("0.5.4", "objects-failure-unreported"): "MEM-WRITTEN/unwritten",
}
"""Release of LMCache, issue that 0.5.6 does not have -> its code."""

SETUP = """
import json, logging, sys
from dataclasses import replace
from pathlib import Path
from rich.console import Console
from kvattach.patches import Patches
from kvlab.drives import CheckedTrace
from kvlab.lmcache.engine import importable
from kvlab.vllm import issues
from kvlab.vllm.driver import EngineGaveUp
from kvlab.vllm.offloading import attached, prepared
from kvlab.vllm.servers import driven
from kvlab.vllm.workload import objects_workload

logging.disable(logging.CRITICAL)
vllm, lmcache = Path(sys.argv[1]), Path(sys.argv[2])
importable(lmcache)
"""

SHOWN = f"""{SETUP}
issues.reproduce(Console(), vllm, sys.argv[3])
"""

FOUND = f"""{SETUP}
prepared(vllm)
issues.fix(Patches())
checked = CheckedTrace()
hooks = attached(checked, offloading=True)
for seed in range(int(sys.argv[3])):
    work = objects_workload(seed, False)
    try:
        driven(replace(work, **json.loads(sys.argv[4])), hooks, checked.find)
    except EngineGaveUp:
        pass  # the hooks have reported it
print(json.dumps([hooks.events, hooks.problem, [(finding.code, finding.pool) for _, finding in checked.found]]))
"""


def test_its_workloads_have_states_and_drafts_and_windows_that_end_with_blocks() -> None:
    works = [objects_workload(seed) for seed in range(60)]
    assert {work.offload for work in works} == {LMCACHE}
    assert any(work.groups[-1][0] == "state" and work.drafts and work.eagle for work in works)
    assert all(window % size == 0 for work in works for _, size, window in work.groups)


@pytest.mark.slow
@pytest.mark.parametrize("name", ISSUES)
def test_each_issue_shows(name: str) -> None:
    assert _printed(SHOWN, "0.5.6", name).startswith(f"{name}: {ISSUES[name]}")


@pytest.mark.slow
@pytest.mark.parametrize(("version", "name"), EARLIER)
def test_each_issue_of_an_earlier_release_shows(version: str, name: str) -> None:
    assert _printed(SHOWN, version, name).startswith(f"{name}: {EARLIER[version, name]}")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for _, name in EARLIER}))
def test_an_issue_of_an_earlier_release_is_not_looked_for_in_a_later_one(name: str) -> None:
    assert "LMCache 0.5.6 is newer than 0.5." in _printed(SHOWN, "0.5.6", name)


@pytest.mark.slow
def test_with_their_fixes_nothing_is_found() -> None:
    events, problem, found = json.loads(_printed(FOUND, "0.5.6", "16", "{}"))
    assert events > 80_000
    assert problem is None
    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.4", "0.5.5"])
def test_until_0_5_5_a_whole_prompt_s_state_is_loaded_and_its_last_token_computed_upon_it(version: str) -> None:
    _, problem, found = json.loads(_printed(FOUND, version, "7", '{"failing": 0.0}'))
    assert problem is None
    assert {(code, pool) for code, pool in found} == {("MEM-CONTENT/other", "kv")}


@pytest.mark.slow
def test_until_0_5_5_a_load_that_fails_ends_a_model_with_two_kinds_of_blocks() -> None:
    _, _, found = json.loads(_printed(FOUND, "0.5.5", "2", '{"failing": 0.4}'))
    assert ("MEM-FAILED/assertion", None) in {(code, pool) for code, pool in found}


@pytest.mark.slow
def test_0_28_0_pins_the_states_at_the_ends_of_prompts_for_their_requests() -> None:
    states = '{"failing": 0.0, "groups": [["full", 4, 0], ["state", 8, 0]]}'
    _, problem, found = json.loads(_printed(FOUND, "0.5.6", "6", states, vllm="0.28.0"))
    assert problem is None
    assert not {code for code, _ in found} & {"MEM-RELEASE/not-held", "MEM-COUNT/total", "MEM-COUNT/references"}


def _printed(script: str, version: str, *args: str, vllm: str = "0.33.0") -> str:
    folders = [str(release_of(vllm, "vllm")), str(release_of(version, "lmcache"))]
    command = [sys.executable, "-c", script, *folders, *args]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
