"""nano-vllm's own modules that the hooks work on."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Engine:
    """The engine's own modules."""

    scheduler: Any
    block_manager: Any
    sequence: Any
    sampling_params: Any
