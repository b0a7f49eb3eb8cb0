"""The cost of kvspec in a process that does not use it, in modules and in processor time."""

import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points

import pytest

pytestmark = pytest.mark.slow

OURS = ("kvspec", "kvcheck", "kvtrace", "kvattach", "kvconform", "kvlab", "kvcli", "kvref", "kvcuda")
MILLISECONDS = 10
"""Processor time of a switched-off plugin."""
TRIES = 5
"""Processes of which the fastest counts: other work on the machine makes one slow, never fast."""


def cost(code: str, before: str = "") -> tuple[float, list[str]]:
    """Milliseconds of processor time, and the modules of ours that are loaded."""
    program = (
        f"import sys, time\n{before}\nstart = time.process_time()\n{code}\nspent = time.process_time() - start\n"
        f"print(1000 * spent, *sorted(name for name in sys.modules if name.split('.')[0] in {OURS}))"
    )
    best, modules = float("inf"), list[str]()
    for _ in range(TRIES):
        done = subprocess.run([sys.executable, "-P", "-c", program], check=True, capture_output=True, text=True)
        spent, *modules = done.stdout.split()
        best = min(best, float(spent))
    return best, modules


def plugin(group: str) -> EntryPoint:
    (found,) = entry_points(group=group, name="kvspec")
    return found


@pytest.mark.parametrize("group", ["vllm.general_plugins", "sglang.srt.plugins"])
def test_a_plugin_that_is_switched_off_loads_next_to_nothing(monkeypatch: pytest.MonkeyPatch, group: str) -> None:
    for name in ("KVSPEC", "KVSPEC_CANARY"):
        monkeypatch.delenv(name, raising=False)
    found = plugin(group)
    spent, modules = cost(f"from {found.module} import {found.attr}\n{found.attr}()")
    assert 1 <= len(modules) <= 5, modules
    assert spent <= MILLISECONDS


def test_the_pytest_plugin_costs_a_project_without_kvspec_tests_next_to_nothing() -> None:
    spent, modules = cost(f"import {plugin('pytest11').module}", before="import pytest")
    assert len(modules) <= 5, modules
    assert spent <= MILLISECONDS


def test_the_writer_of_traces_loads_few_modules() -> None:
    _, modules = cost("import kvtrace.writer")
    assert len(modules) <= 10, modules


def test_recording_does_not_load_the_checker() -> None:
    _, modules = cost(
        "from kvattach.switch import switched_on\nfrom pathlib import Path\nimport tempfile\n"
        "writer = switched_on({'KVSPEC': 'record:' + str(Path(tempfile.mkdtemp()) / 't.jsonl')})\nwriter.close()"
    )
    assert "kvtrace.writer" in modules
    assert not [name for name in modules if name.startswith(("kvcheck", "kvconform"))]
