"""Makes a checkout of mini-sglang importable without a GPU and without a model."""

import sys
import types
from pathlib import Path
from typing import Any

from kvattach.mini_sglang.modules import Engine, imported
from kvlab.stubs import importable

STOOD_IN = (
    "flashinfer",
    "huggingface_hub",
    "minisgl.attention",
    "minisgl.distributed",
    "minisgl.layers",
    "minisgl.models",
    "minisgl.moe",
    "minisgl.utils.hf",
    "minisgl.utils.mp",
    "msgpack",
    "safetensors",
    "sgl_kernel",
    "tqdm",
    "transformers",
    "tvm_ffi",
    "zmq",
)
"""Modules that need a GPU, or that the bookkeeping of memory does not use."""


def _first_difference(one: Any, other: Any) -> int:
    """The number of common first tokens of two keys, as the engine's own C++ function returns it."""
    length = min(len(one), len(other))
    differ = (one[:length] != other[:length]).nonzero()
    return int(differ[0]) if len(differ) else length


def load(checkout: Path) -> Engine:
    """The engine's classes from a checkout. A process can hold one.

    Raises:
        EngineError: the folder is no checkout of mini-sglang, or torch is missing.
    """
    made = importable(
        "minisgl", "mini-sglang", checkout, within="python", holds="scheduler", needs=["torch"], stubs=STOOD_IN
    )
    if made:
        kernel = types.ModuleType("minisgl.kernel")
        kernel.__dict__["fast_compare_key"] = _first_difference
        sys.modules["minisgl.kernel"] = kernel
    return imported()
