"""Fixes of known issues of LMCache's connector of several processes."""

import importlib
from functools import wraps
from hashlib import sha256
from typing import Any

from kvattach.patches import Patches
from kvlab.injection import where_driven
from kvlab.vllm.lmcache_server import MODULE, Server
from kvlab.vllm.multi_process import ADAPTER, CONNECTOR, prepared


class Both:
    """Two stores of one request: both are done, or neither counts."""

    def __init__(self, first: Any, second: Any) -> None:
        """The answers to both."""
        self._parts = first, second

    def query(self) -> bool:
        """Whether both are done."""
        return all(one.query() for one in self._parts)

    def result(self, timeout: float = 60.0) -> bool:
        """Whether both succeeded."""
        return all(one.result(timeout) for one in self._parts)


def count_each_store(patches: Patches) -> None:
    """A finished request waits for all of its stores."""
    made: Any = importlib.import_module(ADAPTER).LMCacheMPWorkerAdapter
    submit = made.submit_store_request

    def submit_store_request(self: Any, request: str, *args: Any, **kwargs: Any) -> None:
        before = self.store_futures.pop(request, None)
        submit(self, request, *args, **kwargs)
        if request in self.store_futures:
            self.finished_stores.discard(request)
        if before is not None:
            now = self.store_futures.get(request)
            self.store_futures[request] = before if now is None else Both(before, now)

    patches.set(made, "submit_store_request", submit_store_request)


def store_before_next_pass(patches: Patches) -> None:
    """A pass waits for the stores before it if a request was preempted, or a window or state may have moved on."""
    made: Any = importlib.import_module(CONNECTOR).LMCacheMPConnector

    def handle_preemptions(self: Any, metadata: Any) -> None:
        if metadata.need_flush_before_forward or len(self._kv_cache_config.kv_cache_groups) > 1:
            for future in self.worker_adapter.store_futures.values():
                future.result(60)

    patches.set(made, "handle_preemptions", handle_preemptions)


