"""Every long command ends within a second of SIGINT and SIGTERM, leaves no child behind, and reports what it has."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance.helpers import HEADER, RECORDED, lines
from tests.marks import one_in

pytestmark = pytest.mark.slow

KVSPEC = [sys.executable, "-P", "-c", "from kvcli.main import main; main()"]
PROCESSOR_SECONDS = 1.0
"""The CPU time of a command once it was asked to end. On a machine with nothing else to do that is the time."""
TICKS = os.sysconf("SC_CLK_TCK")


class Ended(NamedTuple):
    """How an interrupted command ended."""

    status: int
    said: str
    seconds: float
    """Processor time after the signal, its own."""
    children: int
    """Processes that it had at the signal."""
    left: list[int]
    """Those that are still there."""


def processor_seconds(process: int) -> float:
    """The CPU time of a process itself, without its children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def processes(session: int) -> dict[int, float]:
    """The processes of a session that run, and the processor time of each."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found[int(entry.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    return found


def interrupted(command: list[str], number: int, folder: Path, under_way: Callable[[dict[int, float]], bool]) -> Ended:
    """Start a command, send it a signal once it is under way, and see how it ends."""
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not under_way(running := processes(process.pid)):
            assert process.poll() is None, (folder / "out").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        seconds = processor_seconds(process.pid) - running[process.pid]
        process.wait()
        left, patience = processes(process.pid), time.monotonic() + 2
        while left and time.monotonic() < patience:  # a killed process is gone in a moment
            time.sleep(0.05)
            left = processes(process.pid)
    finally:
        for one in processes(process.pid):
            os.kill(one, signal.SIGKILL)
    return Ended(process.returncode, (folder / "out").read_text(), seconds, len(running) - 1, list(left))


def computes(seconds: float) -> Callable[[dict[int, float]], bool]:
    """It has computed so long: everything is imported, and the work has begun."""
    return lambda running: max(running.values(), default=0.0) > seconds


def has_read(path: Path) -> Callable[[dict[int, float]], bool]:
    """A process has read all of a file, and computed nothing since it was looked at before."""
    before: dict[int, float] = {}

    def under_way(running: dict[int, float]) -> bool:
        still = [
            one for one in running if _position(one, path) == path.stat().st_size and before.get(one) == running[one]
        ]
        before.update(running)
        return bool(still)

    return under_way


def _position(process: int, path: Path) -> int:
    """How far a process has read a file; -1 if it has not opened it."""
    for opened in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # it may close what it has opened at any moment
            if opened.samefile(path):
                return int(Path(f"/proc/{process}/fdinfo/{opened.name}").read_text().split()[1])
    return -1


def with_children(count: int, seconds: float = 0.0) -> Callable[[dict[int, float]], bool]:
    """It has so many children, one of which has computed so long."""
    return lambda running: len(running) > count and sorted(running.values())[-2] >= seconds


def long_requests(folder: Path) -> Path:
    """A long trace with a finding early in it."""
    leaked = RECORDED[5] | {"obs": {"freed": []}}
    path = folder / "requests.jsonl"
    path.write_bytes(lines(HEADER, *RECORDED[:5], leaked) + lines(*RECORDED) * 100_000)
    return path


def long_memory(folder: Path) -> Path:
    """The same of the memory level."""
    header = {"kvspec": 2, "level": "memory", "producer": "a test", "pools": {"kv": {"num_pages": 8}}}
    taken = {"op": "take", "holder": "a", "pool": "kv", "pages": [1]}
    turn = lines({**taken, "holder": "b", "pages": [2]}, {**taken, "op": "release", "holder": "b", "pages": [2]})
    path = folder / "memory.jsonl"
    path.write_bytes(lines(header, taken, taken) + turn * 300_000)
    return path


def mooncake(folder: Path) -> Path:
    """Requests that keep a replay busy for long."""
    path = folder / "mooncake.jsonl"
    request = {"timestamp": 0, "input_length": 4096, "output_length": 500}
    written = (json.dumps(request | {"hash_ids": [8 * one + block for block in range(8)]}) for one in range(2000))
    path.write_text("\n".join(written) + "\n")
    return path


def sleeping_engine(folder: Path) -> Path:
    """A checkout of an engine that takes its time to be imported, and computes for some of it."""
    package = folder / "checkout" / "nanovllm" / "engine"
    package.mkdir(parents=True)
    for module in ("scheduler", "block_manager"):
        (package / f"{module}.py").write_text("import time\nwhile time.process_time() < 0.5: pass\ntime.sleep(600)\n")
    return folder / "checkout"


Case = tuple[Callable[[Path], list[str]], Callable[[dict[int, float]], bool], str, int]
BUSY = computes(1.5)
COMMANDS: dict[str, Case] = {
    "check": (lambda at: ["check", str(long_requests(at))], BUSY, "does not conform", 1),
    "check of several": (
        lambda at: ["check", str(long_requests(at)), str(long_memory(at)), "--jobs", "2"],
        with_children(2, 0.4),
        "memory.jsonl: does not conform",
        1,
    ),
    "check of the memory level": (lambda at: ["check", str(long_memory(at))], BUSY, "It was interrupted before", 1),
    "run": (lambda _: ["run"], computes(0.7), "", 0),
    "fuzz": (
        lambda at: ["fuzz", "--impl", "bug:row-freed-between-chunks", "--seconds", "500", "--out", str(at / "f.jsonl")],
        computes(3.0),
        "The trace is in",
        1,
    ),
    "soak": (lambda _: ["soak", "--minutes", "9"], BUSY, "operations in", 0),
    "tiers": (lambda _: ["tiers", "--minutes", "9"], BUSY, "walks", 0),
    "tiers all": (lambda _: ["tiers", "all"], BUSY, "mutants are found", 1),
    "bugs": (lambda _: ["bugs"], BUSY, "defects are found", 0),
    "explore": (lambda _: ["explore", "--jobs", "2"], with_children(2, 0.5), "Exhausted", 0),
    "prove": (lambda _: ["prove", "--jobs", "2"], with_children(2, 0.5), "", 0),
    "replay": (lambda at: ["replay", "mooncake", str(mooncake(at))], BUSY, "events checked", 0),
    "matrix": (
        lambda at: ["matrix", "nano-vllm", str(at / "none"), str(sleeping_engine(at)), "--out", str(at / "m")],
        with_children(1, 0.1),
        "there is no folder",
        0,
    ),
}


BY_TERMINAL = ("check", "check of several", "fuzz", "soak", "prove")
"""Commands that are ended by SIGINT: each way to end one is the same for all."""


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *one_in(2, ((name, signal.SIGTERM) for name in COMMANDS if name not in BY_TERMINAL)),
        *one_in(2, ((name, signal.SIGINT) for name in BY_TERMINAL)),
        *(pytest.param(name, signal.SIGTERM, marks=pytest.mark.thorough) for name in BY_TERMINAL),
    ],
)
def test_a_long_command_ends_at_once_and_reports_what_it_has(name: str, number: int, tmp_path: Path) -> None:
    arguments, under_way, said, broken = COMMANDS[name]
    ended = interrupted([*KVSPEC, *arguments(tmp_path)], number, tmp_path, under_way)
    assert "Traceback" not in ended.said
    assert said in ended.said
    assert ended.status == (1 if broken else 128 + number), ended.said
    assert ended.seconds < PROCESSOR_SECONDS
    assert not ended.left
    if name == "fuzz":
        assert subprocess.run([*KVSPEC, "check", "f.jsonl"], cwd=tmp_path, capture_output=True, check=False).returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_trace_is_followed_until_an_interrupt(number: int, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines(HEADER, *RECORDED))
    ended = interrupted([*KVSPEC, "check", "--follow", str(path)], number, tmp_path, has_read(path))
    assert "conforms, 6 operations checked." in ended.said
    assert (ended.status, ended.left) == (0, [])
    assert ended.seconds < PROCESSOR_SECONDS


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_findings_while_following_are_those_of_a_complete_trace(number: int, tmp_path: Path) -> None:
    header = {"kvspec": 2, "level": "memory", "producer": "a test", "pools": {"kv": {"num_pages": 8}}}
    taken = {"op": "take", "holder": "a", "pool": "kv", "pages": [1]}
    memory, requests = tmp_path / "memory.jsonl", tmp_path / "requests.jsonl"
    memory.write_bytes(lines(header, taken | {"pages": [2]}, taken, taken))
    requests.write_bytes(lines(HEADER, *RECORDED[:5], RECORDED[5] | {"obs": {"freed": []}}))
    for path in (memory, requests):
        whole = subprocess.run([*KVSPEC, "check", str(path)], cwd=tmp_path, capture_output=True, text=True, check=False)
        ended = interrupted([*KVSPEC, "check", "--follow", str(path)], number, tmp_path, has_read(path))
        assert "shortest" in whole.stdout
        assert ended.said.endswith(whole.stdout)  # after the output that came when it was met
        assert (ended.status, ended.left) == (1, [])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_attached_engine_ends_as_it_would_without(number: int, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    hooked = "from kvattach.switch import opened; opened()"
    engine = [sys.executable, "-c", f"{hooked}; import time; open({str(runs)!r}, 'w'); time.sleep(600)"]
    ended = interrupted([*KVSPEC, "attach", "--", *engine], number, tmp_path, lambda _: runs.exists())
    assert (ended.status, ended.left) == (-number, [])
