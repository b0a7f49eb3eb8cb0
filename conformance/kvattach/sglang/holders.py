"""The holders of pages in an SGLang memory: hooks into allocators and their callers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kvattach.hooks import Hooks, Trace
from kvattach.sglang.release import Release
from kvattach.sglang.view import EITHER, HOST, KV, NEW, TREE, WINDOW, Ids, Tree
from kvspec.memory.events import Drop, Failed, Take
from kvspec.memory.events import Release as Released


class Holders:
    """The common part of all hooks of one memory."""

    _tree: Tree
    _size: int

    def __init__(self, release: Release, trace: Trace) -> None:
        """Install the hooks into the allocators."""
        self.hooks = Hooks(trace)
        self._release = release
        self._who: list[str] = [NEW]
        """The holders for whom functions act, the innermost last."""
        self._fresh: dict[str, set[int]] = {}
        """Pool -> pages that were allocated and belong to no request yet."""
        self._keys: dict[str, dict[int, str]] = {}
        """Pool -> page of the tree -> its name."""
        self._transfers: dict[str, dict[str, Ids]] = {}
        """Transfer -> pool -> the pages allocated for it."""
        self._allocators: dict[str, Any] = {}
        """Pool on the device -> its allocator."""
        self._install_allocators()

    def _install_allocators(self) -> None:
        hooks, release = self.hooks, self._release
        for allocator in (release.allocators.TokenToKVPoolAllocator, release.allocators.PagedTokenToKVPoolAllocator):
            for name in ("alloc", "alloc_extend", "alloc_decode"):
                if name in vars(allocator):
                    hooks.hook(allocator, name, after=lambda _, slots, made, *__, **___: self._allocated(made, slots))
            for name in ("free", "free_page_ids", "free_segment"):
                if name in vars(allocator):
                    self._free_hook(allocator, name)
            self._group_hook(allocator)
        windows = release.window_allocator
        for name in ("free_swa", "_free_swa_pages"):
            if name in vars(windows):
                hooks.hook(windows, name, before=self._waiting_windows, after=self._windows_freed)
        self._group_hook(windows)
        hooks.hook(release.host.HostKVCache, "alloc", after=lambda _, slots, *__: self._host_allocated(slots))
        hooks.hook(release.host.HostKVCache, "free", before=lambda _, slots: self._host_freed(slots))

    def _acting(self, owner: Any, name: str, who: Callable[..., str], after: Callable[..., None] | None = None) -> None:
        """Note the acting holder while a function runs, whether it returns or raises."""
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
        """Emit each free once, although functions of the allocator call each other."""
        original, ids = getattr(allocator, name), name == "free_page_ids"

        def free(made: Any, indices: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(made, indices, **kwargs)
            self.hooks.guarded(self._free_called, made, indices, 1 if ids else made.page_size)
            with self._once():
                return original(made, indices, **kwargs)

        self.hooks.set(allocator, name, free)

    def _group_hook(self, allocator: Any) -> None:
        """Frees of a group are emitted one by one, and not again at its end."""
        original = allocator.free_group_end
        self.hooks.set(allocator, "free_group_end", self._once()(original))

    _inside = False

    @contextmanager
    def _once(self) -> Iterator[None]:
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def _pool_of(self, allocator: Any) -> str:
        return WINDOW if allocator is self._allocators.get(WINDOW) else KV

    # Allocators

    def _allocated(self, allocator: Any, slots: Any) -> None:
        if slots is not None:
            self.hooks.later(partial(self._taken, self._pool_of(allocator), self._who[-1]), slots)

    def _taken(self, pool: str, who: str, slots: Any) -> None:
        pages: Ids = [slot // self._size for slot in slots.tolist() if slot % self._size == 0]
        if who.startswith("load "):
            self._transfers.setdefault(who, {}).setdefault(pool, []).extend(pages)
        else:
            who = NEW
            self._fresh[pool].update(pages)
        if pages:
            self.hooks.emit(Take(who, pool, [*pages]))

    def _host_allocated(self, slots: Any) -> None:
        self.hooks.later(partial(self._host_taken, self._who[-1]), slots)

    def _host_taken(self, who: str, slots: Any) -> None:
        pages = self._tree.pages(slots)
        if pages:
            self._transfers.setdefault(who, {}).setdefault(HOST, []).extend(pages)
            self.hooks.emit(Take(who, HOST, [*pages]))

    def _host_freed(self, slots: Any) -> None:
        who = self._who[-1]
        self.hooks.later(lambda slots: self._freed(HOST, who, self._tree.pages(slots)), slots)

    def _of_no_row(self, function: str, slots: Any) -> bool:
        """Report slots that the engine has read from row `None`: a tensor with that index has one dimension more."""
        if slots is None or slots.dim() == 1:
            return False
        self._failed_without_row(function)
        return True

    def _failed_without_row(self, function: str) -> None:
        self.hooks.emit(Failed("assertion", f"{function}: the request has no row", at=function))

    def _free_called(self, allocator: Any, indices: Any, slots_per_index: int) -> None:
        if self._of_no_row("free", indices):
            return
        pool, who, caller = self._pool_of(allocator), self._who[-1], self._who[-2:][0]

        def freed(indices: Any) -> None:
            pages = list(dict.fromkeys(index // slots_per_index for index in indices.tolist()))
            if who != EITHER:
                self._freed(pool, who, pages)
            else:
                self._freed(pool, TREE if all(page in self._keys[pool] for page in pages) else caller, pages)

        self.hooks.later(freed, indices)

    def _freed(self, pool: str, who: str, pages: Ids) -> None:
        """Pages were freed, for a holder."""
        if who == TREE:
            for page in pages:
                self._keys[pool].pop(page, None)
            self.hooks.emit(Drop(pool, [*pages]))
            return
        waiting = self._fresh.get(pool, set())
        fresh = [page for page in pages if page in waiting]
        waiting.difference_update(fresh)
        others = [page for page in pages if page not in fresh]
        if fresh:
            self.hooks.emit(Released(NEW, pool, [*fresh]))
        if others:
            self.hooks.emit(Released(who, pool, [*others]))

    def _waiting_windows(self, allocator: Any, *_: Any, **__: Any) -> list[tuple[Any, int]]:
        """The lists of window pages that wait to be freed together, with their lengths."""
        lists = [getattr(allocator, name, None) for name in ("swa_page_ids_group", "swa_free_group")]
        return [(waiting, 0 if waiting is None else len(waiting)) for waiting in lists]

    def _windows_freed(self, before: list[tuple[Any, int]], *_: Any, **__: Any) -> None:
        """Emit the waiting pages as free; pages that were freed at once are already emitted."""
        for (waiting, known), divide in zip(before, (1, self._size), strict=True):
            parts = (waiting or [])[known:]
            if parts:
                self.hooks.later(partial(self._windows_left, self._who[-1], divide), *parts)

    def _windows_left(self, who: str, divide: int, *parts: Any) -> None:
        slots = [slot for part in parts for slot in part.tolist()]
        pages = list(dict.fromkeys(slot // divide for slot in slots if slot >= divide))
        if pages:
            self._freed(WINDOW, who, pages)
