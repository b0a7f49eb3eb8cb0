"""The effects of KVSPEC, and `kvspec attach`."""

import importlib
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvattach import live
from kvattach.hooks import RuleBroken
from kvattach.switch import STARTUP, Followed, Strict, SwitchError, switched_on
from kvspec.memory import Pool
from kvspec.memory.events import EndHolder, Release, Take
from kvtrace.writer import TraceWriter

POOLS = {"kv": Pool(num_pages=4)}


def kvspec(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kvcli.main import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_nothing_is_on_unless_it_is_switched_on() -> None:
    assert switched_on({}) is None
    assert switched_on({"KVSPEC": ""}) is None


def test_a_release_without_a_module_of_the_hooks_is_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attach(_: object) -> None:
        importlib.import_module("transformers_of_an_older_release")

    monkeypatch.setitem(sys.modules, live.ENGINES["minisgl.scheduler.scheduler"], SimpleNamespace(attach=attach))
    live._attach("minisgl.scheduler.scheduler", Strict())
    (said,) = caplog.messages
    assert said == "kvspec: this release of minisgl is not hooked: there is no module transformers_of_an_older_release"
    assert caplog.records[0].exc_info is None


@pytest.mark.parametrize("said", ["yes", "record", "record:", "check:loudly"])
def test_nonsense_is_refused(said: str) -> None:
    with pytest.raises(SwitchError, match="is none of"):
        switched_on({"KVSPEC": said})


def test_each_process_records_into_files_of_its_own(tmp_path: Path) -> None:
    trace = switched_on({"KVSPEC": f"record:{tmp_path / 'trace.jsonl.zst'}"})
    assert isinstance(trace, TraceWriter)
    trace.header("test", POOLS)
    trace.emit(Take("a", "kv", [1]))
    trace.close()
    assert [path.name for path in tmp_path.iterdir()] == [f"trace-{os.getpid()}.001.jsonl.zst"]


def test_an_engine_under_test_stops_at_the_first_finding() -> None:
    trace = switched_on({"KVSPEC": "check:halt"})
    assert isinstance(trace, Strict)
    trace.header("test", POOLS)
    trace.emit(Take("a", "kv", [1]))
    with pytest.raises(RuleBroken, match="MEM-TAKE/held: page 1 is handed out"):
        trace.emit(Take("b", "kv", [1]))


def until(true: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True], ids=["found while it records", "found after the end of the recording"])
def test_another_process_checks_and_the_log_has_a_line(
    late: bool,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trace = switched_on({"KVSPEC": "check"})
    assert isinstance(trace, Followed)
    with caplog.at_level(logging.ERROR, "kvspec"):
        trace.header("test", POOLS)
        trace.emit(Take("a", "kv", [1]))
        trace.emit(Take("b", "kv", [1]))
        if late:
            trace.close()
        else:
            until(lambda: bool(caplog.records))
        trace.close()
    (report,) = trace.reports
    until(lambda: "does not conform, 2 events checked" in report.read_text())
    messages = caplog.messages + capfd.readouterr().err.splitlines()
    assert messages == [f"kvspec: MEM-TAKE/held: page 1 is handed out, but a holds it ({report})"]


EXITS = """
import kvattach.switch
from kvspec.memory import Pool
from kvspec.memory.events import Take
trace = kvattach.switch.switched_on({"KVSPEC": "check"})
trace.header("test", {"kv": Pool(num_pages=4)})
trace.emit(Take("a", "kv", [1]))
ended = trace._end
trace._end = lambda: (ended(), print(trace._writer.flush(0)))[0]
"""


def test_a_process_that_exits_writes_all_that_it_recorded_and_waits_for_nothing(tmp_path: Path) -> None:
    """The recording ends before the thread that writes it."""
    done = subprocess.run(
        [sys.executable, "-c", EXITS],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1] == "True"


def test_each_memory_has_a_check_of_its_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trace = Followed()
    for _ in range(2):
        trace.header("test", POOLS)
        trace.emit(Take("a", "kv", [1]))
    trace.close()
    assert len(trace.reports) == 2
    for report in trace.reports:
        until(lambda report=report: "conforms, 1 event checked" in report.read_text())  # type: ignore[misc]
    assert caplog.messages == []


@pytest.mark.slow
def test_a_recording_that_is_full_ends_with_its_check(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("kvattach.switch.MOST_BYTES", 2000)
    trace = Followed()
    trace.header("test", POOLS)

    def ended() -> bool:
        trace.emit(Take("a", "kv", [1]))
        trace.emit(Release("a", "kv", [1]))
        trace.emit(EndHolder("a"))
        return "events checked" in trace.reports[0].read_text()

    until(ended)
    assert "the recording ends: the recording has reached 2,000 bytes" in caplog.messages
    trace.close()


def test_without_a_folder_nothing_is_checked(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    trace = Followed()
    trace.header("test", POOLS)
    trace.emit(Take("a", "kv", [1]))
    trace.close()
    (message,) = caplog.messages
    assert message.startswith("kvspec: nothing is checked: [Errno 2] No such file or directory")


def test_a_forked_child_ends_no_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    trace = Followed()
    trace.header("test", POOLS)
    trace.emit(Take("a", "kv", [1]))
    child = os.fork()
    if not child:
        try:
            trace.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    trace.emit(Release("a", "kv", [1]))
    trace.close()
    until(lambda: "conforms, 2 events checked" in trace.reports[0].read_text())


def test_an_engine_is_started_with_the_switch_and_the_hooks_wait_for_it(tmp_path: Path) -> None:
    look = "import os, sys; print(os.environ['KVSPEC'], [type(finder).__name__ for finder in sys.meta_path][0])"
    done = kvspec("attach", "--record", str(tmp_path / "t.jsonl"), "--", sys.executable, "-c", look)
    assert done.stdout.split() == [f"record:{tmp_path / 't.jsonl'}", "After"]
    assert done.returncode == 2
    assert "nothing was hooked: no process imported minisgl.scheduler.scheduler, nanovllm" in done.stderr


def test_a_start_that_is_reached_by_a_link_runs_once(tmp_path: Path) -> None:
    link = tmp_path / "startup"
    link.symlink_to(STARTUP, target_is_directory=True)
    path = os.pathsep.join([str(link), *filter(None, [os.environ.get("PYTHONPATH")])])
    said = subprocess.run(
        [sys.executable, "-c", ""], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=True
    )
    assert said.stderr == b""


@pytest.mark.slow
@pytest.mark.parametrize("child", [False, True], ids=["the first process", "a child"])
def test_an_engine_that_is_started_says_what_it_hooked(child: bool) -> None:
    hooks = "from kvattach.switch import opened; opened()"
    if child:
        hooks = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {hooks!r}]))"
    done = kvspec("attach", "--", sys.executable, "-c", hooks)
    assert done.returncode == 0
    assert re.fullmatch(r"kvspec: hooked its own hooks in process \d+\n", done.stderr)


def test_an_engine_that_fails_before_it_is_hooked_says_both() -> None:
    done = kvspec("attach", "--", sys.executable, "-c", "raise SystemExit('no model')")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "no model" and "nothing was hooked" in done.stderr.splitlines()[1]


def test_the_sites_own_start_is_kept(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the site')\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    command = [
        sys.executable,
        "-c",
        "from kvcli.main import main; main()",
        "attach",
        "--",
        sys.executable,
        "-c",
        code,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    # Once for the command itself, once for what it starts.
    assert done.stdout.split("\n") == ["the site", "the site", ""]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("attach",), "give the engine's command line after --"),
        (("attach", "--halt-on-error", "--record", "t", "--", "true"), "exclude each other"),
        (("attach", "--", "/no/such/engine"), "/no/such/engine: No such file"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: tuple[str, ...], why: str) -> None:
    done = kvspec(*arguments)
    assert done.returncode == 2
    assert why in done.stderr
    assert done.stderr.count("\n") == 1
