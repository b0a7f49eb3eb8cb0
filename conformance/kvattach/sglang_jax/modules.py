"""sglang-jax's own modules that the hooks work on."""

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """The engine's own modules."""

    numpy: Any
    scheduler: Any
    batch: Any
    policy: Any
    radix: Any
    pool: Any
    allocator: Any
    base: Any
    common: Any
    messages: Any
    sampling: Any


def imported() -> Engine:
    """The modules of the importable sglang-jax."""
    managers, memory = "sgl_jax.srt.managers", "sgl_jax.srt.mem_cache"
    return Engine(
        numpy=importlib.import_module("numpy"),
        scheduler=importlib.import_module(f"{managers}.scheduler"),
        batch=importlib.import_module(f"{managers}.schedule_batch"),
        policy=importlib.import_module(f"{managers}.schedule_policy"),
        radix=importlib.import_module(f"{memory}.radix_cache"),
        pool=importlib.import_module(f"{memory}.memory_pool"),
        allocator=importlib.import_module(f"{memory}.allocator"),
        base=importlib.import_module(f"{memory}.base_prefix_cache"),
        common=importlib.import_module(f"{memory}.common"),
        messages=importlib.import_module(f"{managers}.io_struct"),
        sampling=importlib.import_module("sgl_jax.srt.sampling.sampling_params"),
    )
