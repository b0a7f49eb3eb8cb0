"""Known findings: they are counted and do not fail a run.

A TOML file lists them, each as a table `[[known]]` with these fields:

rule    the rule that is broken, or one code of it: `MEM-NAME`, or `MEM-NAME/unwritten` alone
event   the kind of event, or the operation, with the finding; optional
pool    the pool of the finding, at the memory level; optional
at      a part of the event's `at`, its place in the engine; optional
taken   a part of the place where the finding's holder took its reference to the page: for a leak that is the cause,
        while `at` is the place where the holder ended; only at the memory level, for a file that can be read twice
reason  why the finding is accepted
link    the issue or discussion; optional
"""

import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from kvconform.errors import InputError
from kvspec.events import EVENTS
from kvspec.memory.events import MemoryEvent
from kvspec.rules import ALL_RULES, CODES, rule_of

EVENTS = frozenset(str(kind.__struct_config__.tag) for kind in (*get_args(EVENTS), *get_args(MemoryEvent)))
"""The kinds of events of both levels."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One known finding."""

    rule: str
    reason: str
    event: str = ""
    pool: str = ""
    at: str = ""
    taken: str = ""
    link: str = ""

    def covers(self, code: str, event: str, pool: str = "", at: str = "", taken: Sequence[str] = ()) -> bool:
        """Whether the entry covers this finding: its code, kind of event, pool, place, and place of taking."""
        known = self.rule in (code, rule_of(code)) and self.event in ("", event)
        known = known and self.pool in ("", pool) and self.at in at
        return known and (not self.taken or any(self.taken in site for site in taken))

    def __str__(self) -> str:
        place, taken = self.at and f"({self.at})", self.taken and f"taken in {self.taken}"
        parts = (self.rule, self.event and f"at {self.event}", place, taken)
        return " ".join(part for part in (*parts, self.pool and f"in pool {self.pool}") if part)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    known: list[Entry]


class Baseline:
    """Entries, and how often each occurred."""

    def __init__(self, entries: list[Entry] | None = None) -> None:
        """Begin with no occurrences."""
        self.entries = entries or []
        self.count: Counter[Entry] = Counter()

    @property
    def asks_where_taken(self) -> bool:
        """Whether an entry names where a reference was taken. That is known only after the whole trace is read."""
        return any(entry.taken for entry in self.entries)

    def take(
        self, code: str, event: str, times: int = 1, *, pool: str = "", at: str = "", taken: Sequence[str] = ()
    ) -> bool:
        """Whether a finding is known. Its `times` are counted for the first entry that covers it."""
        for entry in self.entries:
            if entry.covers(code, event, pool, at, taken):
                self.count[entry] += times
                return True
        return False


def read_baseline(path: Path | None) -> Baseline:
    """The entries of a TOML file; none without a file.

    Raises:
        InputError: the file cannot be read, names an unknown rule or event, or gives no reason.
    """
    if path is None:
        return Baseline()
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).known
    except OSError as error:
        raise InputError(path, 0, error.strerror or str(error)) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InputError(path, 0, str(error)) from error
    for number, entry in enumerate(entries, start=1):
        if entry.rule not in ALL_RULES and entry.rule not in CODES:
            raise InputError(path, 0, f"entry {number}: unknown rule or code {entry.rule!r}")
        if entry.event and entry.event not in EVENTS:
            raise InputError(path, 0, f"entry {number}: unknown event {entry.event!r}")
        if not entry.reason.strip():
            raise InputError(path, 0, f"entry {number}: {entry.rule} has no reason")
    return Baseline(entries)
