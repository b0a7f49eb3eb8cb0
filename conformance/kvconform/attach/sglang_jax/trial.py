"""sglang-jax, to be driven with hooks."""

from functools import partial
from pathlib import Path

from kvconform.attach.hooks import Hooks, Trace
from kvconform.attach.judged import Known, Trial
from kvconform.attach.sglang_jax import driver
from kvconform.attach.sglang_jax.defects import defects
from kvconform.attach.sglang_jax.hooks import Attached
from kvconform.attach.sglang_jax.mended import count_every_chunk, keep_what_was_prefilled, look_for_room
from kvconform.engines.sglang_jax.engine import load

CROWDED = driver.Shape(
    page_size=1,
    pages=64,
    running=4,
    chunk=4,
    budget=256,
    alphabet=2,
    overlap=True,
    mixed=True,
    radix=True,
    conservativeness=0.0,
    aborts=0.0,
)
"""A small memory, prompts in short chunks, and decode steps in the launches of chunks."""

PAUSED = driver.Shape(
    page_size=1,
    pages=128,
    running=4,
    chunk=-1,
    budget=256,
    alphabet=3,
    overlap=True,
    mixed=False,
    radix=True,
    conservativeness=0.1,
    aborts=0.0,
    pauses=0.1,
)
"""A server that is told to pause now and then, and to go on."""


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

    def crowded(seed: int) -> None:
        driver.run(engine, seed, shape=CROWDED)

    def paused(seed: int) -> None:
        driver.run(engine, seed, shape=PAUSED)

    mend, keep, look = (partial(each, engine) for each in (count_every_chunk, keep_what_was_prefilled, look_for_room))
    room = "a chunk goes on without room, nobody looks whether the decode steps beside it fit, and the engine ends"
    forgets = "with overlap a pause forgets who was prefilled last: they keep rows and pages, and never go on"
    full = "who is retracted by a pause leaves the batch marked as full: nobody is prefilled any more"
    known = [
        Known("chunk-not-counted", "a prompt's third chunk is taken for its last one", "", runs=40),
        Known("mixed-room", room, "MEM-FAILED", "ut of memory", run=crowded, mend=mend, runs=40),
        Known("pause-forgets", forgets, "", run=paused, mend=look, runs=40),
        Known("pause-stays-full", full, "", run=paused, mend=keep, runs=40),
    ]
    return Trial("sglang-jax", attach, run, defects(engine), mend, known)
