"""Attaches to the transformers that this process has imported."""

from typing import Any

from kvattach.hooks import Trace
from kvattach.standstill import Standstill
from kvattach.transformers.hooks import Attached
from kvattach.transformers.modules import imported

COUNT_EVERY = 100
"""Steps between two counts of the engine's free blocks and reference counts, whose length follows the memory's size."""


def attach(trace: Trace) -> Attached:
    """Install the hooks; they stay until the process ends."""
    engine = imported()
    attached = Attached(engine, trace, COUNT_EVERY)
    still = Standstill(attached.hooks)

    def prepared(_: None, launched: bool, processor: Any) -> None:
        still.turns(launched, lambda: who_waits(processor.scheduler))

    attached.hooks.hook(engine.api.ContinuousBatchProcessor, "prepare_next_batch", after=prepared)
    return attached


def who_waits(scheduler: Any) -> str:
    """The number of waiting and of active requests, in words; empty if none waits."""
    waiting, active = len(scheduler.waiting_requests), len(scheduler.active_requests)
    return f"{waiting} requests wait, and {active} are active" if waiting else ""
