"""One run of a real server with kvspec: start, traffic, stop; then its events and tokens are checked."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from kvlab.model import Answer, Difference
from kvlab.serving.client import Clients, Traffic
from kvlab.serving.environment import NoEnvironment, search_path
from kvlab.serving.servers import LAZY, NGRAM, PAIR, Server, halves

HIGHEST = 55_535
"""The highest port of a server. Until 0.5.18 SGLang takes a further one, 10,000 above."""

BOOT = 900.0
"""The most seconds until a server answers."""

END = 30.0
"""The most seconds until a server has ended."""

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    # The current directory may hold anything.
    "PYTHONSAFEPATH": "1",
}


@dataclass(frozen=True)
class Settings:
    """The settings of one run."""

    seed: int
    seconds: float
    """Seconds of traffic."""
    clients: int
    fault: str = ""
    """The name of a defect to inject into the engine; empty: none."""
    host_cache: bool = False
    """Whether the server has a host cache."""
    windows: bool = False
    """Whether the model has a layer with a window."""
    states: bool = False
    """Whether the model has a layer with a recurrent state."""
    pair: bool = False
    """Whether there are two servers, prefill and decode."""
    cuda: bool = False
    """Whether the server runs on a GPU."""
    connector: str = LAZY
    """vLLM's connector to the host cache."""
    answers: int = 0
    """Traffic continues until there are so many whole answers."""
    without_known: bool = False
    """Whether the engine's known issues are fixed first."""
    drafts: str = ""
    """The server's drafter; empty: it has none."""


@dataclass
class Run:
    """The results of one run."""

    traffic: Traffic
    recordings: list[Path]
    differences: list[Difference] = field(default_factory=list)
    died: str = ""
    """The last line of the server's log, if it ended by itself."""
    ended: str = ""
    """Why the hooks of a server ended their trace before the traffic did, from its log."""
    drafts: tuple[int, int] | None = None
    """The number of drafts that the server verified, and of those that were right; `None`: it has no drafter."""


def serve(
    server: Server,
    python: Path,
    release: Path | None,
    folder: Path,
    settings: Settings,
    say: Callable[[str], object],
) -> Run:
    """Start a server, or a pair, send it traffic, stop it, and check its answers without a cache.

    `folder` gets the model, the servers' logs, the recordings and the answers. `release` is the folder of the engine's
    package; `None`: the environment has it.

    Raises:
        NoEnvironment: the model could not be made, or the server does not start.
    """
    fault = server.issues.get(settings.fault, {})
    if settings.fault and not fault:
        fault = {"KVSPEC_FAULT": f"{server.engine}: {settings.fault}"}
    if settings.without_known:
        fault = {**fault, "KVSPEC_FIXED": server.engine}
    environment, model = prepared(server, python, release, folder)
    say(f"starting {' '.join(server.arguments)}")
    run = Run(Traffic(), [])
    try:
        with ExitStack() as stack:
            started = {}
            servers = halves(server, [_free_port() for _ in PAIR]) if server.pair else {"server": server}
            for name, one in servers.items():
                trace = f"trace-{name}.jsonl.zst" if server.pair else "trace.jsonl.zst"
                hooked = {**environment, **one.environment, "KVSPEC": f"record:{folder / trace}", **fault}
                log = folder / f"{name}.log"
                started[log] = stack.enter_context(running(one, python, model, log, hooked))
            say(f"{settings.clients} clients for {settings.seconds:.0f} s")
            prefill, port = [0, *(port for _, port in started.values())][-2:]
            clients = Clients(one, port, settings.seed, settings.clients, prefill)
            run.traffic = clients.run(settings.seconds, settings.answers)
            for log, (process, _) in started.items():
                if process.poll() is not None:
                    run.died = _last_line(log)
                run.ended = run.ended or trace_ended(log)
            if server.drafter and not run.died:
                run.drafts = run.traffic.drafts if one.engine == "sglang" else one.verified(_metrics(port))
    except NoEnvironment as error:
        # Its first request may have ended it; the recording shows how.
        run.died = str(error)
    run.recordings = sorted(folder.glob("trace-*.jsonl.zst"))
    if run.died and not run.recordings:
        raise NoEnvironment(run.died)
    say(f"checking {len(run.traffic.answers)} answers against a pass without a cache")
    run.differences = compared(server, python, environment, folder, run.traffic.answers)
    return run


