"""Hooks into LMCache's connector of several processes: the objects of its server, and copies on the server's stream.

An object is one chunk of one KV cache group. The labels of its blocks follow from the tokens of the request that
stores or loads it, with its images, its adapter's weights and its salt; the connector's own key does not.

Before a pass the worker may wait for stores, since a store still reads a block that the same step has given to another
request. The scheduler's events of a step are emitted only after that.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kvattach.streams import Streams
from kvattach.vllm.offload import OFFLOAD, Attached, Side
from kvattach.vllm.residency import POOL
from kvspec.memory.events import Drop, MemoryEvent, Pool, Publish, Release, Share, Take, Use

OBJECTS = "lmcache"
"""The name in a trace of the pool of the server's pages, and of its stream."""


class Objects(Side):
    """Emits the names of the server's pages, and the copies to and from them."""

    pool = OBJECTS

    def __init__(self, server: type[Any], attached: Attached, streams: Streams) -> None:
        """Install the hooks. `server` is the class of the server in this process."""
        import lmcache.v1.multiprocess.transfer_context.worker_transfer as transfers
        import torch
        from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector
        from vllm.v1.core.sched.scheduler import Scheduler

        super().__init__(attached, streams)
        self._torch = torch
        self._scheduler_side: Any = None
        self._labels: dict[int, tuple[Any, list[list[str]] | None]] = {}
        """Identity of a key -> the key, and for each group the labels of the blocks of its range."""
        self._names: dict[str, list[int]] = {}
        """Object -> its pages, once it is published."""
        self._busy: list[int] = []
        """Pages that are being written or read."""
        self._held: list[MemoryEvent] | None = None
        """Events of the scheduler that wait until the worker begins the step."""
        hooks, context = attached.hooks, transfers.LMCacheDrivenTransferContext
        hooks.hook(Scheduler, "schedule", before=self._begins)
        hooks.hook(LMCacheMPConnector, "handle_preemptions", after=self._begun)
        for name in ("start_load_kv", "wait_for_save", "get_finished"):
            hooks.watch(LMCacheMPConnector, name)
        hooks.hook(context, "submit_store", before=self._asked)
        hooks.hook(context, "submit_retrieve", before=self._asked)
        hooks.hook(server, "reserve", after=self._reserved)
        hooks.hook(server, "transfer", before=self._copies)
        hooks.hook(server, "publish", before=self._written)
        hooks.hook(server, "evict", before=self._evicted)
        hooks.hook(server, "pin", before=self._pinned)
        hooks.hook(server, "unpin", before=self._unpinned)

    def of(self, connector: Any) -> Any:
        """A connector of this kind itself."""
        return connector if hasattr(connector, "scheduler_adapter") else None

    def start(self, manager: Any, device: Any, size: int) -> Pool:
        """A new scheduler begins, with an empty server."""
        self._streams.clear(self._torch.cuda)
        for kept in (self._labels, self._names, self._busy):
            kept.clear()
        self._scheduler_side, self._held = manager, None
        return Pool(page_size=size, num_pages=manager.kvspec_pages, first_page=0)

    @property
    def under_way(self) -> bool:
        """Whether a page is being written or read."""
        return bool(self._busy)

    def emit(self, event: MemoryEvent) -> None:
        """Emit an event of the scheduler, once the worker has come to it."""
        if self._held is None:
            super().emit(event)
        else:
            self._held.append(event)

    def _host(self, event: MemoryEvent) -> None:
        """Emit an event of the server's pages."""
        self._attached.hooks.emit(event)

    def _begins(self, scheduler: Any, *_: Any, **__: Any) -> None:
        """The scheduler begins a step."""
        if scheduler.connector is self._scheduler_side and self._held is None:
            self._held = []

    def _begun(self, *_: Any) -> None:
        """The worker begins the step: it has waited for earlier stores, if it does at all."""
        events, self._held = self._held, None
        for event in events or ():
            self.emit(event)

    def _asked(self, _: Any, request: str, key: Any, *__: Any, **___: Any) -> None:
        """The worker asks for a transfer: the tokens of the request give the labels of its blocks."""
        run, labels = self._attached.runs.get(request), None
        if run is not None:
            labels = [
                [run.label(group, index) for index in range(key.start // group.size, key.end // group.size)]
                for group in self._attached.groups
            ]
        self._labels[id(key)] = key, labels

    def _label(self, key: Any, group: int, place: int) -> str | None:
        labels = self._labels[id(key)][1]
        return None if labels is None else labels[group][place]

    def _reserved(self, _: None, pages: list[int], *__: Any) -> None:
        """A new object has got pages."""
        if pages:
            self._busy += pages
            self._host(Take(OFFLOAD, OBJECTS, [*pages]))

    def _copies(
        self, _: Any, key: Any, kind: str, number: int, first: int, blocks: Sequence[int], pages: Sequence[int]
    ) -> None:
        """Copies of blocks are queued on the server's stream. The null block is no block."""
        copies = []
        for place, (block, page) in enumerate(zip(blocks, pages, strict=True), first):
            label = self._label(key, number, place) if kind == "load" else None
            here = Use(pool=POOL, pages=[block])
            there = Use(pool=OBJECTS, pages=[page], labels=None if label is None else [label])
            if block:
                copies.append((there, here) if kind == "load" else (here, there))
        self._streams.begin(kind, [], [], copies, stream=SimpleNamespace(cuda_stream=OBJECTS))

    def _written(self, _: Any, key: Any, name: str, number: int, first: int, pages: Sequence[int]) -> None:
        """An object is complete."""
        self._names[name] = [*pages]
        for place, page in enumerate(pages, first):
            label = self._label(key, number, place)
            named = f"{name}.{place - first}"
            self._host(Publish(OBJECTS, [page], [named], None if label is None else [label]))
        self._given(pages)

    def _evicted(self, _: Any, name: str) -> None:
        pages = self._names.pop(name)
        self._host(Drop(OBJECTS, [*pages], [f"{name}.{place}" for place in range(len(pages))]))

    def _pinned(self, _: Any, pages: Sequence[int]) -> None:
        self._busy += pages
        self._host(Share(OFFLOAD, OBJECTS, [*pages], pin=True))

    def _unpinned(self, _: Any, pages: Sequence[int]) -> None:
        self._given(pages)

    def _given(self, pages: Sequence[int]) -> None:
        """Pages are not written or read any more."""
        for page in pages:
            self._busy.remove(page)
        self._host(Release(OFFLOAD, OBJECTS, [*pages]))
