"""An engine under `KVSPEC` is killed, or its checking process is, or the disk is full: no process stays.

`make hostile` kills each more often.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kvattach import temporary
from kvattach.temporary import KEPT, PREFIX, Lock, sweep
from kvconform.errors import InputError
from kvconform.traces.memory import open_trace

pytestmark = pytest.mark.slow

KILLS = 20 if os.environ.get("KVSPEC_HOSTILE") else 1
ENGINE = [sys.executable, "-m", "tests.kvattach.engine"]
PATIENCE = 60.0
"""Seconds in which a process that has to end does, on a slow machine."""
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL]
CUT = ("", "no event follows the header", "the file is empty", "the file ends in the middle", "truncated", "damaged")
"""A recording that was cut off can be checked up to the cut."""


class Engine:
    """An engine that runs, with temporary files in a folder."""

    def __init__(self, mode: str, folder: Path, *options: str) -> None:
        self.folder = folder
        environment = {**os.environ, "KVSPEC": mode, "TMPDIR": str(folder)}
        self.process = subprocess.Popen(
            [*ENGINE, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "started\n"

    def checkers(self) -> list[int]:
        """The checking processes of recordings in the folder, also one that has not lost its parent yet."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if b"kvattach.following" in command and str(self.folder).encode() in command:
                found.append(int(process.name))
        return found

    def end(self, number: int) -> tuple[str, str]:
        """The output of the engine, once it and all others have ended."""
        self.process.send_signal(number)
        printed = self.process.communicate(timeout=PATIENCE)
        until(lambda: not self.checkers())
        return printed


def descendants(number: int) -> list[int]:
    """The processes below a process, which vLLM and SGLang kill when they end."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    found = [number]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def until(true: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def readable(folder: Path) -> int:
    """The events in the recordings of a folder."""
    events = 0
    for path in folder.rglob("trace*.jsonl*"):
        if path.suffix in (".jsonl", ".zst"):
            try:
                with open_trace(path) as trace:
                    for _ in trace:
                        events += 1
            except InputError as error:
                assert error.reason.startswith(CUT[1:]), error
    return events


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("mode", ["record", "check", "check:halt"])
def test_a_killed_engine_leaves_no_process_and_a_recording_that_can_be_checked(
    mode: str, number: signal.Signals, tmp_path: Path
) -> None:
    draw = random.Random(f"{mode} {number}")
    events = 0
    for kill in range(KILLS):
        folder = tmp_path / str(kill)
        folder.mkdir()
        options = ["--defect"] if mode == "check" else []
        engine = Engine(f"record:{folder / 'trace.jsonl'}" if mode == "record" else mode, folder, *options)
        time.sleep(draw.uniform(0.15, 0.6))
        printed, logged = engine.end(number)
        events += readable(folder)
        if mode == "check":
            (report,) = folder.rglob("*.report")
            assert "events checked" in report.read_text() and "MEM-TAKE/held" in report.read_text()
            # By the engine, or after its end by the checking process. A killed engine may not have read its message.
            assert logged.count("MEM-TAKE/held") in ((1,) if number == signal.SIGINT else (0, 1))
        if number == signal.SIGINT and mode != "check:halt":
            often, header, end = map(float, printed.split())
            assert often < 0.01
            assert header < 1.0
            assert end < 1.0
    assert (events > 20 * KILLS) == (mode != "check:halt")


def test_an_engine_whose_descendants_are_killed_first_is_checked_to_the_end(tmp_path: Path) -> None:
    engine = Engine("check", tmp_path, "--defect")
    (report,) = tmp_path.rglob("*.report")
    until(lambda: bool(report.read_text()))
    for number in descendants(engine.process.pid):
        os.kill(number, signal.SIGKILL)
    engine.end(signal.SIGKILL)
    assert "events checked" in report.read_text()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_killed_check_leaves_the_engine_as_it_is(number: signal.Signals, tmp_path: Path) -> None:
    draw = random.Random(number)
    for kill in range(KILLS):
        folder = tmp_path / str(kill)
        folder.mkdir()
        engine = Engine("check", folder)
        until(lambda engine=engine: engine.checkers() and not descendants(engine.process.pid))  # type: ignore[misc]
        (checker,) = engine.checkers()
        time.sleep(draw.uniform(0.0, 1.0))
        os.kill(checker, number)
        until(lambda engine=engine: not engine.checkers())  # type: ignore[misc]
        assert engine.process.poll() is None
        before = readable(folder)
        time.sleep(0.3)
        printed, logged = engine.end(signal.SIGINT)
        assert engine.process.returncode == 0
        assert float(printed.split()[0]) < 0.01
        assert readable(folder) > before
        assert number != signal.SIGKILL or "the check ended early; 'kvspec check " in logged


@pytest.mark.parametrize("limit", [0, 3_000])
@pytest.mark.parametrize("mode", ["record", "check", "check:halt"])
def test_a_full_disk_leaves_the_engine_as_it_is(mode: str, limit: int, tmp_path: Path) -> None:
    engine = Engine(f"record:{tmp_path / 'trace.jsonl'}" if mode == "record" else mode, tmp_path, "--limit", str(limit))
    time.sleep(0.5)
    assert engine.process.poll() is None
    printed, _ = engine.end(signal.SIGINT)
    assert engine.process.returncode == 0
    assert float(printed.split()[0]) < 0.01
    assert max((path.stat().st_size for path in tmp_path.rglob("*")), default=0) <= max(limit, 4096)
    assert (readable(tmp_path) > 10) == (limit > 2_000 and mode != "check:halt")


def test_the_newest_unused_folders_are_kept_and_used_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folders = [temporary.new_folder() for _ in range(KEPT + 4)]
    for number, folder in enumerate(folders):
        (folder / "trace.001.lock").touch()
        os.utime(folder, (number, number))
    (tmp_path / "of another program").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "of another program")
    writing = "from kvattach.temporary import Lock; import sys, pathlib; held = Lock(pathlib.Path(sys.argv[1]));"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", f"{writing} held.{how}(); print(flush=True); input()", folder / "trace.001.lock"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for folder, how in zip(folders, ("hold_as_writer", "hold_as_checker"), strict=False)
    ]
    for writer in writers:
        assert writer.stdout is not None
        writer.stdout.readline()
    checker = Lock(folders[0] / "trace.001.lock")
    assert not checker.has_no_writer()
    checker.release()
    sweep(folders[2])
    assert sorted(tmp_path.glob(f"{PREFIX}*")) == sorted([*folders[:3], *folders[-KEPT:], tmp_path / f"{PREFIX}link"])
    for writer in writers:
        writer.communicate()
    sweep(folders[2])
    assert sorted(tmp_path.glob(f"{PREFIX}*")) == sorted([folders[2], *folders[-KEPT:], tmp_path / f"{PREFIX}link"])
