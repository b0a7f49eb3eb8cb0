"""sglang-jax's own modules that the hooks work on."""

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
