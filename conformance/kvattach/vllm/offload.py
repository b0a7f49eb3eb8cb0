"""Hooks into vLLM's own offloading to the CPU (`simple_kv_offload`): the pool on the host, and copies on their streams.

The host's pool is a `BlockPool` like the device's, and emits its events in the same way. Its pages are published when a
store is known to be complete, under the key of the device's page and with the same label. A copy is emitted when a
thread queues it on its stream, some time after the request. Its order follows from its stream and its events.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

from kvattach.hooks import Hooks
from kvattach.observable import with_events
from kvattach.streams import Streams
from kvattach.vllm.residency import HOST, POOL, Group, Run
from kvspec.memory.events import Begin, Count, End, Pool, Publish, Transfer, Use

COPIES = "vllm.v1.simple_kv_offload.copy_backend"
"""The engine's module that copies."""
OFFLOAD = "offload"
"""The holder of pages that are being stored or loaded, on both sides, and of hits on the host for a request."""
TAILS = "tails"
"""The holder of a block while it is pinned for a connector."""
WORKING = (
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "request_finished_all_groups",
    "reset",
)
"""The scheduler's functions for offloading; older releases lack some of them."""
TRANSFERS = (
    "_reqs_to_load",
    "_abandoned_reqs_to_load",
    "_store_event_to_blocks",
    "_abandoned_store_event_to_blocks",
    "_pending_finished_stores",
)
"""The scheduler's attributes with transfers in flight."""


class Attached(Protocol):
    """The part of the scheduler's hooks that the hooks of the offloading use."""

    hooks: Hooks
    groups: list[Group]
    runs: dict[str, Run]

    def emit(self, *events: Any) -> None:
        """Emit events, once there is a scheduler."""
        ...

    def within(self, owner: Any, name: str, who: Callable[..., str]) -> None:
        """While a function runs, changed references belong to the holder that `who` names."""
        ...


class Side:
    """The common part of all kinds of offloading: a pool on the host, and copies on streams."""

    pool = HOST
    """The name of that pool in a trace."""

    def __init__(self, attached: Attached, streams: Streams) -> None:
        """Begin without an observed pool."""
        self._attached, self._streams = attached, streams

    def of(self, connector: Any) -> Any:
        """The manager of the pool of a connector of this kind; `None` for other kinds."""
        raise NotImplementedError

    def start(self, manager: Any, device: Any, size: int) -> Pool:
        """A new scheduler was made: nothing is in flight. `device` is its block pool; pages have `size` slots."""
        raise NotImplementedError

    @property
    def under_way(self) -> bool:
        """Whether transfers hold anything."""
        raise NotImplementedError

    def more_pools(self) -> dict[str, Pool]:
        """Pools besides that of the host, which keep their content."""
        return {}

    def figures(self) -> list[Count]:
        """The engine's own figures, if the host's pool is not a block pool."""
        return []

    def emit(self, event: Any) -> None:
        """Emit an event of the scheduler; streams note its operations. The host may have seen an end already."""
        if isinstance(event, End) and not self._streams.ended(event.id):
            return
        self._attached.hooks.emit(event)
        if isinstance(event, Begin) and event.stream is not None:
            self._streams.queued(event.id, event.stream)

    def promised(self, key: Any, label: str | None, slots: int, group: Group) -> None:
        """A page of the device is named."""


