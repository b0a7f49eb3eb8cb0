"""Hooks into sglang-jax: memory events of its free lists, rows, radix tree's locks and launches.

Pages of the tree have no holder: an insert publishes pages and releases the request's references, and a lock is a
reference to each page on its path. Slots that are allocated for a batch go to its requests when their rows name them.
The host reads rows when a batch is made, and writes their slots into an array for the launch. If that array is the
common buffer of all batches, and jax takes it without a copy, the launch reads the buffer. If it is the rows
themselves, the launch reads the rows.
"""

from itertools import count
from typing import Any

from kvattach.acting import Acting
from kvattach.books import in_runs, moved, steps_between
from kvattach.hooks import Hooks, Trace
from kvattach.residency import Run
from kvattach.sglang_jax.modules import Engine
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
    Transfer,
    Unmap,
    Use,
)

KV = "kv"
ROWS = "rows"
BUFFER = "cache_loc"
"""The host buffer into which `_merge_cache_loc` writes the slots in the rows of a batch."""
BUFFER_HOLDER = "ReqToTokenPool"
"""The permanent holder of the buffer."""
ALIGNED = 64
"""On a CPU jax takes an array without a copy if it begins at a multiple of so many bytes."""
NEW = "admission"
"""The holder of slots that are allocated for a batch, until a row names them."""
TREE = "tree"
"""The holder for whom the tree frees evicted pages. It never holds anything."""


class Stay(Run):
    """A request from its first row to its end or retraction."""

    def __init__(self, name: str, page_size: int, req: Any) -> None:
        """Begin without pages."""
        super().__init__(name, page_size)
        self.req = req
        self.flying = 0
        """The number of launches in flight for the request."""


