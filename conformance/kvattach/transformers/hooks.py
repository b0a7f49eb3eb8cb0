"""Hooks into transformers' continuous batching: memory events of its ledger, block tables, and read and write indices.

A batch is reported as positions of its requests' tables. Where its indices name other slots, these slots are reported.
The engine counts references of shared blocks only: a block without a count has one.
"""

import logging
from typing import Any

from kvattach.books import steps_between
from kvattach.hooks import Hooks, Trace
from kvattach.residency import Run
from kvattach.transformers.modules import Engine
from kvspec.memory.events import (
    Begin,
    Count,
    Deliver,
    Drop,
    End,
    EndHolder,
    Idle,
    Map,
    Pool,
    Publish,
    Release,
    Share,
    Take,
    Unify,
    Unmap,
    Use,
)

_log = logging.getLogger("kvspec")

POOL = "blocks"
STREAM = "device"


class Mapped(Run):
    """One request from its first block to its end, its cancellation or its soft reset."""

    def __init__(self, request: str, launches: int, block_size: int) -> None:
        """It has no blocks yet."""
        super().__init__(f"{request}.{launches}", block_size)
        self.request = request
        self.pages: list[int] = []
        """The blocks of its table, as last reported."""


class Attached:
    """Emits the events of one cache, from the creation of its batch processor on."""

    def __init__(self, engine: Engine, trace: Trace, count_every: int = 1) -> None:
        """Install the hooks. The engine's own figures are emitted after every `count_every` batches.

        Those of a large memory are emitted less often.
        """
        self._every = count_every
        self.hooks = hooks = Hooks(trace)
        self._cache: Any = None
        self._allocator: Any = None
        self._ledger: Any = None
        self._size = self._stride = 1
        self._runs: dict[str, Mapped] = {}
        self._who: Mapped | None = None
        self._reads: dict[str, list[int]] = {}
        """Request -> the slots that the batch in preparation reads for it."""
        self._writes: dict[str, list[int]] = {}
        self._launches = self._reported = 0

        cache, scheduler = engine.cache.PagedAttentionCache, engine.scheduler.Scheduler
        allocator, ledger = engine.allocator.CacheAllocator, engine.allocator.BlockLedger
        full, processor = engine.full.FullAttentionCacheAllocator, engine.api.ContinuousBatchProcessor
        inputs = engine.inputs.ContinuousBatchingIOs
        hooks.hook(processor, "__init__", after=lambda _, __, made, **___: self._made(made))
        hooks.hook(cache, "reset", after=lambda _, __, reset: self._begins() if reset is self._cache else None)
        hooks.hook(cache, "search_prefix_match", before=self._seeks)
        hooks.hook(cache, "can_store_request_tokens", before=self._stores)
        hooks.hook(cache, "prepare_fork_request", before=self._forks)
        hooks.hook(engine.pool.CachePool, "get_free_blocks", after=self._taken)
        hooks.hook(ledger, "acquire", before=_references, after=self._acquired)
        hooks.hook(ledger, "release", before=_references, after=self._released)
        hooks.hook(allocator, "acquire_prefix_blocks", after=self._mapped)
        hooks.hook(allocator, "mark_complete_blocks", before=self._learns, after=self._mapped)
        hooks.hook(allocator, "fork_blocks", before=self._grows, after=self._forked)
        hooks.hook(allocator, "copy_blocks", before=self._copies)
        hooks.hook(allocator, "free_blocks", before=self._frees, after=self._freed)
        hooks.hook(full, "allocate_cache_to_request", after=self._mapped)
        hooks.hook(full, "get_read_indices", after=self._indexed(self._reads))
        hooks.hook(full, "get_write_indices", after=self._indexed(self._writes))
        hooks.hook(inputs, "prepare_batch_tensors", before=self._starts, after=self._launched)
        hooks.hook(scheduler, "finish_request", after=lambda _, __, one, request: self._ended(one, request))
        hooks.hook(scheduler, "clear_cancelled_requests", after=self._cancelled)
        hooks.hook(engine.requests.RequestState, "update_and_check_completion", before=self._sampled)
        for name in ("prepare_next_batch", "_generation_step", "update_batch"):
            hooks.watch(processor, name)
        hooks.hook(processor, "update_batch", before=self._finishes, after=self._settled)
        hooks.hook(processor, "prepare_next_batch", after=self._prepared)

    # The memory

    def _made(self, processor: Any) -> None:
        cache, missing = processor.cache, _not_hooked(processor)
        if missing:
            _log.warning("kvspec: nothing is recorded of continuous batching with %s, which is not hooked", missing)
            return
        self._cache = cache
        (self._allocator,) = cache.cache_allocators.values()
        self._ledger = self._allocator.ledger
        self._size, self._stride = self._allocator.tokens_per_page, self._allocator.block_physical_stride
        self._begins()

    def _begins(self) -> None:
        """All of the memory is free."""
        self._runs.clear()
        allocator = self._allocator
        self._ledger.hash_to_block = _Names(self)
        # The first two sectors are for padding.
        first = 2 * allocator.blocks_per_sector
        pool = Pool(
            page_size=self._size,
            num_pages=first + allocator.num_blocks,
            first_page=0,
            label_size=self._size,
            padding=list(range(first)),
        )
        self._every = steps_between(self._every, allocator.num_blocks)
        self.hooks.trace.header("transformers", {POOL: pool})

    # Requests and their tables

    def _run(self, request: str) -> Mapped:
        run = self._runs.get(request)
        if run is None:
            run = self._runs[request] = Mapped(request, self._launches, self._size)
        return run

    def _seeks(self, cache: Any, request: str, prompt: list[int]) -> None:
        if cache is self._cache:
            self._learns(self._allocator, request, prompt)

    def _stores(self, cache: Any, state: Any, length: int, dry_run: bool = False) -> None:
        if cache is self._cache and not dry_run:
            self._learns(self._allocator, state.request_id, state.initial_tokens + state.generated_tokens)

    def _learns(self, allocator: Any, request: str, tokens: list[int], *_: Any) -> None:
        """Note the known tokens of a request. The next changes of the ledger are for this request."""
        if allocator is self._allocator:
            self._who = self._run(request)
            for learnt in self._who.grown(tokens):
                self.hooks.emit(learnt)

    def _mapped(self, _: None, __: None, allocator: Any, request: str, *___: Any) -> None:
        """Emit the changes of a request's table."""
        if allocator is not self._allocator:
            return
        run, table = self._run(request), allocator.block_table.get(request, [])
        pairs = zip(run.pages, table, strict=False)
        first = next((at for at, (old, new) in enumerate(pairs) if old != new), min(len(run.pages), len(table)))
        if first < len(table):
            run.pages = list(table)
            labels = run.labels([], first, len(table))
            self.hooks.emit(Map(run.name, run.name, POOL, first, [*run.pages[first:]], labels))

    def _frees(self, allocator: Any, request: str, *_: Any, **__: Any) -> None:
        if allocator is self._allocator:
            self._who = self._runs.get(request)

    def _freed(self, _: None, __: None, allocator: Any, request: str, *___: Any, **____: Any) -> None:
        run = self._runs.get(request)
        if allocator is self._allocator and run is not None and run.pages:
            run.pages = []
            self.hooks.emit(Unmap(run.name))

    def _cancelled(self, _: None, states: list[Any], scheduler: Any) -> None:
        for state in states:
            self._ended(scheduler, state.request_id)

    def _ended(self, scheduler: Any, request: str) -> None:
        if scheduler.cache is self._cache and request in self._runs:
            self.hooks.emit(EndHolder(self._runs.pop(request).name))

    # The ledger and the free list

    def _taken(self, _: None, blocks: list[int], pool: Any, *__: Any) -> None:
        if blocks and self._cache is not None and pool is self._cache.pool:
            assert self._who is not None
            self.hooks.emit(Take(self._who.name, POOL, list(blocks)))

    def _acquired(self, before: int, _: None, ledger: Any, block: int) -> None:
        if ledger is self._ledger:
            assert self._who is not None
            key = ledger.block_to_hash.get(block)
            for _again in range(_references(ledger, block) - before):
                self.hooks.emit(Share(self._who.name, POOL, [block], None if key is None else [str(key)]))

    def _released(self, before: int, frees: bool, ledger: Any, block: int, *_: Any) -> None:
        if ledger is self._ledger:
            assert self._who is not None
            # A block that had one reference has none now, whether it is free or cached.
            after = 0 if before == 1 else _references(ledger, block)
            for _again in range(before - after):
                self.hooks.emit(Release(self._who.name, POOL, [block]))

    def named(self, key: int, block: int) -> None:
        """A block is found by this hash from now on."""
        assert self._who is not None
        index = self._allocator.block_table[self._who.request].index(block)
        self.hooks.emit(Publish(POOL, [block], [str(key)], self._who.labels([], index, index + 1)))

    # Forks

    def _forks(self, cache: Any, state: Any, targets: list[str], *_: Any) -> None:
        if cache is self._cache:
            for target in targets:
                self._learns(self._allocator, target, state.initial_tokens + state.generated_tokens)

    def _grows(self, allocator: Any, source: str, target: str, *_: Any) -> None:
        if allocator is self._allocator:
            self._who = self._run(target)

    def _forked(self, _: None, copied: Any, allocator: Any, source: str, target: str, length: int) -> None:
        if allocator is not self._allocator:
            return
        self._mapped(None, None, allocator, target)
        # Until their tokens differ the last blocks have the same content.
        index, filled = divmod(length, self._size)
        (mine,), (theirs,) = (self._run(one).labels([], index, index + 1) for one in (target, source))
        if filled and mine != theirs:
            self.hooks.emit(Unify(mine, theirs, filled))

    def _copies(self, allocator: Any, sources: list[int], targets: list[int]) -> None:
        if allocator is self._allocator and sources:
            self._launches += 1
            copies = [(Use(None, POOL, list(sources)), Use(None, POOL, list(targets)))]
            self.hooks.emit(Begin(self._launches, STREAM, copies=copies))
            self.hooks.emit(End(self._launches))

    # Batches

    def _indexed(self, into: dict[str, list[int]]) -> Any:
        def indexed(_: None, slots: list[int], allocator: Any, request: str, *__: Any) -> None:
            if allocator is self._allocator:
                into[request] = slots

        return indexed

    def _starts(self, inputs: Any, **arguments: Any) -> list[tuple[str, int, int]]:
        """Each request of the batch, with the number of its cached tokens and of its new ones."""
        self._reads.clear()
        self._writes.clear()
        batch = [] if inputs.cache is not self._cache else arguments["requests_in_batch"]
        return [(one.state.request_id, one.state.position_offset, one.query_length) for one in batch]

    def _launched(self, batch: list[tuple[str, int, int]], *_: Any, **__: Any) -> None:
        if not batch:
            return
        reads, writes = [], []
        for request, past, length in batch:
            run = self._run(request)
            if request in self._reads:
                reads += self._uses(run, 0, past + length, self._reads[request])
            writes += self._uses(run, past, past + length, self._writes[request])
        self._launches += 1
        self.hooks.emit(Begin(self._launches, STREAM, reads, writes))

    def _uses(self, run: Mapped, start: int, stop: int, slots: list[int]) -> list[Use]:
        """The uses for positions `start` to `stop` of a request: of its table, or of `slots` if they are not in it."""
        size, stride, pages = self._size, self._stride, run.pages
        if -(-stop // size) <= len(pages) and slots == [
            pages[at // size] * stride + at % size for at in range(start, stop)
        ]:
            return [Use(table=run.name, start=start, stop=stop)]
        uses = []
        for at, slot in enumerate(slots, start):
            page, offset = divmod(slot, stride)
            labels = run.labels([], at // size, at // size + 1)
            uses.append(Use(None, POOL, [page], offset, offset + 1, labels=labels, holder=run.name))
        return uses

    def _finishes(self, processor: Any) -> None:
        if processor.cache is self._cache:
            self.hooks.emit(End(self._launches))

    def _sampled(self, state: Any, *_: Any) -> None:
        run = self._runs.get(state.request_id)
        if run is not None:
            self.hooks.emit(Deliver(self._launches, run.name))

    def _settled(self, _: None, __: None, processor: Any) -> None:
        if processor.cache is self._cache and self._launches % self._every == 0:
            self._count()

    def _prepared(self, _: None, launches: bool, processor: Any) -> None:
        # The waiting loop comes here ten times a second: only the first time is reported.
        if processor.cache is self._cache and not launches and not processor.has_pending_requests():
            if self._reported != self.hooks.events:
                self.hooks.emit(Idle())
            self._reported = self.hooks.events

    def _count(self) -> None:
        allocator, ledger, pool = self._allocator, self._allocator.ledger, self._cache.pool
        per = allocator.blocks_per_sector
        free = [block for leaves in pool._free_blocks[allocator.index].trees.values() for block in leaves]
        free += [block for sector in pool.free_sectors for block in range(sector * per, (sector + 1) * per)]
        held = {block for table in allocator.block_table.values() for block in table}
        self.hooks.emit(
            Count(
                POOL,
                free=[*free],
                cached=[*ledger.cached_blocks],
                held=sorted(held),
                references={block: ledger.shared_ref_counts.get(block, 1) for block in sorted(held)},
            )
        )


def _references(ledger: Any, block: int, *_: Any) -> int:
    """The references of a block: none if it is only cached, the ledger's count if it has one, else one."""
    return 0 if block in ledger.cached_blocks else int(ledger.shared_ref_counts.get(block, 1))


class _Names(dict[int, int]):
    """The engine's table of hashes."""

    def __init__(self, attached: Attached) -> None:
        super().__init__()
        self._attached = attached

    def __setitem__(self, key: int, block: int) -> None:
        if key in self:
            self.pop(key)
        super().__setitem__(key, block)
        self._attached.hooks.guarded(self._attached.named, key, block)

    def pop(self, key: int, *default: Any) -> Any:
        block = super().pop(key, *default)
        self._attached.hooks.emit(Drop(POOL, [block], [str(key)]))
        return block

    def clear(self) -> None:
        for key in list(self):
            self.pop(key)


def _not_hooked(processor: Any) -> str:
    """The first feature of this configuration that the hooks do not cover; empty if they cover all."""
    cache = processor.cache
    if list(cache.cache_allocators) != ["full_attention"]:
        return "layers without full attention"
    if processor.use_async_batching:
        return "asynchronous batching"
    if processor.offloading_manager._cpu_pool is not None:
        return "a CPU swap pool"
    return "kernels that take block tables" if cache.max_blocks_per_request else ""
