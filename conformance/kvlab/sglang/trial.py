"""SGLang's scheduler and host cache, to be driven with hooks."""

import random
from functools import partial
from pathlib import Path

from kvattach.patches import Patches
from kvattach.sglang.hooks import Attached
from kvattach.sglang.release import Release
from kvlab.device import Event, Stream
from kvlab.drives import Attachment, CheckedTrace, Known, Trial, known_issues
from kvlab.goals import ILLUSTRATED, PAIRED, STORED
from kvlab.hosts import Together
from kvlab.sglang import driver, pair, ranks, walk
from kvlab.sglang.driver import Shape
from kvlab.sglang.duo import Duo
from kvlab.sglang.faults import defects
from kvlab.sglang.issues import can_run, fix
from kvlab.sglang.network import LATER, SERVERS
from kvlab.sglang.release import load
from kvlab.stubs import EngineError

RUNS = 60
"""The number of runs that look for one issue."""
PAIRS_EVERY = 4
"""One seed of so many drives a prefill and a decode server besides."""
STORED_EVERY = 3
"""One walk of so many has a storage behind the host tier, in releases whose scheduler is not driven ..."""
STORED_WALKS = 12
"""... and one run of so many in the others; each walk where prefetches reserve host pages, and few come back."""
STORED_RANKS = 3
"""One server with ranks of so many has a storage, in releases with one tree for all pools."""
RANKS_EVERY = 6
"""One seed of so many drives the ranks of one server instead of a walk."""


def trial(folder: Path) -> Trial:
    """The release in `folder`.

    Raises:
        EngineError: the folder holds no release that can be driven.
    """
    release = load(folder)
    try:
        injected = defects(release) if release.unified else []
        # Only a run fails on some names that an unknown release has changed.
        (driver.run if release.scheduled else walk.run)(release, 0)
        # Only hooks fail on some others.
        Attached(release, CheckedTrace(), Stream, Event).hooks.detach()
    except Exception as error:
        raise EngineError(f"its scheduler cannot be driven: {type(error).__name__}: {error}") from error
    drive = Attachment(lambda trace: Attached(release, trace, Stream, Event))
    fixes = partial(fix, release)
    avoided: list[Patches] = []
    """Not empty while the known issues are fixed: then drives of two servers avoid the issues without a fix."""

    def fix_all(patches: Patches) -> None:
        avoided[:] = [patches]
        fixes(patches)

    def run(seed: int) -> None:
        drive.ended(_run(release, seed, drive.attached, drive.trace))
        if release.pairs and seed % PAIRS_EVERY == PAIRS_EVERY - 2:
            drive_pair(seed, known=not avoided)

    def drive_pair(seed: int, *, known: bool = True) -> None:
        hooks = drive.attached.hooks
        hooks.detach()
        try:
            duo = Duo.drawn(random.Random(f"{seed} duo"), known=known)
            pair.run(release, seed, Together(hooks.trace, SERVERS, LATER), duo, drive.trace.find)
        finally:
            hooks.attach()

    def run_in(shape: Shape | None, seed: int) -> None:
        drive.ended(driver.run(release, seed, drive.attached, shape, report=drive.trace.find))

    def drive_stored(seed: int) -> None:
        drive.ended(walk.run(release, seed, drive.attached, storage=True, renews=True))

    runs = {"storage": drive_stored, **({"pair": drive_pair} if release.pairs else {})}

    def searched(one: Known) -> Known:
        """Look for an issue of two servers, or of a storage, in drives of these."""
        found_in = runs.get(one.issue.id.partition("-")[0])
        return one if found_in is None else Known(one.issue, found_in, partial(fixes, but=one.issue.fix), RUNS)

    known = known_issues("sglang", Shape, run_in, fixes, runs=RUNS, can_run=partial(can_run, release))
    known = [searched(one) for one in known]
    goals = {**STORED, **(PAIRED if release.pairs else {})}
    goals |= ILLUSTRATED if release.drives_sessions else {}
    return Trial("SGLang", drive.attach, run, injected, fix_all, known, goals=goals)


def _run(release: Release, seed: int, attached: Attached, checked: CheckedTrace) -> str:
    """Run in turn the scheduler with a host tier, a walk or ranks, and the scheduler without a host tier if possible.

    In a walk transfers are closer to launches than the scheduler's barriers permit.
    """
    if release.scheduled and seed % RANKS_EVERY == 1:
        attached.hooks.detach()
        try:
            storage = release.unified and seed // RANKS_EVERY % STORED_RANKS == STORED_RANKS - 1
            return ranks.run(release, seed, attached.hooks.trace, storage=storage, report=checked.find)
        finally:
            attached.hooks.attach()
    if not release.scheduled:
        return walk.run(release, seed, attached, storage=seed % STORED_EVERY == STORED_EVERY - 1)
    if seed % 3 == 1:
        drawn = release.reserves or seed % STORED_WALKS == STORED_WALKS - 2
        return walk.run(release, seed, attached, storage=drawn)
    host = seed % 3 == 0 or not release.checkpoints
    return driver.run(release, seed, attached, host=host, report=checked.find)
