"""MAX, to be driven with hooks."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from kvattach.hooks import Hooks
from kvattach.max.hooks import Attached
from kvattach.max.pools import HOST
from kvattach.patches import Patches
from kvlab.drives import CheckedTrace, Trial, known_issues
from kvlab.goals import OVERLAPPED, Goal
from kvlab.issues import Issue
from kvlab.max import driver
from kvlab.max.engine import load
from kvlab.max.faults import defects
from kvlab.max.fixes import fix
from kvlab.traffic import STUCK
from kvspec.memory.events import Begin, Failed, MemoryEvent


def trial(folder: Path) -> Trial:
    """The unpacked wheel in `folder`.

    Raises:
        EngineError: it holds none.
    """
    engine = load(folder)
    made: list[Attached] = []
    checked: list[CheckedTrace] = []

    def attach(trace: CheckedTrace) -> Hooks:
        checked[:] = [trace]
        made[:] = [Attached(engine, trace)]
        return made[0].hooks

    def run(shape: driver.Shape | None, seed: int) -> None:
        error = driver.run(engine, made[0], seed, shape=shape, report=checked[0].find)
        if error:
            made[0].hooks.emit(Failed("stuck" if STUCK in error else "assertion", error))

    def fix_others(issue: Issue, patches: Patches) -> None:
        fix(engine, patches, but=issue.id)

    known = known_issues("max", driver.Shape, run, fix_others)
    return Trial("MAX", attach, partial(run, None), defects(engine), partial(fix, engine), known, goals=GOALS)


def _from_host(events: Sequence[MemoryEvent]) -> bool:
    """A block comes back from the host."""
    return any(source.pool == HOST for event in events if isinstance(event, Begin) for source, _ in event.copies)


def _from_peers(events: Sequence[MemoryEvent]) -> bool:
    """A block comes from another replica."""
    copies = [pair for event in events if isinstance(event, Begin) for pair in event.copies]
    return any({source.pool, target.pool} == {"kv0", "kv1"} for source, target in copies)


GOALS: Mapping[str, Goal] = {
    **OVERLAPPED,
    "a block comes back from the host": _from_host,
    "a block comes from another replica": _from_peers,
}
