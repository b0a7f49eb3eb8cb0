"""The guide's hooks for an engine of one's own do what it says."""

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[3] / "conformance/docs/attach.md"


def test_the_guides_engine_is_attached_and_its_defect_is_found(tmp_path: Path) -> None:
    section = GUIDE.read_text().split("## Hooks for an engine of your own")[1].split("\n## ")[0]
    engine, hooks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "my_engine.py").write_text(engine)
    (tmp_path / "attached.py").write_text(hooks)
    ran = subprocess.run([sys.executable, "attached.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    shown = section.split("It prints")[1].strip("\n").split("\n\n")[0]
    assert ran.stdout.splitlines() == [line.strip() for line in shown.splitlines()]
