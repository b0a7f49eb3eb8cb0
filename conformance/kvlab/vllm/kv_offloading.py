"""vLLM's `kv_offload` without a device: both sides of its connector, its manager, and transfers on streams.

The engine's own parts are `OffloadingConnector` on both sides, the manager of chunks with its policies, and the
handlers that queue transfers, with their waits. Stubs replace the memory, and the copy, which becomes an entry of a
stream.
"""

import importlib
import inspect
import random
from collections import deque
from types import SimpleNamespace
from typing import Any

from kvlab.device import Entered, Point, Stream, advance
from kvlab.vllm.passes import execute
from kvlab.vllm.workload import Workload

CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1"
TRANSFERS = "vllm.v1.kv_offload.cpu.gpu_worker"
FROM_WHEEL = ("vllm.v1.kv_hints", "vllm.v1.kv_offload", "vllm.v1.metrics.cache_hit_source")
"""Further modules to take from the wheel."""


def prepared() -> str:
    """Turn transfers into entries of streams for the rest of this process.

    Returns why the release's `kv_offload` cannot be driven; empty if it can.
    """
    try:
        importlib.import_module(f"{CONNECTOR}.offloading_connector")
        transfers: Any = importlib.import_module(TRANSFERS)
        importlib.import_module("vllm.v1.kv_offload.cpu.spec")
    except (ImportError, AttributeError, TypeError) as error:
        return f"its kv_offload cannot be imported: {error}"
    handler = getattr(transfers, "SingleDirectionOffloadingHandler", None)
    if handler is None or "layer_refs_per_group" not in inspect.signature(handler).parameters:
        return "its kv_offload is an older one"
    transfers.current_platform = SimpleNamespace(
        Stream=Stream, current_stream=lambda *_: Stream.current, stream=Entered, is_xpu=lambda: False
    )
    return ""


def options(work: Workload) -> dict[str, Any]:
    """The connector's options: a chunk is at least as large as a page of memory."""
    spec = importlib.import_module("vllm.v1.kv_offload.cpu.spec").CPUOffloadingSpec
    return {
        "cpu_bytes_to_use": work.host * spec.BLOCK_SIZE_ALIGNMENT,
        "eviction_policy": work.offload,
        "blocks_per_chunk": work.host_chunk,
        "store_threshold": work.store_threshold,
        "sync_load_budget_bytes": work.sync_loads,
    }


def connector(config: Any, kv_cache_config: Any, *, worker: bool) -> Any:
    """One side of the engine's own connector."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    module = importlib.import_module(f"{CONNECTOR}.offloading_connector")
    role = KVConnectorRole.WORKER if worker else KVConnectorRole.SCHEDULER
    return module.OffloadingConnector(config, role, kv_cache_config)


def _fill(
    _: int, *, group_src: Any, group_dst: Any, group_size: int, all_src: Any, all_dst: Any, op_idx: int, **more: Any
) -> tuple[int, int]:
    """Fill in the copies of a group: numbers of blocks and chunks instead of addresses."""
    import numpy

    end = op_idx + group_size
    all_src[op_idx:end], all_dst[op_idx:end] = numpy.resize(group_src, group_size), numpy.resize(group_dst, group_size)
    more["all_sizes"][op_idx:end] = 1
    return end, group_size


def _handler(work: Workload, *, stores: bool) -> Any:
    """The transfers of one direction, without memory to copy."""
    made = object.__new__(importlib.import_module(TRANSFERS).SingleDirectionOffloadingHandler)
    made.gpu_to_cpu = stores
    made.layer_refs_per_group = [[None]] * len(work.groups)
    made.src_blocks_per_chunk, made.dst_blocks_per_chunk = (1, work.host_chunk) if stores else (work.host_chunk, 1)
    made._canonical_copy_plans = None
    made._fill_group_ops = _fill
    made._swap_blocks_batch = lambda *_, **__: Stream.current.queue(getattr(made, "kvspec_late", None))
    made._transfer_events, made._transfers = {}, deque()
    made._stream_pool, made._event_pool, made._buffer_pool = [], [], []
    return made


class Worker:
    """One worker: it queues launches and transfers, and reports what it sees done."""

    def __init__(self, work: Workload, config: Any, kv_cache_config: Any) -> None:
        """Make a worker with empty streams. `torch.cuda` is a stub."""
        self.can_reset = True
        """Whether this release can reset the host's pool."""
        self._dice = random.Random(work.seed + 3)
        self._connector = connector(config, kv_cache_config, worker=True)
        worker = object.__new__(importlib.import_module(TRANSFERS).CPUOffloadingWorker)
        worker._store_handler = _handler(work, stores=True)
        worker._load_handler = _handler(work, stores=False)
        worker._expedited_load_handler = _handler(work, stores=False)
        self._connector.connector_worker.worker = worker

    def execute(self, output: Any) -> tuple[Any, Point]:
        """Simulate `execute_model` for one output of the scheduler. Returns the report, and when the pass is done."""
        return execute(self._connector, output, lambda: advance(self._dice, 4), loads_first=True)
