"""The process that checks a recording while the engine writes it, and ends when the engine's process has ended.

It is no descendant of the engine's process: an engine may end by killing all of its own, as vLLM and SGLang do. It
appends to a report for people. Its standard output is for the engine's process: one JSON object a line, for the first
finding of each kind and for the end. A finding after the end of the recording goes to standard error: the engine's
process may end before it reads such a line.
"""

import os
import sys
import traceback
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import msgspec

from kvattach.temporary import Lock, sweep

if TYPE_CHECKING:
    from kvconform.levels.memory.grouping import Group

COMMAND = (sys.executable, "-P", "-c", "from kvattach.following import main; main()")
"""The command that starts this process; its arguments are the recording, its lock file, and the report."""


class Met(msgspec.Struct, tag="finding"):
    """The first finding of a kind."""

    code: str
    pool: str
    words: str

    def line(self, report: Path) -> str:
        """The finding in one line, for a log."""
        where = f" in pool {self.pool}" if self.pool else ""
        return f"kvspec: {self.code}{where}: {self.words} ({report})"


class Ended(msgspec.Struct, tag="end"):
    """Everything that could be read is checked."""

    events: int
    conforms: bool


Message = Met | Ended


def message(line: str) -> Message:
    """The message in a line of the process's output."""
    found: Message = msgspec.json.decode(line, type=Message)
    return found


def main() -> None:
    """Check the recording that the command names, in a child whose parent ends at once."""
    if os.fork():
        return
    from kvconform import signals

    with suppress(signals.Interrupted, OSError):  # the engine's process says that the check ended early
        signals.listen()
        _check(*map(Path, sys.argv[1:]))


def _check(trace: Path, lock_file: Path, report: Path) -> None:
    from rich.console import Console

    from kvcheck.words import describe
    from kvconform.console import Shown
    from kvconform.levels.memory.rendering import pool_to_name
    from kvconform.runs.traces import check_growing

    lock = Lock(lock_file)

    def send(one: Message) -> None:
        with suppress(BrokenPipeError):
            os.write(sys.stdout.fileno(), msgspec.json.encode(one) + b"\n")

    def met(group: "Group", pools: int) -> None:
        found = group.finding
        one = Met(found.code, pool_to_name(found, pools), describe(found))
        if lock.has_no_writer():
            print(one.line(report), file=sys.__stderr__)
        else:
            send(one)

    lock.hold_as_checker()
    sweep(trace.parent)
    with report.open("a", buffering=1) as out, redirect_stderr(out):
        console = Console(file=cast("IO[str]", Shown(out)), width=120)
        try:
            found = check_growing(console, trace, met, lock.has_no_writer)
        except Exception:
            traceback.print_exc()
            return
    send(Ended(sum(case.events for case in found.cases), found.conforms))
