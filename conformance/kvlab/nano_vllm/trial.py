"""nano-vllm, to be driven with hooks."""

from pathlib import Path

from kvattach.hooks import Hooks, Trace
from kvattach.nano_vllm.hooks import Attached
from kvlab.drives import Trial
from kvlab.nano_vllm import driver
from kvlab.nano_vllm.engine import load
from kvlab.nano_vllm.faults import defects


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: it holds none.
    """
    engine = load(folder)

    def attach(trace: Trace) -> Hooks:
        return Attached(engine, trace).hooks

    def run(seed: int) -> None:
        driver.run(engine, seed)

    return Trial("nano-vllm", attach, run, defects(engine))