class Attached:
    """Emits the events of one scheduler, from the creation of its pools and its tree on."""

    def __init__(self, engine: Engine, trace: Trace, count_every: int = 1) -> None:
        """Install the hooks. The engine's own figures are emitted after every `count_every` results.

        Those of a large memory are emitted less often.
        """
        self.hooks = Hooks(trace)
        self._every = count_every
        self._engine = engine
        self._who = Acting(self.hooks, NEW)
        self._tree: Any = None
        self._deep = 0
        """The depth of nested calls of an allocator's functions."""
        self._runs: dict[str, Stay] = {}
        self._numbers = count(1)
        """Numbers of runs: a request may have several, and each has its own name."""
        self._row_of: dict[int, Stay] = {}
        self._named: dict[int, tuple[str, list[int]]] = {}
        """Row -> its last writer, and the pages that it names."""
        self._owner: dict[int, str] = {}
        self._keys: dict[int, str] = {}
        """Page of the tree -> its name."""
        self._launches: dict[int, tuple[str, list[Stay]]] = {}
        """Number of a batch -> its launch, and the requests in it."""
        self._extended: list[Any] = []
        self._operations = 0
        self._results = 0
        self._idle_since = -1
        """The number of operations at the last `idle` event: the engine is idle in each turn of its loop."""
        self._install()

    def _install(self) -> None:
        hooks, engine = self.hooks, self._engine
        scheduler, batch, rows = engine.scheduler.Scheduler, engine.batch.ScheduleBatch, engine.pool.ReqToTokenPool
        tree, adder, acting = engine.radix.RadixCache, engine.policy.PrefillAdder, self._who.within
        hooks.hook(scheduler, "init_memory_pool_and_cache", after=lambda _, __, made: self._made(made))
        for allocator in (engine.allocator.TokenToKVPoolAllocator, engine.allocator.PagedTokenToKVPoolAllocator):
            for name in ("alloc", "alloc_extend", "alloc_decode", "free", "free_group_end"):
                if name in vars(allocator):
                    self._watch_free_list(allocator, name)
        hooks.hook(batch, "prepare_for_extend", before=self._extends)
        hooks.hook(rows, "alloc", before=self._asks_for_rows, after=self._rows_taken)
        hooks.hook(rows, "free", before=self._row_freed)
        hooks.hook(rows, "write", after=lambda _, __, pool, at, ___: self._row_written(pool, at))
        for name in ("inc_lock_ref", "dec_lock_ref"):
            hooks.hook(tree, name, before=lambda _, node, *__, **___: self._path(node), after=self._locked)
        hooks.hook(tree, "_insert_helper", after=self._inserted)
        hooks.hook(tree, "reset", before=self._flushed)
        acting(tree, "evict", lambda *_, **__: TREE)
        for cache in (tree, engine.scheduler.ChunkCache):
            for name in ("cache_unfinished_req", "cache_finished_req"):
                acting(cache, name, lambda _, req, *__, **___: self._run(req).name)
        for name in ("add_one_req", "add_one_req_ignore_eos"):
            acting(adder, name, lambda _, req, *__, **___: self._run(req).name)
        acting(batch, "release_req", lambda made, at, rank, *__: self._run(made.reqs_info[rank].reqs[at]).name)
        hooks.hook(engine.batch.Req, "reset_for_retract", after=lambda _, __, req: self._left(req))
        hooks.hook(batch, "get_model_worker_batch", after=lambda _, made, of, *__, **___: self._launched(made, of))
        for name in ("process_batch_result_prefill", "process_batch_result_decode"):
            hooks.hook(scheduler, name, before=self._ended, after=self._settled)
        hooks.hook(scheduler, "check_memory", before=lambda _: self._idle())
        for name in ("event_loop_normal", "event_loop_overlap"):
            hooks.watch(scheduler, name)

    def _made(self, scheduler: Any) -> None:
        rows, self._allocator, self._tree = (
            scheduler.req_to_token_pool,
            scheduler.token_to_kv_pool_allocator,
            scheduler.tree_cache,
        )
        self._size = scheduler.page_size
        self._table = rows.req_to_token
        self._buffer = getattr(rows, "cache_loc_host_buf", None)
        self._keepers = [] if self._buffer is None else [BUFFER_HOLDER]
        for kept in (self._runs, self._row_of, self._named, self._owner, self._keys, self._launches):
            kept.clear()
        self._deep = 0
        kv = Pool(
            page_size=self._size, num_pages=self._allocator.size // self._size, label_size=self._size, padding=[0]
        )
        table = Pool(page_size=self._table.shape[1], num_pages=rows.size, first_page=0, label_size=1)
        pools = {KV: kv, ROWS: table}
        if self._buffer is not None:
            pools[BUFFER] = Pool(page_size=len(self._buffer), num_pages=1, first_page=0, label_size=1)
        self._every = steps_between(self._every, kv.num_pages or 0)
        self.hooks.trace.header("sglang-jax", pools)
        if self._buffer is not None:
            self.hooks.emit(Take(BUFFER_HOLDER, BUFFER, [0]))

    # Holders

    def _run(self, req: Any) -> Stay:
        run = self._runs.get(req.rid)
        if run is None:
            run = self._runs[req.rid] = Stay(f"{req.rid}.{next(self._numbers)}", self._size, req)
        return run

    def _learn(self, run: Stay) -> None:
        """Emit `unify` for labels that were promises until these tokens were known."""
        for learnt in run.grown([*run.req.origin_input_ids, *run.req.output_ids]):
            self.hooks.emit(learnt)

    def _left(self, req: Any) -> None:
        run = self._runs.pop(req.rid, None)
        if run is not None:
            self._named = {row: named for row, named in self._named.items() if named[0] != run.name}
            self.hooks.emit(Unmap(run.name))
            self.hooks.emit(EndHolder(run.name))

    # The free list

    def _free(self) -> Any:
        """A copy of the free list, an array."""
        made = self._allocator
        parts = [made.free_slots[0]] if self._size == 1 else [made.free_pages[0], made.release_pages[0]]
        return self._engine.numpy.concatenate(parts)

    def _watch_free_list(self, owner: Any, name: str) -> None:
        """Emit the pages that a function takes from the free list or puts there."""
        original = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.hooks.problem is not None:
                return original(*args, **kwargs)
            outermost = self._deep == 0
            before = self.hooks.guarded(self._free) if outermost else None
            self._deep += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._deep -= 1
                if outermost:
                    self.hooks.guarded(self._changed, before)

        watched.__wrapped__ = original  # type: ignore[attr-defined]
        self.hooks.set(owner, name, watched)

    def _changed(self, before: Any) -> None:
        taken, freed = moved(before, self._free())
        if taken:
            self._owner.update(dict.fromkeys(taken, NEW))
            self.hooks.emit(Take(NEW, KV, list(taken)))
        dropped = [page for page in freed if self._who.now == TREE and page in self._keys]
        for page in dropped:
            del self._keys[page]
        if dropped:
            self.hooks.emit(Drop(KV, list(dropped)))
        self._give_up([page for page in freed if page not in set(dropped)])

    def _give_up(self, pages: list[int]) -> None:
        """Release each page for its holder, or, without one, for the acting holder."""
        by: dict[str, list[int]] = {}
        for page in pages:
            by.setdefault(self._owner.pop(page, self._who.now), []).append(page)
        for holder, its in by.items():
            self.hooks.emit(Release(holder, KV, list(its)))

    # Rows

    def _extends(self, batch: Any) -> None:
        self._extended = [req for info in batch.reqs_info for req in info.reqs or ()]

    def _asks_for_rows(self, pool: Any, asked: Any) -> list[tuple[Any, bool]]:
        """The requests that ask for rows, and whether each has none: one in the middle of its prompt may have a row."""
        if isinstance(asked, list):
            return [(req, req.req_pool_idx is None) for req in asked]
        return [(req, True) for req in self._extended]

    def _rows_taken(self, asked: list[tuple[Any, bool]], rows: Any, *_: Any) -> None:
        for (req, fresh), row in zip(asked, rows or (), strict=False):
            if fresh:
                run = self._row_of[row] = self._run(req)
                self._named[row] = run.name, []
                self.hooks.emit(Take(run.name, ROWS, [row]))

    def _row_freed(self, pool: Any, freed: Any) -> None:
        row = freed if isinstance(freed, int) else freed.req_pool_idx
        if row is not None:
            holder = self._row_of.get(row)
            self.hooks.emit(Release(self._who.now if holder is None else holder.name, ROWS, [row]))

    def _row_written(self, pool: Any, at: Any) -> None:
        rows, places = at
        if isinstance(places, slice):
            spans = [(int(rows), places.start or 0, places.stop)]
        else:
            spans = [(int(row), int(place), int(place) + 1) for row, place in zip(rows, places, strict=True)]
        writes = []
        for row, start, end in spans:
            run, stop = self._row_of[row], min(end, self._table.shape[1])
            if start < stop:
                self._name(run, row, stop)
                writes.append(self._row_use(run, row, start, stop))
        self._host([], writes, "write")

    def _name(self, run: Stay, row: int, stop: int) -> None:
        """Emit the new pages that a row names up to a position."""
        writer, named = self._named.get(row, ("", []))
        if writer != run.name:
            named = []
        size = self._size
        pages = [slot // size for slot in self._table[row, :stop:size].tolist()]
        fresh = [page for page in pages if self._owner.get(page) == NEW]
        if fresh:
            self._owner.update(dict.fromkeys(fresh, run.name))
            self.hooks.emit(Transfer(NEW, run.name, KV, list(fresh)))
        pages += named[len(pages) :]
        self._named[row] = run.name, pages
        same = next((at for at, (one, other) in enumerate(zip(pages, named, strict=False)) if one != other), len(named))
        if same < len(pages):
            self._learn(run)
            labels = run.labels([], same, len(pages))
            self.hooks.emit(Map(run.name, run.name, KV, same, list(pages[same:]), labels))

    def _row_use(self, run: Stay, row: int, start: int, stop: int) -> Use:
        return Use(pool=ROWS, pages=[row], start=start, stop=stop, holder=run.name)

    def _host(self, reads: list[Use], writes: list[Use], what: str) -> None:
        """Emit an operation of the host on rows, which is complete at once."""
        if reads or writes:
            self.hooks.emit(Begin(self._next("host"), "host", reads, writes, at=what))

    def _next(self, what: str) -> str:
        self._operations += 1
        return f"{what} {self._operations}"

    # The tree

    def _path(self, node: Any) -> list[tuple[Any, int]]:
        path, root = [], self._tree.root_node
        while node is not None and node is not root:
            path.append((node, node.lock_ref))
            node = node.parent
        return path

    def _locked(self, path: list[tuple[Any, int]], *_: Any, **__: Any) -> None:
        for node, before in reversed(path):
            pages = self._pages(node.value)
            for _again in range(node.lock_ref - before):
                self.hooks.emit(Share(self._who.now, KV, [*pages], [self._keys.get(page, "") for page in pages]))
            for _again in range(before - node.lock_ref):
                self.hooks.emit(Release(self._who.now, KV, [*pages]))

    def _pages(self, slots: Any) -> list[int]:
        # A freed row is read as several rows.
        flat = self._engine.numpy.asarray(slots, dtype=int).reshape(-1)
        return [slot // self._size for slot in flat[:: self._size].tolist()]

    def _flushed(self, tree: Any) -> None:
        if tree is self._tree and self._keys:
            self.hooks.emit(Drop(KV, [*self._keys]))
            self._keys.clear()

    def _inserted(self, _: None, found: int, tree: Any, __: Any, key: Any, value: Any, *___: Any) -> None:
        if tree is not self._tree:
            return  # the policy finds common prefixes of waiting requests in a separate tree
        for run in self._runs.values():
            if run.name == self._who.now:
                self._learn(run)
        pages, tokens = self._pages(value), list(key.token_ids)
        first = int(found) // self._size
        new = pages[first:]
        if not new:
            return
        labels = Run("", self._size).labels(tokens, first, len(pages))
        self._keys.update(zip(new, labels, strict=True))
        self.hooks.emit(Publish(KV, list(new), labels, labels))
        self._give_up(new)

    # Launches

    def _launched(self, made: Any, batch: Any) -> None:
        reads, writes, rows, worked, places = [], [], [], [], 0
        extends = batch.forward_mode.is_extend()
        for info in batch.reqs_info:
            for at, req in enumerate(info.reqs or ()):
                run, stop = self._run(req), int(info.seq_lens[at])
                start = int(info.prefix_lens[at]) if extends else stop - 1
                row = int(info.req_pool_indices[at])
                self._learn(run)
                self._name(run, row, stop)
                reads.append(Use(table=run.name, stop=stop))
                if start < stop:
                    writes.append(Use(table=run.name, start=start, stop=stop))
                rows.append(self._row_use(run, row, 0, min(stop, self._table.shape[1])))
                places += -(-stop // self._size) * self._size
                worked.append(run)
                run.flying += 1
        buffer = [Use(pool=BUFFER, pages=[0], stop=places, holder=BUFFER_HOLDER)]
        if self._is_in(made.cache_loc, self._table):
            reads += rows
        elif self._is_in(made.cache_loc, self._buffer):
            self._host(rows, buffer, "_merge_cache_loc")
            reads += buffer
        else:
            self._host(rows, [], "_merge_cache_loc")
        launch = self._next("launch")
        self.hooks.emit(Begin(launch, "device", reads, writes, at="forward_batch_generation"))
        self._launches[made.bid] = launch, worked

    def _is_in(self, array: Any, memory: Any) -> bool:
        """Whether a launch with this array reads that memory: jax copies unaligned arrays."""
        shared = memory is not None and self._engine.numpy.may_share_memory(array, memory)
        return shared and array.ctypes.data % ALIGNED == 0

    def _ended(self, scheduler: Any, batch: Any, result: Any, *_: Any) -> dict[str, int]:
        launch, worked = self._launches[result.bid]
        self.hooks.emit(End(launch))
        return {run.name: len(run.req.output_ids) for run in worked}

    def _settled(self, before: dict[str, int], _: None, scheduler: Any, batch: Any, result: Any, *__: Any) -> None:
        launch, worked = self._launches.pop(result.bid)
        for run in worked:
            req = run.req
            run.flying -= 1
            if self._runs.get(req.rid) is not run:
                continue
            if len(req.output_ids) > before[run.name]:
                self.hooks.emit(Deliver(launch, run.name))
            self._learn(run)
            if req.finished() and not run.flying:
                self._left(req)
        self._results += 1
        if self._results % self._every == 0:
            self._count()

    def _idle(self) -> None:
        if self._idle_since != self._operations:
            self._idle_since = self._operations
            self.hooks.emit(Idle(self._keepers))

    def _count(self) -> None:
        references: dict[int, int] = {}
        root = getattr(self._tree, "root_node", None)
        todo = [] if root is None else list(root.children.values())
        while todo:
            node = todo.pop()
            todo += node.children.values()
            references.update(dict.fromkeys(self._pages(node.value), node.lock_ref))
        self.hooks.emit(Count(KV, free=in_runs(self._free()), references=references))
