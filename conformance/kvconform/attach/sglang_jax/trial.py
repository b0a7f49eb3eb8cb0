"""sglang-jax, to be driven with hooks."""

from pathlib import Path

from kvconform.attach.hooks import Hooks, Trace
from kvconform.attach.judged import Known, Trial
from kvconform.attach.patches import Patches
from kvconform.attach.sglang_jax import driver
from kvconform.attach.sglang_jax.defects import defects
from kvconform.attach.sglang_jax.hooks import Attached
from kvconform.attach.sglang_jax.mended import count_every_chunk
from kvconform.engines.sglang_jax.engine import load


def trial(folder: Path) -> Trial:
    """The checkout in `folder`.

    Raises:
        EngineError: it holds none.
    """
    engine = load(folder)
    attached: list[Hooks] = []

    def attach(trace: Trace) -> Hooks:
        attached[:] = [Attached(engine, trace).hooks]
        return attached[0]

    def run(seed: int) -> None:
        driver.run(engine, seed)

    def mend(patches: Patches) -> None:
        count_every_chunk(engine, patches)

    known = Known("chunk-not-counted", "a prompt's third chunk is taken for its last one", "", runs=40)
    return Trial("sglang-jax", attach, run, defects(engine), mend, [known])
