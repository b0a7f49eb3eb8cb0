"""LMCache's own modules that the hooks work on."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """The engine's own modules."""

    cache_engine: Any
    memory: Any
    allocator: Any
    storage_manager: Any
    cpu: Any
    disk: Any
