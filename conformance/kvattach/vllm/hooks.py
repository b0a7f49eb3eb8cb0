"""Hooks into vLLM: memory events of its block pool, its scheduler and its KV connector.

Events are effects, not intentions: a block's `ref_cnt` becomes a property that emits its changes, the map of hashes
emits insertions and removals, and tables are those that the workers get. The scheduler's functions only show for which
request they act.

A launch is one `schedule()` that schedules tokens: it is queued when that returns, and seen complete when
`update_from_output` gets its output.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from kvattach.hooks import Hooks, Trace
from kvattach.vllm.blocks import Books, books_of, counted
from kvattach.vllm.kinds import Kind, Kinds
from kvattach.vllm.launches import Launches
from kvattach.vllm.nixl import Nixl
from kvattach.vllm.offload import OFFLOAD, Offload, Side, pin_tails, unobserved
from kvattach.vllm.residency import HOST, POOL, Group, Run, group_for, group_of, named
from kvattach.vllm.routers import GPU, Routers
from kvspec.memory.events import (
    Count,
    Drop,
    EndHolder,
    Idle,
    Pool,
    Publish,
    Release,
    Share,
    Take,
    Transfer,
)

ENGINE = "engine"
"""The holder of a page that is allocated without a known request."""
DEFERRED = "deferred frees"
COPIES = "copies"


class Attached:
    """Emits the events of one scheduler of this process, from its creation on."""

    def __init__(
        self,
        trace: Trace,
        stream: Any = None,
        event: Any = None,
        kinds: Mapping[str, Kind] = MappingProxyType({}),
    ) -> None:
        """Install the hooks, and import vLLM's modules.

        These `kinds` of offloading, each named by its module, are observed with these classes of streams and events.
        """
        import vllm.v1.core.block_pool as block_pool
        import vllm.v1.core.kv_cache_manager as manager
        import vllm.v1.core.sched.scheduler as scheduling
        from vllm.v1.request import Request

        self.hooks = hooks = Hooks(trace)
        self.groups: list[Group] = []
        self.runs: dict[str, Run] = {}
        self._books: Books | None = None
        self._host: Books | None = None
        self._who = ENGINE
        self._runs_made = 0
        self._scheduler: Any = None
        self._manager: Any = None
        self._managers: Any = ()
        self._copying: dict[int, int] = {}
        """KV cache group -> the number of its known copies."""
        self._launches = Launches(self)
        self._nixl = Nixl(self, self._launches.queue_behind)
        self._routers = Routers(self)
        hooks.set(block_pool.KVCacheBlock, "ref_cnt", counted(block_pool.KVCacheBlock, self))
        self._hook_pool(block_pool.BlockPool, block_pool.BlockHashToBlockMap)
        scheduler, managers = scheduling.Scheduler, manager.KVCacheManager
        hooks.hook(scheduler, "__init__", after=self._made)
        self.within(managers, "allocate_slots", self._allocates, self._copied)
        self.within(managers, "free", lambda _, request: self._name(request.request_id))
        hooks.hook(managers, "free", after=self._freed)
        self.within(managers, "remove_skipped_blocks", lambda _, request_id, *__, **___: self._name(request_id))
        self._count_tokens(Request)
        hooks.hook(
            scheduler,
            "_update_request_as_session",
            before=lambda _, session, *__: list(session._all_token_ids),
            after=self._turn_begins,
        )
        if hasattr(scheduler, "_free_request_blocks"):
            hooks.hook(managers, "pop_blocks_for_free", after=self._deferred)
            self.within(scheduler, "_drain_deferred_frees", lambda _: DEFERRED)
        if hasattr(managers, "take_kv_cache_block_copies"):
            hooks.hook(managers, "take_kv_cache_block_copies", before=lambda _: self._copying.clear())
            self.within(scheduler, "_free_cow_retained_blocks", lambda *_, **__: COPIES)
            hooks.hook(scheduler, "_free_cow_retained_blocks", after=self._copies_deferred)
        pin_tails(self, managers)
        self._launches.hook(scheduler)
        for name in ("schedule", "update_from_output", "finish_requests", "reset_prefix_cache", "add_request"):
            hooks.watch(scheduler, name)
        self._kinds = Kinds(self, stream, event, kinds)
        self._side: Side | None = None
        """The kind that this scheduler has."""

    def _hook_pool(self, pool: Any, names: Any) -> None:
        """Observe the pages that a block pool allocates, and their names."""
        hooks = self.hooks
        hooks.hook(pool, "__init__", after=self._pool_made)
        hooks.hook(pool, "get_new_blocks", before=self._takes, after=self._taken)
        hooks.hook(pool, "cache_full_blocks", after=self._cached)
        if hasattr(pool, "cache_partial_block"):
            hooks.hook(pool, "cache_partial_block", after=self._cached_in_part)
        if hasattr(pool, "move_block_hashes"):
            hooks.hook(pool, "move_block_hashes", after=self._names_moved)
        hooks.hook(pool, "reset_prefix_cache", before=self._resets, after=self._reset)
        hooks.hook(names, "insert", after=self._inserted)
        hooks.hook(names, "pop", after=self._popped)

    def emit(self, *events: Any) -> None:
        """Emit events, once there is a scheduler."""
        if self._books is not None:
            if self._side is None:
                self.hooks.emit(*events)
                return
            for event in events:
                self._side.emit(event)

    # Holders

    def within(self, owner: Any, name: str, who: Callable[..., str], after: Callable[[], None] | None = None) -> None:
        """While a function runs, and in `after`, references change for the holder that `who(*arguments)` returns."""
        original = getattr(owner, name)

        def within(*args: Any, **kwargs: Any) -> Any:
            before = self._who
            try:
                self._who = who(*args, **kwargs)
            except Exception:
                # The error is raised again under guard, which ends the trace. The engine continues.
                self._who = self.hooks.guarded(who, *args, **kwargs) or ENGINE
            try:
                answer = original(*args, **kwargs)
                if after is not None and self._managers:
                    self.hooks.guarded(after)
                return answer
            finally:
                self._who = before

        self.hooks.set(owner, name, within)

    def owns(self, scheduler: Any) -> bool:
        """Whether a scheduler is the newest one, with its original memory."""
        return scheduler is self._scheduler and scheduler.kv_cache_manager is self._manager

    def _allocates(self, manager: Any, request: Any, *_: Any, **__: Any) -> str:
        return self._run(request).name if manager is self._manager else ENGINE

    def _freed(self, _: None, __: None, manager: Any, request: Any) -> None:
        if manager is self._manager:
            self._leaves(request.request_id)

    def _run(self, request: Any) -> Run:
        run = self.runs.get(request.request_id)
        if run is None:
            self._runs_made += 1
            name = f"{request.request_id}.{self._runs_made}"
            run = self.runs[request.request_id] = Run(name, request, self.groups)
            self._routers.comes(request)
        return run

    def _name(self, request_id: str) -> str:
        run = self.runs.get(request_id)
        return ENGINE if run is None else run.keeper

    def _leaves(self, request_id: str) -> None:
        """A run ends: by a finish, an abort or a preemption."""
        run = self.runs.pop(request_id, None)
        if run is not None:
            self.emit(*run.unmapped(), EndHolder(run.keeper))

    # The pool

    def _pool_made(self, _: None, __: None, pool: Any, *args: Any, **kwargs: Any) -> None:
        pool._kvspec = pool.cached_block_hash_to_block._kvspec = Books()

    def observed(self, block: Any) -> Books | None:
        """The books of the pool that a block belongs to; `None` if its events are not emitted."""
        for books in (self._books, self._host):
            if books is not None and books.observed:
                blocks, page = books.pool.blocks, block.block_id
                if page < len(blocks) and blocks[page] is block:
                    return books
        return None

    def _takes(self, pool: Any, _: int) -> None:
        books_of(pool).taking = True

    def _taken(self, _: None, __: Any, pool: Any, ___: int) -> None:
        books_of(pool).taking = False

    def counted(self, books: Books, block: Any, before: int, references: int) -> None:
        """A block's count changed: references were added or removed for the acting holder."""
        if block.is_null:
            return
        books.touched[block.block_id] = references
        pages: list[Any] = [block.block_id]
        who, pool = self._who, books.name
        for _ in range(before, references):
            self.emit(Take(who, pool, pages) if books.taking else Share(who, pool, pages, pin=who == OFFLOAD))
        for _ in range(references, before):
            self.emit(Release(who, pool, pages))

    def in_use(self, page: int) -> bool:
        """Whether a page has references."""
        return bool(self._pool.blocks[page].ref_cnt)

    def count(self) -> None:
        """Emit the engine's own figures: the number of pages in use, and the changed reference counts."""
        for books in (self._books, self._host):
            if books is not None:
                held = books.pool.num_gpu_blocks - 1 - books.pool.get_num_free_blocks()
                self.emit(Count(books.name, held=held, references=dict(books.touched)))
                books.touched.clear()
        self.emit(*(() if self._side is None else self._side.figures()))

    # Names

    def _inserted(self, _: None, __: None, names: Any, key: Any, block: Any) -> None:
        books = books_of(names)
        if isinstance(self._side, Offload) and books is self._host:
            self.emit(self._side.stored(named(key), key, block.block_id))
        elif books.observed:
            books.inserted.append((key, block.block_id))

    def _popped(self, _: None, block: Any, names: Any, key: Any, __: int) -> None:
        books = books_of(names)
        if block is not None and books.observed:
            self.emit(Drop(books.name, [block.block_id], [named(key)]))

    def _cached(self, _: None, __: None, pool: Any, *___: Any, **more: Any) -> None:
        """Full blocks were published: the request's tokens give the content that their names promise."""
        if books_of(pool) is not self._books:
            return
        run = self.runs.get(more["request"].request_id)
        group = self.groups[more["kv_cache_group_id"]]
        first = more["num_cached_blocks"]
        place = {block.block_id: index for index, block in enumerate(more["blocks"][first:], first)}
        self._publish(self._books, lambda page: None if run is None else run.label(group, place[page]), 0)

    def _cached_in_part(self, _: None, __: Any, pool: Any, *___: Any, **more: Any) -> None:
        """The partial last block of a prompt was published: requests can hit its first tokens."""
        if books_of(pool) is not self._books:
            return
        tokens, request = more["num_tokens"], more["request"]
        group = self.groups[more["kv_cache_group_id"]]
        run = self.runs.get(request.request_id)
        slots = tokens % group.size
        if run is not None:
            self.emit(*run.begun(group, tokens))
        self._publish(self._books, lambda _: None if run is None else run.part(group, tokens), slots)

    def _names_moved(self, _: None, __: None, pool: Any, source: Any, target: Any) -> None:
        if books_of(pool) is self._books:
            self._publish(self._books, lambda _: None, 0)

    def _publish(self, books: Books, label: Callable[[int], str | None], slots: int) -> None:
        """Emit the insertions into the map of hashes since the last call."""
        self._copied()
        inserted, books.inserted = books.inserted, []
        planned = self._launches.planning
        for key, page in inserted:
            promised = label(page)
            labels = None if promised is None else [promised]
            self.emit(Publish(POOL, [page], [named(key)], labels, slots, planned))
            if self._side is not None:
                self._side.promised(key, promised, slots, self.groups[group_of(key)])

    def _resets(self, pool: Any) -> tuple[list[Any], list[str]]:
        names: dict[Any, Any] = pool.cached_block_hash_to_block._cache
        pairs = [
            (page, named(key))
            for key, found in names.items()
            for page in (found if isinstance(found, dict) else [found.block_id])
        ]
        return [page for page, _ in pairs], [key for _, key in pairs]

    def _reset(self, seen: tuple[list[Any], list[str]], done: bool, pool: Any) -> None:
        books = pool.cached_block_hash_to_block._kvspec = books_of(pool)
        if done and seen[0] and books.observed:
            self.emit(Drop(books.name, *seen))

    # The scheduler

    def _made(self, _: None, __: None, scheduler: Any, *args: Any, **kwargs: Any) -> None:
        """A scheduler was made: from now on the events are about its memory."""
        for books in (self._books, self._host):
            if books is not None:
                books.observed = False
        self._scheduler, self._manager = scheduler, scheduler.kv_cache_manager
        coordinator = self._manager.coordinator
        managers = coordinator.single_type_managers
        # Copies exist only with partial hits of blocks.
        self._managers = managers if getattr(coordinator, "enable_partial_hash_hits", False) else ()
        self._pool = self._manager.block_pool
        self._books = books_of(self._pool)
        self._books.pool = self._pool
        size = max(manager.block_size for manager in managers)
        self.groups[:] = [group_for(number, manager, size) for number, manager in enumerate(managers)]
        self.runs.clear()
        pools = {POOL: Pool(page_size=size, num_pages=self._pool.num_gpu_blocks, first_page=0, padding=[0])}
        self._host = None
        self._side, more = self._kinds.start(scheduler, self._pool, size)
        pools |= more
        if isinstance(self._side, Offload):
            host = scheduler.connector.scheduler_manager.cpu_block_pool
            self._host = books_of(host)
            self._host.name, self._host.pool, self._host.observed = HOST, host, True
        host = self._nixl.start(scheduler)
        self.hooks.trace.header("vllm", pools, host)
        self._books.observed = True
        self._routers.start(scheduler, {GPU: POOL} | self._host_tier(scheduler))
        self._launches.start(scheduler, observed=self._side is not None or host is not None)

    def _host_tier(self, scheduler: Any) -> dict[str, str]:
        """The tier and pool of vLLM's own offloading on the host; before 0.30.0 it makes no announcements."""
        announced = self._host is not None and hasattr(scheduler.connector.scheduler_manager, "kv_event_medium")
        return {scheduler.connector.scheduler_manager.kv_event_medium: HOST} if announced else {}

    def _count_tokens(self, request_class: Any) -> None:
        """Emit the labels that a new token makes known. This runs for each token of a request, so it does no more."""
        append, runs, guarded = request_class.append_output_token_ids, self.runs, self.hooks.guarded

        def appended(request: Any, *args: Any, **kwargs: Any) -> Any:
            answer = append(request, *args, **kwargs)
            run = runs.get(request.request_id)
            if run is not None and len(request._all_token_ids) >= run.due and run.request is request:
                guarded(self._grown, run)
            return answer

        self.hooks.set(request_class, "append_output_token_ids", appended)

    def _grown(self, run: Run) -> None:
        self.emit(*run.grown())

    def _turn_begins(self, before: list[int], _: None, scheduler: Any, session: Any, *__: Any) -> None:
        """A session continues: a new holder gets its pages, and its last token may have changed."""
        old = self.runs.pop(session.request_id, None) if self.owns(scheduler) else None
        if old is not None:
            new = self._run(session)
            gone = *old.unmapped(), Transfer(old.name, new.name), EndHolder(old.name)
            self.emit(*gone, *new.follows(old, before))

    def _deferred(self, _: None, blocks: Any, manager: Any, request: Any) -> None:
        """A run ends, but its pages are freed only when the operations in flight are done."""
        if manager is not self._manager:
            return
        pages = [block.block_id for block in blocks if not block.is_null]
        if pages:
            self.emit(Transfer(self._name(request.request_id), DEFERRED, POOL, pages))
        self._leaves(request.request_id)

    def _copied(self) -> None:
        """A partially hit page is copied before the next pass. Until then both ends are kept for the copy."""
        for group in self._managers:
            pairs = group._pending_cow_copies
            copied = self._copying.get(group.kv_cache_group_id, 0)
            for source, target in pairs[copied:]:
                self._launches.copy(source.block_id, target.block_id, self._named_slots(group, source, target))
                ends: list[Any] = [source.block_id, target.block_id]
                # They are only kept from allocation: a recurrent state advances in the source after its copy.
                self.emit(Share(COPIES, POOL, ends, pin=True), Release(self._who, POOL, ends))
            self._copying[group.kv_cache_group_id] = len(pairs)

    def _named_slots(self, manager: Any, *ends: Any) -> int:
        """The number of slots of a copied page that count: those that its name promises; 0: all."""
        group = self.groups[manager.kv_cache_group_id]
        tokens = next((known for end in ends if (known := getattr(end, "block_hash_num_tokens", None))), 0)
        return 0 if group.state else tokens % group.size

    def _copies_deferred(self, _: None, __: None, scheduler: Any, blocks: Any, *___: Any, **____: Any) -> None:
        with suppress(IndexError):
            if self.owns(scheduler) and scheduler.deferred_frees[-1][1] == blocks[::-1]:
                self.emit(Transfer(COPIES, DEFERRED, POOL, [block.block_id for block in blocks]))

    def idle(self, scheduler: Any) -> None:
        """If no request is left, only holders that wait for a launch may hold anything."""
        if not scheduler.requests:
            keepers = [DEFERRED, COPIES] if getattr(scheduler, "deferred_frees", ()) else []
            if self._side is not None:
                keepers += [*self._side.more_pools(), *([OFFLOAD] if self._side.under_way else [])]
            elif unobserved(scheduler.connector):
                keepers.append(OFFLOAD)
            self.emit(Idle(keepers))
