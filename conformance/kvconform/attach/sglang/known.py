"""What SGLang's releases are known to do wrong in memory, and servers that bring it out."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kvconform.attach.judged import Known
from kvconform.attach.patches import Patches
from kvconform.attach.sglang.driver import Shape
from kvconform.attach.sglang.mended import mend_mixed, mend_turns
from kvconform.attach.sglang.pools import Pools
from kvconform.attach.sglang.release import Release

TURNS = Shape(
    page_size=4,
    pages=26,
    host_pages=0,
    write_policy="",
    requests=20,
    running=6,
    chunk=-1,
    budget=64,
    alphabet=2,
    prompts=2,
    outputs=2,
    ends=0.1,
    overlap=True,
    mixed=False,
    policy="fcfs",
    priorities=False,
    conservativeness=0.1,
    retracts=0,
    aborts=0.0,
    pauses=0.0,
    pools=Pools(cached=True, core="python", states=36, tracked=True, kept_every=4),
)
"""With overlap; states are kept at each page's end while decoding."""

MIXED = replace(TURNS, overlap=False, mixed=True, chunk=64)
"""Without overlap; requests decode in the launches that prefill."""


def known(release: Release, drive: Callable[[int, Shape], None]) -> list[Known]:
    """Its known defects. `drive` runs a seed with a server of a given shape."""
    races = [
        Known(
            "write-through-unfenced",
            "pages are written to the host while the launch in flight still writes them",
            "MEM-RACE",
            at=("backup_from_device_all_layer",),
            before="0.5.23",
        ),
        Known(
            "load-back-unfenced",
            "pages are loaded while the launch in flight still uses them",
            "MEM-RACE",
            at=("load_to_device_per_layer",),
            before="0.5.19",
        ),
    ]
    if not (release.unified and release.scheduled and release.state_allocator):
        return races
    return [
        *races,
        Known(
            "state-overwritten",
            "the launch in flight keeps a later state in the slot from which the tree takes an earlier one",
            "MEM-NAME",
            "but that holds",
            run=lambda seed: drive(seed, TURNS),
            mend=partial(mend_mixed, release),
            runs=60,
        ),
        Known(
            "mixed-state-dropped",
            "a launch with decode steps in it does not keep the states of its prompts, and the tree takes their slots",
            "MEM-NAME",
            "was never written",
            before="0.5.23",
            run=lambda seed: drive(seed, MIXED),
            mend=partial(mend_turns, release),
            runs=60,
        ),
    ]


def mend(release: Release, patches: Patches) -> None:
    """Take away what can be: both defects of recurrent states."""
    mend_turns(release, patches)
    mend_mixed(release, patches)
