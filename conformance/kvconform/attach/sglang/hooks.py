"""Hooks into SGLang: allocators, locks, inserts, transfers and launches, in the law's events.

Pages of the tree belong to nobody: what is inserted is published and given up by its request, a lock is a reference to
each page on its path. A transfer is a holder of its own: it holds what it was given until it is acknowledged. Locks do
not say who asked for them; who does is known by the function that is under way, and a request's own lock passes to it
when it is first launched.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kvconform.attach.hooks import Hooks, Trace
from kvconform.attach.sglang.release import Release
from kvconform.attach.sglang.view import HOST, KV, NEW, TREE, Ids, Stay, tree_of
from kvconform.attach.streams import Streams
from kvspec.memory.events import (
    Count,
    Drop,
    Idle,
    Leave,
    Map,
    Pages,
    PassOn,
    Pool,
    Publish,
    Share,
    Take,
    Unmap,
    Use,
)
from kvspec.memory.events import (
    Release as Released,
)


class Attached:
    """Tells what one host cache does, from the moment it is complete."""

    def __init__(self, release: Release, trace: Trace, stream: Any, event: Any, count_every: int = 1) -> None:
        """Install the hooks. `stream` and `event` are the classes that the release uses.

        The release's own books are told each `count_every` looks at the transfers.
        """
        self.hooks = Hooks(trace)
        self._release = release
        self._every = count_every
        self._looks = 0
        self._streams = Streams(self.hooks, stream, event)
        self._who: list[str] = [NEW]
        """Who acts, the innermost function last."""
        self._stays: dict[str, Stay] = {}
        self._stretches: Counter[str] = Counter()
        """Request -> how often it had a row."""
        self._rows: dict[int, Stay] = {}
        self._fresh: set[int] = set()
        """Pages that were allocated and belong to no request yet."""
        self._keys: dict[str, dict[int, str]] = {}
        """Pool -> page of the tree -> the name under which it is found."""
        self._transfers: dict[str, dict[str, Ids]] = {}
        """Transfer -> pool -> what it was given."""
        self._locked: list[tuple[str, Any]] = []
        """Each lock: who has it, and its node."""
        self._launched = 0
        self._cache: Any = None
        self._install()

    def watch(self, memory: Any) -> None:
        """A memory was made: all of it is free."""
        size, allocator, host = memory.cache.page_size, memory.allocator, memory.host
        self._cache, self._allocator, self._host, self._to_token = memory.cache, allocator, host, memory.rows
        self._size = size
        self._tree = tree_of(self._release, memory.cache, size)
        self._who = [NEW]
        for kept in (self._stays, self._stretches, self._rows, self._fresh, self._transfers, self._locked):
            kept.clear()
        pools = {
            KV: Pool(page_size=size, num_pages=allocator.size // size, label_size=size, sinks=[0]),
        }
        if host is not None:
            pools[HOST] = Pool(page_size=size, num_pages=host.size // size, first_page=0, label_size=size)
        self._keys = {pool: {} for pool in pools}
        self.hooks.trace.header("sglang", pools)
        self._streams.clear(self._release.torch.cuda)

    # Installing

    def _install(self) -> None:
        hooks, release = self.hooks, self._release
        cache, controller = release.cache_class, release.controller_class
        for allocator in (release.allocators.TokenToKVPoolAllocator, release.allocators.PagedTokenToKVPoolAllocator):
            for name in ("alloc", "alloc_extend", "alloc_decode"):
                if name in vars(allocator):
                    hooks.hook(allocator, name, after=lambda _, slots, *__, **___: self._allocated(slots))
            for name in ("free", "free_page_ids", "free_segment"):
                if name in vars(allocator):
                    self._free_hook(allocator, name)
            self._group_hook(allocator)
        hooks.hook(release.host.HostKVCache, "alloc", after=lambda _, slots, *__: self._host_allocated(slots))
        hooks.hook(release.host.HostKVCache, "free", before=lambda _, slots: self._freed(HOST, self._tree.pages(slots)))
        hooks.hook(release.host_class, "backup_from_device_all_layer", before=self._writes)
        hooks.hook(release.host_class, "load_to_device_per_layer", before=self._loads_layer)
        hooks.hook(cache, "insert", after=lambda _, answer, __, params: self._inserted(answer, params))
        hooks.hook(cache, "writing_check", before=self._waiting, after=self._acknowledged)
        hooks.hook(cache, "loading_check", before=self._waiting, after=self._acknowledged)
        hooks.hook(cache, "reset", before=self._emptied)
        hooks.hook(cache, "check_hicache_events", after=lambda *_: self.looked())
        hooks.hook(release.pools.ReqToTokenPool, "free", before=lambda _, req: self._left(req))
        self._acting(cache, "writing_check", lambda *_, **__: "writing")
        self._acting(cache, "loading_check", lambda *_, **__: "loading")
        if release.unified:
            self._install_unified(cache, release.core.UnifiedTreeCore)
        else:
            self._install_radix(cache)
        self._acting(controller, "load", lambda _, *args, **kwargs: f"load {self._node_id(kwargs)}")
        self._acting(controller, "write", lambda _, *args, **kwargs: f"write {self._node_id(kwargs)}")

    def _install_unified(self, cache: Any, core: Any) -> None:
        hooks = self.hooks
        self._lock_hooks(core)
        if self._release.opaque_core is not None:
            self._lock_hooks(self._release.opaque_core)
        hooks.hook(core, "commit_backup", before=lambda _, node, *__: self._publish(node), after=self._backed_up)
        hooks.hook(core, "commit_load_back", after=lambda _, __, ___, node, *____: self._publish(node, planned=True))
        self._acting(cache, "checkpoint", lambda _, req, **__: self._request(req), after=self._settled)
        self._acting(cache, "free_kv_row", lambda _, kv, *__: self._of_row(kv.req_pool_idx))
        self._acting(cache, "_drain_device_frees", lambda *_: TREE)
        self._acting(cache, "_drain_host_frees", lambda *_: TREE)
        self._acting(cache, "lock", lambda *_, **__: self._next_lock(), after=self._owns)
        self._acting(cache, "unlock", lambda _, lock: getattr(lock, "kvspec_owner", NEW))
        self._acting(cache, "load_back", lambda _, node, *__, **___: f"load {node}")
        self._acting(
            cache, "_execute_and_commit_kv_backup", lambda _, action, *__, **___: f"write {action.node_ids[0]}"
        )
        self._acting(cache, "_finish_write_through_ack", lambda _, ack: f"write {ack}")

    def _install_radix(self, cache: Any) -> None:
        hooks = self.hooks
        self._lock_hooks(cache)
        self._acting(cache, "cache_unfinished_req", lambda _, req, *__, **___: self._request(req), after=self._settled)
        self._acting(cache, "cache_finished_req", lambda _, req, *__, **___: self._request(req))
        for name in ("evict", "_evict_backuped", "_evict_regular"):
            self._acting(cache, name, lambda *_, **__: TREE)
        self._acting(self._release.controller_class, "evict_host", lambda *_, **__: TREE)
        self._acting(cache, "load_back", lambda _, node, *__, **___: f"load {node.id}")
        before: Callable[..., Any] = lambda _, node, *__, **___: self._publish(node)  # noqa: E731
        hooks.hook(cache, "write_backup", before=before)
        self._acting(cache, "write_backup", lambda _, node, *__, **___: f"write {node.id}", after=self._backed_up)

    def _lock_hooks(self, owner: Any) -> None:
        before: Callable[..., Any] = lambda _, node, *__, **___: self._path(node)  # noqa: E731
        for name, sign in (("inc_lock_ref", 1), ("dec_lock_ref", -1)):
            self.hooks.hook(owner, name, before=before, after=partial(self._locks, sign))

    def _acting(self, owner: Any, name: str, who: Callable[..., str], after: Callable[..., None] | None = None) -> None:
        """Note who acts while a function runs, whether it returns or not."""
        original = getattr(owner, name)

        def acting(*args: Any, **kwargs: Any) -> Any:
            self._who.append(self.hooks.guarded(who, *args, **kwargs) or NEW)
            try:
                answer = original(*args, **kwargs)
                if after is not None:
                    self.hooks.guarded(after, None, answer, *args, **kwargs)
                return answer
            finally:
                self._who.pop()

        self.hooks.set(owner, name, acting)

    def _free_hook(self, allocator: Any, name: str) -> None:
        """Tell what is freed once, whichever of the allocator's functions calls another one."""
        original, ids = getattr(allocator, name), name == "free_page_ids"

        def free(made: Any, indices: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(made, indices, **kwargs)
            divide = 1 if ids else made.page_size
            pages = list(dict.fromkeys(index // divide for index in indices.tolist()))
            self.hooks.guarded(self._freed, KV, pages)
            with self._once():
                return original(made, indices, **kwargs)

        self.hooks.set(allocator, name, free)

    def _group_hook(self, allocator: Any) -> None:
        """What was freed one by one while frees were held together is not told a second time."""
        original = allocator.free_group_end
        self.hooks.set(allocator, "free_group_end", self._once()(original))

    _inside = False

    @contextmanager
    def _once(self) -> Iterator[None]:
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    # Who

    def _node_id(self, named: dict[str, Any]) -> Any:
        return named.get("node_id", -1)

    def _request(self, req: Any) -> str:
        """Who a request is; what it has said by now is known."""
        stay = self._stays.get(req.rid)
        if stay is None:
            return NEW
        for learnt in stay.grown([*req.origin_input_ids, *req.output_ids]):
            self.hooks.tell(learnt)
        return stay.name

    def _of_row(self, row: int) -> str:
        stay = self._rows.get(row)
        return NEW if stay is None else stay.name

    def _next_lock(self) -> str:
        self._launched += 1
        return f"lock {self._launched}"

    def _owns(self, _: None, lock: Any, *__: Any, **___: Any) -> None:
        if lock is not None:
            lock.kvspec_owner = self._who[-1]

    def _adopt(self, req: Any, name: str) -> None:
        """A request's lock is the request's."""
        lock = getattr(req, "lock", None)
        owner = getattr(lock, "kvspec_owner", name)
        if lock is not None and owner != name:
            self.hooks.tell(PassOn(owner, name))
            self._locked = [(name if who == owner else who, node) for who, node in self._locked]
            lock.kvspec_owner = name

    def _adopt_path(self, req: Any, name: str) -> None:
        """As `_adopt`, once, where a lock is known by its node only."""
        anonymous = (NEW, req.last_node)
        if anonymous in self._locked:
            self._locked[self._locked.index(anonymous)] = (name, req.last_node)
            pages: Pages = [page for node in self._tree.path(req.last_node) for page in self._tree.device(node)]
            self.hooks.tell(PassOn(NEW, name, KV, pages))

    # Allocators

    def _allocated(self, slots: Any) -> None:
        if slots is None:
            return
        pages: Pages = [slot // self._size for slot in slots.tolist() if slot % self._size == 0]
        who = self._who[-1]
        if who.startswith("load "):
            self._transfers.setdefault(who, {}).setdefault(KV, []).extend(pages)  # type: ignore[arg-type]
        else:
            who = NEW
            self._fresh.update(pages)  # type: ignore[arg-type]
        if pages:
            self.hooks.tell(Take(who, KV, pages))

    def _host_allocated(self, slots: Any) -> None:
        pages = self._tree.pages(slots)
        if pages:
            self._transfers.setdefault(self._who[-1], {}).setdefault(HOST, []).extend(pages)
            self.hooks.tell(Take(self._who[-1], HOST, [*pages]))

    def _freed(self, pool: str, pages: Ids) -> None:
        who = self._who[-1]
        if who == TREE:
            for page in pages:
                self._keys[pool].pop(page, None)
            self.hooks.tell(Drop(pool, [*pages]))
            return
        fresh = [page for page in pages if pool == KV and page in self._fresh]
        self._fresh.difference_update(fresh)
        others = [page for page in pages if page not in fresh]
        if fresh:
            self.hooks.tell(Released(NEW, pool, [*fresh]))
        if others:
            self.hooks.tell(Released(who, pool, [*others]))

    # The tree

    def _publish(self, named: Any, planned: bool = False) -> None:
        """The pages on a path that the tree has and had not; they are its own from now on."""
        for node in self._tree.path(named):
            pages = self._tree.device(node)
            fresh = [index for index, page in enumerate(pages) if page not in self._keys[KV]]
            if not fresh:
                continue
            labels = self._tree.labels(node)
            new, names = [pages[index] for index in fresh], [labels[index] for index in fresh]
            self._keys[KV].update(zip(new, names, strict=True))
            self.hooks.tell(Publish(KV, [*new], names, names, planned=planned))
            for who, locked in self._locked:
                if node in self._tree.path(locked):
                    self.hooks.tell(Share(who, KV, [*new], names))
            if not planned:
                giver = next(who for who in reversed(self._who) if not who.startswith(("write", "load", "lock")))
                self.hooks.tell(Released(giver, KV, [*new]))

    def _emptied(self, cache: Any) -> None:
        """The server was told to forget what it has: nobody may hold anything then."""
        if cache is self._cache:
            self.hooks.tell(Idle())
            for pool, keys in self._keys.items():
                self.hooks.tell(Drop(pool, [*keys]))
                keys.clear()

    def _inserted(self, answer: Any, params: Any) -> None:
        self._publish(self._tree.inserted(getattr(answer, "last_device_node", None), params.key))

    def _path(self, named: Any) -> list[tuple[Any, int]]:
        if self._who[-1].startswith("load "):
            self._publish(named, planned=True)
        return [(node, self._tree.locks(node)) for node in self._tree.path(named)]

    def _locks(self, sign: int, path: list[tuple[Any, int]], _: Any, __: Any, named: Any, *___: Any, **____: Any) -> None:
        who, locked = self._holder(named), 0
        for node, before in path:
            pages = self._tree.device(node)
            locked = sign if self._tree.opaque else self._tree.locks(node) - before
            names = [self._keys[KV].get(page, "") for page in pages]
            for _again in range(locked if pages else 0):
                self.hooks.tell(Share(who, KV, [*pages], names))
            for _again in range(-locked if pages else 0):
                self.hooks.tell(Released(who, KV, [*pages]))
        entry = (who, self._tree.node(named))
        if locked > 0:
            self._locked.append(entry)
        elif entry in self._locked:
            self._locked.remove(entry)

    def _holder(self, named: Any) -> str:
        """Who locks or unlocks: whoever acts, and for an acknowledgement its transfer."""
        who = self._who[-1]
        if who in ("writing", "loading"):
            kind = "write" if who == "writing" else "load"
            return f"{kind} {getattr(named, 'id', named)}"
        return who

    def _settled(self, _: None, __: Any, ___: Any, req: Any, *____: Any, **_____: Any) -> None:
        """A request has published: its row names the tree's pages, and its lock is another one."""
        stay = self._stays.get(req.rid)
        if stay is not None:
            self._adopt(req, stay.name)
            self._map(stay, req, len(stay.pages) * self._size)

    # Transfers

    def _backed_up(self, _: Any, __: Any, ___: Any, named: Any, *____: Any, **_____: Any) -> None:
        node = self._tree.node(named)
        pages = [page for page in self._tree.host(node) if page not in self._keys[HOST]]
        if pages:
            names = self._tree.labels(node)
            self._keys[HOST].update(zip(pages, names, strict=True))
            self.hooks.tell(Publish(HOST, [*pages], names, names, planned=True))

    def _writes(self, _: Any, __: Any, host: Any, device: Any, *___: Any) -> None:
        self._streams.begin("backup_from_device_all_layer", [], [], [(self._use(KV, device), self._use(HOST, host))])

    def _loads_layer(self, _: Any, __: Any, host: Any, device: Any, layer: int, *___: Any, **____: Any) -> None:
        if layer == 0:
            copies = [(self._use(HOST, host), self._use(KV, device))]
            self._streams.begin("load_to_device_per_layer", [], [], copies)

    def _use(self, pool: str, indices: Any) -> Use:
        return Use(pool=pool, pages=[*self._tree.pages(indices)])

    def _waiting(self, *_: Any, **__: Any) -> tuple[set[Any], set[Any]]:
        return set(self._cache.ongoing_write_through), set(self._cache.ongoing_load_back)

    def _acknowledged(self, before: tuple[set[Any], set[Any]], *_: Any, **__: Any) -> None:
        """What transfers were given is theirs no longer."""
        after = self._waiting()
        for kind, gone in (("write", before[0] - after[0]), ("load", before[1] - after[1])):
            for node in sorted(gone):
                name = f"{kind} {node}"
                for pool, pages in self._transfers.pop(name, {}).items():
                    self.hooks.tell(Released(name, pool, [*pages]))
                self.hooks.tell(Leave(name))

    # Requests

    def launch(self, reqs: list[Any], starts: list[int], stops: list[int]) -> None:
        """A forward pass was queued on the current stream: what it waits for, it has asked for by now."""
        reads, writes = [], []
        for req, start, stop in zip(reqs, starts, stops, strict=True):
            stay = self._stays.get(req.rid)
            if stay is None:
                stay = self._stays[req.rid] = Stay(f"{req.rid}{self._stretches[req.rid]}", self._size)
                self._stretches[req.rid] += 1
                stay.row = self._row(req)
                self._rows[stay.row] = stay
                if not self._release.unified:
                    self._adopt_path(req, stay.name)
            self._request(req)
            self._adopt(req, stay.name)
            self._map(stay, req, stop)
            reads.append(Use(table=stay.name, stop=stop))
            writes.append(Use(table=stay.name, start=start, stop=stop))
        self._streams.begin("forward_batch_generation", reads, writes)

    def _row(self, req: Any) -> int:
        record: Any = getattr(req, "kv", None)
        return int(record.req_pool_idx if hasattr(record, "req_pool_idx") else req.req_pool_idx)

    def _map(self, stay: Stay, req: Any, stop: int) -> None:
        """What a row names now and did not before."""
        pages = self._tree.pages(self._to_token.req_to_token[stay.row, :stop])
        first = next((at for at, page in enumerate(pages) if at >= len(stay.pages) or page != stay.pages[at]), None)
        if first is None:
            return
        mine = [page for page in pages[first:] if page in self._fresh]
        if mine:
            self._fresh.difference_update(mine)
            self.hooks.tell(PassOn(NEW, stay.name, KV, [*mine]))
        stay.pages[first:] = pages[first:]
        tokens = [*req.origin_input_ids, *req.output_ids]
        labels = stay.labels(tokens, first, len(stay.pages))
        self.hooks.tell(Map(stay.name, stay.name, KV, first, [*stay.pages[first:]], labels))

    def _left(self, req: Any) -> None:
        stay = self._stays.pop(req.rid, None)
        if stay is not None:
            del self._rows[stay.row]
            self.hooks.tell(Unmap(stay.name))
            self.hooks.tell(Leave(stay.name))

    # The books

    def idle(self) -> None:
        """Nothing runs, and no transfer is under way."""
        self.hooks.tell(Idle())

    def looked(self) -> None:
        """The release's own books, now and then."""
        self._looks += 1
        if self._looks % self._every:
            return
        loading = {page for given in self._transfers.values() for page in given.get(KV, [])}
        books = self._tree.books(without=loading)
        allocator = self._allocator
        staged = [*getattr(allocator, "staged_pages", []), allocator.free_pages]
        if getattr(allocator, "release_pages", None) is not None:
            staged.append(allocator.release_pages)
        free = [int(page) for part in staged for page in part.tolist()]
        self.hooks.tell(Count(KV, free=[*free], **books))
        if self._host is None:
            return
        parts = [self._host.free_slots, *getattr(self._host, "release_slots", [])]
        self.hooks.tell(Count(HOST, free=[page for part in parts for page in self._tree.pages(part)]))