def compared(
    server: Server, python: Path, environment: dict[str, str], folder: Path, answers: Sequence[Answer]
) -> list[Difference]:
    """The answers with a token that a pass without a cache would not have given. `folder` keeps all of them.

    Raises:
        NoEnvironment: the model could not be run.
    """
    lines = b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers)
    (folder / "answers.jsonl").write_bytes(lines)
    found = _python(_oracle(server, python), environment, "kvlab.model", ["check", str(folder / "model")], lines)
    return [msgspec.json.decode(line, type=Difference) for line in found.splitlines()]


def prepared(server: Server, python: Path, release: Path | None, folder: Path) -> tuple[dict[str, str], Path]:
    """The environment of a server's processes, and its model, made in `folder`.

    Raises:
        NoEnvironment: the model could not be made.
    """
    environment = {**os.environ, **_QUIET, **server.environment, "PYTHONPATH": search_path(folder, release)}
    model = folder / "model"
    sizes = [server.head_dim, server.window, int(server.states)]
    _python(_oracle(server, python), environment, "kvlab.model", ["make", str(model), *map(str, sizes)])
    if server.drafter not in ("", NGRAM):
        drafter = [server.drafter, str(model), str(folder / "drafter")]
        _python(_oracle(server, python), environment, "kvlab.drafters", drafter)
    return environment, model


def _oracle(server: Server, python: Path) -> Path:
    """The Python that makes models and checks answers."""
    return python if server.has_torch else Path(sys.executable)


def _python(python: Path, environment: dict[str, str], module: str, arguments: list[str], given: bytes = b"") -> bytes:
    done = subprocess.run(
        [str(python), "-m", module, *arguments],
        env={**environment, "KVSPEC": ""},
        input=given,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise NoEnvironment(f"{module} {arguments[0]}: {last}")
    return done.stdout


@contextmanager
def running(
    server: Server, python: Path, model: Path, log: Path, environment: dict[str, str]
) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """A server that answers, and its port. Afterwards all its processes and temporary files are removed."""
    port = _free_port()
    with (
        TemporaryDirectory(
            prefix="kvspec-server-", dir=environment.get("TMPDIR"), ignore_cleanup_errors=True
        ) as temporary,
        log.open("wb") as out,
    ):
        process = subprocess.Popen(
            [str(python), *server.command(model, port)],
            env={**environment, "TMPDIR": temporary},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=log.parent,
            process_group=0,
        )
        try:
            _wait_until_it_answers(process, port, log)
            yield process, port
        finally:
            _stop(process)


def _free_port() -> int:
    port = HIGHEST + 1
    while port > HIGHEST:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
    return port


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    ends = time.monotonic() + BOOT
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise NoEnvironment(f"the server ended with {process.returncode}: {_last_line(log)}")
        address = f"http://127.0.0.1:{port}/health"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.5)
    raise NoEnvironment(f"the server did not answer in {BOOT:.0f} s: {_last_line(log)}")


def _metrics(port: int) -> str:
    """The text of a server's metrics.

    Raises:
        NoEnvironment: the server does not send them.
    """
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            text: str = answer.read().decode()
            return text
    except OSError as error:
        raise NoEnvironment(f"it sends no metrics: {error}") from error


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask a server to end, and then end its remaining processes."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def trace_ended(log: Path) -> str:
    """Why the hooks of a server have ended their trace, from its log; empty if they have not."""
    found = re.search("kvspec: the trace ends: (.*)", log.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else ""


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
