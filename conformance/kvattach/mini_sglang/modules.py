"""mini-sglang's own modules that the hooks work on."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """The engine's own modules."""

    torch: Any
    core: Any
    engine: Any
    package: Any
    """`minisgl.engine`, where the scheduler looks its `Engine` up when it is made."""
    graph: Any
    sample: Any
    message: Any
    scheduler: Any
    cache: Any
    prefill: Any
    decode: Any
    table: Any
    radix: Any
    config: Any
