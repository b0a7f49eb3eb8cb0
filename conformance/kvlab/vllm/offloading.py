"""The worker's side of vLLM's own offloading to the CPU, without a device: copies complete at random times.

Both sides of `SimpleCPUOffloadConnector` are the engine's, and so is the loop of the thread that queues copies. That
thread runs at random, one request at a time, and its streams make progress at random, too.
"""

import importlib
import importlib.util
import random
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvattach.hooks import Hooks, Trace
from kvattach.vllm.chunks import Chunks
from kvattach.vllm.hf3fs import Files
from kvattach.vllm.kinds import Kind
from kvattach.vllm.multi_process import Objects
from kvattach.vllm.offload import COPIES, Offload
from kvlab.device import Event, Point, Stream, advance
from kvlab.vllm import hf3fs, kv_offloading, multi_process, nixl
from kvlab.vllm.lmcache_server import Server
from kvlab.vllm.network import KINDS
from kvlab.vllm.passes import execute
from kvlab.vllm.release import RUNNER_V1, prepare, without_counts
from kvlab.vllm.workload import HF3FS, LMCACHE, POLICIES, Workload

FROM_WHEEL = (
    "vllm.distributed.kv_transfer.kv_connector.utils",
    "vllm.distributed.kv_transfer.kv_connector.v1",
    "vllm.v1.simple_kv_offload",
)
"""Further modules to take from the wheel."""


class Asked:
    """Stands in for the queue of the copying thread: each run of the thread gets one request, then the end."""

    def __init__(self) -> None:
        """An empty queue."""
        self._items: deque[Any] = deque()
        self._may = False

    def put(self, item: Any) -> None:
        """Queue a copy."""
        self._items.append(item)

    def get(self) -> Any:
        """The next request if the thread may take one; otherwise `None`, which ends its loop."""
        self._may, may = False, self._may
        return self._items.popleft() if may and self._items else None

    def one(self) -> None:
        """Let the thread take one request."""
        self._may = True


class Thread:
    """Stands in for the copying thread."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], **_: object) -> None:
        """A thread that runs only in `step`."""
        self._loop, self._args = target, args

    def start(self) -> None:
        """Do nothing: `step` runs it."""

    def step(self) -> None:
        """Run the engine's own loop for one request."""
        self._args[0].one()
        self._loop(*self._args)


def prepared(folder: Path | None) -> str:
    """Make a release importable, and turn copies into entries of a stream for the rest of this process.

    Returns why its offloading cannot be driven; empty if it can.

    Raises:
        EngineError: as `prepare`.
    """
    prepare(folder, *FROM_WHEEL, *kv_offloading.FROM_WHEEL, *RUNNER_V1)
    if importlib.util.find_spec("vllm.v1.simple_kv_offload") is None:
        return "it has no simple_kv_offload"
    try:
        backend: Any = importlib.import_module(COPIES)
        importlib.import_module("vllm.v1.simple_kv_offload.worker")
    except (ImportError, AttributeError) as error:
        return f"its simple_kv_offload cannot be imported: {error}"
    backend.build_params = lambda _, __, stream, **___: SimpleNamespace(stream_handle=stream.cuda_stream, stream=stream)
    backend.copy_blocks = lambda _, __, params: params.stream.queue()
    backend.threading = SimpleNamespace(Thread=Thread)
    backend.queue = SimpleNamespace(SimpleQueue=Asked)
    return ""


def lacking(work: Workload, without: str) -> str:
    """Why a workload cannot be driven. `without`: why `simple_kv_offload` cannot."""
    if work.counts:
        return without_counts()
    if work.connector in KINDS:
        return nixl.prepared()
    if work.offload == HF3FS:
        return hf3fs.prepared()
    if work.offload == LMCACHE:
        return multi_process.lacking(work)
    if work.offload in POLICIES:
        return kv_offloading.prepared()
    return without if work.offload else ""


def attached(trace: Trace, *, offloading: bool) -> Hooks:
    """The hooks, with the host's pools if they are driven."""
    from kvattach.vllm.hooks import Attached

    if not offloading:
        return Attached(trace).hooks
    kinds: dict[str, Kind] = {COPIES: Offload}
    if not kv_offloading.prepared():
        kinds[kv_offloading.TRANSFERS] = partial(Chunks, simulated=True)
    if not hf3fs.prepared():
        kinds[f"{hf3fs.HF3FS}.hf3fs_connector"] = Files
    if not multi_process.prepared():
        kinds[multi_process.CONNECTOR] = partial(Objects, Server)
    return Attached(trace, Stream, Event, kinds).hooks


def connector(config: Any, kv_cache_config: Any, *, worker: bool) -> Any:
    """One side of the engine's own connector."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector

    role = KVConnectorRole.WORKER if worker else KVConnectorRole.SCHEDULER
    return SimpleCPUOffloadConnector(config, role, kv_cache_config)


def options(work: Workload) -> dict[str, Any]:
    """The connector's options: a page is one byte of `tensors`."""
    return {"cpu_bytes_to_use": work.host, "lazy_offload": work.offload == "lazy"}


def tensors(work: Workload) -> list[Any]:
    """The memory of the device's pool, one byte a page. The host's size is scaled from it."""
    from vllm.v1.kv_cache_interface import KVCacheTensor

    layers = [f"layer.{number}" for number in range(len(work.groups))]
    values = {"size": work.blocks, "layers": layers, "shared_by": layers, "layer_stride": 1, "block_stride": 1}
    return [KVCacheTensor(**{one.name: values[one.name] for one in fields(KVCacheTensor) if one.name in values})]


class Worker:
    """One worker: it queues launches and copies, and reports what it sees done."""

    def __init__(self, work: Workload, config: Any, kv_cache_config: Any) -> None:
        """Make a worker with empty streams. `torch.cuda` is a stub."""
        from vllm.v1.simple_kv_offload.copy_backend import DmaCopyBackend
        from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

        self.can_reset = hasattr(SimpleCPUOffloadScheduler, "reset")
        """Whether this release can reset the host's pool."""
        self._dice = random.Random(work.seed + 3)
        self._connector = connector(config, kv_cache_config, worker=True)
        self._backend = backend = DmaCopyBackend()
        handler = self._connector.worker_handler
        handler.load_stream, handler.store_stream, handler._backend = Stream(), Stream(), backend
        handler.load_stream.cuda_stream, handler.store_stream.cuda_stream = "load", "store"
        backend.init({}, {}, None, handler.load_stream, handler.store_stream)

    def execute(self, output: Any) -> tuple[Any, Point]:
        """Simulate `execute_model` for one output of the scheduler. Returns the report, and when the pass is done."""
        return execute(self._connector, output, self._get_on, loads_first=False)

    def _get_on(self) -> None:
        """Let time pass: at random, the thread queues requested copies, and the streams make progress."""
        for _ in range(self._dice.randint(0, 3)):
            self._backend._thread.step()
            advance(self._dice, 3)