def forget_old_blocks(patches: Patches) -> None:
    """A store leaves out the blocks that the engine has given back, or moved, since the connector was given them."""
    from vllm.v1.core.sched.scheduler import Scheduler

    module: Any = importlib.import_module(CONNECTOR)
    made, metadata = module.LMCacheMPConnector, module.LMCacheMPRequestMetadata
    init, store = Scheduler.__init__, metadata.GetStoreMetadata
    managers: list[Any] = []

    @wraps(init)
    def with_manager(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if isinstance(self.connector, made):
            managers[:] = [self.kv_cache_manager]

    def get_store_metadata(tracker: Any, *args: Any, **kwargs: Any) -> Any:
        for group, now in enumerate(managers[0].get_block_ids(tracker.request_id)):
            kept = tracker.allocated_block_ids.get(group, [])
            kept[:] = [old if old == new else 0 for old, new in zip(kept, now, strict=False)]
        return store(tracker, *args, **kwargs)

    patches.set(Scheduler, "__init__", with_manager)
    patches.set(metadata, "GetStoreMetadata", staticmethod(get_store_metadata))


def await_aborted_loads(patches: Patches) -> None:
    """An aborted request whose load is under way ends with its load, and only once."""
    from vllm.v1.core.sched.scheduler import Scheduler

    made: Any = importlib.import_module(CONNECTOR).LMCacheMPConnector
    worker: Any = importlib.import_module(ADAPTER).LMCacheMPWorkerAdapter
    finished, updated = worker.get_finished, Scheduler._update_from_kv_xfer_finished

    def get_finished(self: Any, ended: set[str]) -> Any:
        return finished(self, ended - self.retrieve_futures.keys())

    def _update_from_kv_xfer_finished(self: Any, output: Any) -> None:
        if isinstance(self.connector, made):
            output.finished_sending = (output.finished_sending or set()) & self.requests.keys()
            output.finished_sending -= output.finished_recving or set()
        updated(self, output)

    patches.set(worker, "get_finished", get_finished)
    patches.set(Scheduler, "_update_from_kv_xfer_finished", _update_from_kv_xfer_finished)


def name_adapters(patches: Patches) -> None:
    """A key depends on the weights of a request's adapter, too."""
    made: Any = importlib.import_module(CONNECTOR).LMCacheMPRequestTracker
    init = made.__init__

    def with_adapter(self: Any, request: Any) -> None:
        init(self, request)
        if request.lora_request:
            self.cache_salt += f" {sha256(request.lora_request.lora_path.encode()).hexdigest()}"

    patches.set(made, "__init__", with_adapter)


def skip_parts(patches: Patches) -> None:
    """A chunk is not stored if any block that is kept of it is the null block."""
    module: Any = importlib.import_module(MODULE)
    if not hasattr(module, "all_null_chunk_masks"):
        return

    def all_null_chunk_masks(blocks: Any, _: Any, sizes: list[int], chunks: int, *__: Any) -> list[list[bool]]:
        kept = [plane.kept for plane in Server.now.planes]
        ends = [[(at + 1) * size for at in range(chunks)] for size in sizes]
        return [
            [not all(row[end - some : end]) for end in stops]
            for row, stops, some in zip(blocks, ends, kept, strict=True)
        ]

    patches.set(module, "all_null_chunk_masks", all_null_chunk_masks)


def count_loaded(patches: Patches) -> None:
    """Of a load that has failed, only the tokens before the first lost block count as computed."""
    from vllm.v1.core.sched.scheduler import Scheduler

    made: Any = importlib.import_module(CONNECTOR).LMCacheMPConnector
    update: Any = Scheduler._update_waiting_for_remote_kv

    def _update_waiting_for_remote_kv(self: Any, request: Any) -> Any:
        answer, computed = update(self, request), request.num_computed_tokens
        if isinstance(self.connector, made) and computed:
            tracker = self.connector.request_trackers[request.request_id]
            for name in ("num_lmcache_hit_tokens", "num_vllm_hit_tokens"):
                setattr(tracker, name, min(getattr(tracker, name), computed))
        return answer

    patches.set(Scheduler, "_update_waiting_for_remote_kv", _update_waiting_for_remote_kv)


def report_loaded_blocks(patches: Patches) -> None:
    """A load that fails loses the blocks that it was to write, and not those that were hit on the device."""
    made: Any = importlib.import_module(ADAPTER).LMCacheMPWorkerAdapter
    submit = made.submit_retrieve_request

    def submit_retrieve_request(self: Any, request: str, op: Any, *args: Any, **kwargs: Any) -> None:
        submit(self, request, op, *args, **kwargs)
        future, blocks = self.retrieve_futures[request]
        hit = op.skip_first_n_tokens * len(blocks) // (op.end - op.start) if len(op.block_ids) == 1 else 0
        self.retrieve_futures[request] = future, blocks[hit:]

    patches.set(made, "submit_retrieve_request", submit_retrieve_request)


def free_reservations(patches: Patches) -> None:
    """A request whose load has failed, and that has no blocks, has none reserved either. No connector matters."""
    from vllm.v1.core.sched.scheduler import Scheduler

    update: Any = Scheduler._update_waiting_for_remote_kv

    def _update_waiting_for_remote_kv(self: Any, request: Any) -> Any:
        answer = update(self, request)
        if not request.num_computed_tokens:
            getattr(self, "_inflight_prefills", set()).discard(request)
        return answer

    patches.set(Scheduler, "_update_waiting_for_remote_kv", _update_waiting_for_remote_kv)


OF_THE_CONNECTOR = (
    count_each_store,
    store_before_next_pass,
    forget_old_blocks,
    await_aborted_loads,
    name_adapters,
    skip_parts,
    count_loaded,
    report_loaded_blocks,
)
FIXES = (free_reservations, *(where_driven(prepared, fix) for fix in OF_THE_CONNECTOR))
