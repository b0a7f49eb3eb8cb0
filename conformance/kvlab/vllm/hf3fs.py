"""vLLM's `HF3FSKVConnector` without a device: both sides, its server of names, and its threads, one task at a time.

Stand-ins replace HTTP between the connector and the server of names, the files, the memory, and the copies, which
become entries of a stream. The two threads of the connector run at random, one task at a time.
"""

import importlib
import logging
import random
import tempfile
from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

from kvattach.patches import Patches
from kvattach.vllm.launches import STREAM
from kvlab.device import Point, Stream, advance
from kvlab.vllm.passes import execute
from kvlab.vllm.workload import Workload

HF3FS = "vllm.distributed.kv_transfer.kv_connector.v1.hf3fs"


@cache
def prepared() -> str:
    """Stand in for the connector's surroundings for the rest of this process.

    Returns why the release's connector cannot be driven; empty if it can.
    """
    try:
        with Patches() as patches:
            # The module of the server sets up logging for the whole process.
            patches.set(logging, "basicConfig", lambda **_: None)
            module: Any = importlib.import_module(f"{HF3FS}.hf3fs_connector")
    except (ImportError, AttributeError, TypeError) as error:
        return f"its HF3FSKVConnector cannot be imported: {error}"
    module.atexit = SimpleNamespace(register=lambda *_: None)
    module.signal = SimpleNamespace(signal=lambda *_: None, SIGINT=0, SIGTERM=0, SIGQUIT=0)
    module.threading = SimpleNamespace(Thread=partial(SimpleNamespace, start=lambda: None), Event=lambda: None)
    module.concurrent = SimpleNamespace(futures=SimpleNamespace(ThreadPoolExecutor=Executor))
    module.get_tensor_model_parallel_rank = lambda: 0
    module.Hf3fsMetadataClient._post = lambda _, endpoint, json: Names.now.post(endpoint, json)
    module.HF3FSKVConnector._setup_kv_cache_config = _configure
    module.HF3FSKVConnector._gather_or_scatter_kv_caches = lambda *_: Stream.current.queue()
    return ""


def options(work: Workload) -> dict[str, Any]:
    """The connector's options: a page of a file is one byte."""
    return {"hf3fs_storage_path": tempfile.gettempdir(), "hf3fs_file_size": work.host, "hf3fs_client_numjobs": 1}


def connector(config: Any, kv_cache_config: Any, *, worker: bool) -> Any:
    """One side of the engine's own connector; that of the scheduler begins with empty files."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole

    if not worker:
        Names.now = Names()
    role = KVConnectorRole.WORKER if worker else KVConnectorRole.SCHEDULER
    made = importlib.import_module(f"{HF3FS}.hf3fs_connector").HF3FSKVConnector(config, role, kv_cache_config)
    made.kvspec_pages = config.kv_transfer_config.kv_connector_extra_config["hf3fs_file_size"]
    return made


def _configure(made: Any) -> None:
    """Set what the connector takes from the memory."""
    made._device, made._dtype, made._shape_per_page, made._bytes_per_page = "cpu", None, [1], 1


class Names:
    """The engine's own server of names, without HTTP."""

    now: "Names"

    def __init__(self) -> None:
        """A server without names."""
        self._state = importlib.import_module(f"{HF3FS}.hf3fs_metadata_server").GlobalMetadataState()
        self.save: Callable[[], None] = lambda: None
        """Let the worker save all that it is asked to save."""

    def post(self, endpoint: str, sent: dict[str, Any]) -> dict[str, Any]:
        """The answer to a message."""
        state, rank = self._state, sent.get("rank", 0)
        if endpoint == "keys/batch_allocate":
            return {"results": [*state.allocate_pages_for_keys(rank, sent["keys"]).items()]}
        if endpoint == "keys/confirm_write":
            state.confirm_write_for_keys(rank, sent["confirmations"], sent["pages_to_release"])
        elif endpoint == "keys/batch_exists":
            return {"exists": state.batch_key_exists(sent["keys"])}
        elif endpoint == "keys/get_locations":
            return {"locations": state.get_key_locations(rank, sent["keys"])}
        elif sent["role"] == "worker":
            state.initialize_rank(rank, sent["num_pages"])
        return {}


class Executor:
    """Stands in for the threads that read and write files: each call is complete when it returns."""

    def __init__(self, **_: Any) -> None:
        """An executor without threads."""

    def submit(self, do: Callable[..., Any], *args: Any) -> Any:
        """The result of a call."""
        done = do(*args)
        return SimpleNamespace(result=lambda: done)


class Client:
    """Stands in for the files. A read or write fails at random."""

    def __init__(self, dice: random.Random, failing: float, **_: Any) -> None:
        """A client that fails so often."""
        self._dice, self._failing = dice, failing

    def batch_read(self, offsets: list[int], _: Any) -> list[int]:
        """The bytes read at each offset; -1: it failed."""
        return [-1 if self._dice.random() < self._failing else 1 for _ in offsets]

    def batch_write(self, offsets: list[int], buffers: Any, event: Any) -> list[int]:
        """The bytes written at each offset, after the event."""
        event.synchronize()
        return self.batch_read(offsets, buffers)


def _handle_all(queue: Any, handle: Callable[[Any], None]) -> None:
    while not queue.empty():
        handle(queue.get_nowait())


class Worker:
    """One worker: it queues launches and transfers, and reports what it sees done."""

    can_reset = False

    def __init__(self, work: Workload, config: Any, kv_cache_config: Any) -> None:
        """Make a worker with empty streams. `torch.cuda` is a stub."""
        self._dice = random.Random(work.seed + 3)
        Stream.current.cuda_stream = STREAM
        module: Any = importlib.import_module(f"{HF3FS}.hf3fs_connector")
        module.Hf3fsClient = partial(Client, self._dice, work.failing)
        self._connector = connector(config, kv_cache_config, worker=True)
        self._connector.register_kv_caches({})
        operations = self._connector._async_manager
        saves = operations._save_queue, operations._handle_save_task
        self._threads = (saves, (operations._load_queue, operations._handle_load_task))
        Names.now.save = partial(_handle_all, *saves)

    def execute(self, output: Any) -> tuple[Any, Point]:
        """Simulate `execute_model` for one output of the scheduler. Returns the report, and when the pass is done."""
        return execute(self._connector, output, self._get_on, loads_first=False)

    def _get_on(self) -> None:
        """Let time pass: at random, the threads take tasks, and the streams make progress."""
        for _ in range(self._dice.randint(0, 3)):
            queue, handle = self._dice.choice(self._threads)
            if not queue.empty():
                handle(queue.get_nowait())
            advance(self._dice, 3)
