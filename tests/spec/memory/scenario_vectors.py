"""Writes each scenario as a vector of the memory level, so that a checker in another language has them.

    python -m tests.spec.memory.scenario_vectors

A broken scenario expects its finding at its event. A correct scenario names rules that are checked in it, and that some
change of it breaks.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec

from kvcheck import Checker
from kvconform.traces.memory import ExpectFinding
from kvconform.vectors.files import FOLDER, MEMORY
from kvspec.memory.events import Event, MemoryEvent
from kvtrace.header import VERSION, MemoryHeader
from tests.spec.memory.changes import rules_of
from tests.spec.memory.scenarios import BROKEN, POOLS, RIGHT

SCENARIOS = FOLDER / MEMORY / "scenarios"


def vectors() -> Iterator[tuple[str, bytes]]:
    """Each scenario's file name and content."""
    for title, (events, (code, number)) in BROKEN.items():
        rule, checker = code.partition("/")[0], Checker(POOLS)
        (found,) = [finding for event in events for finding in checker.step(event)]
        lines: list[Event | ExpectFinding] = [*events]
        lines.insert(number, ExpectFinding(rule, found.page, found.code, found.holder))
        yield _written("broken", title, [rule], lines)
    for title, right in RIGHT.items():
        checker = Checker(POOLS)
        for event in right:
            checker.step(event)
        checked = {rule for rule, times in checker.checked.items() if times}
        yield _written("right", title, sorted(rules_of(POOLS, cast("list[MemoryEvent]", right)) & checked), [*right])


def _written(kind: str, title: str, rules: list[str], lines: list[Event | ExpectFinding]) -> tuple[str, bytes]:
    description = f"{title[0].upper()}{title[1:]}."
    header = MemoryHeader(VERSION, "memory", "kvspec", POOLS, description=description, rules=rules)
    name = re.sub(r"[^a-z0-9]+", "_", f"{kind} {title}".lower()).strip("_")
    return f"{name}.jsonl", b"".join(msgspec.json.encode(line) + b"\n" for line in (header, *lines))


def main(folder: Path = SCENARIOS) -> None:
    """Write them anew."""
    folder.mkdir(exist_ok=True)
    written = dict(vectors())
    for path in folder.glob("*.jsonl"):
        path.unlink()
    for name, content in written.items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
