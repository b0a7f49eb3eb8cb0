"""LMCache, to be driven with hooks."""

from functools import partial
from pathlib import Path

from kvattach.lmcache.hooks import Attached
from kvlab.drives import Attachment, Trial, known_issues
from kvlab.lmcache import driver
from kvlab.lmcache.engine import load
from kvlab.lmcache.faults import defects
from kvlab.lmcache.fixes import fix


def trial(folder: Path) -> Trial:
    """The unpacked wheel in `folder`.

    Raises:
        EngineError: the folder holds no such wheel.
    """
    engine = load(folder)
    drive = Attachment(partial(Attached, engine))

    def run(shape: driver.Shape | None, seed: int) -> None:
        drive.ended(driver.run(engine, drive.attached, seed, shape=shape))

    fixes = partial(fix, engine)
    known = known_issues("lmcache", driver.Shape, run, fixes)
    return Trial("LMCache", drive.attach, partial(run, None), defects(engine), fixes, known)
