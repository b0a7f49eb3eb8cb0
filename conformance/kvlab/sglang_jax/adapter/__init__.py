"""sglang-jax's own scheduler and memory classes under test, from a checkout, without jax.

KVSPEC_SGLANG_JAX=CHECKOUT kvspec run --impl kvlab.sglang_jax.adapter:Adapter

adapter     the protocol's methods: what the scheduler does for each
inspection  its objects, and their own figures
server      the surroundings of the scheduler
engine      a checkout made importable

Not here: sglang-jax as it runs (`kvattach/sglang_jax`).
"""

import inspect
import os
from pathlib import Path
from typing import Any

from kvlab.sglang_jax.adapter.base import Adapter as _Adapter
from kvlab.sglang_jax.adapter.base import admission
from kvlab.sglang_jax.engine import load
from kvlab.stubs import EngineError

VARIABLE = "KVSPEC_SGLANG_JAX"
"""The environment variable that names a checkout."""

LACKS = frozenset(
    {
        "sessions",
        "preempt",
        "speculative",
        "speculative_overlap",
        "sliding_window",
        "recurrent_states",
        "release_before_launch",
        "retract_after_stop",
        "early_finish",
        "deep_overlap",
        "unpublished_chunks",
        "wide_tokens",
    }
)
"""Features that sglang-jax lacks or its scheduler never uses. Its token ids have 32 bits with their sign. Requests are
retracted when a decode step does not fit, end when a token is processed, and publish each chunk before the next one.
Windows, states and speculative steps are not driven."""


ALONE = "or adder.new_chunked_reqs[dp_rank] is not None"
"""The line that admits no request beside a chunk that does not end its prompt."""

PUBLISHED = "req.cache_protected_len = req.last_matched_prefix_len"
"""The line that notes which tokens of a request the tree has."""


def adapter(folder: Path | None) -> type[_Adapter]:
    """The adapter for a checkout. A process can hold one.

    Raises:
        EngineError: the checkout cannot be loaded.
    """
    if folder is None:
        raise EngineError("sglang-jax is driven from a checkout")
    engine = load(folder)
    admits = admission(engine)
    engine.scheduler.PrefillAdder = admits
    lacks, rows = set(LACKS), inspect.signature(engine.pool.ReqToTokenPool.alloc).parameters
    if ALONE in inspect.getsource(engine.scheduler.Scheduler.get_new_batch_prefill):
        lacks.add("beside_a_chunk")
    repaired = {"1008"} if "reqs" in rows else set()
    repaired |= {"994"} if hasattr(engine.batch.Req, "pop_committed_kv_cache") else set()
    repaired |= {"1401"} if PUBLISHED in inspect.getsource(engine.batch.ScheduleBatch.prepare_for_extend) else set()
    made = {"engine": engine, "admits": admits, "rows_read": ("at_launch",)}
    made |= {"lacks": frozenset(lacks), "repaired": frozenset(repaired)}
    return type("Adapter", (_Adapter,), made)


def __getattr__(name: str) -> Any:
    """Import a checkout only when the class is used: it takes a second."""
    if name != "Adapter":
        raise AttributeError(f"module {__name__} has no {name}")
    named = os.environ.get(VARIABLE)
    made = adapter(Path(named) if named else None)
    globals()[name] = made
    return made
