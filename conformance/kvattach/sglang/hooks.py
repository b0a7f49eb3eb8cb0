"""Hooks into SGLang: memory events of its allocators, locks, inserts, transfers and launches.

Pages of the tree have no holder: an insert publishes pages and releases the request's references, and a lock is a
reference to each page on its path (`kvattach.sglang.locks`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kvattach.books import in_runs, steps_between
from kvattach.buffers import BUFFERS
from kvattach.hooks import Trace
from kvattach.sglang.buffers import Relay
from kvattach.sglang.launched import Launched
from kvattach.sglang.origins import Origins
from kvattach.sglang.pictures import Pictures
from kvattach.sglang.release import Release
from kvattach.sglang.routers import Routers
from kvattach.sglang.table import SLOTS, Table
from kvattach.sglang.view import EITHER, HOST, KV, METADATA, NEW, ROWS, STATES, STORAGE, TREE, WINDOW, Stay, tree_of
from kvspec.memory.events import Count, Drop, Idle, Pages, Pool, Use


class Attached(Launched):
    """Emits the events of one memory, once it is complete."""

    def __init__(
        self,
        release: Release,
        trace: Trace,
        stream: Any = None,
        event: Any = None,
        count_every: int = 1,
        device: Any = None,
    ) -> None:
        """Install the hooks. `stream` and `event` are the classes that the release uses; `None` on a CPU.

        The release's own figures are emitted at every `count_every`-th of its own checks, those of a large memory less
        often. `device` is the torch module with the current stream; by default a simulated device stands in for
        `torch.cuda`.
        """
        super().__init__(release, trace, stream, event)
        self._device = device or release.torch.cuda
        self._every = count_every
        self._looks = self._looked = 0
        """The looks at anything new, and the number of events or captures until the last one."""
        self._relay = None
        """The buffers of launches. On a CPU no operation reads one late, and in older releases none is followed."""
        if release.relay is not None and not self._streams.on_host:
            self._relay = Relay(release, self.hooks, self._streams, simulated=device is None)
        self._routers = Routers(release, self.hooks, lambda: self._cache, lambda: self._tree.whose((None, None)))
        self._origins = Origins(release, self.hooks)
        self._pictures = Pictures(release, self.hooks, self._routers.end)
        self._install()

    def watch(self, memory: Any, metadata: int = 0, server: str | None = None) -> None:
        """A memory was made: all of it is free. `metadata`: the number of slots for the metadata of transfers.

        `server` is its name, if other servers reach its memory.
        """
        self._memory = memory
        size, allocator, host = memory.cache.page_size, memory.allocator, memory.host
        self._cache, self._host, self._to_token = memory.cache, host, memory.rows
        self._size = size
        self._allocators = {KV: getattr(allocator, "full_attn_allocator", allocator)}
        self._window, sides = 0, getattr(allocator, "full_to_swa_index_mapping", None)
        if sides is not None:
            self._allocators[WINDOW] = allocator.swa_attn_allocator
            self._window = int(memory.cache.sliding_window_size)
        slots = [getattr(memory.rows, name, None) for name in SLOTS]
        live = self.hooks.tape is not None or self._streams.on_host
        self._table = Table(self._release.torch, memory.rows.req_to_token, size, sides, slots, whole=not live)
        self._shares = host is not None or sides is not None
        self._tree = tree_of(self._release, memory.cache, size, self._pictures)
        self._who = [NEW]
        for kept in (
            self._stays,
            self._rows,
            self._readers,
            self._transfers,
            self._locked,
            self._prefetched,
            self._backups,
            self._backing,
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
        self._every = steps_between(self._every, max(pool.num_pages or 0 for pool in pools.values()))
        if getattr(memory.cache, "enable_storage", False):
            pools[STORAGE] = Pool(page_size=size, label_size=size, keyed=True)
        if self._relay is not None:
            self._relay.watch()
            pools[BUFFERS] = self._relay.buffers.pool
        self._fresh = {pool: set() for pool in self._allocators}
        self.hooks.trace.header("sglang", pools, server)
        self._routers.start(pools)
        self._streams.clear(self._device)

    # Installing

    def _install(self) -> None:
        hooks, release, cache = self.hooks, self._release, self._release.cache_class
        hooks.hook(release.tree_class, "insert", after=self._inserted)
        hooks.hook(release.tree_class, "reset", before=self._emptied)
        hooks.hook(cache, "check_hicache_events", after=lambda *_: self.looked())
        self._acting(release.batches.ScheduleBatch, "_evict_swa", lambda _, req, *__, **___: self._request(req))
        if release.unified:
            self._install_unified(cache, release.core.UnifiedTreeCore)
        else:
            self._install_radix(cache, release.tree_class)

    def _install_unified(self, cache: Any, core: Any) -> None:
        hooks = self.hooks
        self._lock_hooks(core)
        if self._release.opaque_core is not None:
            self._lock_hooks(self._release.opaque_core)
        hooks.hook(core, "commit_backup", before=lambda _, node, *__: self._publish(node), after=self._backed_up)
        hooks.hook(core, "commit_load_back", after=lambda _, __, ___, node, *____: self._publish(node, planned=True))
        self._acting(cache, "_drain_device_frees", lambda *_: TREE)
        self._acting(cache, "_drain_host_frees", lambda *_: TREE)
        self._acting(cache, "_apply_cache_action", self._applies)
        if hasattr(cache, "on_release"):
            self._acting(cache, "free_kv_row", lambda _, kv, *__: self._of_row(kv.req_pool_idx))
            self._acting(cache, "on_release", lambda _, req, **__: self._request(req))
        else:
            self._acting(cache, "cache_finished_req", lambda _, req, **__: self._request(req), after=self._finished)
        if self._release.checkpoints:
            self._acting(cache, "checkpoint", lambda _, req, **__: self._request(req), after=self._settled)
            self._acting(cache, "lock", lambda *_, **__: self._next_lock(), after=self._owns)
            for name in ("unlock", "release_swa"):
                self._acting(cache, name, lambda _, lock: getattr(lock, "kvspec_owner", NEW))
        else:
            self._acting(cache, "cache_unfinished_req", lambda _, req, **__: self._request(req), after=self._settled)
            for name in ("insert_req", "unpin"):
                if hasattr(cache, name):
                    self._acting(cache, name, lambda _, req, **__: self._request(req))
        self._acting(cache, "load_back", lambda _, node, *__, **___: f"load {node}")
        self._acting(
            cache, "_execute_and_commit_kv_backup", lambda _, action, *__, **___: f"write {action.node_ids[0]}"
        )
        self._acting(cache, "_finish_write_through_ack", lambda _, ack: f"write {ack}")

    def _install_radix(self, cache: Any, tree: Any) -> None:
        hooks = self.hooks
        self._lock_hooks(tree)
        self._acting(tree, "cache_unfinished_req", lambda _, req, *__, **___: self._request(req), after=self._settled)
        self._acting(tree, "cache_finished_req", lambda _, req, *__, **___: self._request(req), after=self._finished)
        for owner, name in ((tree, "evict"), (cache, "_evict_backuped"), (cache, "_evict_regular")):
            self._acting(owner, name, lambda *_, **__: TREE)
        self._acting(self._release.controller_class, "evict_host", lambda *_, **__: TREE)
        self._acting(cache, "load_back", lambda _, node, *__, **___: f"load {node.id}")
        before: Callable[..., Any] = lambda _, node, *__, **___: self._publish(node)  # noqa: E731
        hooks.hook(cache, "write_backup", before=before)
        self._acting(cache, "write_backup", lambda _, node, *__, **___: f"write {node.id}", after=self._backed_up)

    # Holders

    def _applies(self, _: Any, action: Any) -> str:
        """A tree may free its own pages for others that have their window. Else it acts for its caller's holder."""
        return EITHER if type(action).__name__ == "FreeDeviceKVFullOnly" else self._who[-1]

    # The tree

    def _emptied(self, cache: Any) -> None:
        """The server flushed its cache: only sessions may still hold anything, and they lose it."""
        if cache == self._cache:
            with self.hooks.at_once("reset"):
                self._emptied_at_once()

    def _emptied_at_once(self) -> None:
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
            self._map(stay, stay.looked, anew=True)

    # Requests

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
        with self.hooks.reporting():
            self.hooks.emit(Idle([*kept, *(stay.name for stay in self._rows.values() if sessions and not stay.rid)]))

    def looked(self) -> None:
        """Now and then emit the release's own figures. An idle server looks all the time, and emits none."""
        if self.hooks.seen == self._looked:
            return
        self._looked = self.hooks.seen
        self._looks += 1
        if self._looks % self._every == 0:
            with self.hooks.reporting():
                self._counts()

    def _counts(self) -> None:
        for pool, allocator in self._allocators.items():
            if pool == STATES:
                free = [allocator.free_slots]
            else:
                free = [*getattr(allocator, "staged_pages", []), allocator.free_pages]
            if getattr(allocator, "release_pages", None) is not None:
                free.append(allocator.release_pages)
            # A tree that is switched off has no figures.
            counts, firsts = self._tree.books(pool) if pool in self._tree.pools else (None, [])
            self.hooks.later(partial(self._counted, pool, len(free), counts), *free, *firsts)
        self.hooks.emit(Count(ROWS, free=[*self._to_token.free_slots]))
        if self._host is None:
            return
        self.hooks.later(self._host_counted, self._host.free_slots, *getattr(self._host, "release_slots", []))

    def _counted(self, pool: str, parts: int, counts: list[tuple[int, int]] | None, *tensors: Any) -> None:
        """The first `parts` tensors have the free pages of a pool, the others the pages that the tree counts."""
        loading = {page for given in self._transfers.values() for page in given.get(pool, [])}
        books = {} if counts is None else self._tree.counted(pool, counts, tensors[parts:], without=loading)
        self.hooks.emit(Count(pool, free=self._listed(tensors[:parts]), **books))

    def _host_counted(self, *free: Any) -> None:
        self.hooks.emit(Count(HOST, free=self._listed([part[:: self._size] // self._size for part in free])))

    def _listed(self, parts: Sequence[Any]) -> Pages:
        """All pages of some tensors."""
        return in_runs(self._release.torch.cat([*parts]).cpu().numpy())
