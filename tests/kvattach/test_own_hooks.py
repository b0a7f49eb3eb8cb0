"""The guide's hooks for engines of one's own do what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "conformance/docs/attach.md"


SECTIONS = ["## Hooks for an engine of your own", "### An allocator with a prefix cache", "### An engine with streams"]


@pytest.fixture(params=SECTIONS)
def section(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A section with an engine and its hooks, which are in files now."""
    text = re.split(r"\n##+ ", GUIDE.read_text().split(f"{request.param}\n")[1])[0]
    if "torch" in text:
        pytest.importorskip("torch")
    engine, hooks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (name,) = re.findall(r"`(my_\w+\.py)`", text)
    (tmp_path / name).write_text(engine)
    (tmp_path / "attached.py").write_text(hooks)
    return text


@pytest.mark.slow
def test_the_guides_engines_are_attached_and_their_defects_are_found(section: str, tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "attached.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    shown = section.split("It prints")[1].strip("\n").split("\n\n")[0]
    assert ran.stdout.splitlines() == [line.strip() for line in shown.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS[:2], indirect=True)
def test_own_hooks_do_what_the_variable_says(section: str, tmp_path: Path) -> None:
    (tmp_path / "live.py").write_text(
        "import attached\n"
        "from kvattach.patches import Patches\n"
        "from kvlab.injection import inject_fault\n"
        "from kvattach.switch import opened\n"
        "inject_fault(attached.trial.defects[0], Patches())\n"
        "if (trace := opened()) is not None:\n"
        "    attached.attach(trace)\n"
        "attached.run(0)\n"
    )
    finding = re.findall(r"^    \w+: (MEM-[A-Z]+/[a-z-]+) at event", section, re.MULTILINE)[0]
    for said, found in (("check:halt", f"RuleBroken: {finding}: "), ("check", f"kvspec: {finding}: ")):
        environment = os.environ | {"KVSPEC": said}
        ran = subprocess.run(
            [sys.executable, "live.py"], cwd=tmp_path, capture_output=True, text=True, check=False, env=environment
        )
        assert found in ran.stderr
        assert (ran.returncode == 1) == (said == "check:halt")
