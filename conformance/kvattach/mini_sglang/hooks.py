"""Hooks into mini-sglang: memory events of its tables, its free list, its radix tree's locks and its launches.

Pages of the tree have no holder: an insert publishes pages and releases the request's references, and a lock is a
reference to each page on its path. The launch and the write of its sampled token are two operations: the event that
the scheduler waits for is recorded between them.

A hook captures, and a resolution turns the captured indices into pages and events: at once, or late (`kvattach.tape`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import compress, islice
from typing import Any

from kvattach.books import in_runs, steps_between
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

    def __init__(
        self,
        engine: Engine,
        trace: Trace,
        stream: Any,
        event: Any,
        count_every: int = 1,
        *,
        simulated: bool = True,
    ) -> None:
        """Install the hooks. `stream` and `event` are the classes that the engine uses.

        The engine's own figures are emitted after every `count_every` results, those of a large memory less often. A
        `simulated` device calls `kvspec_late` of a batch when it reaches the launch of it.
        """
        self.hooks = Hooks(trace)
        self._torch = engine.torch
        self._every = count_every
        self._simulated = simulated
        self._streams = Streams(self.hooks, stream, event)
        self._buffers = Buffers(self.hooks, self._streams)
        """Index tensors of launches."""
        self._manager: Any = None
        self._page_size = 1
        self._width = 0
        self._runs: dict[int, Run] = {}
        self._round, self._newest = 0, -1
        """How often the numbers of requests have begun anew, and the last number since then."""
        self._row_of: dict[int, Run] = {}
        """Row -> its last residency."""
        self._lengths: dict[int, int] = {}
        """Row -> the number of pages that it names."""
        self._rows: dict[int, tuple[Pages, str]] = {}
        """Row -> these pages, and its last writer, as far as captures are resolved."""
        self._keys: dict[object, str] = {}
        """Page of the tree -> its name."""
        self._indices: dict[str, list[Use]] = {}
        """The index tensors of the next launch, and of the write of its sampled tokens."""
        self._sampled: list[Use] = []
        """The rows and positions of that write, as far as captures are resolved."""
        self._launching: list[Run] = []
        """The requests of the next launch."""
        self._launches: dict[int, tuple[int, list[Run]]] = {}
        """Batch, by identity -> its launch, and its requests."""
        self._who = Run("", 1)
        """The request for which the engine acts."""
        self._results = 0
        self._install(engine)

    def _install(self, engine: Engine) -> None:
        hooks = self.hooks
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
        hooks.hook(scheduler, "run_when_idle", before=self._idles)
        for loop in ("overlap_loop", "normal_loop"):
            hooks.watch(scheduler, loop, expected=self._offline_ends)

    def _made(self, _: None, __: None, manager: Any, pages: int, page_size: int, table: Any, kind: str) -> None:
        rows, self._width = table.shape
        self._manager, self._page_size = manager, page_size
        for kept in (self._runs, self._row_of, self._lengths, self._rows, self._keys, self._launches):
            kept.clear()
        kv = Pool(page_size=page_size, num_pages=pages + 1, first_page=0, label_size=page_size, padding=[pages])
        row = Pool(page_size=self._width, num_pages=rows, first_page=0, label_size=1, padding=[rows - 1])
        self._buffers.clear()
        self._every = steps_between(self._every, pages)
        self.hooks.trace.header("mini-sglang", {KV: kv, ROWS: row, BUFFERS: self._buffers.pool})
        self._streams.clear(self._torch.cuda)

    def _run(self, uid: int) -> Run:
        run = self._runs.get(uid)
        if run is None:
            name = f"r{uid}.{self._round}" if self._round else f"r{uid}"
            run = self._runs[uid] = Run(name, self._page_size)
        return run

    def _acts(self, req: Any) -> None:
        self._who = self._run(req.uid)

    def _firsts(self, indices: Any) -> Any:
        """The first index of each page."""
        return indices[:: self._page_size]

    def _pages(self, firsts: Any) -> list[Any]:
        """The numbers of pages."""
        return [index // self._page_size for index in firsts.tolist()]

    def _idles(self, *_: Any) -> None:
        self.hooks.emit(Idle([BUFFERS]))

    def _offline_ends(self, error: BaseException) -> bool:
        """Without a server, this error ends the loop once all requests have finished."""
        ended = type(error).__name__ == "RequestAllFinished"
        if ended:
            self._idles()
        return ended

    # Rows and tables

    def _row_taken(self, _: None, row: int, table: Any) -> None:
        self.hooks.emit(Take(self._who.name, ROWS, [row]))

    def _row_freed(self, table: Any, row: int) -> None:
        self.hooks.emit(Release(self._who.name, ROWS, [row]))

    def _admits(self, adder: Any, pending: Any) -> None:
        """Requests may have the numbers of earlier ones: without a server each call begins with number 0."""
        if pending.uid not in self._runs and pending.uid <= self._newest:
            self._round, self._newest = self._round + 1, -1
        self._acts(pending)

    def _admitted(self, _: None, answer: Any, adder: Any, pending: Any) -> None:
        if answer is None:
            del self._runs[pending.uid]
            return
        self._newest = pending.uid
        handle, row = answer
        run, cached = self._who, handle.cached_len
        firsts = self._firsts(adder.table_manager.page_table[row, :cached])
        self._row_of[row], self._lengths[row] = run, len(firsts)
        self.hooks.later(partial(self._matched, run, row), firsts, pending.input_ids[:cached])
        if cached:
            self._streams.begin("_try_allocate_one", [], [self._row_use(run, row, 0, cached)])

    def _matched(self, run: Run, row: int, firsts: Any, tokens: Any) -> None:
        pages = self._pages(firsts)
        self._rows[row] = pages, run.name
        self.hooks.emit(Map(run.name, run.name, KV, 0, [*pages], run.labels(tokens.tolist(), 0, len(pages))))

    def _added(self, _: None, req: Any, *__: Any, **___: Any) -> None:
        run = self._run(req.uid)
        uses = [self._row_use(run, req.table_idx, req.cached_len, req.device_len)]
        self._streams.begin("_add_one_req", [], uses)

    def _row_use(self, run: Run, row: int, start: int, stop: int) -> Use:
        return Use(pool=ROWS, pages=[row], start=start, stop=stop, holder=run.name)

    def _table_written(self, _: None, __: None, table: Any, allocated: Any, written: list[Any], page_size: int) -> None:
        lengths, runs = self._lengths, [self._row_of[row] for row, _, _ in written]
        unknown, before = [], []
        for at, (row, first, last) in enumerate(written):
            if first > lengths[row]:
                # Another request has written the row.
                unknown.append(at)
                before.append(self._firsts(table[row, : first * page_size]))
            lengths[row] = last
        self.hooks.later(partial(self._taken, runs, [*written], unknown), self._firsts(allocated), *before)

    def _taken(
        self, runs: list[Run], written: list[tuple[int, int, int]], unknown: list[int], allocated: Any, *before: Any
    ) -> None:
        """Requests take pages, and their rows name them; what some of the rows name before was not known."""
        pages, known = self._pages(allocated), dict(zip(unknown, before, strict=True))
        for at, (run, (row, first, last)) in enumerate(zip(runs, written, strict=True)):
            new = pages[: last - first]
            del pages[: last - first]
            self.hooks.emit(Take(run.name, KV, new))
            named, writer = self._rows[row]
            start = first if writer == run.name and first <= len(named) else 0
            if len(named) < first:
                named = self._pages(known[at])
            named[first:] = new
            self._rows[row] = named, run.name
            self.hooks.emit(Map(run.name, run.name, KV, start, named[start:], run.labels([], start, last)))

    def _cached(self, _: None, __: None, manager: Any, req: Any, finished: bool) -> None:
        """A row may name other pages now: those of the tree instead of released duplicates."""
        if not finished:
            firsts = self._firsts(manager.page_table[req.table_idx, : req.cached_len])
            self.hooks.later(partial(self._looked, self._who, req.table_idx), firsts)

    def _looked(self, run: Run, row: int, firsts: Any) -> None:
        named, pages = self._rows[row][0] if row in self._rows else [], self._pages(firsts)
        first = next((at for at, (one, other) in enumerate(zip(pages, named, strict=False)) if one != other), None)
        if first is None:
            return
        named[first : len(pages)] = pages[first:]
        labels = run.labels([], first, len(named))
        self.hooks.emit(Map(run.name, run.name, KV, first, named[first:], labels))

    # The free list and the tree

    def _freed(self, freed: Any) -> None:
        if len(freed):
            name = self._who.name
            self.hooks.later(
                lambda firsts: self.hooks.emit(Release(name, KV, self._pages(firsts))), self._firsts(freed)
            )

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
        if path:
            changes = [node.ref_count - before for node, before in reversed(path)]
            values = [self._firsts(node.value) for node, _ in reversed(path)]
            self.hooks.later(partial(self._referenced, self._who.name, changes), *values)

    def _referenced(self, who: str, changes: list[int], *values: Any) -> None:
        """A holder has so many references more to the pages of each node of a path."""
        for added, value in zip(changes, values, strict=True):
            pages = self._pages(value)
            keys = [self._keys.get(page, "") for page in pages]
            for _again in range(added):
                self.hooks.emit(Share(who, KV, pages, keys))
            for _again in range(-added):
                self.hooks.emit(Release(who, KV, pages))

    def _inserted(self, _: None, answer: Any, tree: Any, tokens: Any, indices: Any) -> None:
        first, stop = answer.cached_len // self._page_size, answer.handle.cached_len // self._page_size
        firsts = None if first == stop else self._firsts(answer.handle.node.value)
        self.hooks.later(partial(self._published, self._who, first, stop), tokens, firsts)

    def _published(self, run: Run, first: int, stop: int, tokens: Any, firsts: Any) -> None:
        """A request has these tokens; its pages `first` to `stop` (exclusive) are the tree's now."""
        known = tokens.tolist()
        for learnt in run.grown(known):
            self.hooks.emit(learnt)
        if firsts is None:
            return
        new, labels = self._pages(firsts), run.labels(known, first, stop)
        self._keys.update(zip(new, labels, strict=True))
        self.hooks.emit(Publish(KV, new, labels, labels))
        self.hooks.emit(Release(run.name, KV, new))

    def _evicted(self, _: None, evicted: Any, *__: Any) -> None:
        if len(evicted):
            self.hooks.later(self._dropped, self._firsts(evicted))

    def _dropped(self, firsts: Any) -> None:
        pages = self._pages(firsts)
        for page in pages:
            self._keys.pop(page, None)
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
        self._launching, self._sampled = [self._run(req.uid) for req in made.batch.reqs], []
        # Here, on the stream that has made the tensors: on a later one they may be freed before they are copied.
        self.hooks.later(partial(self._samples, self._launching, self._sampled), *made.write_tuple)
        if self._simulated:
            made.batch.kvspec_late = self._buffers.late("forward_batch", zip(read, uses, strict=False))

    def _samples(self, runs: list[Run], writes: list[Use], rows: Any, positions: Any) -> None:
        """Add the uses: each request's sampled token is written to this row, at this position."""
        for run, row, position in zip(runs, rows.tolist(), positions.tolist(), strict=True):
            start = position % self._width
            writes.append(self._row_use(run, row, start, start + 1))

    def _launch(self, engine: Any, batch: Any, *_: Any) -> None:
        # A list for each fact, and not an object for each request: a launch has many.
        reqs, runs = batch.reqs, self._launching
        rows, starts, stops = [
            [getattr(req, name) for req in reqs] for name in ("table_idx", "cached_len", "device_len")
        ]
        reads, writes = [*self._indices["forward_batch"]], list[Use]()
        self.hooks.later(partial(self._launch_uses, runs, rows, starts, stops, reads, writes))
        self._launches[id(batch)] = self._streams.begin("forward_batch", reads, writes), runs

    def _launch_uses(
        self, runs: list[Run], rows: list[int], starts: list[int], stops: list[int], reads: list[Use], writes: list[Use]
    ) -> None:
        """Add the uses of a launch. It may read a row that another request has written last."""
        for run, row, start, stop in zip(runs, rows, starts, stops, strict=True):
            pages, writer = self._rows.get(row, ([], run.name))
            if writer != run.name:
                self.hooks.emit(Map(run.name, run.name, KV, 0, [*pages]))
            reads.append(Use(table=run.name, stop=stop))
            writes.append(Use(table=run.name, start=start, stop=stop))
            reads.append(self._row_use(run, row, start, stop))

    def _launched(self, *_: Any) -> None:
        self._streams.begin("_forward", self._indices["_forward"], self._sampled)

    def _settled(self, _: None, __: None, scheduler: Any, data: Any) -> None:
        if data is None:
            return
        batch = data[0].batch
        launch, runs = self._launches.pop(id(batch))
        sampled = [type(req).__name__ != "ChunkedReq" for req in batch.reqs]
        self.hooks.later(partial(self._delivered, launch, [*compress(runs, sampled)]))
        self._results += 1
        if self._results % self._every == 0:
            self._count()

    def _delivered(self, launch: int, runs: list[Run]) -> None:
        self.hooks.emit(*(Deliver(launch, run.name) for run in runs))

    def _count(self) -> None:
        """Emit the figures of the free list and of the tree. With `--cache-type naive` there is no tree."""
        manager, nodes = self._manager, []
        root = getattr(manager.prefix_cache, "root_node", None)
        todo = [] if root is None else [*root.children.values()]
        while todo:
            nodes.append(todo.pop())
            todo += nodes[-1].children.values()
        values = [self._firsts(node.value) for node in nodes]
        counts = [(len(value), node.ref_count) for value, node in zip(values, nodes, strict=True)]
        # One tensor, for one copy.
        self.hooks.later(partial(self._counted, counts), self._torch.cat([*values, manager.free_slots]))

    def _counted(self, counts: list[tuple[int, int]], firsts: Any) -> None:
        """The pages of nodes, of which each has so many, and so many locks; then the free pages."""
        cached = sum(many for many, _ in counts)
        pages = iter(self._pages(firsts[:cached]))
        references = {page: locks for many, locks in counts for page in islice(pages, many)}
        free = in_runs((firsts[cached:] // self._page_size).cpu().numpy())
        self.hooks.emit(Count(KV, free=free, references=references))
