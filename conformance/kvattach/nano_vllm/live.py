"""Attaches to the nano-vllm that this process has imported."""

import importlib

from kvattach.hooks import Trace
from kvattach.nano_vllm.hooks import Attached
from kvattach.nano_vllm.modules import Engine

COUNT_EVERY = 100
"""Steps between two counts of the engine's free list and reference counts, whose length follows the memory's size."""


def attach(trace: Trace) -> Attached:
    """Install the hooks; they stay until the process ends."""
    names = ("engine.scheduler", "engine.block_manager", "engine.sequence", "sampling_params")
    return Attached(Engine(*(importlib.import_module(f"nanovllm.{name}") for name in names)), trace, COUNT_EVERY)
