"""A finding as one object, with everything that its printed forms show.

Almost all of it is about one trace, the shortest that shows the finding: the rule, the last operation and its answer,
the expected and observed values, the holders before, and each event with the pools after it. Only the place is about
the trace in which the finding was met. The forms (`text`, `page`, `formats`) read nothing else.
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
    "memory": {"free": "free", "store": "published, without a holder", "locked": "only kept", "withheld": "withheld"},
}
"""Level -> the words for the kinds of cells without a holder."""


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one part of a pool (a page, a row, a slot) after an event."""

    kind: Literal["free", "store", "locked", "withheld", "held"]
    """`store`: published, without a holder; `locked`: the same, and pinned; `withheld`: released, but still read by a
    launch in flight."""
    holder: str = ""
    """Its holders or pins, or the names under which it is published, with commas between them."""
    named: bool = False
    """Whether the event or its answer names the part."""
    wrong: bool = False
    """Whether the answer is wrong about the part."""
    used: str = ""
    """Its uses by operations in flight, in words."""


FREE = Cell("free")


def ranks(moments: Sequence[dict[str, Cell]]) -> dict[str, int]:
    """The rank of each part that is ever in use or named, to draw the most interesting parts: 0 comes first.

    Parts that an event is wrong about have rank 0. Then come parts that are named or change, the latest first, and last
    the parts that stay the same.
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
    """The sort key of a page's name: numbers by value, then keys as text."""
    return (int(name), "") if name.lstrip("-").isdigit() else (1 << 62, name)


def spans(numbers: Iterable[int]) -> str:
    """Numbers in words, with consecutive numbers as a span: `1..3, 7`."""
    runs = (str(run) if isinstance(run, int) else f"{run[0]}..{run[0] + run[1] - 1}" for run in compress(numbers))
    return ", ".join(runs) or "none"


class Moment(msgspec.Struct, omit_defaults=True):
    """One event, its answer, and all pools after it."""

    step: int
    """Its number in the trace of the finding, from 1."""
    line: int
    """Its line in the input; 0 if it has none."""
    event: dict[str, Any]
    """The operation or memory event, as a line of a trace without an answer."""
    says: str
    """The event in a sentence."""
    answer: dict[str, Any] | None = None
    refused: dict[str, Any] | None = None
    about: list[str] = []
    """The requests, sessions or holders that it names."""
    breaks: str = ""
    """Its violation, in words. For the last operation of a finding the pools are those before it."""
    cells: dict[str, dict[str, Cell]] = {}
    """For each pool the parts that are drawn, by their numbers."""

    @property
    def number(self) -> int:
        """The number that is shown: its line; without one, its line in the file that `--out` writes."""
        return numbered(self.line, self.step)


def numbered(line: int, step: int) -> int:
    """The line of an event; without one, its line in a file of its own, below a header."""
    return line or step + 1


class Trace(msgspec.Struct, omit_defaults=True):
    """The events of a trace that are shown, in order: all, or the last ones."""

    level: Literal["request", "memory"]
    sizes: dict[str, Any]
    """The sizes of the memory: `config` or `pools`, as in the header of a trace."""
    memory: str
    """The sizes in words."""
    total: int
    """Events up to the last that is shown."""
    moments: list[Moment]
    undrawn: dict[str, int] = {}
    """Pool -> the number of parts in use that are not drawn."""


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of a finding."""

    file: str
    """The file, or the name of the run."""
    line: int = 0
    """The line in it; 0: none."""
    step: int = 0
    """The event's number in the input, from 1; 0: no event was carried out."""
    operation: str = ""
    """The kind of event."""
    vector: str = ""
    """The name of the vector, if it is one of kvspec's own."""
    site: str = ""
    """The place in the engine that caused it, as the engine says."""

    @property
    def during(self) -> str:
        """The kind of event; without a line its number, too."""
        return self.operation if self.line else f"step {self.step}: {self.operation}"

    def __str__(self) -> str:
        name = self.vector or self.file
        return f"{name}:{self.line}" if self.line else name


Sign = Literal["+", "-", ">", "n", "t", "w", "~"]


class Reference(msgspec.Struct, frozen=True, omit_defaults=True):
    """An earlier event about the page of a finding: one line of its ledger."""

    sign: Sign
    """A reference taken, released or transferred, a name, a table, a write, a wait."""
    line: int
    step: int
    """The event's number in the input, from 1."""
    event: str
    """The kind of event."""
    says: str
    """Its effect on the page, in words."""
    site: str = ""
    """The place in the engine, as the engine says."""
    holder: str = ""


_LISTED = 24
"""The most entries of a ledger that are shown. A longer one is shown without its middle."""


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


Kind = Literal["rule", "failure", "expectation"]
"""A rule is broken; the implementation failed; or an answer is allowed, but not the one that a vector expects."""


class Finding(msgspec.Struct, omit_defaults=True):
    """A violation, a failure or a missed expectation, with the shortest trace that shows it."""

    kind: Kind
    what: str
    """The violation in words, with the numbers of `trace`."""
    place: Place
    """The place in the input where it was met."""
    trace: Trace
    """The trace that shows it; the last event is the finding."""
    note: str
    """How this trace was cut from the input."""
    rule: Rule | None = None
    """The broken rule; for a failure the rule by which the operation had to be carried out or refused."""
    code: str = ""
    """The case of the rule, `RULE/case`; for a rule without cases its id."""
    expected: Any = None
    observed: Any = None
    compared: bool = False
    """Whether there is an expected value and an observed one."""
    before: list[str] = []
    """The holdings of the holders that the last event names, just before it."""
    known: list[str] = []
    """The history of these holders and of the parts that the event names, with steps."""
    ledger: list[Reference] = []
    """The events of its page, since the page was last free."""
    sequences: str = ""
    """For leaks that were met several times: the sequences of events that took and released the pages, counted."""
    method: Place | None = None
    """The file and line of the adapter's method for the operation, if that is Python."""
    raised: list[str] = []
    """For a failure: the implementation's own frames of the traceback, the innermost last."""
    count: int = 1
    """The number of times that the finding was met."""
    also: list[Place] = []
    """Further places at which the finding was met."""
    follows: str = ""
    """The earlier finding that may have caused it, in words."""
    parts: list[str] = []
    """The files of several hosts that were merged: all lines are those of the merged trace."""
    origins: dict[int, Place] = {}
    """The places in these files of the lines that the finding names."""
    pool: str = ""
    """The pool of its pages, if the trace has several."""

    @property
    def title(self) -> str:
        """The finding in a few words."""
        match self.kind:
            case "rule":
                where = f" in pool {self.pool}" if self.pool else ""
                return f"{self.rule.id if self.rule else 'A rule'} is broken{where}"
            case "failure":
                return f"The implementation failed{f' against {self.rule.id}' if self.rule else ''}"
        return "Not what the vector expects"

    @property
    def kin(self) -> tuple[str, ...]:
        """The code and place of a finding: findings that agree in both are most likely one defect.

        A failure has no code. Its message without numbers takes the place of the code.
        """
        case = self.code or f"{self.kind}: {re.sub(r'[0-9]+', '#', self.what)}"
        return case, self.place.operation, self.place.site, self.pool

    @property
    def last(self) -> Moment | None:
        """The event of the finding; `None` if the implementation could not be made."""
        return self.trace.moments[-1] if self.trace.moments else None
