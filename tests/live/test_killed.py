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
from kvlab.serving.client import Clients, Traffic
from kvlab.serving.report import installed
from kvlab.serving.servers import SERVERS
from kvlab.serving.session import prepared, running

RELEASES = [one for one in os.environ.get("KVSPEC_LIVE", "").split() if not one.startswith(("vllm", "sglang-jax"))]
SEED = 1
PATIENCE = 120.0
"""Seconds in which all processes of a server that was killed end."""
TRAFFIC = 12.0
LIMIT = 30_000
"""Bytes that a file may have on the full disk."""

pytestmark = pytest.mark.skipif(not RELEASES, reason="KVSPEC_LIVE names no release: 'make live'")


@contextmanager
def _under_traffic(
    release: str, folder: Path, mode: str, limit: int = resource.RLIM_INFINITY
) -> Iterator[tuple["Popen[bytes]", Traffic]]:
    """A server whose clients go on until their time is over, and the outcomes of their requests so far.

    Its files may grow to the limit, but for its log: with a limit it has none.
    """
    engine, version = release.split("==")
    server = SERVERS[engine](SEED)
    python, package = installed(engine, version, print)
    environment, model = prepared(server, python, package, folder)
    hooked = {**environment, "KVSPEC": mode, "TMPDIR": str(folder)}
    log = folder / "server.log" if limit == resource.RLIM_INFINITY else Path(os.devnull)
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))  # the server inherits it
    try:
        with running(server, python, model, log, hooked) as (process, port):
            resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
            clients = Clients(server, port, SEED, 8)
            thread = threading.Thread(target=clients.run, args=(TRAFFIC,))
            thread.start()
            try:
                yield process, clients.traffic
            finally:
                thread.join()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))


def _left(group: int, folder: Path) -> list[str]:
    """The processes of a server, or of a check in a folder, that still run."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, number = (place / "stat").read_text().rpartition(")")[2].split()[:3]
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            checks = "kvattach.following" in command and str(folder) in command
            if state != "Z" and (int(number) == group or checks):
                found.append(command)
    return found


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


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("release", RELEASES)
def test_a_killed_server_leaves_no_process_and_its_events_are_checked(
    release: str, number: signal.Signals, tmp_path: Path
) -> None:
    with _under_traffic(release, tmp_path, "check") as (process, _):
        time.sleep(TRAFFIC / 2)
        process.send_signal(number)
        process.wait(PATIENCE)
        assert _until(lambda: not _left(process.pid, tmp_path)), _left(process.pid, tmp_path)
        # The server's temporary files are removed when this context ends.
        (report,) = tmp_path.rglob("*.report")
        said = report.read_text(encoding="utf-8")
        assert "events checked" in said
        assert "is broken" not in said
        assert _events(tmp_path) > 100


@pytest.mark.parametrize("release", RELEASES)
def test_a_full_disk_leaves_the_server_as_it_is(release: str, tmp_path: Path) -> None:
    recording = f"record:{tmp_path / 'trace.jsonl.zst'}"
    with _under_traffic(release, tmp_path, recording, LIMIT) as (process, traffic):
        time.sleep(TRAFFIC)
        assert process.poll() is None
    assert not traffic.failures
    assert traffic.answers
    assert all(path.stat().st_size <= LIMIT for path in tmp_path.glob("trace-*"))
    assert _events(tmp_path) > 100
