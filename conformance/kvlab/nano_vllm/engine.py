"""Makes a checkout of nano-vllm importable without a GPU and without a model."""

import hashlib
import importlib
import importlib.util
import sys
import types
from dataclasses import dataclass
from pathlib import Path

from kvattach.nano_vllm.modules import Engine
from kvlab.stubs import importable


class _Hash:
    """Stands in for `xxhash.xxh64` if it is not installed: the block manager needs any 64-bit hash."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=8)

    def update(self, data: bytes) -> None:
        self._digest.update(data)

    def intdigest(self) -> int:
        return int.from_bytes(self._digest.digest(), "little")


@dataclass(frozen=True)
class Config:
    """The part of the engine's configuration that the scheduler reads; sizes in tokens except the number of blocks."""

    max_num_seqs: int
    max_num_batched_tokens: int
    eos: int
    kvcache_block_size: int
    num_kvcache_blocks: int


def load(checkout: Path) -> Engine:
    """The engine's classes from a checkout. A process can hold one.

    Raises:
        EngineError: the folder is no checkout of nano-vllm.
    """
    if importable("nanovllm", "nano-vllm", checkout, holds="engine/block_manager.py"):
        # The checkout's own config asks transformers for a model's config.
        config = types.ModuleType("nanovllm.config")
        config.__dict__["Config"] = Config
        sys.modules["nanovllm.config"] = config
        if importlib.util.find_spec("xxhash") is None:
            hashing = types.ModuleType("xxhash")
            hashing.__dict__["xxh64"] = _Hash
            sys.modules["xxhash"] = hashing
    return Engine(
        scheduler=importlib.import_module("nanovllm.engine.scheduler"),
        block_manager=importlib.import_module("nanovllm.engine.block_manager"),
        sequence=importlib.import_module("nanovllm.engine.sequence"),
        sampling_params=importlib.import_module("nanovllm.sampling_params"),
    )
