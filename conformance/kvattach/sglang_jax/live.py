"""Attaches to the sglang-jax that this process has imported."""

from kvattach.hooks import Trace
from kvattach.sglang_jax.hooks import Attached
from kvattach.sglang_jax.modules import imported

COUNT_EVERY = 100
"""Results between two counts of the engine's free list and tree, whose length follows the memory's size."""


def attach(trace: Trace) -> Attached:
    """Install the hooks; they stay until the process ends."""
    return Attached(imported(), trace, COUNT_EVERY)
