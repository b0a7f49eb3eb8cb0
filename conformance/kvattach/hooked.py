"""The report of `kvspec attach`: which engines it hooked, or that it hooked none.

The command becomes the engine's first process, so that process number, signals and exit status are the engine's own.
That process keeps a file in memory, in which every process below it notes what it has hooked.
"""

import atexit
import os
import sys
from collections.abc import Iterable, MutableMapping
from pathlib import Path

VARIABLE = "KVSPEC_HOOKED"
"""The environment variable with the number of the first process, and that of its file."""

NOTHING = 2
"""The exit status of an engine's first process if nothing was hooked."""


def note_here(environment: MutableMapping[str, str]) -> None:
    """Have this process, and what it becomes, keep the notes; only Linux has files that end with their process."""
    if hasattr(os, "memfd_create"):
        environment[VARIABLE] = f"{os.getpid()} {os.memfd_create('kvspec-hooked', 0)}"


def note(what: str) -> None:
    """Say that an engine, or an engine's own hooks, are hooked in this process; nothing without `kvspec attach`."""
    if VARIABLE not in os.environ:
        return
    process, file = os.environ[VARIABLE].split()
    try:
        with Path(f"/proc/{process}/fd/{file}").open("a") as notes:
            notes.write(f"{what}\n")
    except OSError:  # the first process, which reads them, has ended
        return
    print(f"kvspec: hooked {what} in process {os.getpid()}", file=sys.stderr, flush=True)


def complain_at_end(sought: Iterable[str]) -> None:
    """At the end of the engine's first process: if nothing was hooked, say what was sought, and end with status 2."""
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
