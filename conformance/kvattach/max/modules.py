"""MAX's own modules that the hooks work on."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """The engine's own modules."""

    core: Any
    """The compiled pool."""
    manager: Any
    cache: Any
    groups: Any
    recurrent: Any
    scratch: Any
    params: Any
    connector: Any
    context: Any
    request: Any
    scheduler: Any
    constructor: Any
    config: Any
    lora: Any
    overlap: Any
    """The pipeline that waits for a pass after it has launched the next."""
