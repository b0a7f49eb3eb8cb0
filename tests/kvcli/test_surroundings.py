"""Whatever the surroundings of a command are, it ends with a status of its own, never with 70 or a traceback."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvconform.subprocesses import python, run
from tests.conformance.helpers import HEADER, RECORDED, lines, write

pytestmark = pytest.mark.slow

KVSPEC = [sys.executable, "-P", "-c", "from kvcli.main import main; main()"]
COMMANDS = [
    ["check", "leaked.jsonl"],
    ["rules"],
    ["schema"],
    ["fuzz", "--seconds", "0.3"],
    ["run", "-v", "chunk_cache"],
    ["check", "none"],
]
SURROUNDINGS: dict[str, dict[str, str | None]] = {
    "ASCII": {"PYTHONIOENCODING": "ascii"},
    "no columns": {"COLUMNS": "0"},
    "one column": {"COLUMNS": "1"},
    "columns that are no number": {"COLUMNS": "wide"},
    "no HOME": {"HOME": None, "XDG_CACHE_HOME": None},
    "a HOME that is not there": {"HOME": "/nowhere/at/all"},
    "a dumb terminal": {"TERM": "dumb", "FORCE_COLOR": "1"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a trace that breaks a rule, in names that are not ASCII."""
    leaked = RECORDED[5] | {"obs": {"freed": []}}
    write(tmp_path / "leaked.jsonl", HEADER | {"producer": "é"}, *RECORDED[:5], leaked)
    return tmp_path


def ended(
    command: list[str], folder: Path, under: Sequence[str] = (), **more: object
) -> "subprocess.CompletedProcess[bytes]":
    done = subprocess.run([*under, *KVSPEC, *command], cwd=folder, stderr=subprocess.PIPE, check=False, **more)  # type: ignore[call-overload]
    assert b"Traceback" not in done.stderr
    assert done.returncode in (0, 1, 2, 141), done.stderr
    return done  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_environment_may_be_odd(name: str, folder: Path) -> None:
    environment = {**os.environ, **{key: value for key, value in SURROUNDINGS[name].items() if value is not None}}
    for key, value in SURROUNDINGS[name].items():
        if value is None:
            environment.pop(key, None)
    done = ended(["check", "leaked.jsonl"], folder, env=environment, stdout=subprocess.PIPE)
    assert done.returncode == 1
    assert b"TAIL-2" in done.stdout or b"PAGE-1" in done.stdout
    assert ended(["engines", "list"], folder, env=environment, stdout=subprocess.PIPE).returncode == 0


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_standard_output_may_be_closed(command: list[str], folder: Path) -> None:
    read, write_end = os.pipe()
    os.close(read)
    try:
        ended(command, folder, stdout=write_end)
    finally:
        os.close(write_end)
    closed = subprocess.run(
        ["bash", "-c", '"$@" >&-', "bash", *KVSPEC, *command], cwd=folder, stderr=subprocess.PIPE, check=False
    )
    assert b"Traceback" not in closed.stderr
    assert closed.returncode in (0, 1, 2, 141), closed.stderr


@pytest.mark.parametrize("command", [["rules"], ["engines", "list"]], ids=" ".join)
def test_a_full_standard_output_is_reported(command: list[str], folder: Path) -> None:
    """Whether more is printed than is held back, or less."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("wb") as full:
        done = ended(command, folder, stdout=full, env=environment)
    assert done.returncode == 2
    assert done.stderr == b"kvspec: [Errno 28] No space left on device\n"


LIKE_OTHERS = ["setpriv", "--bounding-set", "-dac_override"] if os.geteuid() == 0 else []
"""Root may write everywhere, unless it gives that up."""


@pytest.mark.skipif(bool(LIKE_OTHERS) and shutil.which("setpriv") is None, reason="root may write everywhere")
def test_the_directory_may_be_read_only(folder: Path) -> None:
    folder.chmod(0o500)
    try:
        assert ended(["check", "leaked.jsonl"], folder, LIKE_OTHERS, stdout=subprocess.PIPE).returncode == 1
        recorded = ended(["run", "chunk_cache", "--record", "runs"], folder, LIKE_OTHERS)
        assert recorded.returncode == 2
        assert recorded.stderr == b"kvspec: runs: Permission denied\n"
    finally:
        folder.chmod(0o700)


@pytest.mark.parametrize("out", ["/proc/none/f.jsonl", "/dev/full"])
def test_a_finding_that_cannot_be_written_is_shown(out: str, folder: Path) -> None:
    fuzz = ["fuzz", "--impl", "bug:row-freed-between-chunks", "--seconds", "2", "--out", out]
    done = ended(fuzz, folder, stdout=subprocess.PIPE)
    assert done.returncode == 1
    assert b"ROW-" in done.stdout
    assert b"could not be written" in done.stdout


def test_workers_import_nothing_from_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit(99)\n")
    monkeypatch.chdir(tmp_path)
    assert run(python("kvconform.traces.schema")).returncode == 0
    assert run([sys.executable, "-m", "kvconform.traces.schema"]).returncode == 99


def test_control_characters_and_marks_of_direction_are_escaped(tmp_path: Path) -> None:
    odd = "\x1b[31m\u202e\u2066\x9b\x07"
    broken = lines(HEADER | {"producer": odd}, RECORDED[0] | {"req": odd}, RECORDED[0] | {"req": odd})
    path = tmp_path / f"odd{odd}.jsonl"
    path.write_bytes(broken + lines({"op": "finish", "req": odd, "obs": {"freed": [1]}}))
    for verbose in ([], ["-v"], ["--json"]):
        done = ended(["check", path.name, *verbose], tmp_path, stdout=subprocess.PIPE)
        assert done.returncode == 1
        shown = (done.stdout + done.stderr).decode()
        assert [char for char in shown if not char.isprintable() and char != "\n"] == []


def test_an_error_is_reported_in_a_few_hundred_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "v.jsonl", HEADER, {"op": "x" * 100_000})
    done = ended(["check", str(path)], tmp_path, stdout=subprocess.PIPE)
    assert (done.returncode, len(done.stderr) < 700) == (2, True)
