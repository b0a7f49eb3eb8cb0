"""nano-vllm, to be driven with hooks."""

from pathlib import Path

from kvattach.hooks import Hooks
from kvattach.nano_vllm.hooks import Attached
from kvlab.drives import CheckedTrace, Trial
from kvlab.goals import EVERYWHERE
from kvlab.nano_vllm import driver
from kvlab.nano_vllm.engine import load
from kvlab.nano_vllm.faults import defects
from kvlab.traffic import STUCK
from kvspec.memory.events import Failed


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: it holds none.
    """
    engine = load(folder)
    attached: list[Hooks] = []
    checked: list[CheckedTrace] = []

    def attach(trace: CheckedTrace) -> Hooks:
        checked[:] = [trace]
        attached[:] = [Attached(engine, trace).hooks]
        return attached[0]

    def run(seed: int) -> None:
        error = driver.run(engine, seed, report=checked[0].find)
        if STUCK in error:  # the hooks have reported the others
            attached[0].emit(Failed("stuck", error))

    return Trial("nano-vllm", attach, run, defects(engine), goals=EVERYWHERE)
