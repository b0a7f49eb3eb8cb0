"""LMCache's connector of several processes without a device: both sides, both adapters, and a stand-in for its server.

vLLM takes the connector of the package `lmcache`, if that has one. The connector, the adapters of the scheduler and of
the worker, the worker's transfer context and its futures are LMCache's own; stand-ins replace the message queue, events
of several processes, and the server (`kvlab.vllm.lmcache_server`).
"""

import importlib
import importlib.util
import math
import random
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvattach.vllm.launches import STREAM
from kvlab.device import Point, Stream, advance
from kvlab.issues import is_before
from kvlab.lmcache.engine import importable
from kvlab.releases import installed
from kvlab.stubs import EngineError
from kvlab.vllm.lmcache_server import DEVICE, MODULE, Client, Events, Server, Shared
from kvlab.vllm.passes import execute
from kvlab.vllm.workload import Workload

CONNECTOR = "lmcache.integration.vllm.lmcache_mp_connector"
ADAPTER = "lmcache.integration.vllm.vllm_multi_process_adapter"
TRANSFER = "lmcache.v1.multiprocess.transfer_context.worker_transfer"
FUTURES = "lmcache.v1.multiprocess.futures"
WORK = "kvspec"
"""The option that holds the workload."""


@cache
def prepared() -> str:
    """Stand in for the connector's surroundings for the rest of this process.

    The release of LMCache is the one that is loaded; otherwise the newest one beside vLLM's, or the installed one.
    Returns why it cannot be driven; empty if it can.
    """
    try:
        _find()
        importlib.import_module(MODULE)
        modules: list[Any] = [importlib.import_module(name) for name in (CONNECTOR, ADAPTER, TRANSFER, FUTURES)]
    except (ImportError, AttributeError, TypeError, EngineError) as error:
        return f"LMCache's connector of several processes cannot be imported: {error}"
    for module in modules:
        for name, stand_in in STAND_INS.items():
            if hasattr(module, name):
                setattr(module, name, stand_in)
    return ""


def lacking(work: Workload) -> str:
    """Why a workload cannot be driven; empty if it can."""
    without = prepared()
    if without or not work.lmcache:
        return without
    loaded = sys.modules["lmcache"].__version__
    return f"LMCache {loaded} is newer than {work.lmcache}" if is_before(work.lmcache, loaded) else ""


def _find() -> None:
    """Make a release of LMCache importable."""
    if "lmcache" in sys.modules:
        return
    beside = Path(next(iter(sys.modules["vllm"].__path__))).parent.parent
    versions = installed(beside, "lmcache")
    if versions:
        importable(beside / f"lmcache-{versions[-1]}")


class _Heartbeat:
    """Stands in for the thread that asks whether the server lives: it always does."""

    def __init__(self, **_: Any) -> None:
        """A thread that never runs."""

    def start(self) -> None:
        """Do nothing."""

    def register_recover_callback(self, _: Any) -> None:
        """Do nothing."""


def _transfer_context(_: Any, *, instance_id: int = 0, req_client: Any = None, **__: Any) -> Any:
    """The engine's own context for a server that copies from and to the device."""
    context = importlib.import_module(TRANSFER).LMCacheDrivenTransferContext
    return context() if req_client is None else context(instance_id, req_client)


STAND_INS: dict[str, Any] = {
    "torch_dev": DEVICE,
    "get_event_ipc_backend": lambda _: Events,
    "HeartbeatThread": _Heartbeat,
    "MessageQueueClient": Client,
    "RequestClientFactory": SimpleNamespace(create=Client),
    "create_transfer_context": _transfer_context,
    "vllm_layout_hints": lambda *_: {},
    "wrap_kv_caches": lambda caches: caches,
    "print_banner_once": lambda *_: None,
}
"""Names in the engine's modules -> their stand-ins. A release has some of them, in some modules."""


def options(work: Workload) -> dict[str, Any]:
    """The connector's options, and the workload for the server."""
    return {"lmcache.mp.save_decode_cache": work.save_decoded, WORK: work}


def fitting(work: Workload) -> Workload:
    """Adapt a workload to the release of LMCache: until 0.5.3 a pass may end one state only."""
    states = [size for kind, size, _ in work.groups if kind == "state"]
    if not states or hasattr(importlib.import_module(MODULE), "all_null_chunk_masks"):
        return work
    return replace(work, budget=min(work.budget, 2 * states[0] - 1))


def chunk(work: Workload) -> int:
    """Tokens of a chunk: a multiple of the tokens of every group's block."""
    return work.host_chunk * math.lcm(*(size for _, size, _ in work.groups))


def connector(config: Any, kv_cache_config: Any, *, worker: bool) -> Any:
    """One side of the engine's own connector; that of the scheduler begins with an empty server."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    work = config.kv_transfer_config.kv_connector_extra_config[WORK]
    if not worker:
        Shared.known.clear()
        Server.now = Server(work, chunk(work), importlib.import_module(FUTURES).MessagingFuture)
    role = KVConnectorRole.WORKER if worker else KVConnectorRole.SCHEDULER
    made = importlib.import_module(CONNECTOR).LMCacheMPConnector(config, role, kv_cache_config)
    made.kvspec_pages = work.host
    return made


class Worker:
    """One worker: it queues launches, asks for transfers, and reports those that it sees done."""

    can_reset = False

    def __init__(self, work: Workload, config: Any, kv_cache_config: Any) -> None:
        """Make a worker with empty streams. `torch.cuda` is a stub."""
        import torch

        self._dice = random.Random(work.seed + 3)
        self._server = Server.now
        Stream.current.cuda_stream = STREAM
        self._connector = connector(config, kv_cache_config, worker=True)
        info = importlib.import_module("lmcache.v1.multiprocess.group_view").EngineGroupInfo
        groups = [
            info(engine_group_id=number, layer_indices=(number,), tokens_per_block=size)
            for number, (_, size, _) in enumerate(work.groups)
        ]
        self._connector.worker_adapter.register_kv_caches({"layer": torch.empty(1)}, engine_group_infos=groups)

    def execute(self, output: Any) -> tuple[Any, Point]:
        """Simulate `execute_model` for one output of the scheduler. Returns the report, and when the pass is done."""
        first = getattr(output, "has_sync_kv_loads", True)
        return execute(self._connector, output, self._get_on, loads_first=first)

    def _get_on(self) -> None:
        """Let time pass: at random, the server handles messages, and the streams make progress."""
        for _ in range(self._dice.randint(0, 4)):
            self._server.turn()
            advance(self._dice, 3)
