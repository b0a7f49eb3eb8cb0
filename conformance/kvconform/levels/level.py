"""The part of a level that the commands use, the same for both."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from rich.console import Console

from kvconform.console import Consoles, Forms
from kvconform.findings.baseline import Baseline
from kvconform.findings.finding import Finding, Trace
from kvconform.findings.outcome import Report
from kvconform.findings.wording import NAMES
from kvconform.levels.drawing import KEPT
from kvconform.vectors.runner import Factory
from kvspec.rules import ALL_RULES

AROUND = 5
"""Events shown before and after a requested line."""

Met = Callable[[Any, int], object]
"""Takes the first finding of each kind of a trace of the memory level (a `Group`), and the number of pools."""


class Check(NamedTuple):
    """How a trace is to be checked."""

    consoles: Consoles
    baseline: Baseline
    progress: Callable[[int], object]
    follow: bool = False
    """Whether the trace may grow; an interrupt then ends it."""
    first: bool = False
    """Stop at the first finding."""
    met: Met | None = None


class Checked(NamedTuple):
    """The outcome of a trace. Details and findings are printed by then."""

    events: int
    findings: list[Finding]
    checked: Counter[str]
    unchecked: Counter[str]
    broken: bool
    reason: str = ""
    """Why the check ended before the end of the trace."""


class Wanted(NamedTuple):
    """The part of a trace to show: each field that is not `None` narrows it."""

    line: int | None = None
    page: str | None = None
    """A page's number, at the memory level its key too; `POOL:PAGE` names the pool."""
    request: str | None = None
    """A request, session, or holder."""

    def part(self) -> tuple[str | None, str] | None:
        """The pool and the page that are followed."""
        if self.page is None:
            return None
        pool, colon, page = self.page.rpartition(":")
        return (pool, page) if colon else (None, self.page)

    def near(self, centre: int | None, last: int, number: int) -> bool:
        """Whether an event is in the part that is shown, regardless of its page and request."""
        if self.line is not None:
            return abs(number - (centre or 0)) <= AROUND
        return self.page is not None or self.request is not None or number > last - KEPT


Wrong = list[tuple[str, str]] | None
"""The pages that an event is wrong about, by pool; `None`: it breaks no rule."""


class Replay(Protocol):
    """A trace or vector to show, which is read more than once."""

    def checked(self) -> Iterator[tuple[int, Wrong]]:
        """Each event, with its line."""

    def rendered(self, wanted: Wanted, centre: int | None, last: int) -> tuple[Trace, list[str]]:
        """The wanted events around the `centre`, up to the `last`; and the holders after a wanted line."""

    def drawn(self, cells: dict[str, Any], pool: str | None, page: str) -> list[str]:
        """The pools in which a page that is followed is drawn; without a pool those that have one of that number."""


class Task(NamedTuple):
    """The arguments of `kvspec run`."""

    vectors: Sequence[Path] | None
    """`None`: kvspec's own."""
    impl: str
    record: Path | None = None
    baseline_file: Path | None = None
    word: str | None = None
    """Only vectors that have it in their name, their folder or their rules; of a rule's id see `rule`."""
    first: bool = False
    """Stop at the first vector that does not conform."""
    card: Path | None = None
    """Where the report card is written."""

    @property
    def rule(self) -> str | None:
        """The rule that `word` names: then every vector counts that checks it, whatever it was written for."""
        word = NAMES.get(self.word or "", (self.word or "").upper())
        return word if word in ALL_RULES else None


class Ran(NamedTuple):
    """Vectors of one level that have run, and are in the report."""

    failed: bool
    """Whether one has a finding that is not known."""
    show: Callable[[Console, Forms], object]
    """Prints the vectors by rule, if they are wanted, and those that were not run."""
    summary: str
    """The outcome in a line; empty if no vector has run."""


class Level(NamedTuple):
    """A level of the specification, as the commands use it."""

    name: Literal["request", "memory"]
    unit: str
    """An event of it, in words."""
    check: Callable[[Any, Any, Check], Checked]
    """Checks a trace that is open to its end."""
    replay: Callable[[Path], Replay]
    """Opens a trace or vector to be shown."""
    read_vector: Callable[[Path], Any]
    run: Callable[[Sequence[Any], Task, Baseline, Factory | None, Report], Ran]
    """Runs vectors, those of the request level on an implementation, and adds them to a report."""
