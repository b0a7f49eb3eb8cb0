"""MAX, to be driven with hooks."""

import random
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from kvattach.max.hooks import Attached
from kvattach.max.pools import HOST
from kvlab.drives import Attachment, Trial, known_issues
from kvlab.goals import OVERLAPPED, Goal
from kvlab.max import driver
from kvlab.max.engine import load
from kvlab.max.faults import defects
from kvlab.max.fixes import fix
from kvspec.memory.events import Begin, MemoryEvent

EVERY = 4
"""One seed of so many drives drafts besides, and another one LoRA adapters."""


def trial(folder: Path) -> Trial:
    """The unpacked wheel in `folder`.

    Raises:
        EngineError: the folder holds no such wheel.
    """
    engine = load(folder)
    drive = Attachment(partial(Attached, engine))

    def run(shape: driver.Shape | None, seed: int) -> None:
        drive.ended(driver.run(engine, drive.attached, seed, shape=shape, report=drive.trace.find))

    def each(seed: int) -> None:
        run(None, seed)
        if seed % EVERY == EVERY - 2:
            dice = random.Random(f"{seed} drafts")
            run(driver.Shape.drawn(dice).drafted(dice), seed)
        if seed % EVERY == EVERY - 1:
            dice = random.Random(f"{seed} adapters")
            run(driver.Shape.drawn(dice).adapted(dice), seed)

    fixes = partial(fix, engine)
    known = known_issues("max", driver.Shape, run, fixes)
    return Trial("MAX", drive.attach, each, defects(engine), fixes, known, goals=GOALS)


def _from_host(events: Sequence[MemoryEvent]) -> bool:
    """Whether a block is loaded from the host."""
    return any(source.pool == HOST for event in events if isinstance(event, Begin) for source, _ in event.copies)


def _from_peers(events: Sequence[MemoryEvent]) -> bool:
    """Whether a block is copied from another replica."""
    copies = [pair for event in events if isinstance(event, Begin) for pair in event.copies]
    return any({source.pool, target.pool} == {"kv0", "kv1"} for source, target in copies)


def _drafted(events: Sequence[MemoryEvent]) -> bool:
    """Whether a pass writes rejected drafts or proposals."""
    written = [use for event in events if isinstance(event, Begin) for use in event.writes]
    return any(" draft " in label for use in written for label in use.labels or ())


GOALS: Mapping[str, Goal] = {
    **OVERLAPPED,
    "a block comes back from the host": _from_host,
    "a block comes from another replica": _from_peers,
    "drafts are rejected": _drafted,
}
