"""Drives an engine's own scheduler with hooks, and checks each event at once."""

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from kvattach.hooks import Hooks, RuleBroken, is_error
from kvattach.patches import Patches
from kvcheck import Checker, Finding
from kvlab.goals import Goal
from kvlab.injection import Defect, NotInjected, inject_fault
from kvlab.issues import Issue, issues_of, options_of
from kvlab.pairs import Pairs
from kvlab.traffic import STUCK
from kvspec.memory import Pool
from kvspec.memory.events import Failed, MemoryEvent

W = TypeVar("W")

RUN_SECONDS = 60.0
"""Seconds of processor time for a run with an injected fault, which may loop forever."""
ASLEEP = 10
"""By the clock a run may take so many times as long: it may sleep, or the machine may be busy."""


@dataclass
class CheckedTrace:
    """A trace whose events are checked as they are emitted."""

    events: int = 0
    found: list[tuple[int, Finding]] = field(default_factory=list)
    """Each finding, with the number of events until then, over all memories."""
    uncalled: set[str] = field(default_factory=set)
    """The functions of the injected fault that no run has called; no run can find the fault without them."""
    seed: int = 0
    """The seed of the last run."""
    pairs: Pairs = field(default_factory=Pairs)
    """The pairs of events that the runs have reached."""
    _checker: Checker | None = None

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """Another memory, all of it free."""
        self._checker = Checker(pools)
        self.pairs.header(pools)

    def emit(self, *events: MemoryEvent) -> None:
        """Check events."""
        assert self._checker is not None
        for event in events:
            self.events += 1
            self.found += [(self.events, finding) for finding in self._checker.step(event)]
            self.pairs.step(event)

    def find(self, finding: Finding) -> None:
        """A finding of the driver itself, which no event shows."""
        assert self._checker is not None
        self.found.append((self.events, msgspec.structs.replace(finding, event=self._checker.state.event)))

    @property
    def first(self) -> tuple[int, Finding] | None:
        """The first finding."""
        return self.found[0] if self.found else None

    def kinds(self) -> Counter[tuple[str, str, str]]:
        """Code, pool and place of the findings that are no consequence of an earlier one, counted."""
        own = [finding for _, finding in self.found if finding.cause is None]
        return Counter((finding.code, finding.pool or "", finding.at or "") for finding in own)


class Known(NamedTuple):
    """A known issue, and the runs that show it."""

    issue: Issue
    run: Callable[[int], object] | None = None
    """Runs one seed of a drive that shows the issue; `None`: the engine's usual drive."""
    fix: Callable[[Patches], None] | None = None
    """Fixes the other issues during these runs."""
    runs: int = 0
    """The number of runs that look only for this issue; 0: any run may show it."""


def known_issues(
    engine: str,
    options: type[W],
    run: Callable[[W | None, int], object],
    fix: Callable[..., None],
    *,
    runs: int = 40,
    can_run: Callable[[W | None], bool] = lambda _: True,
) -> list[Known]:
    """The known issues of an engine, each with `runs` seeds of its workload; those that cannot run are left out.

    `run` takes the driver's `options`, `None` if any will do, and a seed. `fix(patches, but=name)` applies all fixes
    but the one of that name.
    """
    table, known = issues_of(engine), list[Known]()
    for issue in table.at("memory"):
        given = table.workload(issue)
        work = options_of(given, options) if given else None
        if issue.workload is None:
            known.append(Known(issue))
        elif can_run(work):
            known.append(Known(issue, partial(run, work), partial(fix, but=issue.fix), runs))
    return known


class Attached(Protocol):
    """The hooks that take the events out of an engine."""

    hooks: Hooks


A = TypeVar("A", bound=Attached)


class Attachment(Generic[A]):
    """The hooks that are attached to the engine for the current runs, and the trace that takes its events."""

    attached: A
    trace: CheckedTrace

    def __init__(self, make: Callable[[CheckedTrace], A]) -> None:
        """Nothing is attached yet; `make` attaches something for a trace."""
        self._make = make

    def attach(self, trace: CheckedTrace) -> Hooks:
        """Attach, for the runs that follow."""
        self.trace, self.attached = trace, self._make(trace)
        return self.attached.hooks

    def ended(self, error: str, *, watched: bool = False) -> None:
        """A run has ended, perhaps with an error; hooks that watched the engine have reported all errors but hangs."""
        if STUCK in error or (error and not watched):
            self.attached.hooks.emit(Failed("stuck" if STUCK in error else "assertion", error))


@dataclass(frozen=True)
class Trial:
    """An engine that can be driven. `run` takes a seed; its exceptions count as `failed` if a fault is injected."""

    name: str
    attach: Callable[[CheckedTrace], Hooks]
    run: Callable[[int], None]
    defects: list[Defect]
    fix: Callable[[Patches], None] | None = None
    """Fixes the engine's known issues."""
    known: Sequence[Known] = ()
    goals: Mapping[str, Goal] = field(default_factory=dict)
    """Events that one of its runs must show, by the words for them."""


def drive_trial(
    trial: Trial,
    seeds: Iterable[int],
    *,
    defect: Defect | None = None,
    fixed: bool = False,
    events: int | None = None,
    seconds: float = RUN_SECONDS,
    checked: CheckedTrace | None = None,
) -> CheckedTrace:
    """Drive the engine once for each seed, or until there are `events`; with an injected defect until a finding.

    `checked` takes the events, so that an interrupted caller has the events until then. A run with a defect that takes
    longer than `seconds` of processor time is ended and reported as stuck.

    Raises:
        NotInjected: the defect is for another version of the engine.
        RuntimeError: a hook has failed.
    """
    patches, checked = Patches(), checked or CheckedTrace()
    try:
        if defect is not None:
            checked.uncalled = inject_fault(defect, patches)
        if fixed and trial.fix is not None:
            # A release may lack the lines that are fixed in another one.
            with suppress(NotInjected):
                trial.fix(patches)
        hooks = trial.attach(checked)
        try:
            for seed in seeds:
                if events is not None and checked.events >= events:
                    break
                checked.seed = seed
                try:
                    with _ended_after(0.0 if defect is None else seconds):
                        trial.run(seed)
                except _TooLong:
                    hooks.emit(Failed("stuck", f"the run of seed {seed} has not ended in {seconds:g} s"))
                except RuleBroken:
                    raise
                except BaseException as error:
                    if defect is None or not is_error(error):
                        raise
                    hooks.gave_up(f"the run of seed {seed}", error)
                if defect is not None and checked.found:
                    break
                if hooks.problem is not None:
                    raise RuntimeError(hooks.problem)
        finally:
            hooks.detach()
    finally:
        patches.undo()
    return checked


class _TooLong(BaseException):
    """A run has taken too long. Neither engines nor hooks catch this."""


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End the work in this context after so many seconds of processor time; 0: never.

    Outside of the main thread, which has the signals, nothing is ended.
    """
    begun, used = time.monotonic(), time.process_time()

    def look(*_: object) -> None:
        if time.process_time() - used >= seconds or time.monotonic() - begun >= ASLEEP * seconds:
            raise _TooLong

    if not seconds or threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds / ASLEEP)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
