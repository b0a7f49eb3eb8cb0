"""transformers' own modules that the hooks work on, all below `transformers.generation.continuous_batching`."""

import importlib
from dataclasses import dataclass
from typing import Any

PACKAGE = "transformers.generation.continuous_batching"


@dataclass(frozen=True)
class Engine:
    """The engine's own modules."""

    api: Any
    cache: Any
    allocator: Any
    pool: Any
    full: Any
    inputs: Any
    offloading: Any
    requests: Any
    scheduler: Any


def imported() -> Engine:
    """The modules of the importable transformers."""
    names = (
        "continuous_api",
        "cache",
        "cache_allocators.cache_allocator",
        "cache_allocators.cache_pool",
        "cache_allocators.full_attention",
        "input_outputs",
        "offloading_manager",
        "requests",
        "scheduler",
    )
    return Engine(*(importlib.import_module(f"{PACKAGE}.{name}") for name in names))
