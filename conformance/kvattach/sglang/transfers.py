"""Hooks into SGLang's host tier: writes to the host and loads from it, with their holders.

A transfer is a separate holder: it holds its pages until it is acknowledged.
"""

from functools import partial
from typing import Any

from kvattach.hooks import Trace
from kvattach.sglang.holders import Holders
from kvattach.sglang.release import Release
from kvattach.sglang.view import HOST, KV
from kvattach.streams import Streams
from kvspec.memory.events import EndHolder, Publish, Use
from kvspec.memory.events import Release as Released


class Transfers(Holders):
    """Follows transfers between the device and the host."""

    _cache: Any = None

    def __init__(self, release: Release, trace: Trace, stream: Any, event: Any) -> None:
        """Install the hooks. `stream` and `event` are the classes that the release uses."""
        super().__init__(release, trace)
        self._streams = Streams(self.hooks, stream, event)
        cache, controller, hook = release.cache_class, release.controller_class, self.hooks.hook
        hook(release.host_class, "backup_from_device_all_layer", before=self._writes)
        hook(release.host_class, "load_to_device_per_layer", before=self._loads_layer)
        hook(cache, "writing_check", before=self._waiting, after=self._acknowledged)
        hook(cache, "loading_check", before=self._waiting, after=self._acknowledged)
        self._acting(cache, "writing_check", lambda *_, **__: "writing")
        self._acting(cache, "loading_check", lambda *_, **__: "loading")
        self._acting(controller, "load", lambda _, *__, **named: f"load {named.get('node_id', -1)}")
        self._acting(controller, "write", lambda _, *__, **named: f"write {named.get('node_id', -1)}")

    def _backed_up(self, _: Any, __: Any, ___: Any, named: Any, *____: Any, **_____: Any) -> None:
        tree = self._tree
        self._publish_host(tree.spots(tree.path(tree.node(named)))[-1], planned=True)

    def _publish_host(self, spot: Any, *, planned: bool) -> None:
        """Publish the new host pages of a node under its names."""
        self.hooks.later(partial(self._host_published, spot, planned), self._tree.backed(spot.node))

    def _host_published(self, spot: Any, planned: bool, value: Any) -> None:
        pages, known = self._tree.pages(value), self._keys[HOST]
        if any(page not in known for page in pages):
            named = zip(pages, self._tree.labels(spot), strict=True)
            fresh = {page: name for page, name in named if page not in known}
            known.update(fresh)
            names = [*fresh.values()]
            self.hooks.emit(Publish(HOST, [*fresh], names, names, planned=planned))

    def _writes(self, _: Any, __: Any, host: Any, device: Any, *___: Any) -> None:
        self._copies("backup_from_device_all_layer", (KV, HOST), device, host)

    def _loads_layer(self, _: Any, __: Any, host: Any, device: Any, layer: int, *___: Any, **____: Any) -> None:
        if layer == 0:
            self._copies("load_to_device_per_layer", (HOST, KV), host, device)

    def _copies(self, at: str, pools: tuple[str, str], *indices: Any) -> None:
        """An operation on the current stream copies slots from one pool to the other."""
        copies: list[tuple[Use, Use]] = []

        def resolved(*indices: Any) -> None:
            source, target = (
                Use(pool=pool, pages=[*self._tree.pages(slots)]) for pool, slots in zip(pools, indices, strict=True)
            )
            copies.append((source, target))

        self.hooks.later(resolved, *indices)
        self._streams.begin(at, [], [], copies)

    def _waiting(self, *_: Any, **__: Any) -> tuple[set[Any], set[Any]]:
        return set(self._cache.ongoing_write_through), set(self._cache.ongoing_load_back)

    def _acknowledged(self, before: tuple[set[Any], set[Any]], *_: Any, **__: Any) -> None:
        """Release the pages of acknowledged transfers."""
        after = self._waiting()
        for kind, gone in (("write", before[0] - after[0]), ("load", before[1] - after[1])):
            for node in sorted(gone):
                self.hooks.later(partial(self._transferred, f"{kind} {node}"))

    def _transferred(self, name: str) -> None:
        for pool, pages in self._transfers.pop(name, {}).items():
            self.hooks.emit(Released(name, pool, [*pages]))
        self.hooks.emit(EndHolder(name))
