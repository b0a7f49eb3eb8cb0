"""Plain torch instead of the compiled functions with which SGLang copies to its host cache and back, on a CPU."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from kvattach.live import After

MODULE = "sglang.srt.mem_cache.pool_host.mha"


def wait_for_host_pool() -> None:
    """Give the module of SGLang's host pools these functions, once this process has imported it."""
    sys.meta_path.insert(0, After({MODULE}, _complete))


def _complete(name: str) -> None:
    pools, common = importlib.import_module(name), importlib.import_module("sglang.srt.mem_cache.pool_host.common")
    vars(pools).update(transfer_kv_direct=_copy, _cuda_host_unregister=_nothing)
    vars(common).update(_cuda_host_register=_nothing, _cuda_host_unregister=_nothing)


def _copy(
    *, src_layers: Sequence[Any], dst_layers: Sequence[Any], src_indices: Any, dst_indices: Any, **_: Any
) -> None:
    """Copy slots of each layer; `page_size` only means that they are whole pages."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _nothing(*_: Any, **__: Any) -> None:
    """Memory needs no registration."""
