"""What SGLang's releases are known to do wrong in memory, and servers that bring it out."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.drives import Known
from kvlab.sglang.driver import Shape
from kvlab.sglang.fixes import (
    mend_chunk_room,
    mend_chunks,
    mend_mixed,
    mend_names,
    mend_turns,
    mend_windows,
)
from kvlab.sglang.issues_sessions import MENDS as SESSION_MENDS
from kvlab.sglang.issues_sessions import of_sessions
from kvlab.sglang.pools import Pools

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

OFF_PAGES = replace(MIXED, chunk=8)
"""The same with prompts in chunks, of which the decode steps take their part."""

LONG = replace(
    TURNS,
    page_size=2,
    pages=16,
    running=3,
    chunk=4,
    alphabet=50,
    mixed=True,
    pools=Pools(cached=False, core="python", window=5, window_pages=12, moves_every=1),
)
"""Prompts that are long for their windows' pool, in chunks."""

PRESSED = replace(
    LONG,
    page_size=1,
    pages=64,
    running=8,
    budget=256,
    alphabet=2,
    ends=0.02,
    conservativeness=0.0,
    pools=Pools(cached=True, core="python"),
)
"""Prompts in small chunks, in launches with requests that decode and for whose answers no room was kept."""

CHATS = replace(TURNS, budget=256, aborts=0.02, pools=None)
"""A server for clients in sessions."""

WITHIN = replace(
    TURNS, running=4, prompts=3, pools=Pools(cached=True, core="python", window=5, window_pages=20, moves_every=1)
)
"""A window that is no whole number of pages."""


Mend = Callable[[Release, Patches], None]
"""Takes a defect away."""


def known(release: Release, drive: Callable[[int, Shape], None]) -> list[Known]:
    """Its known defects. `drive` runs a seed with a server of a given shape."""
    in_any_run = [
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
        Known(
            "parent-before-child",
            "with write-back a node leaves the device before its child, and is taken from the host with it, twice",
            "MEM-FAILED",
            {"message": "parent does not have child key"},
            before="0.5.11",
        ),
    ]
    if not (release.unified and release.scheduled and release.state_allocator):
        return in_any_run

    def alone(
        shape: Shape, mended: Mend, name: str, what: str, rule: str = "", message: str = "", before: str = ""
    ) -> Known:
        """A defect that servers of this shape bring out while the others are mended."""
        return Known(
            name,
            what,
            rule,
            {"message": message} if message else {},
            before=before,
            run=lambda seed: drive(seed, shape),
            mend=partial(mend, release, but=mended),
            runs=60,
        )

    return [
        *in_any_run,
        alone(
            TURNS,
            mend_turns,
            "state-overwritten",
            "the launch in flight keeps a later state in the slot from which the tree takes an earlier one",
            "MEM-NAME/content",
        ),
        alone(
            MIXED,
            mend_mixed,
            "mixed-state-dropped",
            "a launch with decode steps in it does not keep the states of its prompts, and the tree takes their slots",
            "MEM-NAME/unwritten",
            before="0.5.23",
        ),
        alone(
            OFF_PAGES,
            mend_names,
            "state-off-page",
            "a state that was kept within a page is found by the name of the page before",
            "MEM-NAME/content",
        ),
        alone(
            LONG,
            mend_chunks,
            "chunk-forgotten",
            "a launch cuts two prompts off, the first one is forgotten, and is answered from its first chunk",
        ),
        alone(
            WITHIN,
            mend_windows,
            "window-within-page",
            "a request keeps less of its window than can be found, publishes, and goes on without a lock",
            before="0.5.23",
        ),
        alone(
            PRESSED,
            mend_chunk_room,
            "chunk-without-room",
            "requests that decode beside a prompt in chunks take its room, and its next chunk ends the scheduler",
            message="Out of memory. Try to lower your batch size",
        ),
        *(of_sessions(alone, CHATS) if release.sessions is not None else []),
    ]


_MENDS = (
    mend_turns,
    mend_mixed,
    mend_chunks,
    mend_names,
    mend_windows,
    mend_chunk_room,
)


def mend(release: Release, patches: Patches, but: Mend | None = None) -> None:
    """Take away what can be: the defects of hybrid pools, all of them or all but one."""
    if release.unified and release.scheduled and release.state_allocator:
        for one in _MENDS if release.sessions is None else (*_MENDS, *SESSION_MENDS):
            if one is not but:
                one(release, patches)
