"""Hooks into vLLM's `kv_offload`: the chunks of its pool on the host, and copies on their streams.

The pool has its own manager, which keeps keys in the order of a policy. A chunk is a page of the pool, as large as
several blocks, in reverse order: with states and windows only the last blocks need be present. A chunk is taken when a
store is prepared, published by its key when the store is known to be complete, and pinned while it is loaded. The label
of a key follows from the tokens of the request that asks for it.

Before any other operation of a step, workers start the stores of an earlier step, and end the stores whose blocks are
allocated again. The scheduler's events are emitted only after that, since a store still reads the old content of a
block that the same step has given to another request.
"""

import importlib
import inspect
from collections import Counter
from collections.abc import Collection
from typing import Any

from kvattach.buffers import BUFFERS, Buffers
from kvattach.observable import with_events
from kvattach.streams import Streams
from kvattach.vllm.offload import OFFLOAD, Attached, Side
from kvattach.vllm.residency import HOST, POOL, Group, Run, group_of, named
from kvspec.memory.events import Begin, Count, Drop, MemoryEvent, Pool, Publish, Release, Share, Take, Use

CHUNKS = "vllm.v1.kv_offload.cpu.gpu_worker"
"""The engine's module that copies."""
PASSES = ("schedule", "states", "preprocess_mamba", "postprocess_mamba")
"""Operations that are emitted after the loads of their step."""


def chunks(attached: Attached, streams: Streams) -> Side | None:
    """The hooks of a live server; `None` before 0.28.0, whose handlers are other ones."""
    handler = importlib.import_module(CHUNKS).SingleDirectionOffloadingHandler
    return Chunks(attached, streams) if "layer_refs_per_group" in inspect.signature(handler).parameters else None


