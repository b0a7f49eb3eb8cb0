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
    """`minisgl.engine`, in which a new scheduler looks up its `Engine`."""
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
