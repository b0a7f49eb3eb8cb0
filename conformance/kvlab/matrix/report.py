"""The result of one release at one level, and its task."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from kvconform.findings.finding import Finding
from kvlab.issues import is_before

Level = Literal["request", "memory"]


class Task(msgspec.Struct):
    """The argument of the worker."""

    level: Level
    engine: str
    release: str
    folder: str | None
    """The folder of the unpacked wheel or the checkout; `None`: the installed release."""
    out: str
    seconds: float
    seed: int


class Report(msgspec.Struct):
    """The result of one release."""

    engine: str
    release: str
    not_supported: str | None = None
    """Why the release cannot be checked, in one line."""


class Found(msgspec.Struct):
    """One finding of the request level, with the shortest operations that show it."""

    rule: str
    operation: str
    what: str
    source: str
    """The vector or random walk."""
    trace: list[str]
    """The names of the operations."""
    pool: Literal["window", "states"] | None = None
    """The second pool, if there is one."""
    part: str = ""
    """The wrong part of the answer (`kvspec.rules.Violation`)."""
    explanation: str | None = None
    """The id of the known issue that explains it."""
    file: str = ""
    """The file of the trace; the description is beside it."""
    finding: Finding | None = None


class RequestReport(Report):
    """The vectors and walks of one release, through its adapter."""

    lacks: list[str] = []
    """The features that the release lacks."""
    conform: list[str] = []
    """Vectors."""
    fail: list[str] = []
    """Vectors."""
    skipped: dict[str, list[str]] = {}
    """Vector -> the features that it needs and the release lacks."""
    walks: int = 0
    operations: int = 0
    checked: dict[str, int] = {}
    """Rule -> how often it was checked."""
    reached: dict[str, int] = {}
    found: list[Found] = []

    @property
    def explained(self) -> bool:
        """Whether every finding is a known one."""
        return all(one.explanation for one in self.found)


class Shown(msgspec.Struct):
    """A known issue that a release has."""

    code: str
    event: int
    """The number of events until the issue was found, over all runs that looked for it."""
    what: str


class Group(msgspec.Struct):
    """Findings of one code, pool and place that no known issue explains."""

    code: str
    pool: str
    at: str
    times: int
    event: int
    """The number of events until the first one."""
    what: str
    seed: int
    """The seed of the run that found it first."""
    file: str = ""
    """The file of the shortest part of that run; empty if it was not written."""


class MemoryReport(Report):
    """The runs of one release, driven with hooks. Events and runs are counted with all possible fixes applied."""

    runs: int = 0
    events: int = 0
    reached: dict[str, int] = {}
    """Kind of event -> the number of events."""
    known: dict[str, Shown | None] = {}
    """Known issue that was looked for -> how it was found; `None`: it was not found."""
    searched: dict[str, int] = {}
    """Known issue that was looked for alone -> the events until it was found or given up."""
    unexplained: list[Group] = []
    pairs: int = 0
    """The number of pairs of events on one page that the first `LEAST` runs reached; 0: there were fewer runs."""
    missed: list[str] = []
    """Goals of the driver that none of at least `LEAST` runs reached, and too few pairs (`compare`)."""

    @property
    def explained(self) -> bool:
        """Whether every finding is a known one, and every goal was reached."""
        return not self.unexplained and not self.missed


AnyReport = RequestReport | MemoryReport

REPORTS: dict[Level, type[RequestReport] | type[MemoryReport]] = {"request": RequestReport, "memory": MemoryReport}


def line(report: AnyReport) -> str:
    """A summary of a release in one line."""
    how = "as it runs" if isinstance(report, MemoryReport) else "request"
    sums = f"not supported: {report.not_supported}"
    if report.not_supported is None:
        sums = _of_memory(report) if isinstance(report, MemoryReport) else _of_requests(report)
    return f"{report.engine} {report.release}, {how}: {sums}"


def _of_requests(report: RequestReport) -> str:
    found = sum(one.explanation is None for one in report.found)
    vectors = f"{len(report.conform)} vectors conform, {len(report.fail)} fail, {len(report.skipped)} are not supported"
    findings = f"{len(report.found)} findings, {found or 'none'} not explained"
    return f"{vectors}; {report.operations:,} operations; {findings}"


def _of_memory(report: MemoryReport) -> str:
    has = [f"{name} ({shown.code} at event {shown.event:,})" for name, shown in report.known.items() if shown]
    parts = [f"{report.events:,} events in {report.runs:,} runs"]
    parts += [f"known defects: {', '.join(has)}"] if has else ["none of the known defects"] if report.known else []
    if report.pairs:
        parts.append(f"{report.pairs:,} pairs")
    if report.unexplained:
        parts.append(f"not explained: {', '.join(sorted({group.code for group in report.unexplained}))}")
    if report.missed:
        parts.append(f"never reached: {', '.join(report.missed)}")
    return "; ".join(parts)


def compare(reports: Sequence[AnyReport]) -> None:
    """A release misses a goal if its runs reach less than half of the pairs of the previous release's runs.

    Older releases may reach fewer: a driver does less with them.
    """
    counted = [report for report in reports if isinstance(report, MemoryReport) and report.pairs]
    for before, report in pairwise(counted):
        if 2 * report.pairs < before.pairs and not is_before(report.release, before.release):
            report.missed.append(f"half of the {before.pairs:,} pairs of {before.release} (it has {report.pairs:,})")


def named(reports: Sequence[MemoryReport]) -> list[str]:
    """The known issues that were looked for in any of these releases, in order."""
    return list(dict.fromkeys(name for report in reports for name in report.known))