class Chunks(Side):
    """Emits the events of the host's chunks, and of the copies to and from them."""

    def __init__(self, attached: Attached, streams: Streams, *, simulated: bool = False) -> None:
        """Install the hooks. A simulated device says when a copy reads its addresses; a real one does not."""
        import torch
        import vllm.v1.kv_offload.cpu.gpu_worker as worker
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

        super().__init__(attached, streams)
        self._torch, self._simulated = torch, simulated
        self._connector: Any = None
        self._manager: Any = None
        self._size = self._blocks = 1
        """Slots of a block, and blocks of a chunk."""
        self._pages: dict[Any, int] = {}
        """Key -> the chunk that it stands for."""
        self._meant: dict[Any, tuple[list[str] | None, int]] = {}
        """Key -> the promised content: a label for each block, and the number of slots that they cover (0: all)."""
        self._loading: Counter[int] = Counter()
        """Chunk -> the number of loads that pin it."""
        self._known: dict[Any, list[str]] = {}
        """Page of the device -> the emitted names of it, and an empty name for each emitted reference."""
        self._held: list[MemoryEvent] | None = None
        """Events that wait until the workers have started and ended stores."""
        self._resets = False
        """Whether the events of the host's chunks must wait too."""
        self._copies: list[tuple[Use, Use]] = []
        """The copies of the transfer that is being queued."""
        self._writes: list[Use] = []
        """The other writes of this transfer."""
        self._buffers = Buffers(attached.hooks, streams)
        """Pinned memory with the addresses that a transfer copies."""
        hooks = attached.hooks
        hooks.set(worker, "torch", with_events(torch, streams.event))
        hooks.hook(Scheduler, "schedule", before=self._begins)
        hooks.hook(Scheduler, "reset_prefix_cache", before=self._forgets)
        hooks.hook(OffloadingConnectorWorker, "handle_preemptions", after=self._flushed)
        hooks.hook(OffloadingConnectorWorker, "start_kv_transfers", after=self._started)
        hooks.hook(CPUOffloadingManager, "prepare_store", after=self._storing)
        hooks.hook(CPUOffloadingManager, "complete_store", before=self._pending, after=self._stored)
        hooks.hook(CPUOffloadingManager, "prepare_load", after=self._loads)
        hooks.hook(CPUOffloadingManager, "complete_load", before=self._loaded)
        hooks.hook(CPUOffloadingManager, "reset_cache", before=self._reset)
        hooks.hook(worker.SingleDirectionOffloadingHandler, "transfer_async", before=self._transfer)

    def of(self, connector: Any) -> Any:
        """The scheduler's side of a connector of this kind."""
        scheduler = getattr(connector, "connector_scheduler", None)
        return scheduler if hasattr(getattr(scheduler, "manager", None), "_policy") else None

    def start(self, manager: Any, device: Any, size: int) -> Pool:
        """A new scheduler begins, with nothing on the host."""
        self._streams.clear(self._torch.cuda)
        self._connector, self._manager = manager, manager.manager
        self._size, self._blocks = size, manager.config.blocks_per_chunk
        self._held, self._resets = None, False
        self._buffers.clear()
        self._known.clear()
        self._pages.clear()
        self._meant.clear()
        self._loading.clear()
        chunks = self._figure("_num_chunks")
        return Pool(page_size=size * self._blocks, num_pages=chunks, first_page=0, label_size=size)

    def more_pools(self) -> dict[str, Pool]:
        """The pinned memory with the addresses that transfers copy."""
        return {BUFFERS: self._buffers.pool}

    def _figure(self, name: str) -> int:
        """One of the manager's own figures. Their names in older releases say blocks in place of chunks."""
        if not hasattr(self._manager, name):
            name = name.replace("chunks", "blocks")
        return int(getattr(self._manager, name))

    @property
    def under_way(self) -> bool:
        """Whether any transfer holds a chunk."""
        return bool(self._loading.total() or self._figure("_num_write_pending_chunks"))

    def figures(self) -> list[Count]:
        """The manager's own figures: the chunks that cannot be evicted."""
        free = len(self._manager._free_list) + self._figure("_num_evictable_cache_chunks")
        return [Count(HOST, held=self._figure("_num_allocated_chunks") - free)]

    # The order of things

    def emit(self, event: MemoryEvent) -> None:
        """Emit an event of the scheduler, once the workers have come to it."""
        if self._held is not None:
            self._held.append(event)
            return
        super().emit(event)
        if isinstance(event, Take | Share | Release | Publish | Drop) and event.pool == POOL:
            self._note(event)

    def _note(self, event: Take | Share | Release | Publish | Drop) -> None:
        """Note the holders and names of pages. A page without any may be read by a store until it is allocated."""
        named = isinstance(event, Publish | Drop)
        names = (event.keys or []) if isinstance(event, Publish | Drop) else [""] * len(event.pages)
        for page, name in zip(event.pages, names, strict=True):
            known = self._known.setdefault(page, [])
            if isinstance(event, Release | Drop):
                if name in known:
                    known.remove(name)
            elif not (named and name in known):
                known.append(name)

    def _host(self, event: MemoryEvent) -> None:
        """Emit an event of a chunk."""
        if self._resets and self._held is not None:
            self._held.append(event)
        else:
            self._attached.hooks.emit(event)

    def _begins(self, scheduler: Any, *_: Any, **__: Any) -> None:
        """A step begins."""
        ours = self._connector is not None and self.of(scheduler.connector) is self._connector
        if ours and self._held is None:
            self._held = []

    def _forgets(self, scheduler: Any, *_: Any, **__: Any) -> None:
        """All is forgotten; transfers that are on their way end with the next step."""
        if self._connector is not None and self._connector._jobs:
            self._begins(scheduler)

    def _flushed(self, *_: Any) -> None:
        """The workers have started earlier stores, and ended those that must not go on."""
        if self._held is not None:
            events, self._held, self._resets = self._held, None, False
            for event in events:
                if not (isinstance(event, Begin) and event.at in PASSES):
                    self.emit(event)
            self._held = [event for event in events if isinstance(event, Begin) and event.at in PASSES]

    def _started(self, *_: Any) -> None:
        """The workers have started the loads of the step; the pass comes next."""
        events, self._held = self._held, None
        for event in events or ():
            self.emit(event)

    # Chunks

    def _storing(self, _: None, answer: Any, manager: Any, __: Any, context: Any) -> None:
        if answer is None or manager is not self._manager:
            return
        for key in answer.evicted_keys:
            self._meant.pop(key, None)
            self._host(Drop(HOST, [self._pages.pop(key)], [named(key)]))
        for key, page in zip(answer.keys_to_store, answer.store_spec.block_ids, strict=True):
            self._pages[key] = int(page)
            self._meant[key] = self._promise(key, context)
            self._host(Take(OFFLOAD, HOST, [int(page)]))
        answer.store_spec.kvspec_keys = list(answer.keys_to_store)

    def _promise(self, key: Any, context: Any) -> tuple[list[str] | None, int]:
        """The content that a key promises: the tokens up to the chunk's end in the request that asks for it."""
        group = self._attached.groups[group_of(key)]
        status = self._connector._req_status.get(context.req_id)
        stop = 0 if status is None else self._end(key, status, group, context)
        if status is None or not stop:
            return None, 0
        run = self._attached.runs.get(context.req_id)
        if run is None or run.request is not status.req:
            run = Run(context.req_id, status.req, self._attached.groups)
        if self._blocks > 1 and (group.state or group.window):
            return [run.part(group, stop)], self._size
        if group.state:
            return [run.part(group, stop)], 0
        inside = stop % (group.size * self._blocks)
        for learnt in run.begun(group, stop) if inside else ():
            self._host(learnt)
        return [run.part(group, stop - before * group.size) for before in range(self._blocks)], inside

    def _end(self, key: Any, status: Any, group: Group, context: Any) -> int:
        """The number of a request's tokens up to the end of a key's chunk; 0 if that is not known."""
        if hasattr(context, "get_offload_key_position"):
            return context.get_offload_key_position(key) or 0
        keys = next(
            state.offload_keys
            for config, state in zip(self._connector.config.kv_group_configs, status.group_states, strict=True)
            if config.group_idx == group.number
        )
        return (keys.index(key) + 1) * group.size * self._blocks if key in keys else 0

    def _pending(self, manager: Any, keys: Collection[Any], *_: Any, **__: Any) -> list[Any]:
        chunks = [(key, manager._policy.get(key)) for key in keys if manager is self._manager]
        return [key for key, chunk in chunks if chunk is not None and not chunk.is_ready]

    def _stored(self, pending: list[Any], _: None, manager: Any, *__: Any, **___: Any) -> None:
        for key in pending:
            page = self._pages[key]
            if manager._policy.get(key) is None:
                del self._pages[key], self._meant[key]
            else:
                labels, slots = self._meant[key]
                self._host(Publish(HOST, [page], [named(key)], labels, slots))
            self._host(Release(OFFLOAD, HOST, [page]))

    def _loads(self, _: None, answer: Any, manager: Any, keys: Collection[Any], *__: Any) -> None:
        if manager is self._manager:
            for key in keys:
                self._loading[self._pages[key]] += 1
                self._host(Share(OFFLOAD, HOST, [self._pages[key]], [named(key)], pin=True))
            answer.kvspec_keys = list(keys)

    def _loaded(self, manager: Any, keys: Collection[Any], *_: Any) -> None:
        for key in keys if manager is self._manager else ():
            self._loading[self._pages[key]] -= 1
            self._host(Release(OFFLOAD, HOST, [self._pages[key]]))

    def _reset(self, manager: Any) -> None:
        """All chunks are forgotten at once, also those of transfers under way, which end with the next step."""
        if manager is not self._manager:
            return
        self._resets = bool(self._connector._jobs)
        for key, page in self._pages.items():
            chunk = manager._policy.get(key)
            if chunk.is_ready:
                self._host(Drop(HOST, [page], [named(key)]))
            for _ in range(self._loading[page] if chunk.is_ready else 1):
                self._host(Release(OFFLOAD, HOST, [page]))
        self._pages.clear()
        self._loading.clear()

    # Copies

    def _transfer(self, handler: Any, _: int, source: Any, target: Any) -> None:
        """The next queued copies are of these pages, in one direction, on their stream."""
        store = handler.gpu_to_cpu
        blocks, chunks = (source, target) if store else (target, source)
        if not hasattr(chunks, "kvspec_keys"):
            return
        self._copies, self._writes = [], []
        for block, chunk, label in self._pairs(blocks, chunks):
            if store and not self._known.get(block.pages[0]):
                chunk.labels = None if label is None else [label]
                self._writes.append(chunk)
            else:
                self._copies.append((block, chunk) if store else (chunk, block))
        if not hasattr(handler, "kvspec_hooked"):
            handler.kvspec_hooked = True
            self._attached.hooks.hook(
                handler, "_swap_blocks_batch", before=lambda *given, **_: self._copied(handler, given)
            )

    def _copied(self, handler: Any, addresses: tuple[Any, ...]) -> None:
        """The host has written addresses; the copy reads them when its stream gets there."""
        what = "store" if handler.gpu_to_cpu else "load"
        reads = self._buffers.use(*(part.untyped_storage().data_ptr() for part in addresses))
        self._buffers.host("transfer_async", writes=reads)
        if self._simulated:
            handler.kvspec_late = self._buffers.late(what, zip(addresses, reads, strict=False))
        self._streams.begin(what, reads, self._writes, self._copies)
        self._copies, self._writes = [], []

    def _pairs(self, blocks: Any, chunks: Any) -> list[tuple[Use, Use, str | None]]:
        """Each block with its part of a chunk, and with its label; the blocks of a group follow one another."""
        found, first, page = [], 0, 0
        for count, index in zip(blocks.group_sizes, blocks.block_indices, strict=True):
            skipped = index % self._blocks if count else 0
            for at in range(skipped, skipped + count):
                place, part = page + at // self._blocks, at % self._blocks
                before = self._blocks - 1 - part
                labels, slots = self._meant.get(chunks.kvspec_keys[place], (None, 0))
                slots, base = min(slots or self._size, self._size), before * self._size
                number = int(chunks.block_ids[place])
                block = Use(pool=POOL, pages=[int(blocks.block_ids[first + at - skipped])], stop=slots)
                label = labels[before] if labels and before < len(labels) else None
                found.append((block, Use(pool=HOST, pages=[number], start=base, stop=base + slots), label))
            first += count
            page += -(-(skipped + count) // self._blocks)
        return found
