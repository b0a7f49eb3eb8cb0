"""Hooks into SGLang's storage behind the host tier: what is written to files, and prefetched from them.

A file is a page of a keyed pool, and its name is the engine's. Its content is what was copied into it, and the promise
of its name the content of the tree's node from which it was written. A prefetch holds the host pages that it was given
until the tree has them or they go back, and pins those of the tree's node below which they will be; a backup pins those
that it reads.
"""

from functools import partial
from itertools import count, groupby
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
        self._backing: set[int] = set()
        """The same backups, as captured."""
        self._anchors: dict[str, Ids] = {}
        """Prefetch -> host pages of the node below which its own will be."""
        self._files = count(1)
        self._found = count(1)
        self._follow_files()
        self._follow_operations(release.cache_class, release.controller_class)

    def _follow_files(self) -> None:
        """Observe the bytes on their way between host pages and files."""
        hook, file, host = self.hooks.hook, self._release.storage.HiCacheFile, self._release.host_class
        hook(file, "set", before=lambda backend, key, *_: self._file(backend, key).exists(), after=self._saved)
        hook(file, "get", after=self._fetched)
        hook(file, "clear", before=_files, after=self._files_gone)
        hook(host, "get_data_page", after=lambda _, data, __, index, *___: self._leaves(data, index))
        hook(host, "set_from_flat_data_page", before=lambda _, index, data: self._arrives(data, index))

    def _follow_operations(self, cache: Any, controller: Any) -> None:
        """Observe prefetches and backups."""
        hook, unified = self.hooks.hook, self._release.unified
        if unified:
            # Until 0.5.21 host pages are taken in the drain itself, and a prefetch ends in one of two functions.
            taken = [(controller, "allocate_storage_hit")] if hasattr(controller, "allocate_storage_hit") else []
            for owner, name in (*taken, (cache, "_handle_prefetch_result")):
                self._acting(owner, name, lambda _, operation, *__, **___: f"prefetch {operation.request_id}")
            ended = ["_retire_ongoing_prefetch"] if taken else ["revoke_pending_prefetch", "release_aborted_request"]
            for name in ("prefetch_from_storage", *ended):
                self._acting(cache, name, lambda _, request, *__, **___: f"prefetch {request.rid}")
            hook(cache, "inc_host_lock_ref", after=self._anchored)
            hook(cache, "dec_host_lock_ref", after=self._unanchored)
            hook(self._release.core.UnifiedTreeCore, "insert_host", after=self._grafted)
        else:
            for name in ("prefetch_from_storage", "check_prefetch_progress"):
                self._acting(cache, name, lambda _, request, *__, **___: f"prefetch {getattr(request, 'rid', request)}")
            hook(cache, "_insert_helper_host", after=self._grafted)
        hook(controller, "write_storage", after=self._backup_begins)
        drains = ("_drain_storage_control_queues_impl", "drain_storage_control_queues")
        drain = next(name for name in drains if hasattr(cache, name))
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
        self._backing.add(backup)
        self.hooks.later(partial(self._backup_begun, backup), indices)

    def _backup_begun(self, backup: int, indices: Any) -> None:
        pages = self._tree.pages(indices)
        names = [self._keys[HOST].get(page, "") for page in pages]
        self._backups[backup] = dict(zip(pages, names, strict=True))
        self.hooks.emit(Share(f"backup {backup}", HOST, [*pages], names, pin=True))

    def _backups_end(self, _: None, *__: Any, **___: Any) -> None:
        # An idle server drains its queues all the time.
        ended = self._backing - self._cache.ongoing_backup.keys()
        if ended:
            self._backing -= ended
            self.hooks.later(partial(self._backups_ended, ended))

    def _backups_ended(self, ended: set[int]) -> None:
        for backup in [known for known in self._backups if known in ended]:
            self.hooks.emit(Released(f"backup {backup}", HOST, [*self._backups.pop(backup)]))

    def _leaves(self, data: Any, index: Any) -> None:
        """The bytes of a host page, on their way to a file."""
        data.kvspec_page = self._page(index)

    def _saved(self, there: bool, done: bool, backend: Any, key: str, value: Any = None, *_: Any, **__: Any) -> None:
        """A file was written; what is there already is kept."""
        if done and not there:
            self.hooks.later(partial(self._file_made, self._file(backend, key).name, value.kvspec_page))

    def _file_made(self, file: str, page: int) -> None:
        self._copied_at_once(Use(pool=HOST, pages=[page]), Use(pool=STORAGE, pages=[file]))
        label = next((known[page] for known in self._backups.values() if page in known), "")
        self.hooks.emit(Publish(STORAGE, [file], [file], [label] if label else None))

    def _files_gone(self, files: list[str], *_: Any) -> None:
        if files:
            self.hooks.emit(Drop(STORAGE, [*files], files))

    # Prefetches

    def _host_taken(self, who: str, slots: Any) -> None:
        if who == _RETURNED:
            # A prefetch in the drained queue has found these pages in the storage; its request is not known here.
            who = f"prefetch found {next(self._found)}"
        super()._host_taken(who, slots)
        if who.startswith("prefetch "):
            self._prefetched.update(dict.fromkeys(self._tree.pages(slots), who))

    def _anchored(self, _: None, __: Any, ___: Any, named: Any) -> None:
        who = self._who[-1]
        if who.startswith("prefetch "):
            self.hooks.later(partial(self._anchor_held, who), self._tree.backed(self._tree.node(named)))

    def _anchor_held(self, who: str, value: Any) -> None:
        pages = self._tree.pages(value)
        if pages:
            self._anchors[who] = pages
            names = [self._keys[HOST].get(page, "") for page in pages]
            self.hooks.emit(Share(who, HOST, [*pages], names, pin=True))

    def _unanchored(self, *_: Any) -> None:
        if self._who[-1].startswith("prefetch "):
            self.hooks.later(partial(self._anchor_left, self._who[-1]))

    def _anchor_left(self, who: str) -> None:
        pages = self._anchors.pop(who, None)
        if pages:
            self.hooks.emit(Released(who, HOST, [*pages]))

    def _fetched(self, _: None, data: Any, backend: Any, key: str, *__: Any, **___: Any) -> None:
        """A file was read; its bytes are on their way to a host page."""
        if data is not None:
            data.kvspec_file = self._file(backend, key).name

    def _arrives(self, data: Any, index: Any) -> None:
        self.hooks.later(partial(self._arrived, data.kvspec_file, self._page(index)))

    def _arrived(self, file: str, page: int) -> None:
        target = Use(pool=HOST, pages=[page], holder=self._prefetched.get(page))
        self._copied_at_once(Use(pool=STORAGE, pages=[file]), target)

    def _grafted(self, _: None, __: Any, ___: Any, anchor: Any, key: Any, indices: Any, *____: Any) -> None:
        """The tree has what was prefetched, except what it had."""
        tree = self._tree
        for spot in tree.spots(tree.path(tree.walk(key, tree.node(anchor)))):
            self._publish_host(spot, planned=False)
        self.hooks.later(partial(self._graft_given, self._who[-1]), indices)

    def _graft_given(self, who: str, indices: Any) -> None:
        pages = [page for page in self._tree.pages(indices) if page in self._keys[HOST]]
        for holder, given in groupby(pages, lambda page: self._prefetched.pop(page, who)):
            self.hooks.emit(Released(holder, HOST, [*given]))

    def _freed(self, pool: str, who: str, pages: Ids) -> None:
        """Pages that a prefetch has not needed go back for it."""
        known = self._prefetched if pool == HOST else {}
        others = [page for page in pages if page not in known]
        for page in pages:
            if page in known:
                self.hooks.emit(Released(known.pop(page), HOST, [page]))
        if others:
            super()._freed(pool, who, others)


def _files(backend: Any) -> list[str]:
    """The names of the files of a storage."""
    return [path.name for path in Path(backend.file_path).iterdir()]
