"""A finding as one object: all that is told of it, in whatever form.

Everything in it but its place is of one trace, the shortest that shows it: the rule, the last operation and its answer,
what was expected and observed, who held what before, the story and the timeline. Of the trace in which it was met only
the place is told. What renders a finding (`text`, `page`, `formats`) looks at nothing else.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from kvspec.pages import compress

POOLS = ("pages", "window pages", "state slots", "rows")
"""The pools of the request level."""


KINDS = {
    "request": {"free": "free", "store": "the prefix store's", "locked": "the store's, locked", "withheld": "withheld"},
    "memory": {"free": "free", "store": "published, held by nobody", "locked": "only kept", "withheld": "withheld"},
}
"""For each level what the kinds of cells are called that nobody holds."""


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one part of a pool (a page, a row, a slot) is after an event."""

    kind: Literal["free", "store", "locked", "withheld", "held"]
    """`store`: a name finds it and nobody holds it; `locked`: nobody holds it, and somebody keeps it where it is;
    `withheld`: let go, but still read by a launch in flight."""
    holder: str = ""
    """Who holds it or keeps it, or the names that find it; several have commas between them."""
    named: bool = False
    """The event, or the answer to it, names it."""
    wrong: bool = False
    """It is what the answer is wrong about."""
    used: str = ""
    """What operations in flight do with it, in words."""


FREE = Cell("free")


def ranks(moments: Sequence[dict[str, Cell]]) -> dict[str, int]:
    """For each part that is ever in use or named how interesting it is: 0 is what an event is wrong about.

    Then comes what the last event names, then what is named or changes, the latest first, and then what only stays.
    """
    found: dict[str, int] = {}
    before: dict[str, Cell] = {}
    for left, now in zip(range(len(moments), 0, -1), moments, strict=True):
        for number in now.keys() | before.keys():
            cell, least = now.get(number, FREE), len(moments) + 1
            rank = left if cell.named or cell != before.get(number, FREE) else least
            rank = 0 if cell.wrong else rank
            if number in found or cell != FREE:
                found[number] = min(found.get(number, least), rank)
        before = now
    return found


def by_number(name: str) -> tuple[int, str]:
    """What sorts the names of pages: numbers as numbers, keys as text."""
    return (int(name), "") if name.lstrip("-").isdigit() else (1 << 62, name)


def spans(numbers: Iterable[int]) -> str:
    """Numbers, neighbours together: `1..3, 7`."""
    told = (str(run) if isinstance(run, int) else f"{run[0]}..{run[0] + run[1] - 1}" for run in compress(numbers))
    return ", ".join(told) or "none"


class Moment(msgspec.Struct, omit_defaults=True):
    """One event, what was answered, and all pools after it."""

    step: int
    """Its number in the trace that is told, from 1."""
    line: int
    """Where it stands in the input; 0 if it stands nowhere."""
    event: dict[str, Any]
    """The operation or memory event, as a line of a trace without an answer."""
    says: str
    """What happens, in a sentence."""
    answer: dict[str, Any] | None = None
    refused: dict[str, Any] | None = None
    about: list[str] = []
    """The requests, sessions or holders that it names."""
    breaks: str = ""
    """What is wrong with it, in words. Of an operation that ends a finding the pools are as before it."""
    cells: dict[str, dict[str, Cell]] = {}
    """For each pool the parts that are drawn, by their numbers."""

    @property
    def number(self) -> int:
        """The number that a reader is shown: its line; of one that stands nowhere, the line that `--out` gives it."""
        return numbered(self.line, self.step)


def numbered(line: int, step: int) -> int:
    """The line of an event; of one that stands nowhere the line in a file of its own, below a header."""
    return line or step + 1


