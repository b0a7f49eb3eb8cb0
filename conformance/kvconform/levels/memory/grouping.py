"""Checks memory events to their end, and groups the findings by rule, place and first cause."""

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple, get_args

from kvcheck import Checker, Finding
from kvcheck.finding import CONTENT, OWNERS
from kvconform.findings.baseline import Baseline
from kvconform.findings.finding import Reference
from kvspec.memory.events import MemoryEvent

GROUPS = 1000
"""The most kinds of findings that are kept; further kinds are only counted."""

SUBJECTS = 1000
"""The most findings of a group that are kept: leaks differ in the place at which their pages were taken.

With a baseline that names such places it is `REMEMBERED`."""

REMEMBERED = 100_000
"""The most findings that are remembered as causes of later ones; the oldest are forgotten first."""

KINDS = {kind: str(kind.__struct_config__.tag) for kind in get_args(MemoryEvent)}
"""The name of each kind of event in a trace."""


class Group:
    """Findings of one rule, at one place, with one first cause: probably one defect."""

    def __init__(self, finding: Finding, kind: str, line: int, cause: "Group | None") -> None:
        """Begin with the group's first finding, at an event of this kind on this line."""
        self.finding = finding
        self.kind = kind
        self.line = line
        self.cause = cause
        """The group that this one may follow from."""
        self.count = 1
        self.findings = [finding]
        """The first findings of the group."""
        self.ledger: list[Reference] = []
        """The ledger of the first finding; see `ledger`."""
        self.required: set[int] = set()
        """Lines of the events by which its holder got and released its page: every part of the trace keeps them."""
        self.sequences: Counter[str] = Counter()
        """For leaks: sequence of events that took and released the page -> the number of leaks."""

    def line_of(self, event: int) -> int:
        """The line of an event of the trace."""
        return self.line - self.finding.event + event

    def leave(self, finding: Finding) -> None:
        """Remove a known finding. If it was the first, the next one represents the group."""
        self.count -= 1 + finding.more
        self.findings.remove(finding)
        if finding is self.finding and self.findings:
            self.line = self.line_of(self.findings[0].event)
            self.finding = self.findings[0]


class Grouped(NamedTuple):
    """The outcome of a trace."""

    events: Counter[str]
    """The number of events of each kind."""
    groups: list[Group]
    """The groups in the order of their first findings, without known findings."""
    beyond: int
    """The number of findings of further kinds, past the first `GROUPS`."""
    checked: Counter[str]
    """Rule -> how often it was checked."""
    unchecked: dict[str, Counter[str]]
    """Pool -> rule -> how often it could not be checked, because events had no labels."""


class Grouping:
    """Runs the memory checker on a trace and groups its findings."""

    def __init__(self, checker: Checker, baseline: Baseline, found: Callable[[Group], object] | None = None) -> None:
        """Findings in `baseline` are counted there; `found` is called with each new group."""
        self._checker = checker
        self._baseline = baseline
        self._subjects = REMEMBERED if baseline.asks_where_taken else SUBJECTS
        self._found = found
        self._groups: dict[tuple[object, ...], Group] = {}
        self._at: dict[tuple[int, str], Group] = {}
        """Event and subject of a finding -> the group of the first such finding."""
        self._order: deque[tuple[int, str]] = deque()
        self._events: Counter[str] = Counter()
        self._beyond = 0
        self.identities: set[tuple[object, ...]] = set()
        """Identities of the first `REMEMBERED` findings, including known ones."""

    def step(self, line: int, event: MemoryEvent) -> list[Finding]:
        """Check the event on `line`. Returns its findings.

        Raises:
            Malformed: the event makes no sense for any engine.
        """
        kind = KINDS[type(event)]
        self._events[kind] += 1
        findings = self._checker.step(event)
        for finding in findings:
            if len(self.identities) < REMEMBERED:
                self.identities.add(finding.identity)
            place = {"pool": finding.pool or "", "at": finding.at or ""}
            if not self._baseline.take(finding.code, kind, 1 + finding.more, **place):
                self._sort(finding, kind, line)
        return findings

    def _sort(self, finding: Finding, kind: str, line: int) -> None:
        kinds = (OWNERS,) if finding.about == OWNERS else (CONTENT, OWNERS)
        events = ((finding.cause or 0, kind) for kind in kinds)
        cause = next((self._at[event] for event in events if event in self._at), None)
        same = (finding.code, finding.at or kind, finding.pool, finding.earlier)
        group = self._groups.get((*same, None if cause is None else id(cause)))
        if group is None and cause is not None and cause is self._groups.get((*same, None)):
            group = cause  # the same finding again, on the same page or holder
        if group is not None:
            group.count += 1 + finding.more
            if len(group.findings) < self._subjects:
                group.findings.append(finding)
        elif len(self._groups) >= GROUPS:
            self._beyond += 1 + finding.more
            return
        else:
            group = Group(finding, kind, line, cause)
            group.count += finding.more
            self._groups[(*same, None if cause is None else id(cause))] = group
            if self._found is not None:
                self._found(group)
        event = finding.event, finding.about
        if event not in self._at:
            # A finding that follows from a consequence follows from the first cause.
            self._at[event] = group.cause or group
            self._order.append(event)
            if len(self._order) > REMEMBERED:
                del self._at[self._order.popleft()]

    @property
    def has_found(self) -> bool:
        """Whether there is a finding outside the baseline."""
        return bool(self._groups)

    def outcome(self) -> Grouped:
        """The outcome so far."""
        return Grouped(
            self._events, list(self._groups.values()), self._beyond, self._checker.checked, self._checker.unchecked
        )
