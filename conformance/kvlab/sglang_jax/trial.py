"""sglang-jax, to be driven with hooks."""

from functools import partial
from pathlib import Path

from kvattach.sglang_jax.hooks import Attached
from kvlab.drives import Attachment, Trial, known_issues
from kvlab.goals import OVERLAPPED
from kvlab.sglang_jax import driver
from kvlab.sglang_jax.engine import load
from kvlab.sglang_jax.faults import defects
from kvlab.sglang_jax.fixes import fix


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: the folder holds no such checkout.
    """
    engine = load(folder)
    drive = Attachment(partial(Attached, engine))

    def run(shape: driver.Shape | None, seed: int) -> None:
        driver.run(engine, seed, shape=shape, report=drive.trace.find)

    fixes = partial(fix, engine)
    known = known_issues("sglang-jax", driver.Shape, run, fixes)
    return Trial("sglang-jax", drive.attach, partial(run, None), defects(engine), fixes, known, goals=OVERLAPPED)