class Trace(msgspec.Struct, omit_defaults=True):
    """A trace, told: some of its events, in order, most often all."""

    level: Literal["request", "memory"]
    sizes: dict[str, Any]
    """Of the memory: `config` or `pools`, as in the header of a trace."""
    memory: str
    """The same in words."""
    total: int
    """Events up to the last that is told."""
    moments: list[Moment]
    undrawn: dict[str, int] = {}
    """For each pool how many parts in use are not drawn."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where something was found."""

    file: str
    """The file, or the name of whatever was carried out."""
    line: int = 0
    """0: not a line of it."""
    step: int = 0
    """The event's number in the input, from 1; 0: none was carried out."""
    operation: str = ""
    """The kind of event."""
    vector: str = ""
    """The name of the vector, if it is one of kvspec's own."""
    site: str = ""
    """The place in the engine that caused it, as the engine says."""

    @property
    def during(self) -> str:
        """The kind of event; of one that stands on no line its number, too."""
        return self.operation if self.line else f"step {self.step}: {self.operation}"

    def __str__(self) -> str:
        name = self.vector or self.file
        return f"{name}:{self.line}" if self.line else name


Sign = Literal["+", "-", ">", "n", "t", "w", "~"]


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """An earlier event that a finding may come from: one line of its ledger."""

    sign: Sign
    """A reference more or less to the page, one that changes hands, a name, a table, a write, a wait."""
    line: int
    step: int
    """The event's number in the input, from 1."""
    event: str
    """The kind of event."""
    says: str
    """What it does to the page, in words."""
    site: str = ""
    """The place in the engine, as the engine says."""
    holder: str = ""


_LISTED = 24
"""Entries of a ledger that are shown; of a longer one the middle is left out."""


def in_words(ledger: Sequence[Reference]) -> list[str]:
    """The entries of a ledger, a line each."""
    half = _LISTED // 2
    left_out = len(ledger) - _LISTED
    lines = [f"{one.sign} line {one.line}: {one.says}{f' ({one.site})' if one.site else ''}" for one in ledger]
    return lines if left_out <= 0 else [*lines[:half], f"... {left_out:,} more", *lines[-half:]]


class Rule(msgspec.Struct, frozen=True):
    """The rule that is broken."""

    id: str
    name: str
    statement: str
    reason: str
    origin: str
    """The documents that it comes from, in words."""


class Finding(msgspec.Struct, omit_defaults=True):
    """What does not conform, told by the shortest trace that shows it."""

    kind: Literal["rule", "failure", "expectation"]
    """A rule is broken; the implementation failed; or what it answers is allowed, and not what a vector expects."""
    what: str
    """What is wrong, in words: of the trace that is told."""
    place: Place
    """Where it was met, in the input."""
    trace: Trace
    """What shows it: its last event is the finding."""
    note: str
    """How this trace came from the input."""
    rule: Rule | None = None
    code: str = ""
    """The case of the rule, `RULE/case`; of a rule without cases its id."""
    expected: Any = None
    observed: Any = None
    compared: bool = False
    """Whether there is an expected value and an observed one."""
    before: list[str] = []
    """What those whom the last event names held just before it."""
    known: list[str] = []
    """What is known of them and of the parts that it names, and since which step."""
    ledger: list[Reference] = []
    """The events that it may come from: what was done to its page since that was last free, before the finding."""
    sequences: str = ""
    """Of leaks that were met several times: how the pages were taken and given back, and how often so."""
    method: Place | None = None
    """The adapter's method that carried the operation out, where that is Python: its file and line."""
    raised: list[str] = []
    """Of a failure: where the implementation raised, its own lines, the innermost last."""
    count: int = 1
    """How often it was met."""
    also: list[Place] = []
    """Further places at which the same was met."""
    follows: str = ""
    """Of what it may be a consequence."""
    pool: str = ""
    """The pool whose pages it speaks of, where the trace has several."""

    @property
    def title(self) -> str:
        """What it is, in a few words."""
        match self.kind:
            case "rule":
                where = f" in pool {self.pool}" if self.pool else ""
                return f"{self.rule.id if self.rule else 'A rule'} is broken{where}"
            case "failure":
                return "The implementation failed"
        return "Not what the vector expects"

    @property
    def kin(self) -> tuple[str, ...]:
        """What findings of several traces have in common that are most likely one defect: code and place.

        A failure has no code: it is known by the implementation's own words, but for the numbers in them.
        """
        case = self.code or f"{self.kind}: {re.sub(r'[0-9]+', '#', self.what)}"
        return case, self.place.operation, self.place.site, self.pool

    @property
    def last(self) -> Moment | None:
        """The event that shows it; none if the implementation could not be made."""
        return self.trace.moments[-1] if self.trace.moments else None
