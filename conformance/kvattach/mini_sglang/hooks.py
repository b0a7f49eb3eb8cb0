"""Hooks into mini-sglang: memory events of its tables, its free list, its radix tree's locks and its launches.

Pages of the tree have no holder: an insert publishes pages and releases the request's references, and a lock is a
reference to each page on its path. The launch and the write of its sampled token are two operations: the event that
the scheduler waits for is recorded between them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvattach.buffers import BUFFERS, Buffers
from kvattach.hooks import Hooks, Trace
from kvattach.mini_sglang.modules import Engine
from kvattach.residency import Run
from kvattach.streams import Streams
from kvspec.memory.events import (
    Count,
    Deliver,
    Drop,
    EndHolder,
    Idle,
    Map,
    Pages,
    Pool,
    Publish,
    Release,
    Share,
    Take,
    Unmap,
    Use,
)

KV = "kv"
ROWS = "rows"


class Attached:
    """Emits the events of one scheduler, from the creation of its cache manager on."""

    def __init__(self, engine: Engine, trace: Trace, stream: Any, event: Any, count_every: int = 1) -> None:
        """Install the hooks. `stream` and `event` are the classes that the engine uses.

        The engine's own figures are emitted after every `count_every` results.
        """
        self.hooks = hooks = Hooks(trace)
        self._cuda = engine.torch.cuda
        self._every = count_every
        self._streams = Streams(hooks, stream, event)
        self._buffers = Buffers(hooks, self._streams)
        """Index tensors of launches."""
        self._manager: Any = None
        self._page_size = 1
        self._width = 0
        self._runs: dict[int, Run] = {}
        self._row_of: dict[int, Run] = {}
        """Row -> its last residency."""
        self._rows: dict[int, tuple[Pages, str]] = {}
        """Row -> the pages that it names, and its last writer."""
        self._keys: dict[object, str] = {}
        """Page of the tree -> its name."""
        self._indices: dict[str, list[Use]] = {}
        """The index tensors of the next launch, and of the write of its sampled tokens."""
        self._launches: dict[int, int] = {}
        """Batch, by identity -> its launch."""
        self._who = ""
        self._results = 0

        scheduler, manager, tree = engine.scheduler.Scheduler, engine.cache.CacheManager, engine.radix.RadixPrefixCache
        adder = engine.prefill.PrefillAdder
        hooks.hook(manager, "__init__", after=self._made)
        hooks.hook(engine.table.TableManager, "allocate", after=self._row_taken)
        hooks.hook(engine.table.TableManager, "free", before=self._row_freed)
        hooks.hook(adder, "_try_allocate_one", before=self._admits, after=self._admitted)
        hooks.hook(adder, "_add_one_req", after=self._added)
        hooks.hook(tree, "lock_handle", before=self._path, after=self._locked)
        hooks.hook(tree, "insert_prefix", after=self._inserted)
        hooks.hook(tree, "evict", after=self._evicted)
        hooks.hook(engine.cache, "_write_page_table", after=self._table_written)
        hooks.hook(manager, "_free", before=lambda _, freed: self._freed(freed))
        hooks.hook(manager, "cache_req", before=lambda _, req, finished: self._acts(req), after=self._cached)
        hooks.set(manager, "lazy_free_region", self._lazily(manager.lazy_free_region))
        hooks.hook(scheduler, "_prepare_batch", after=self._prepared)
        hooks.hook(scheduler, "_free_req_resources", before=lambda _, req: self._acts(req), after=self._left)
        hooks.hook(engine.engine.Engine, "forward_batch", before=self._launch)
        hooks.hook(scheduler, "_forward", after=self._launched)
        hooks.hook(scheduler, "_process_last_data", after=self._settled)
        hooks.hook(scheduler, "run_when_idle", before=lambda _: hooks.emit(Idle([BUFFERS])))
        for loop in ("overlap_loop", "normal_loop"):
            hooks.watch(scheduler, loop)

    def _made(self, _: None, __: None, manager: Any, pages: int, page_size: int, table: Any, kind: str) -> None:
        rows, self._width = table.shape
        self._manager, self._page_size = manager, page_size
        for kept in (self._runs, self._row_of, self._rows, self._keys, self._launches):
            kept.clear()
        kv = Pool(page_size=page_size, num_pages=pages + 1, first_page=0, label_size=page_size, padding=[pages])
        row = Pool(page_size=self._width, num_pages=rows, first_page=0, label_size=1, padding=[rows - 1])
        self._buffers.clear()
        self.hooks.trace.header("mini-sglang", {KV: kv, ROWS: row, BUFFERS: self._buffers.pool})
        self._streams.clear(self._cuda)

    def _run(self, uid: int) -> Run:
        run = self._runs.get(uid)
        if run is None:
            run = self._runs[uid] = Run(f"r{uid}", self._page_size)
        return run

    def _acts(self, req: Any) -> None:
        self._who = f"r{req.uid}"

    def _pages(self, indices: Any) -> Pages:
        return [index // self._page_size for index in indices[:: self._page_size].tolist()]

    # Rows and tables

    def _row_taken(self, _: None, row: int, table: Any) -> None:
        self.hooks.emit(Take(self._who, ROWS, [row]))

    def _row_freed(self, table: Any, row: int) -> None:
        self.hooks.emit(Release(self._who, ROWS, [row]))

    def _admits(self, adder: Any, pending: Any) -> None:
        self._acts(pending)

    def _admitted(self, _: None, answer: Any, adder: Any, pending: Any) -> None:
        if answer is None:
            return
        handle, row = answer
        run = self._run(pending.uid)
        self._row_of[row] = run
        cached = handle.cached_len
        pages = self._pages(adder.table_manager.page_table[row, :cached])
        self._rows[row] = pages, run.name
        labels = run.labels(pending.input_ids[:cached].tolist(), 0, len(pages))
        self.hooks.emit(Map(run.name, run.name, KV, 0, pages, labels))
        if cached:
            self._streams.begin("_try_allocate_one", [], [self._row_use(run, row, 0, cached)])

    def _added(self, _: None, req: Any, *__: Any, **___: Any) -> None:
        run = self._run(req.uid)
        uses = [self._row_use(run, req.table_idx, req.cached_len, req.device_len)]
        self._streams.begin("_add_one_req", [], uses)

    def _row_use(self, run: Run, row: int, start: int, stop: int) -> Use:
        return Use(pool=ROWS, pages=[row], start=start, stop=stop, holder=run.name)

    def _table_written(self, _: None, __: None, table: Any, allocated: Any, written: list[Any], page_size: int) -> None:
        pages = self._pages(allocated)
        for row, first, last in written:
            run, new = self._row_of[row], pages[: last - first]
            del pages[: last - first]
            self._who = run.name
            self.hooks.emit(Take(run.name, KV, new))
            row_pages, writer = self._rows[row]
            start: int = first if writer == run.name and first <= len(row_pages) else 0
            if len(row_pages) < first:
                row_pages = self._pages(table[row, : first * page_size])
            row_pages[first:] = new
            self._rows[row] = row_pages, run.name
            self.hooks.emit(Map(run.name, run.name, KV, start, row_pages[start:], run.labels([], start, last)))

    def _cached(self, _: None, __: None, manager: Any, req: Any, finished: bool) -> None:
        """A row may name other pages now: those of the tree instead of released duplicates."""
        named = self._rows[req.table_idx][0] if req.table_idx in self._rows else []
        pages = self._pages(manager.page_table[req.table_idx, : req.cached_len])
        first = next((at for at, (one, other) in enumerate(zip(pages, named, strict=False)) if one != other), None)
        if finished or first is None:
            return
        run = self._run(req.uid)
        named[first : len(pages)] = pages[first:]
        labels = run.labels([], first, len(named))
        self.hooks.emit(Map(run.name, run.name, KV, first, named[first:], labels))

    # The free list and the tree

    def _freed(self, freed: Any) -> None:
        if len(freed):
            self.hooks.emit(Release(self._who, KV, self._pages(freed)))

    def _lazily(self, region: Any) -> Any:
        hooks = self.hooks

        @contextmanager
        def lazy_free_region(manager: Any) -> Iterator[None]:
            with region(manager):
                hold_back = manager._free

                def free(indices: Any) -> None:
                    hooks.guarded(self._freed, indices)
                    hold_back(indices)

                manager._free = free
                yield

        return lazy_free_region

    def _path(self, tree: Any, handle: Any, unlock: bool = False) -> list[tuple[Any, int]]:
        node, path = handle.node, []
        while not node.is_root():
            path.append((node, node.ref_count))
            node = node.parent
        return path

    def _locked(self, path: list[tuple[Any, int]], _: None, tree: Any, handle: Any, unlock: bool = False) -> None:
        for node, before in reversed(path):
            pages = self._pages(node.value)
            keys = [self._keys.get(page, "") for page in pages]
            added = node.ref_count - before
            for _again in range(added):
                self.hooks.emit(Share(self._who, KV, pages, keys))
            for _again in range(-added):
                self.hooks.emit(Release(self._who, KV, pages))

    def _inserted(self, _: None, answer: Any, tree: Any, tokens: Any, indices: Any) -> None:
        uid = int(self._who[1:])
        run = self._run(uid)
        known = tokens.tolist()
        for learnt in run.grown(known):
            self.hooks.emit(learnt)
        first, stop = answer.cached_len // self._page_size, answer.handle.cached_len // self._page_size
        if first == stop:
            return
        new = self._pages(answer.handle.node.value)
        labels = run.labels(known, first, stop)
        self._keys.update(zip(new, labels, strict=True))
        self.hooks.emit(Publish(KV, new, labels, labels))
        self.hooks.emit(Release(self._who, KV, new))

    def _evicted(self, _: None, evicted: Any, *__: Any) -> None:
        pages = self._pages(evicted)
        for page in pages:
            self._keys.pop(page, None)
        if pages:
            self.hooks.emit(Drop(KV, pages))

    def _left(self, _: None, __: None, scheduler: Any, req: Any) -> None:
        run = self._runs.pop(req.uid, None)
        if run is not None:
            self.hooks.emit(Unmap(run.name))
            self.hooks.emit(EndHolder(run.name))

    # Launches

    def _prepared(self, _: None, made: Any, *__: Any) -> None:
        """Index tensors were made for a launch and for the write of its sampled tokens."""
        read, written = [*made.input_tuple, made.batch.out_loc], [*made.write_tuple]
        uses = self._buffers.tensors("_prepare_batch", read + written)
        self._indices = {"forward_batch": uses[: len(read)], "_forward": uses[len(read) :]}
        made.batch.kvspec_late = self._buffers.late("forward_batch", zip(read, uses, strict=False))

    def _launch(self, engine: Any, batch: Any, *_: Any) -> None:
        reads, writes = [*self._indices["forward_batch"]], []
        for req in batch.reqs:
            run = self._run(req.uid)
            pages, writer = self._rows.get(req.table_idx, ([], run.name))
            if writer != run.name:
                self.hooks.emit(Map(run.name, run.name, KV, 0, pages))
            reads.append(Use(table=run.name, stop=req.device_len))
            writes.append(Use(table=run.name, start=req.cached_len, stop=req.device_len))
            reads.append(self._row_use(run, req.table_idx, req.cached_len, req.device_len))
        self._launches[id(batch)] = self._streams.begin("forward_batch", reads, writes)

    def _launched(self, _: None, __: Any, scheduler: Any, forward_input: Any) -> None:
        rows, positions = (tensor.tolist() for tensor in forward_input.write_tuple)
        writes = []
        for req, row, position in zip(forward_input.batch.reqs, rows, positions, strict=True):
            start = position % self._width
            writes.append(self._row_use(self._run(req.uid), row, start, start + 1))
        self._streams.begin("_forward", self._indices["_forward"], writes)

    def _settled(self, _: None, __: None, scheduler: Any, data: Any) -> None:
        if data is None:
            return
        batch = data[0].batch
        launch = self._launches.pop(id(batch))
        for req in batch.reqs:
            if type(req).__name__ != "ChunkedReq":
                self.hooks.emit(Deliver(launch, f"r{req.uid}"))
        self._results += 1
        if self._results % self._every == 0:
            self._count()

    def _count(self) -> None:
        manager, references, todo = self._manager, {}, list(self._manager.prefix_cache.root_node.children.values())
        while todo:
            node = todo.pop()
            todo += node.children.values()
            references.update(dict.fromkeys(self._pages(node.value), node.ref_count))
        free = [index // self._page_size for index in manager.free_slots.tolist()]
        self.hooks.emit(Count(KV, free=[*free], references=references))
