"""`kvspec init`: what it writes runs as it is, each bug in it is found, and without its bug it conforms."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvcli import main as cli
from kvconform import console
from tests.kvlab.checkout import release_of

pytestmark = pytest.mark.slow

CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("KVSPEC", "PYTEST"))}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new folder, to work in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("toy_engine", "toy_loop"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def start(way: str) -> None:
    assert cli.run_command(["init", ".", "--way", way]) == console.CONFORMS


def pytest_of(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The written tests, run as their README says."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=CLEAN | environment)


def test_init_writes_into_a_new_folder_and_says_what_comes_next(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run_command(["init", "check_kv"]) == console.CONFORMS
    printed = capsys.readouterr().out
    assert "check_kv/toy_engine.py" in printed
    assert "Next: cd check_kv; kvspec run --impl toy_engine:Adapter" in printed
    assert (folder / "check_kv/.github/workflows/kvspec.yml").is_file()
    assert not list(folder.rglob("__pycache__"))


def test_init_overwrites_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.py").write_text("mine")
    assert cli.run_command(["init", "."]) == console.UNUSABLE
    assert cli.run_command(["init", "mine.py"]) == console.UNUSABLE
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "kvspec: .: exists and is not an empty folder; nothing was written",
        "kvspec: mine.py: exists and is not an empty folder; nothing was written",
    ]
    assert [path.name for path in folder.iterdir()] == ["mine.py"]


def test_kvspec_run_finds_the_toys_bug_which_no_leak_check_sees(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start("adapter")
    assert cli.run_command(["run", "--impl", "toy_engine:Adapter"]) == console.BROKEN
    printed = capsys.readouterr().out
    assert "PAGE-3 is broken" in printed
    assert "ACC-1 is broken" not in printed, "every page is somewhere exactly once"


@pytest.mark.thorough
def test_kvspec_fuzz_finds_the_toys_bug(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start("adapter")
    arguments = ["--impl", "toy_engine:Adapter", "--seconds", "15", "--out", "failure.jsonl"]
    assert cli.run_command(["fuzz", *arguments]) == console.BROKEN
    assert "PAGE-3 is broken" in capsys.readouterr().out
    assert cli.run_command(["run", "failure.jsonl", "--impl", "toy_engine:Adapter"]) == console.BROKEN
    assert cli.run_command(["run", "failure.jsonl", "--impl", "toy_engine:FixedAdapter"]) == console.CONFORMS
    assert cli.run_command(["check", "failure.jsonl"]) == console.BROKEN


def test_the_toy_without_its_bug_conforms(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start("adapter")
    assert cli.run_command(["run", "--impl", "toy_engine:FixedAdapter"]) == console.CONFORMS
    assert "no streaming sessions" in capsys.readouterr().out
    arguments = ["--impl", "toy_engine:FixedAdapter", "--operations", "2000", "--out", "none.jsonl"]
    assert cli.run_command(["fuzz", *arguments]) == console.CONFORMS


@pytest.mark.long
def test_the_written_test_of_an_adapter_passes_without_the_bug(folder: Path) -> None:
    start("adapter")
    written = folder / "test_kv_cache.py"
    written.write_text(written.read_text().replace("Adapter", "FixedAdapter"))
    done = pytest_of()
    assert "1 passed" in done.stdout, done.stdout


def test_the_loop_that_writes_a_trace_races_and_its_test_says_so(folder: Path) -> None:
    start("trace")
    done = pytest_of()
    assert "MEM-RACE is broken" in done.stdout
    assert "1 failed, 1 passed" in done.stdout, "with its bug it fails, without it passes"


def test_the_test_of_vllms_scheduler_passes_and_fails_with_a_defect_in_vllm(folder: Path) -> None:
    start("attach")
    wheel = release_of("0.33.0", "vllm")
    pytest.importorskip("torch")
    assert pytest_of(KVSPEC_VLLM_WHEEL=str(wheel)).returncode == 0
    written = folder / "test_scheduler.py"
    defect = (
        "    from vllm.v1.core.block_pool import BlockPool\n"
        "    touch = BlockPool.touch\n"
        "    BlockPool.touch = lambda self, blocks: touch(self, blocks[1:])\n"
    )
    written.write_text(written.read_text().replace("    work = Workload", f"{defect}    work = Workload"))
    done = pytest_of(KVSPEC_VLLM_WHEEL=str(wheel))
    assert done.returncode == 1
    assert "MEM-" in done.stdout


def test_a_vllm_that_is_not_there_is_reported_in_one_line(folder: Path) -> None:
    start("attach")
    done = pytest_of(KVSPEC_VLLM_WHEEL=str(folder))
    assert done.returncode == console.UNUSABLE
    assert "vLLM cannot be tested" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
