"""nano-vllm, to be driven with hooks."""

from functools import partial
from pathlib import Path

from kvattach.nano_vllm.hooks import Attached
from kvlab.drives import Attachment, Trial
from kvlab.goals import EVERYWHERE
from kvlab.nano_vllm import driver
from kvlab.nano_vllm.engine import load
from kvlab.nano_vllm.faults import defects


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: the folder holds no such checkout.
    """
    engine = load(folder)
    drive = Attachment(partial(Attached, engine))

    def run(seed: int) -> None:
        drive.ended(driver.run(engine, seed, report=drive.trace.find), watched=True)

    return Trial("nano-vllm", drive.attach, run, defects(engine), goals=EVERYWHERE)
