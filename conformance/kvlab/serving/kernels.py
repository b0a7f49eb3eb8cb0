"""On a CPU: plain torch instead of what SGLang has for GPUs alone.

These are the compiled functions that copy to its host cache and back, and the events of a prefill server.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from kvattach.live import After

HOST_POOLS = "sglang.srt.mem_cache.pool_host.mha"
PREFILL = "sglang.srt.disaggregation.prefill"
TRANSFERS = "sglang.srt.disaggregation.mooncake.conn"


def wait_for_sglang() -> None:
    """Complete these modules once this process has imported them."""
    sys.meta_path.insert(0, After({HOST_POOLS, PREFILL, TRANSFERS}, _complete))


def _complete(name: str) -> None:
    if name == PREFILL:
        torch = importlib.import_module("torch")
        torch.cuda.Event = torch.cpu.Event
        return
    if name == TRANSFERS:
        # Only a GPU copies indices later than the call that asks for it.
        importlib.import_module(name).MooncakeKVSender.supports_host_tensor_indices = False
        return
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
