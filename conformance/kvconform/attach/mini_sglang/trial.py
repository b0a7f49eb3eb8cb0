"""mini-sglang, to be driven with hooks."""

from pathlib import Path

from kvconform.attach.device import Event, Stream
from kvconform.attach.hooks import Hooks, Trace
from kvconform.attach.judged import Trial
from kvconform.attach.mini_sglang import driver
from kvconform.attach.mini_sglang.defects import defects
from kvconform.attach.mini_sglang.engine import load
from kvconform.attach.mini_sglang.hooks import Attached
from kvconform.attach.mini_sglang.mended import mend
from kvconform.attach.patches import Patches


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: it holds none.
    """
    engine = load(folder)

    def attach(trace: Trace) -> Hooks:
        return Attached(engine, trace, Stream, Event).hooks

    def run(seed: int) -> None:
        driver.run(engine, seed)

    def mended(patches: Patches) -> None:
        mend(engine, patches)

    return Trial("mini-sglang", attach, run, defects(engine), mended)
