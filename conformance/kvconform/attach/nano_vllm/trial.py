"""nano-vllm, to be driven with hooks."""

from pathlib import Path

from kvconform.attach.hooks import Hooks, Trace
from kvconform.attach.judged import Trial
from kvconform.attach.nano_vllm import driver
from kvconform.attach.nano_vllm.defects import defects
from kvconform.attach.nano_vllm.engine import load
from kvconform.attach.nano_vllm.hooks import Attached


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
