"""mini-sglang, to be driven with hooks."""

from functools import partial
from pathlib import Path

from kvattach.mini_sglang.hooks import Attached
from kvlab.device import Event, Stream
from kvlab.drives import Attachment, Trial, known_issues
from kvlab.goals import OVERLAPPED
from kvlab.mini_sglang import driver
from kvlab.mini_sglang.engine import load
from kvlab.mini_sglang.faults import defects
from kvlab.mini_sglang.fixes import fix


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: the folder holds no such checkout.
    """
    engine = load(folder)
    drive = Attachment(lambda trace: Attached(engine, trace, Stream, Event))

    def run(shape: driver.Shape | None, seed: int) -> None:
        driver.run(engine, seed, shape=shape, report=drive.trace.find)

    fixes = partial(fix, engine)
    known = known_issues("mini-sglang", driver.Shape, run, fixes)
    return Trial("mini-sglang", drive.attach, partial(run, None), defects(engine), fixes, known, goals=OVERLAPPED)
