"""A release's own scheduler, driven with hooks.

First each known issue that needs runs of its own is looked for, then the engine is driven with all fixes, until the
time is up.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kvattach.hooks import Hooks
from kvattach.patches import Patches
from kvcheck import Finding
from kvlab.drives import CheckedTrace, Known, Trial
from kvlab.injection import NotInjected
from kvlab.issues import Issue
from kvlab.matrix.report import Group, MemoryReport, Shown, Task
from kvlab.matrix.shortest import write_shortest
from kvlab.stubs import EngineError
from kvlab.tokens import describe
from kvlab.trial import trial_of
from kvspec.memory.events import Failed, MemoryEvent, Pool

MISSES = ("AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "NotImplementedError", "TypeError")
"""Errors of an engine that show, if every run has them, that the driver lacks a stub that the engine needs."""

LEAST = 40
"""The least number of runs of a release, even if they take longer than requested ..."""

SLOW = 5
"""... but not more than so many times as long."""


class NotDriven(EngineError):
    """A release that does not fit the driver or the hooks. The message says why in one line."""


class Watched(CheckedTrace):
    """A checked trace that keeps the events of the current memory."""

    def __init__(self) -> None:
        """No event was emitted."""
        super().__init__()
        self.pools: dict[str, Pool] = {}
        self.recorded: list[MemoryEvent] = []

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """Another memory, all of it free."""
        super().header(producer, pools, host)
        self.pools, self.recorded = dict(pools), []

    def emit(self, *events: MemoryEvent) -> None:
        """Check events."""
        self.recorded += events
        super().emit(*events)


class Driving:
    """One release that is driven."""

    def __init__(self, task: Task, trial: Trial) -> None:
        """Nothing was found in it yet."""
        self._task, self._trial = task, trial
        self.report = MemoryReport(task.engine, task.release)
        self._groups: dict[tuple[str, str, str], Group] = {}

    def search(self) -> None:
        """Look for each known defect that needs runs of its own."""
        for known in self._trial.known:
            if not known.runs:
                continue
            event, finding = self._bring_out(known)
            self.report.searched[known.issue.id] = event
            self.report.known[known.issue.id] = None
            if finding is not None:
                self._note(known, event, finding)

    def _bring_out(self, known: Known) -> tuple[int, Finding | None]:
        """The events until a known defect occurred, and its finding; or all events if it did not occur."""
        checked = Watched()
        started = time.monotonic()
        with _attached(self._trial, checked, known.fix) as hooks:
            for seed in range(known.runs):
                _one(hooks, known.run or self._trial.run, seed)
                for event, finding in checked.found:
                    if known.issue.fits(finding):
                        return event, finding
                checked.found.clear()
                if time.monotonic() - started > max(self._task.seconds, 1.0):
                    break
        return checked.events, None

    def walk(self) -> None:
        """Drive the engine with all known defects fixed that can be fixed, until the time is up."""
        checked, report, gave_up, reached = Watched(), self.report, Counter[str](), Counter[str]()
        for known in self._trial.known:
            report.known.setdefault(known.issue.id, None)
        started, goals = time.monotonic(), dict(self._trial.goals)
        with _attached(self._trial, checked, self._trial.fix) as hooks:
            while not report.runs or time.monotonic() - started < self._time(report.runs):
                seed = self._task.seed + report.runs
                _one(hooks, self._trial.run, seed)
                report.runs += 1
                for event in checked.recorded:
                    reached[str(event.__struct_config__.tag)] += 1
                    if isinstance(event, Failed) and any(f"{name}:" in event.what for name in MISSES):
                        gave_up[event.what] += 1
                goals = {name: goal for name, goal in goals.items() if not goal(checked.recorded)}
                self._sort(checked, seed)
                checked.found.clear()
                if report.runs == LEAST:
                    report.pairs = len(checked.pairs.reached)
                if report.runs >= 5 and gave_up.total() > report.runs // 2:
                    raise NotDriven(f"the driver does not fit it: {gave_up.most_common(1)[0][0]}")
        report.events, report.reached = checked.events, dict(reached)
        if gave_up.total() > report.runs // 2:
            raise NotDriven(f"the driver does not fit it: {gave_up.most_common(1)[0][0]}")
        report.unexplained = list(self._groups.values())
        if report.runs >= LEAST:
            report.missed = list(goals)

    def _time(self, runs: int) -> float:
        """Seconds that a walk may take: as many as were asked for, and more on a machine too slow for a few runs."""
        return self._task.seconds * (SLOW if runs < LEAST else 1)

    def _sort(self, checked: Watched, seed: int) -> None:
        new = []
        for event, finding in checked.found:
            if finding.cause is not None:
                continue
            known = next((one for one in self._trial.known if self._explains(one.issue, finding)), None)
            if known is not None:
                self._note(known, event, finding)
                continue
            kind = finding.code, finding.pool or "", finding.at or ""
            group = self._groups.get(kind)
            if group is None:
                group = self._groups[kind] = Group(*kind, 0, event, describe(finding), seed)
                new.append((group, finding))
            group.times += 1
        if new:
            folder = Path(self._task.out) / f"{self._task.engine}-{self._task.release}"
            write_shortest(folder, f"{self._task.engine} {self._task.release}", checked.pools, checked.recorded, new)

    def _explains(self, issue: Issue, finding: Finding) -> bool:
        return issue.specific and issue.fits(finding) and not issue.fixed_in(self._task.release)

    def _note(self, known: Known, event: int, finding: Finding) -> None:
        """A known issue was found; in a release that has its fix no issue explains it."""
        issue = known.issue
        if issue.fixed_in(self._task.release):
            what = f"{issue.id}, which is fixed since {issue.fixed}, shows again: {describe(finding)}"
            kind = finding.code, finding.pool or "", finding.at or ""
            self._groups.setdefault(kind, Group(*kind, 1, event, what, self._task.seed))
        elif self.report.known.get(issue.id) is None:
            self.report.known[issue.id] = Shown(finding.code, event, describe(finding))


@contextmanager
def _attached(trial: Trial, checked: CheckedTrace, fix: Callable[[Patches], None] | None) -> Iterator[Hooks]:
    """Fix known issues of an engine and attach hooks to it; undo both at the end."""
    with Patches() as patches:
        if fix is not None:
            # Lines other than those that a fix was written for stay as they are.
            with suppress(NotInjected):
                fix(patches)
        hooks = trial.attach(checked)
        try:
            yield hooks
        finally:
            hooks.detach()


def _one(hooks: Hooks, run: Callable[[int], object], seed: int) -> None:
    try:
        run(seed)
    except Exception as error:
        raise NotDriven(f"the driver does not fit it: {type(error).__name__}: {error}") from error
    if hooks.problem is not None:
        raise NotDriven(f"the hooks do not fit it: {hooks.problem}")


def drive(task: Task) -> MemoryReport:
    """The findings of one release.

    Raises:
        EngineError: it cannot be loaded, or does not fit the driver or the hooks.
    """
    driving = Driving(task, trial_of(task.engine, None if task.folder is None else Path(task.folder)))
    driving.search()
    driving.walk()
    return driving.report
