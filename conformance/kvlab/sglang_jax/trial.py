"""sglang-jax, to be driven with hooks."""

from dataclasses import replace
from pathlib import Path

from kvattach.hooks import Hooks, Trace
from kvattach.patches import Patches
from kvattach.sglang_jax.hooks import Attached
from kvlab.drives import Known, Trial
from kvlab.sglang_jax import driver
from kvlab.sglang_jax.engine import load
from kvlab.sglang_jax.faults import defects
from kvlab.sglang_jax.fixes import mend

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

MIXED = replace(CROWDED, page_size=2, pages=24, running=2, chunk=16, alphabet=3)
"""Pages of more than one token."""

SHARED = replace(CROWDED, page_size=4, pages=60, chunk=8, alphabet=1)
"""Prompts and answers that all begin alike, and chunks that end within a page."""

UNCACHED = replace(CROWDED, page_size=2, pages=40, running=5, chunk=8, alphabet=3, radix=False)
"""Without a tree, where who does not stop at a token is admitted in another way."""

FULL = replace(CROWDED, page_size=8, pages=10, running=8, chunk=16, overlap=False, radix=False)
"""Few large pages, in which steps go on decoding when none is left."""

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

PAUSED_AMID = replace(PAUSED, chunk=4, overlap=False)
"""A pause that comes between the chunks of a prompt."""


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

    def mended(patches: Patches) -> None:
        mend(engine, patches)

    def alone(name: str, what: str, rule: str = "", shape: driver.Shape | None = None) -> Known:
        def others(patches: Patches) -> None:
            mend(engine, patches, but=name)

        def shaped(seed: int) -> None:
            driver.run(engine, seed, shape=shape)

        return Known(name, what, rule, run=shaped, mend=others, runs=40)

    def crowded(seed: int) -> None:
        driver.run(engine, seed, shape=FULL)

    room = "a chunk goes on without room, nobody looks whether the decode steps beside it fit, and the engine ends"
    forgets = "with overlap a pause forgets who was prefilled last: they keep rows and pages, and never go on"
    amid = "who is in the middle of its prompt when a pause retracts keeps its row and pages, and never goes on"
    full = "who is retracted by a pause leaves the batch marked as full: nobody is prefilled any more"
    known = [
        alone("chunk-not-counted", "a prompt's third chunk is taken for its last one"),
        alone("freed-in-flight", "a chunk's result frees again what a request has freed at its end", "MEM-USE", MIXED),
        alone("negative-chunk", "where nothing is left, a chunk of less than nothing is cut", "MEM-LEAK", FULL),
        alone("unaligned-protected", "a chunk's part of a page counts as the tree's", "MEM-USE", SHARED),
        alone("chunk-forgotten", "of two prompts that are cut one is taken for whole", "MEM-WRITTEN", UNCACHED),
        Known("mixed-room", room, "MEM-FAILED", {"message": "ut of memory"}, run=crowded, mend=mended, runs=40),
        alone("pause-forgets", forgets, shape=PAUSED),
        alone("pause-forgets-chunk", amid, shape=PAUSED_AMID),
        alone("pause-stays-full", full, shape=PAUSED),
    ]
    return Trial("sglang-jax", attach, run, defects(engine), mended, known)
