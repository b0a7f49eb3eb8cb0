"""LMCache, to be driven with hooks."""

from functools import partial
from pathlib import Path

from kvattach.hooks import Hooks, Trace
from kvattach.lmcache.hooks import Attached
from kvattach.patches import Patches
from kvlab.drives import Trial, known_issues
from kvlab.issues import Issue
from kvlab.lmcache import driver
from kvlab.lmcache.engine import load
from kvlab.lmcache.faults import defects
from kvlab.lmcache.fixes import fix
from kvlab.traffic import STUCK
from kvspec.memory.events import Failed


def trial(folder: Path) -> Trial:
    """The unpacked wheel in `folder`.

    Raises:
        EngineError: it holds none.
    """
    engine = load(folder)
    made: list[Attached] = []

    def attach(trace: Trace) -> Hooks:
        made[:] = [Attached(engine, trace)]
        return made[0].hooks

    def run(shape: driver.Shape | None, seed: int) -> None:
        error = driver.run(engine, made[0], seed, shape=shape)
        if error:
            made[0].hooks.emit(Failed("stuck" if STUCK in error else "assertion", error))

    def fix_others(issue: Issue, patches: Patches) -> None:
        fix(engine, patches, but=issue.id)

    known = known_issues("lmcache", driver.Shape, run, fix_others)
    return Trial("LMCache", attach, partial(run, None), defects(engine), partial(fix, engine), known)
