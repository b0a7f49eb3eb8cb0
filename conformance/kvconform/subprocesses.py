"""Child processes of a command: they import nothing from the current directory, and none outlives the command."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

_running: set["subprocess.Popen[bytes]"] = set()


def python(module: str, *arguments: str) -> list[str]:
    """The command that runs one of kvspec's modules. -P excludes the current directory, which may hold anything."""
    return [sys.executable, "-P", "-m", module, *arguments]


def run(
    command: Sequence[str], *, timeout: float | None = None, env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    """Run a command to its end in a new process group, which ends when the call ends.

    Raises:
        TimeoutExpired: it did not end in time.
        OSError: it could not be started.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, process_group=0
    )
    _running.add(process)
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        end(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def start(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a command in a new process group, with pipes as standard streams; `end` ends it.

    Raises:
        OSError: it cannot be started.
    """
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, process_group=0, bufsize=0
    )
    _running.add(process)
    return process


def end_all() -> None:
    """End all running commands, including those that other threads wait for."""
    for process in list(_running):
        end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a command and all of its process group, unless it has been waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _running.discard(process)