class Offload(Side):
    """Emits the names of `simple_kv_offload`'s pool, and the copies to and from it."""

    def __init__(self, attached: Attached, streams: Streams) -> None:
        """Install the hooks."""
        import torch
        import vllm.v1.simple_kv_offload.copy_backend as backend
        import vllm.v1.simple_kv_offload.worker as worker
        from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

        super().__init__(attached, streams)
        self._torch = torch
        self._manager: Any = None
        self._backend: Any = None
        self._promised: dict[Any, tuple[str | None, int]] = {}
        """Key -> the label that it promises, and the number of promised slots of a page."""
        self._most = 0
        """From so many keys on those that name no page are forgotten."""
        self._extents: dict[tuple[str, int], int] = {}
        """Page -> the number of its slots that are copied: those that its names promise."""
        hooks = attached.hooks
        for name in filter(vars(SimpleCPUOffloadScheduler).__contains__, WORKING):
            attached.within(SimpleCPUOffloadScheduler, name, lambda *_, **__: OFFLOAD)
        for module in (backend, worker):
            hooks.set(module, "torch", with_events(torch, streams.event))
        hooks.hook(backend.DmaCopyBackend, "launch_copy", before=self._asked)
        hooks.hook(backend, "copy_blocks", before=self._copies)

    def of(self, connector: Any) -> Any:
        """The manager of a connector of this kind, unless it copies to a disk."""
        manager = getattr(connector, "scheduler_manager", None)
        if manager is None:
            return None
        options = connector._kv_transfer_config.kv_connector_extra_config or {}
        return None if options.get("kv_offload_backend") == "disk" else manager

    def start(self, manager: Any, device: Any, size: int) -> Pool:
        """A new scheduler was made: nothing is in flight."""
        self._promised.clear()
        self._streams.clear(self._torch.cuda)
        self._manager, self._pools = manager, {POOL: device, HOST: manager.cpu_block_pool}
        self._most = 4 * sum(pool.num_gpu_blocks for pool in self._pools.values())
        self._extents.clear()
        return Pool(page_size=size, num_pages=manager.cpu_block_pool.num_gpu_blocks, first_page=0, padding=[0])

    def promised(self, key: Any, label: str | None, slots: int, group: Group) -> None:
        """A page of the device is named: its copy on the host will have the same key.

        A page of a state is copied whole. A name that moves to another page keeps its label.
        """
        if len(self._promised) >= self._most:
            self._forget()
        if label is not None or key not in self._promised:
            self._promised[key] = label, group.page_size if group.state else slots or group.page_size

    def _forget(self) -> None:
        """Forget the keys that name no page any more."""
        named = [pool.cached_block_hash_to_block._cache for pool in self._pools.values()]
        self._promised = {key: said for key, said in self._promised.items() if any(key in keys for keys in named)}
        self._most = max(self._most, 2 * len(self._promised))

    def stored(self, name: str, key: Any, page: int) -> Publish:
        """A page of the host is named."""
        label, slots = self._promised.get(key, (None, 0))
        return Publish(HOST, [page], [name], None if label is None else [label], slots)

    @property
    def under_way(self) -> bool:
        """Whether transfers hold anything."""
        return holds(self._manager)

    # Copies

    def _asked(self, backend: Any, sources: list[int], _: Any, is_store: bool, *__: Any, **___: Any) -> None:
        """Note the names of requested copies now: they may be dropped before the copies are queued."""
        self._backend = backend
        side = POOL if is_store else HOST
        for page in sources if self._streams.observed else ():
            self._extents[side, page] = self._extent(self._pools[side], page)

    def _extent(self, pool: Any, page: int) -> int:
        keys = [pool.blocks[page].block_hash, *getattr(pool, "cached_block_hashes_by_block", {}).get(page, ())]
        slots = [self._promised.get(key, (None, 0))[1] for key in keys if key is not None]
        return max(slots, default=0)

    def _copies(self, sources: list[int], targets: list[int], params: Any) -> None:
        """Emit a copy of pages in one direction, on its stream."""
        if not self._streams.observed:
            return
        is_store = params is self._backend._store_params
        sides = (POOL, HOST) if is_store else (HOST, POOL)
        copies = []
        for source, target in zip(sources, targets, strict=True):
            stop = self._extents.get((sides[0], source), 0)
            copies.append(
                (Use(pool=sides[0], pages=[source], stop=stop), Use(pool=sides[1], pages=[target], stop=stop))
            )
        stream = SimpleNamespace(cuda_stream=params.stream_handle)
        self._streams.begin("store" if is_store else "load", [], [], copies, stream=stream)


def holds(manager: Any) -> bool:
    """Whether transfers of a manager hold anything."""
    return any(getattr(manager, name, ()) for name in TRANSFERS)


def unobserved(connector: Any) -> bool:
    """Whether transfers of this kind hold anything for a connector that is not observed, or for one of its parts."""
    connectors = (connector, *getattr(connector, "_connectors", ()))
    return any(holds(getattr(one, "scheduler_manager", None)) for one in connectors)


def pin_tails(attached: Attached, managers: Any) -> None:
    """Observe the states at the ends of prompts that 0.28 pins for a connector: each belongs to its request."""

    def pinned(_: None, tails: dict[str, list[tuple[int, int, int]]], *__: Any) -> None:
        for request, blocks in tails.items():
            run = attached.runs.get(request)
            if run is not None:
                attached.emit(Transfer(TAILS, run.keeper, POOL, [block for _, block, _ in blocks]))

    if hasattr(managers, "take_partial_tail_offloads"):
        attached.within(managers, "take_partial_tail_offloads", lambda _: TAILS)
        attached.hooks.hook(managers, "take_partial_tail_offloads", after=pinned)
