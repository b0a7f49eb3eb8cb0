"""README shows what is printed now."""

import re
import textwrap
from pathlib import Path

import pytest

from kvconform import cli, console

ROOT = Path(__file__).parents[1]
SHOWN = re.findall(
    r"^    \$ kvspec ((?:run|check) .*)\n((?:    .*\n|\n(?=    ))*)", (ROOT / "README.md").read_text(), re.MULTILINE
)
"""Commands, and what they print."""


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=[command.split()[0] for command, _ in SHOWN])
def test_the_readme_shows_what_is_printed(
    command: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.run_command(command.split()) == console.BROKEN
    assert capsys.readouterr().out == textwrap.dedent(shown)


def test_the_readme_shows_a_finding_of_each_level() -> None:
    assert [command.split()[0] for command, _ in SHOWN] == ["run", "check"]
