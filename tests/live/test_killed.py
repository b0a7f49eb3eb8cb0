"""Real servers that are killed under traffic, or whose disk is full: no process stays, recordings can be checked."""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

import pytest

from kvconform.traces.memory import open_trace
from kvlab.serving import client
from kvlab.serving.client import Clients, Traffic
from kvlab.serving.environment import environment
from kvlab.serving.report import installed
from kvlab.serving.servers import CHECKED_OUT, SERVERS
from kvlab.serving.session import prepared, running
from tests.kvlab.checkout import sglang_jax

RELEASES = os.environ.get("KVSPEC_LIVE", "").split()
SEED = 1
PATIENCE = 120.0
"""Seconds in which all processes of a server that was killed end."""
TRAFFIC = 12.0
ANSWERS = 10
"""Traffic goes on until there are so many: sglang-jax compiles each shape of a batch when it is met."""
LIMIT = 30_000
"""Bytes that a file may have on the full disk."""

AT_ONCE = {"SGL_FORCE_SHUTDOWN": "1"}
"""At SIGTERM sglang-jax waits without end for requests whose clients have hung up, without kvspec as well."""

WAYS: dict[str, Callable[["Popen[bytes]"], None]] = {
    "SIGKILL": lambda process: process.kill(),
    "SIGTERM": lambda process: process.terminate(),
    "SIGKILL to all": lambda process: os.killpg(process.pid, signal.SIGKILL),
}
"""Ways to kill a server: its first process, or all of its processes."""

pytestmark = pytest.mark.skipif(not RELEASES, reason="KVSPEC_LIVE names no release: 'make live'")


@contextmanager
def _under_traffic(
    release: str, folder: Path, mode: str, limit: int = resource.RLIM_INFINITY
) -> Iterator[tuple["Popen[bytes]", Traffic]]:
    """A server whose clients go on until their time is over, and the outcomes of their requests so far.

    Its files may grow to the limit, but for its log: with a limit it has none.
    """
    engine, _, version = release.partition("==")
    server = SERVERS[engine](SEED)
    if engine == CHECKED_OUT:
        package: Path | None = sglang_jax() / "python"
        python = environment(engine, print)
    else:
        python, package = installed(engine, version, print)
    variables, model = prepared(server, python, package, folder)
    variables |= AT_ONCE if engine == CHECKED_OUT else {}
    hooked = {**variables, "KVSPEC": mode, "TMPDIR": str(folder)}
    log = folder / "server.log" if limit == resource.RLIM_INFINITY else Path(os.devnull)
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    if engine != "vllm":  # its start makes larger files, without kvspec as well
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))  # the server inherits it
    try:
        with running(server, python, model, log, hooked) as (process, port):
            resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
            for number in _of(process.pid):
                resource.prlimit(number, resource.RLIMIT_FSIZE, (limit, most))
            clients = Clients(server, port, SEED, 8)
            thread = threading.Thread(target=clients.run, args=(TRAFFIC, ANSWERS))
            thread.start()
            try:
                yield process, clients.traffic
            finally:
                thread.join()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def _processes() -> Iterator[tuple[int, int, str]]:
    """The number, the group and the command of each process that runs."""
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, group = (place / "stat").read_text().rpartition(")")[2].split()[:3]
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if state != "Z":
                yield int(place.name), int(group), command


def _of(server: int) -> list[int]:
    """The processes of a server."""
    return [number for number, group, _ in _processes() if group == server]


def _left(server: int, folder: Path) -> list[str]:
    """The processes of a server, or of a check in a folder, that still run."""
    return [
        command
        for _, group, command in _processes()
        if group == server or ("kvattach.following" in command and str(folder) in command)
    ]


def _until(true: Callable[[], bool]) -> bool:
    ends = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > ends:
            return False
        time.sleep(0.2)
    return True


def _events(folder: Path) -> int:
    """The events that can be read of all recordings in a folder."""
    events = 0
    for path in folder.rglob("trace*.jsonl.zst"):
        with suppress(ValueError), open_trace(path) as trace:
            for _ in trace:
                events += 1
    return events


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("release", RELEASES)
def test_a_killed_server_leaves_no_process_and_its_events_are_checked(release: str, way: str, tmp_path: Path) -> None:
    is_vllm, patience = release.startswith("vllm=="), PATIENCE
    with _under_traffic(release, tmp_path, "check") as (process, _):
        time.sleep(TRAFFIC / 2)
        assert _until(lambda: _events(tmp_path) > 100)
        WAYS[way](process)
        if is_vllm and way == "SIGTERM":
            # Its first process may wait until clients without an answer hang up, without kvspec as well.
            patience += client.PATIENCE
        process.wait(patience)
        if is_vllm and way == "SIGKILL":
            # Its engine's processes go on, without kvspec as well.
            os.killpg(process.pid, signal.SIGKILL)
        assert _until(lambda: not _left(process.pid, tmp_path)), _left(process.pid, tmp_path)
        # The server's temporary files are removed when this context ends.
        (report,) = tmp_path.rglob("*.report")
        said = report.read_text(encoding="utf-8")
        assert "events checked" in said
        assert "is broken" not in said
        assert _events(tmp_path) > 100
        assert {path.suffix for path in report.parent.iterdir()} == {".lock", ".report", ".zst"}


@pytest.mark.parametrize("release", RELEASES)
def test_a_full_disk_leaves_the_server_as_it_is(release: str, tmp_path: Path) -> None:
    recording = f"record:{tmp_path / 'trace.jsonl.zst'}"
    with _under_traffic(release, tmp_path, recording, LIMIT) as (process, traffic):
        time.sleep(TRAFFIC)
        assert _until(lambda: any(path.stat().st_size > LIMIT / 2 for path in tmp_path.glob("trace-*")))
        assert process.poll() is None
    assert not traffic.failures
    assert traffic.answers
    assert all(path.stat().st_size <= LIMIT for path in tmp_path.glob("trace-*"))
    assert _events(tmp_path) > 100
