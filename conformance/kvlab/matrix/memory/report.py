"""What was found in one release of an engine that was driven."""

from collections.abc import Sequence

import msgspec


class Task(msgspec.Struct):
    """What the process that drives one release is told on its command line, as JSON."""

    engine: str
    release: str
    folder: str | None
    """Where the wheel is unpacked, or the checkout; `None` for the release that is installed."""
    out: str
    seconds: float
    seed: int


class Shown(msgspec.Struct):
    """A known defect that a release has."""

    rule: str
    event: int
    """The number of events until it was found, over all runs that looked for it."""
    what: str


class Group(msgspec.Struct):
    """Findings of one rule, pool and place that nothing explains."""

    rule: str
    pool: str
    at: str
    times: int
    event: int
    """The number of events until the first one."""
    what: str
    seed: int
    """The run that it was first found in."""
    file: str = ""
    """Where the shortest part of that run was written; nothing if it was not written."""


class DrivenReport(msgspec.Struct):
    """What was found in one release. Events and runs are those without the defects that are known by name."""

    engine: str
    release: str
    not_supported: str | None = None
    """Why the release cannot be driven: one line."""
    runs: int = 0
    events: int = 0
    reached: dict[str, int] = {}
    """How many events of each kind were told: what the runs came to."""
    known: dict[str, Shown | None] = {}
    """Each known defect that was looked for; `None`: it was not found."""
    searched: dict[str, int] = {}
    """Each known defect that was looked for by itself -> the events until it was found, or given up."""
    unexplained: list[Group] = []

    @property
    def explained(self) -> bool:
        """Whether everything that was found is known."""
        return not self.unexplained


def line(report: DrivenReport) -> str:
    """What is printed of a release when it is done."""
    head = f"{report.engine} {report.release}, as it runs: "
    if report.not_supported is not None:
        return f"{head}not supported: {report.not_supported}"
    has = [f"{name} ({shown.rule} at event {shown.event:,})" for name, shown in report.known.items() if shown]
    told = [f"{report.events:,} events in {report.runs:,} runs"]
    told += [f"known defects: {', '.join(has)}"] if has else ["none of the known defects"] if report.known else []
    if report.unexplained:
        told.append(f"not explained: {', '.join(sorted({group.rule for group in report.unexplained}))}")
    return head + "; ".join(told)


def named(reports: Sequence[DrivenReport]) -> list[str]:
    """The known defects that any of these releases was searched for, in order."""
    return list(dict.fromkeys(name for report in reports for name in report.known))
