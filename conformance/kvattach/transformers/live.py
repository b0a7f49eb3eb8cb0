"""Attaches to the transformers that this process has imported."""

from kvattach.hooks import Trace
from kvattach.transformers.hooks import Attached
from kvattach.transformers.modules import imported

COUNT_EVERY = 100
"""Steps between two counts of the engine's free blocks and reference counts, whose length follows the memory's size."""


def attach(trace: Trace) -> Attached:
    """Install the hooks; they stay until the process ends."""
    return Attached(imported(), trace, COUNT_EVERY)
