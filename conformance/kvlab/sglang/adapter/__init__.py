"""SGLang's own classes under test: `kvlab.sglang.adapter:Adapter`.

The release is the installed one, or the one in the environment variable `KVSPEC_SGLANG`: a version that `kvspec engines
install` has fetched, or a folder with an unpacked wheel.

adapter   the protocol's methods, upon `running`, `prefill`, `waiting` and `inspection`
engine    where releases differ
records   the older names of what a request's record has
pools     what is free in each pool
between   the releases from 0.5.16 to 0.5.21, with one tree and the older functions around it
unified   the releases from 0.5.22 on, with one tree
finder    a release made importable

Not here: SGLang as it runs (`kvattach/recorder`, `kvattach/sglang`).
"""

import os
from pathlib import Path
from typing import Any

from kvlab.releases import folder_of
from kvlab.sglang.adapter.base import Adapter as _Adapter
from kvlab.sglang.adapter.between import BetweenAdapter, BetweenEngine, is_between
from kvlab.sglang.adapter.engine import Engine, silence
from kvlab.sglang.adapter.unified import UnifiedAdapter, UnifiedEngine, is_unified
from kvlab.stubs import EngineError

VARIABLE = "KVSPEC_SGLANG"
"""The environment variable that names a release or a folder."""

NEVER = (
    "release_before_launch",
    "retract_after_stop",
    "early_finish",
    "late_publish",
    "chunk_in_page",
    "publish_without_state",
    "deep_overlap",
    "speculative_overlap",
)
"""Features that no release has. Each scheduling round launches its prepared batch, processes the tokens of the previous
round, and publishes a prompt with its first token. A request stops when its tokens are processed. With recurrent states
prompts are cut at page borders, and a publication needs a spare state slot."""


def adapter(folder: Path | None) -> type[_Adapter]:
    """The adapter for the release in `folder`, or for the installed one. A process can hold one release.

    Raises:
        EngineError: the release cannot be loaded.
    """
    unified = folder is not None and is_unified(folder)
    engine: Engine
    base: type[_Adapter]
    if unified:
        engine, base = UnifiedEngine(folder), UnifiedAdapter
    elif folder is not None and is_between(folder):
        engine, base = BetweenEngine(folder), BetweenAdapter
    else:
        engine, base = Engine(folder), _Adapter
    silence()
    lacks = set(NEVER) | engine.lacks
    if engine.session_cache is None:
        lacks |= {"sessions", "preempt"}
    says = {"rows_read": ("in_order",), "room": ("estimated" if engine.estimates_room else "exact",)}
    return type("Adapter", (base,), {"engine": engine, "lacks": frozenset(lacks), **says})


def chosen() -> Path | None:
    """The folder of the release that the environment names; `None` if it names none.

    Raises:
        EngineError: there is no such folder.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    for folder in (Path(named), folder_of(named)):
        if (folder / "sglang").is_dir():
            return folder
    raise EngineError(f"{VARIABLE} names {named}, but there is no such release; 'kvspec engines list' shows them")


def __getattr__(name: str) -> Any:
    """Import a release only when the class is used: it takes seconds."""
    if name != "Adapter":
        raise AttributeError(f"module {__name__} has no {name}")
    made = adapter(chosen())
    globals()[name] = made
    return made
