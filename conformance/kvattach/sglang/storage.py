"""Hooks into SGLang's storage behind the host tier: what is written to files, and prefetched from them.

A file is a page of a keyed pool, and its name is the engine's. Its content is what was copied into it, and the promise
of its name the content of the tree's node from which it was written. A prefetch holds the host pages that it was given
until the tree has them or they go back, and pins those of the tree's node below which they will be; a backup pins those
that it reads.
"""

from itertools import count
from pathlib import Path
from typing import Any

from kvattach.hooks import Trace
from kvattach.sglang.release import Release
from kvattach.sglang.transfers import Transfers
from kvattach.sglang.view import HOST, STORAGE, Ids
from kvspec.memory.events import Begin, Drop, End, Publish, Share, Use
from kvspec.memory.events import Release as Released

_RETURNED = "returned"
"""For whom host pages go back that a prefetch has not needed."""


class Storage(Transfers):
    """Follows transfers between the host and a storage."""

    def __init__(self, release: Release, trace: Trace, stream: Any, event: Any) -> None:
        """Install the hooks. `stream` and `event` are the classes that the release uses."""
        super().__init__(release, trace, stream, event)
        self._prefetched: dict[int, str] = {}
        """Host page -> the prefetch that it was given to."""
        self._backups: dict[int, dict[int, str]] = {}
        """Backup that is not acknowledged -> host page -> its content."""
        self._anchors: dict[str, Ids] = {}
        """Prefetch -> host pages of the node below which its own will be."""
        self._files = count(1)
        cache, controller, hooks = release.cache_class, release.controller_class, self.hooks
        hook = hooks.hook
        file = release.storage.HiCacheFile
        hook(file, "set", before=lambda backend, key, *_: self._file(backend, key).exists(), after=self._saved)
        hook(file, "get", after=self._fetched)
        hook(file, "clear", before=_files, after=lambda files, *_: hooks.emit(Drop(STORAGE, [*files], files)))
        hook(release.host_class, "get_data_page", after=lambda _, data, __, index, *___: self._leaves(data, index))
        hook(release.host_class, "set_from_flat_data_page", before=lambda _, index, data: self._arrives(data, index))
        if release.unified and not release.stored:
            return
        if release.unified:
            for owner, name in ((controller, "allocate_storage_hit"), (cache, "_handle_prefetch_result")):
                self._acting(owner, name, lambda _, operation, *__, **___: f"prefetch {operation.request_id}")
            for name in ("prefetch_from_storage", "_retire_ongoing_prefetch"):
                self._acting(cache, name, lambda _, request, *__, **___: f"prefetch {request.rid}")
            hook(cache, "inc_host_lock_ref", after=self._anchored)
            hook(cache, "dec_host_lock_ref", after=self._unanchored)
            hook(release.core.UnifiedTreeCore, "insert_host", after=self._grafted)
        else:
            for name in ("prefetch_from_storage", "check_prefetch_progress"):
                self._acting(cache, name, lambda _, rid, *__, **___: f"prefetch {rid}")
            hook(cache, "_insert_helper_host", after=self._grafted)
        hook(controller, "write_storage", after=self._backup_begins)
        drain = "_drain_storage_control_queues_impl" if release.unified else "drain_storage_control_queues"
        self._acting(cache, drain, lambda *_, **__: _RETURNED, after=self._backups_end)

    def _file(self, backend: Any, key: str) -> Path:
        return Path(backend.file_path, f"{backend._get_suffixed_key(key)}.bin")

    def _page(self, index: Any) -> int:
        return int(index) // self._size

    def _copied_at_once(self, source: Use, target: Use) -> None:
        """A copy of the host's, which is complete when its function returns."""
        number = f"file {next(self._files)}"
        self.hooks.emit(Begin(number, copies=[(source, target)]))
        self.hooks.emit(End(number))

    # Backups

    def _backup_begins(self, _: None, backup: int, __: Any, indices: Any, *___: Any, **____: Any) -> None:
        pages = self._tree.pages(indices)
        names = [self._keys[HOST].get(page, "") for page in pages]
        self._backups[backup] = dict(zip(pages, names, strict=True))
        self.hooks.emit(Share(f"backup {backup}", HOST, [*pages], names, pin=True))

    def _backups_end(self, _: None, *__: Any, **___: Any) -> None:
        for backup in [known for known in self._backups if known not in self._cache.ongoing_backup]:
            self.hooks.emit(Released(f"backup {backup}", HOST, [*self._backups.pop(backup)]))

    def _leaves(self, data: Any, index: Any) -> None:
        """The bytes of a host page, on their way to a file."""
        data.kvspec_page = self._page(index)

    def _saved(self, there: bool, done: bool, backend: Any, key: str, value: Any = None, *_: Any, **__: Any) -> None:
        """A file was written; what is there already is kept."""
        if there or not done:
            return
        file, page = self._file(backend, key).name, value.kvspec_page
        self._copied_at_once(Use(pool=HOST, pages=[page]), Use(pool=STORAGE, pages=[file]))
        label = next((known[page] for known in self._backups.values() if page in known), "")
        self.hooks.emit(Publish(STORAGE, [file], [file], [label] if label else None))

    # Prefetches

    def _host_allocated(self, slots: Any) -> None:
        super()._host_allocated(slots)
        who = self._who[-1]
        if who.startswith("prefetch "):
            self._prefetched.update(dict.fromkeys(self._tree.pages(slots), who))

    def _anchored(self, _: None, __: Any, ___: Any, named: Any) -> None:
        pages = self._tree.host(self._tree.node(named)) if self._who[-1].startswith("prefetch ") else []
        if pages:
            self._anchors[self._who[-1]] = pages
            names = [self._keys[HOST].get(page, "") for page in pages]
            self.hooks.emit(Share(self._who[-1], HOST, [*pages], names, pin=True))

    def _unanchored(self, *_: Any) -> None:
        pages = self._anchors.pop(self._who[-1], None)
        if pages:
            self.hooks.emit(Released(self._who[-1], HOST, [*pages]))

    def _fetched(self, _: None, data: Any, backend: Any, key: str, *__: Any, **___: Any) -> None:
        """A file was read; its bytes are on their way to a host page."""
        if data is not None:
            data.kvspec_file = self._file(backend, key).name

    def _arrives(self, data: Any, index: Any) -> None:
        page = self._page(index)
        target = Use(pool=HOST, pages=[page], holder=self._prefetched.get(page))
        self._copied_at_once(Use(pool=STORAGE, pages=[data.kvspec_file]), target)

    def _grafted(self, _: None, __: Any, ___: Any, anchor: Any, key: Any, indices: Any, *____: Any) -> None:
        """The tree has what was prefetched, except what it had."""
        for node in self._tree.path(self._tree.walk(key, self._tree.node(anchor))):
            self._publish_host(node, planned=False)
        pages = [page for page in self._tree.pages(indices) if page in self._keys[HOST]]
        if pages:
            self.hooks.emit(Released(self._who[-1], HOST, [*pages]))
        for page in pages:
            del self._prefetched[page]

    def _freed(self, pool: str, who: str, pages: Ids) -> None:
        """Pages that a prefetch has not needed go back for it."""
        if pool != HOST or who != _RETURNED:
            super()._freed(pool, who, pages)
            return
        for page in pages:
            self.hooks.emit(Released(self._prefetched.pop(page, _RETURNED), HOST, [page]))


def _files(backend: Any) -> list[str]:
    """The names of the files of a storage."""
    return [path.name for path in Path(backend.file_path).iterdir()]
