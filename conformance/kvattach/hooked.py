"""The report of `kvspec attach`: which engines it hooked, or that it hooked none.

The command becomes the engine's first process, so that process number, signals and exit status are the engine's own.
That process keeps a file in memory, in which all its child processes note what they have hooked.
"""

import atexit
import os
import sys
from collections.abc import Iterable, MutableMapping
from pathlib import Path

VARIABLE = "KVSPEC_HOOKED"
"""The environment variable with the numbers of the first process and of its file."""

NOTHING = 2
"""The exit status of an engine's first process if nothing was hooked."""


def note_here(environment: MutableMapping[str, str]) -> None:
    """Let this process, which becomes the engine's, keep the notes: only Linux has files that end with a process."""
    if hasattr(os, "memfd_create"):
        environment[VARIABLE] = f"{os.getpid()} {os.memfd_create('kvspec-hooked', 0)}"


def note(what: str) -> None:
    """Note that an engine, or an engine's own hooks, are hooked in this process, if `kvspec attach` runs it."""
    if VARIABLE not in os.environ:
        return
    process, file = os.environ[VARIABLE].split()
    try:
        with Path(f"/proc/{process}/fd/{file}").open("a") as notes:
            notes.write(f"{what}\n")
    except OSError:  # the first process, which reads the notes, has ended
        return
    print(f"kvspec: hooked {what} in process {os.getpid()}", file=sys.stderr, flush=True)


def complain_at_end(sought: Iterable[str]) -> None:
    """At the end of the engine's first process: if nothing was hooked, name what was sought, and exit with status 2."""
    first, _, file = os.environ.get(VARIABLE, "").partition(" ")
    if first == str(os.getpid()):
        atexit.register(_complain, int(first), int(file), ", ".join(sought))


def _complain(process: int, file: int, sought: str) -> None:
    try:
        if os.getpid() != process or os.fstat(file).st_size:  # a forked child, or something was hooked
            return
    except OSError:  # the engine has closed what it did not open
        return
    print(f"kvspec: nothing was hooked: no process imported {sought}, or hooks of its own", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(NOTHING)
