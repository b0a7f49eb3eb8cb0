"""SGLang's scheduler and host cache, to be driven with hooks."""

from functools import partial
from pathlib import Path

from kvattach.hooks import Hooks
from kvattach.patches import Patches
from kvattach.sglang.hooks import Attached
from kvattach.sglang.release import Release
from kvlab.device import Event, Stream
from kvlab.drives import CheckedTrace, Trial, known_issues
from kvlab.goals import OVERLAPPED
from kvlab.issues import Issue
from kvlab.sglang import driver, walk
from kvlab.sglang.driver import Shape
from kvlab.sglang.faults import defects
from kvlab.sglang.issues import can_run, fix
from kvlab.sglang.release import load
from kvlab.stubs import EngineError
from kvlab.traffic import STUCK
from kvspec.memory.events import Failed

RUNS = 60
"""Runs that look for one issue."""


def trial(folder: Path) -> Trial:
    """The release in `folder`.

    Raises:
        EngineError: it holds none that can be driven.
    """
    release = load(folder)
    try:
        injected = defects(release) if release.unified else []
        # A release in between changes names that only a run comes to.
        (driver.run if release.scheduled else walk.run)(release, 0)
        # Or names that hooks need.
        Attached(release, CheckedTrace(), Stream, Event).hooks.detach()
    except Exception as error:
        raise EngineError(f"its scheduler cannot be driven: {type(error).__name__}: {error}") from error
    attached: list[Attached] = []
    checked: list[CheckedTrace] = []

    def attach(trace: CheckedTrace) -> Hooks:
        checked[:] = [trace]
        attached[:] = [Attached(release, trace, Stream, Event)]
        return attached[0].hooks

    def report(error: str) -> None:
        if error:
            attached[0].hooks.emit(Failed("stuck" if STUCK in error else "assertion", error))

    def run(seed: int) -> None:
        report(_run(release, seed, attached[0], checked[0]))

    def drive(shape: Shape | None, seed: int) -> None:
        report(driver.run(release, seed, attached[0], shape, report=checked[0].find))

    def fix_others(issue: Issue, patches: Patches) -> None:
        fix(release, patches, but=issue.fix)

    known = known_issues("sglang", Shape, drive, fix_others, runs=RUNS, can_run=partial(can_run, release))
    return Trial("SGLang", attach, run, injected, partial(fix, release), known, goals=OVERLAPPED)


def _run(release: Release, seed: int, attached: Attached, checked: CheckedTrace) -> str:
    """By turns: its scheduler with a host tier; a walk; and its scheduler without a host tier, if it can be driven so.

    In a walk transfers are closer to launches than the scheduler's barriers let them be.
    """
    if not release.scheduled or seed % 3 == 1:
        return walk.run(release, seed, attached)
    host = seed % 3 == 0 or not release.unified
    return driver.run(release, seed, attached, host=host, report=checked.find)
