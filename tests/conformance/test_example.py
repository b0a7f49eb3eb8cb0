"""The toy engine of the guide: its bug is found, the guide says so in the words that are printed."""

from pathlib import Path

import pytest

from kvconform import cli, console
from kvconform.vectors import files

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "conformance" / "examples"
GUIDE = ROOT / "conformance" / "README.md"


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(files, "FOLDER", Path("../kvconform/vectors"))


def report(printed: str, headline: str) -> str:
    """One report, from its first line to the blank line after its operations."""
    begin = printed.index(headline)
    return "\n\n".join(printed[begin:].split("\n\n")[:2]).rstrip()


def test_kvspec_run_finds_the_toys_bug_and_the_guide_shows_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    vector = "../kvconform/vectors/prefix-store/duplicate_publish_p4.jsonl"
    assert cli.run_command(["run", vector, "--impl", "toy_engine:Adapter"])
    printed = capsys.readouterr().out
    shown = report(printed, f"PAGE-3 is broken at {vector}")
    assert shown in GUIDE.read_text(), shown


def test_kvspec_fuzz_finds_the_toys_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "failure.jsonl"
    arguments = ["--impl", "toy_engine:Adapter", "--seconds", "15", "--out", str(trace)]
    assert cli.run_command(["fuzz", *arguments]) == console.BROKEN
    assert "PAGE-3 is broken" in capsys.readouterr().out
    assert cli.run_command(["run", str(trace), "--impl", "toy_engine:Adapter"]) == console.BROKEN
    assert cli.run_command(["run", str(trace), "--impl", "toy_engine:FixedAdapter"]) == console.CONFORMS
    assert cli.run_command(["check", str(trace)]) == console.BROKEN


def test_the_fixed_toy_conforms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command(["run", "--impl", "toy_engine:FixedAdapter"]) == console.CONFORMS
    printed = capsys.readouterr().out
    assert "vectors conform" in printed.splitlines()[-1]
    assert "no streaming sessions" in printed
    arguments = ["--impl", "toy_engine:FixedAdapter", "--seconds", "5", "--out", str(tmp_path / "none.jsonl")]
    assert cli.run_command(["fuzz", *arguments]) == console.CONFORMS


def test_the_toys_accounting_is_right_all_the_while(capsys: pytest.CaptureFixture[str]) -> None:
    """The bug is of the kind that no leak check sees: every page is somewhere exactly once."""
    assert cli.run_command(["run", "--impl", "toy_engine:Adapter"]) == console.BROKEN
    assert "ACC-1 is broken" not in capsys.readouterr().out
