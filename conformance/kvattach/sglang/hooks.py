"""Hooks into SGLang: memory events of its allocators, locks, inserts, transfers and launches.

Pages of the tree have no holder: an insert publishes pages and releases the request's references, and a lock is a
reference to each page on its path (`kvattach.sglang.locks`).
"""

from collections.abc import Callable
from typing import Any

from kvattach.buffers import BUFFERS
from kvattach.hooks import Trace
from kvattach.sglang.buffers import Relay
from kvattach.sglang.locks import Locks
from kvattach.sglang.origins import Origins
from kvattach.sglang.pictures import Pictures, places_of
from kvattach.sglang.release import Release
from kvattach.sglang.routers import Routers
from kvattach.sglang.states import Kept
from kvattach.sglang.view import HOST, KV, METADATA, NEW, ROWS, STATES, STORAGE, TREE, WINDOW, Ids, Stay, space, tree_of
from kvspec.memory.events import Count, Drop, Failed, Idle, Map, Pool, Transfer, Use


class Attached(Locks):
    """Emits the events of one memory, once it is complete."""

    def __init__(
        self,
        release: Release,
        trace: Trace,
        stream: Any,
        event: Any,
        count_every: int = 1,
        device: Any = None,
    ) -> None:
        """Install the hooks. `stream` and `event` are the classes that the release uses.

        The release's own figures are emitted at every `count_every`-th of its own checks. `device` is the torch module
        with the current stream; by default a simulated device stands in for `torch.cuda`.
        """
        super().__init__(release, trace, stream, event)
        self._device = device or release.torch.cuda
        self._every = count_every
        self._looks = 0
        self._relay = (
            None if release.relay is None else Relay(release, self.hooks, self._streams, simulated=device is None)
        )
        """The buffers of launches; `None` in older releases, in which they are not followed."""
        self._routers = Routers(release, self.hooks, lambda: self._cache, lambda: self._tree.whose((None, None)))
        self._origins = Origins(release, self.hooks)
        self._pictures = Pictures(release, self.hooks, self._routers.end)
        self._install()

    def watch(self, memory: Any, metadata: int = 0) -> None:
        """A memory was made: all of it is free. `metadata`: the number of slots for the metadata of transfers."""
        self._memory = memory
        size, allocator, host = memory.cache.page_size, memory.allocator, memory.host
        self._cache, self._host, self._to_token = memory.cache, host, memory.rows
        self._size = size
        self._allocators = {KV: getattr(allocator, "full_attn_allocator", allocator)}
        self._window, self._sides = 0, getattr(allocator, "full_to_swa_index_mapping", None)
        if self._sides is not None:
            self._allocators[WINDOW] = allocator.swa_attn_allocator
            self._window = int(memory.cache.sliding_window_size)
        table = memory.rows.req_to_token
        # Rows are read at each launch: an array is quicker than a tensor.
        self._on_cpu = table.device.type == "cpu"
        self._table = table.numpy() if self._on_cpu else table
        self._tree = tree_of(self._release, memory.cache, size, self._pictures)
        self._who = [NEW]
        for kept in (
            self._stays,
            self._rows,
            self._transfers,
            self._locked,
            self._prefetched,
            self._backups,
            self._anchors,
        ):
            kept.clear()
        pools = {
            pool: Pool(page_size=size, num_pages=made.size // size, label_size=size, padding=[0])
            for pool, made in self._allocators.items()
        }
        pools[ROWS] = self._pool_of_rows(memory.rows)
        states = getattr(memory.rows, "mamba_allocator", None)
        if states is not None:
            self._allocators[STATES] = states
            pools[STATES] = Pool(num_pages=states.size, label_size=1, padding=[0])
        if host is not None:
            pools[HOST] = Pool(page_size=size, num_pages=host.size // size, first_page=0, label_size=size)
        if metadata:
            pools[METADATA] = Pool(num_pages=metadata, first_page=0, label_size=1)
        self._keys = {pool: {} for pool in pools}
        if getattr(memory.cache, "enable_storage", False):
            pools[STORAGE] = Pool(page_size=size, label_size=size, keyed=True)
        if self._relay is not None:
            self._relay.watch()
            pools[BUFFERS] = self._relay.buffers.pool
        self._fresh = {pool: set() for pool in self._allocators}
        self.hooks.trace.header("sglang", pools)
        self._routers.start(pools)
        self._streams.clear(self._device)

    # Installing

    def _install(self) -> None:
        hooks, release, cache = self.hooks, self._release, self._release.cache_class
        hooks.hook(cache, "insert", after=self._inserted)
        hooks.hook(cache, "reset", before=self._emptied)
        hooks.hook(cache, "check_hicache_events", after=lambda *_: self.looked())
        self._acting(release.batches.ScheduleBatch, "_evict_swa", lambda _, req, *__, **___: self._request(req))
        if release.unified:
            self._install_unified(cache, release.core.UnifiedTreeCore)
        else:
            self._install_radix(cache)

    def _install_unified(self, cache: Any, core: Any) -> None:
        hooks = self.hooks
        self._lock_hooks(core)
        if self._release.opaque_core is not None:
            self._lock_hooks(self._release.opaque_core)
        hooks.hook(core, "commit_backup", before=lambda _, node, *__: self._publish(node), after=self._backed_up)
        hooks.hook(core, "commit_load_back", after=lambda _, __, ___, node, *____: self._publish(node, planned=True))
        self._acting(cache, "free_kv_row", lambda _, kv, *__: self._of_row(kv.req_pool_idx))
        self._acting(cache, "on_release", lambda _, req, **__: self._request(req))
        self._acting(cache, "_drain_device_frees", lambda *_: TREE)
        self._acting(cache, "_drain_host_frees", lambda *_: TREE)
        if self._release.checkpoints:
            self._acting(cache, "checkpoint", lambda _, req, **__: self._request(req), after=self._settled)
            self._acting(cache, "lock", lambda *_, **__: self._next_lock(), after=self._owns)
            for name in ("unlock", "release_swa"):
                self._acting(cache, name, lambda _, lock: getattr(lock, "kvspec_owner", NEW))
        else:
            self._acting(cache, "cache_unfinished_req", lambda _, req, **__: self._request(req), after=self._settled)
            for name in ("insert_req", "unpin"):
                self._acting(cache, name, lambda _, req, **__: self._request(req))
        self._acting(cache, "_apply_cache_action", self._applies)
        self._acting(cache, "load_back", lambda _, node, *__, **___: f"load {node}")
        self._acting(
            cache, "_execute_and_commit_kv_backup", lambda _, action, *__, **___: f"write {action.node_ids[0]}"
        )
        self._acting(cache, "_finish_write_through_ack", lambda _, ack: f"write {ack}")

    def _install_radix(self, cache: Any) -> None:
        hooks = self.hooks
        self._lock_hooks(cache)
        self._acting(cache, "cache_unfinished_req", lambda _, req, *__, **___: self._request(req), after=self._settled)
        self._acting(cache, "cache_finished_req", lambda _, req, *__, **___: self._request(req), after=self._finished)
        for name in ("evict", "_evict_backuped", "_evict_regular"):
            self._acting(cache, name, lambda *_, **__: TREE)
        self._acting(self._release.controller_class, "evict_host", lambda *_, **__: TREE)
        self._acting(cache, "load_back", lambda _, node, *__, **___: f"load {node.id}")
        before: Callable[..., Any] = lambda _, node, *__, **___: self._publish(node)  # noqa: E731
        hooks.hook(cache, "write_backup", before=before)
        self._acting(cache, "write_backup", lambda _, node, *__, **___: f"write {node.id}", after=self._backed_up)

    # Holders

    def _applies(self, _: Any, action: Any) -> str:
        """A tree frees its own pages for others that have their window. Otherwise it acts for its caller's holder."""
        if type(action).__name__ != "FreeDeviceKVFullOnly":
            return self._who[-1]
        pages = [page for indices in action.indices for page in self._tree.pages(indices)]
        return TREE if all(page in self._keys[KV] for page in pages) else self._who[-1]

    def _request(self, req: Any) -> str:
        """The holder of a request with its output so far. A turn that was not launched yet has its session's holder."""
        stay = self._stays.get(req.rid)
        if stay is None:
            return self._of_row(self._row_of(req))
        self._grows(stay, req)
        return stay.name

    def _grows(self, stay: Stay, req: Any) -> None:
        """The output of a request so far is known; only what is new of it is read."""
        self._tree.used(stay.named, stay.whose)
        start, prompt, output = stay.labelled, req.origin_input_ids, req.output_ids
        if start + self._size <= len(prompt) + len(output):
            new = [*prompt[start:], *output] if start < len(prompt) else output[start - len(prompt) :]
            self.hooks.emit(*stay.grown(new, start))

    # The tree

    def _emptied(self, cache: Any) -> None:
        """The server flushed its cache: only sessions may still hold anything, and they lose it."""
        if cache != self._cache:
            return
        self.idle(sessions=True)
        if any(not stay.rid for stay in self._rows.values()):
            self.watch(self._memory)
            return
        for pool, keys in self._keys.items():
            self.hooks.emit(Drop(pool, [*keys]))
            keys.clear()

    def _settled(self, _: None, __: Any, ___: Any, req: Any, *____: Any, **_____: Any) -> None:
        """A request has published: its row names the tree's pages, and its lock has changed."""
        stay = self._stays.get(req.rid)
        if stay is not None:
            self._adopt(req, stay.name)
            self._map(stay, len(stay.pages[KV]) * self._size)

    # Requests

    def reads_rows(self, reqs: list[Any], stops: list[int]) -> None:
        """The next forward pass reads the rows of its requests, on the current stream."""
        reads = []
        for req, stop in zip(reqs, stops, strict=True):
            stay = self._reader(req)
            if stay is not None:
                reads.append(self._entries(stay.row, 0, stop))
        self._streams.begin("forward_batch_generation rows", reads, [])

    def launch(
        self,
        reqs: list[Any],
        starts: list[int],
        stops: list[int],
        kept: list[Kept | None] | None = None,
        drafts: int = 0,
    ) -> Callable[[], None] | None:
        """A forward pass was queued on the current stream, after `reads_rows` and the waits that it needs.

        `kept` are the states that it keeps. It computes `drafts` tokens from each start on; those from the stop on are
        rejected. A simulated device calls the result, if any, when it reaches the pass.
        """
        with self.hooks.together():
            return self._launched_for(reqs, starts, stops, kept, drafts)

    def _launched_for(
        self, reqs: list[Any], starts: list[int], stops: list[int], kept: list[Kept | None] | None, drafts: int
    ) -> Callable[[], None] | None:
        """See `launch`."""
        reads, writes, moves = [], [], []
        for req, start, stop in zip(reqs, starts, stops, strict=True):
            stay = self._stays.get(req.rid)
            if stay is None:
                continue
            self._grows(stay, req)
            self._adopt(req, stay.name)
            first = max(0, start - self._window)
            stay.reads_from = first // self._size
            drafted = max(stop, start + drafts)
            # The request also holds the room for further drafts.
            self._map(stay, max(drafted, req.kv.kv_allocated_len) if drafts else drafted)
            reads.append(Use(table=stay.name, stop=stop))
            writes.append(Use(table=stay.name, start=start, stop=stop))
            if self._sides is not None:
                reads.append(Use(table=stay.table(WINDOW), start=first, stop=stop))
                writes.append(Use(table=stay.table(WINDOW), start=start, stop=stop))
            if drafted > stop:
                writes += self._rejected(stay, stop, drafted)
            moves.append((stay, req, start, stop))
        if STATES in self._allocators:
            self._move_states(moves, kept or [None] * len(moves))
        indices = [] if self._relay is None else self._relay.reads
        self._streams.begin("forward_batch_generation", reads + indices, writes)
        return None if self._relay is None else self._relay.late

    def _begins(self, req: Any) -> Stay | None:
        """A request is launched for the first time in its row, or in its session's. `None`: it has no row."""
        row = self._row_of(req)
        if row is None:
            self.hooks.emit(Failed("assertion", f"{req.rid} is launched without a row"))
            return None
        stay = self._stays[req.rid] = Stay(
            f"{req.rid}.{next(self._numbers)}", self._size, req.rid, self._origins.whose(req), space(req)
        )
        stay.images = places_of(req)
        before, stay.row = self._rows.get(row), row
        self._rows[row] = stay
        if before is not None and not before.rid:
            self._lent(before, stay, req)
        elif not self._release.checkpoints:
            self._adopt_path(req, stay.name)
        self._row_begins(stay, fresh=before is None)
        return stay

    def _rejected(self, stay: Stay, start: int, stop: int) -> list[Use]:
        """The writes of rejected drafts, with labels that no read expects."""
        self._launched += 1
        first, last = start // self._size, (stop - 1) // self._size + 1
        labels = [f"{stay.name} draft {self._launched}"] * (last - first)
        begin = first * self._size
        pools = [KV] if self._sides is None else [KV, WINDOW]
        pages = {pool: stay.pages[pool][first:last] for pool in pools}
        return [
            Use(None, pool, [*pages[pool]], start - begin, stop - begin, labels, holder=stay.name) for pool in pools
        ]

    def _map(self, stay: Stay, stop: int) -> None:
        """Map the new pages of a row, and its window pages from the first read position on.

        All entries are compared with those of the last launch; only the entries after them become pages.
        """
        row = self._table[stay.row, : stop : self._size]
        entries = row if self._on_cpu else row.cpu().numpy()
        known, seen = stay.pages.setdefault(KV, []), entries.tobytes()
        if not stay.entries.startswith(seen):
            first = len(stay.entries) // entries.itemsize if seen.startswith(stay.entries) else 0
            stay.entries = seen
            pages = [slot // self._size for slot in entries[first:].tolist()]
            same = _shared(known[first:], pages)
            self._map_pool(stay, KV, first + same, pages[same:])
        if self._sides is not None:
            first, known = stay.reads_from, stay.pages.setdefault(WINDOW, [])
            firsts = self._to_token.req_to_token[stay.row, : stop : self._size]
            behind = self._sides[firsts.long()] // self._size
            passed = known[:first] + [0] * (min(first, len(behind)) - len(known))
            pages = passed + behind.tolist()[first:]
            same = _shared(known, pages)
            self._map_pool(stay, WINDOW, same, pages[same:])

    def _map_pool(self, stay: Stay, pool: str, first: int, pages: Ids) -> None:
        """The table of a request names these pages from page `first` on, and no longer what it named there."""
        if not pages:
            return
        fresh = self._fresh[pool]
        mine = [page for page in pages if page in fresh]
        if mine:
            fresh.difference_update(mine)
            self.hooks.emit(Transfer(NEW, stay.name, pool, [*mine]))
        stay.pages[pool][first:] = pages
        labels = stay.labels((), first, first + len(pages))
        self.hooks.emit(Map(stay.table(pool), stay.name, pool, first, [*pages], labels))

    def reserved(self, req: Any, stop: int) -> Stay | None:
        """The row of a request has pages up to position `stop` before its first launch. `None`: it has no row."""
        stay = self._stays.get(req.rid) or self._begins(req)
        if stay is not None:
            self._adopt(req, stay.name)
            self._grows(stay, req)
            self._map(stay, stop)
        return stay

    def saved(self, req: Any, *, back: bool = False) -> None:
        """A request's pages were copied to the host, or `back`, on the current stream."""
        stay = self._stays.get(req.rid)
        if stay is not None:
            use = [Use(table=stay.name, stop=req.seqlen - 1)]
            self._streams.begin("load_cpu_copy" if back else "get_cpu_copy", [] if back else use, use if back else [])

    def stay(self, req: Any) -> Stay | None:
        """The holder of a request's row, with the output so far; `None`: it has none."""
        self._request(req)
        return self._stays.get(req.rid)

    @property
    def release(self) -> Release:
        """The release."""
        return self._release

    @property
    def page_size(self) -> int:
        """The number of tokens of a page."""
        return self._size

    def synchronized(self) -> None:
        """The host has waited for the current stream."""
        self._streams.synchronized()

    # The books

    def idle(self, *, sessions: bool = False) -> None:
        """Nothing runs, and no transfer is in flight. With `sessions` slots of sessions may keep their pages."""
        kept = [] if self._relay is None else [BUFFERS]
        self.hooks.emit(Idle([*kept, *(stay.name for stay in self._rows.values() if sessions and not stay.rid)]))

    def looked(self) -> None:
        """Now and then emit the release's own figures."""
        self._looks += 1
        if self._looks % self._every:
            return
        for pool, allocator in self._allocators.items():
            loading = {page for given in self._transfers.values() for page in given.get(pool, [])}
            if pool == STATES:
                staged = [allocator.free_slots]
            else:
                staged = [*getattr(allocator, "staged_pages", []), allocator.free_pages]
            if getattr(allocator, "release_pages", None) is not None:
                staged.append(allocator.release_pages)
            free = [int(page) for part in staged for page in part.tolist()]
            # A tree that is switched off has no figures.
            books = self._tree.books(pool, without=loading) if pool in self._tree.pools else {}
            self.hooks.emit(Count(pool, free=[*free], **books))
        self.hooks.emit(Count(ROWS, free=[*self._to_token.free_slots]))
        if self._host is None:
            return
        parts = [self._host.free_slots, *getattr(self._host, "release_slots", [])]
        self.hooks.emit(Count(HOST, free=[page for part in parts for page in self._tree.pages(part)]))


def _shared(known: Ids, pages: Ids) -> int:
    """The number of common first pages of two lists. Usually one list continues the other."""
    both = min(len(known), len(pages))
    if known[:both] == pages[:both]:
        return both
    return next(at for at, (one, other) in enumerate(zip(known, pages, strict=False)) if one != other)
