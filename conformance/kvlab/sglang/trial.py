"""SGLang's scheduler and host cache, to be driven with hooks."""

from functools import partial
from pathlib import Path

from kvattach.hooks import Hooks, Trace
from kvattach.sglang.hooks import Attached
from kvattach.sglang.release import Release
from kvlab.device import Event, Stream
from kvlab.drives import CheckedTrace, Trial
from kvlab.sglang import driver, walk
from kvlab.sglang.driver import Shape
from kvlab.sglang.faults import defects
from kvlab.sglang.issues import fix, known
from kvlab.sglang.release import load
from kvlab.stubs import EngineError
from kvspec.memory.events import Failed


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

    def attach(trace: Trace) -> Hooks:
        attached[:] = [Attached(release, trace, Stream, Event)]
        return attached[0].hooks

    def run(seed: int) -> None:
        for error in _run(release, seed, attached[0]).failed:
            attached[0].hooks.emit(Failed("stuck" if driver.STUCK in error else "assertion", error))

    def drive(seed: int, shape: Shape) -> None:
        for error in driver.run(release, seed, attached[0], shape).failed:
            attached[0].hooks.emit(Failed("stuck" if driver.STUCK in error else "assertion", error))

    return Trial("SGLang", attach, run, injected, partial(fix, release), known(release, drive))


def _run(release: Release, seed: int, attached: Attached) -> driver.Seen | walk.Seen:
    """By turns: its scheduler with a host tier; a walk; and its scheduler without a host tier, if it can be driven so.

    In a walk transfers are closer to launches than the scheduler's barriers let them be.
    """
    if not release.scheduled or seed % 3 == 1:
        return walk.run(release, seed, attached)
    return driver.run(release, seed, attached, host=seed % 3 == 0 or not release.unified)
