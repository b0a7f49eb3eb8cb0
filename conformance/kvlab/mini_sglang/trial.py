"""mini-sglang, to be driven with hooks."""

from pathlib import Path

from kvattach.hooks import Hooks, Trace
from kvattach.mini_sglang.hooks import Attached
from kvattach.patches import Patches
from kvlab.device import Event, Stream
from kvlab.drives import Known, Trial
from kvlab.mini_sglang import driver
from kvlab.mini_sglang.engine import load
from kvlab.mini_sglang.faults import defects
from kvlab.mini_sglang.fixes import MENDS, mend

CROWDED = driver.Shape(page_size=16, pages=12, rows=4, budget=128, alphabet=50, overlap=True, aborts=0.0)
"""A memory of few large pages."""


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

    def alone(name: str, what: str, rule: str) -> Known:
        def others(patches: Patches) -> None:
            mend(engine, patches, but=name)

        return Known(name, what, rule, mend=others, runs=40)

    known = [
        alone("freed-duplicates", "a row goes on naming duplicates that were given back", "MEM-USE"),
        alone("abort-in-flight", "an abort frees what the launch in flight frees again", "MEM-RELEASE"),
        alone("row-handed-on", "a row is handed on while a launch still writes it", "MEM-RACE"),
    ]
    assert [one.name for one in known] == list(MENDS)

    def crowded(seed: int) -> None:
        driver.run(engine, seed, shape=CROWDED)

    room = "requests are admitted by their tokens and take whole pages: a step finds none, and the engine ends"
    known.append(
        Known("room-in-tokens", room, "MEM-FAILED", {"message": "Cannot evict"}, run=crowded, mend=mended, runs=40)
    )
    return Trial("mini-sglang", attach, run, defects(engine), mended, known)
