"""The process that checks a recording while the engine writes it.

It appends to a report for people, as its standard error does. Its standard output is for the engine's process: one JSON
object a line, each kind of finding when it is met, and the end.
"""

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn, cast

import msgspec

if TYPE_CHECKING:
    from kvconform.levels.memory.grouping import Group

COMMAND = (sys.executable, "-P", "-c", "from kvattach.following import main; main()")
"""What starts it; then come the recording, the report, and `follow` if the recording still grows."""


class Met(msgspec.Struct, tag="finding"):
    """The first finding of a kind."""

    code: str
    pool: str
    words: str


class Ended(msgspec.Struct, tag="end"):
    """All that could be read is checked."""

    events: int
    conforms: bool


Message = Met | Ended


def message(line: str) -> Message:
    """The message in a line of the process's output."""
    found: Message = msgspec.json.decode(line, type=Message)
    return found


def main() -> NoReturn:
    """Check the recording that the command names; the exit status is 0 if it conforms."""
    from rich.console import Console

    from kvcheck.words import describe
    from kvconform import signals
    from kvconform.console import Shown
    from kvconform.levels.memory.rendering import pool_told
    from kvconform.runs.traces import check_one

    signals.listen()
    trace, report, *how = sys.argv[1:]

    def tell(one: Message) -> None:
        sys.stdout.write(f"{msgspec.json.encode(one).decode()}\n")
        sys.stdout.flush()

    def met(group: "Group", pools: int) -> None:
        found = group.finding
        tell(Met(found.code, pool_told(found, pools), describe(found)))

    with Path(report).open("a", buffering=1) as out:
        console = Console(file=cast("IO[str]", Shown(out)), width=120)
        found = check_one(console, Path(trace), met, follow="follow" in how)
    tell(Ended(sum(case.events for case in found.cases), found.conforms))
    raise SystemExit(0 if found.conforms else 1)
