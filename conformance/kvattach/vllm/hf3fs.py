"""Hooks into vLLM's `HF3FSKVConnector`: the pages of its files, their names, and copies on their streams.

A server of names, outside of the engine, gives a page of a file to each key of a save, and gets a confirmation when
the page is written: then it is published. A page is pinned while it is loaded. The label of a key follows from the
tokens of the request that saves, with its images, its adapter's weights and its salt; the connector's own key does not.
"""

from collections.abc import Sequence
from typing import Any

from kvattach.streams import Streams
from kvattach.vllm.offload import OFFLOAD, Attached, Side
from kvattach.vllm.residency import POOL
from kvspec.memory.events import Drop, Pool, Publish, Release, Share, Take, Use

FILES = "files"
"""The name in a trace of the pool of the files' pages."""


class Files(Side):
    """Emits the names of the files' pages, and the copies to and from them."""

    pool = FILES

    def __init__(self, attached: Attached, streams: Streams) -> None:
        """Install the hooks."""
        import torch
        import vllm.distributed.kv_transfer.kv_connector.v1.hf3fs.hf3fs_connector as module

        super().__init__(attached, streams)
        self._torch = torch
        self._places: dict[str, int] = {}
        """Key -> the index of its block in each prompt that has it."""
        self._promised: dict[str, str] = {}
        """Key -> the label that it promises."""
        self._taken: set[int] = set()
        """Pages that are being saved."""
        self._names: dict[int, str] = {}
        """Page -> its name, once it is published."""
        self._pages: Sequence[int] = ()
        """The pages of the transfer that a thread has begun."""
        self._pinned: Sequence[int] = ()
        self._wanted: list[str] | None = None
        """The labels of the blocks of the load that a thread has begun."""
        hooks, operations = attached.hooks, module.AsyncOperationManager
        hooks.hook(module.HF3FSKVConnector, "_generate_block_hashes", after=self._hashed)
        hooks.hook(module.HF3FSKVConnector, "_gather_or_scatter_kv_caches", before=self._copies)
        hooks.hook(operations, "submit_save_operation", before=self._saves)
        hooks.hook(operations, "_handle_load_task", before=self._loads, after=self._loaded)
        hooks.hook(module.Hf3fsMetadataClient, "allocate_pages_for_keys", after=self._allocated)
        hooks.hook(module.Hf3fsMetadataClient, "confirm_write_for_keys", after=self._confirmed)
        hooks.hook(module.Hf3fsMetadataClient, "get_key_locations", after=self._located)

    def of(self, connector: Any) -> Any:
        """A connector of this kind itself."""
        return connector if hasattr(connector, "_metadata_client") else None

    def start(self, manager: Any, device: Any, size: int) -> Pool:
        """A new scheduler begins, with empty files."""
        self._streams.clear(self._torch.cuda)
        self._pages, self._pinned = (), ()
        for kept in (self._places, self._promised, self._taken, self._names):
            kept.clear()
        return Pool(page_size=size, num_pages=manager.kvspec_pages, first_page=0)

    @property
    def under_way(self) -> bool:
        """Whether a page is being saved or loaded."""
        return bool(self._taken or self._pinned)

    def _hashed(self, _: None, keys: list[str], __: Any, ___: Any, first: int, *____: Any) -> None:
        self._places.update(zip(keys, range(first, first + len(keys)), strict=True))

    def _labels(self, request: str, keys: list[str]) -> list[str] | None:
        """The labels of a request's blocks that have these keys; `None` if it is gone."""
        run, (group,) = self._attached.runs.get(request), self._attached.groups
        return None if run is None else [run.label(group, self._places[key]) for key in keys]

    def _saves(self, _: Any, request: str, __: list[int], keys: list[str]) -> None:
        """The blocks of a request will be saved under these keys."""
        for key, label in zip(keys, self._labels(request, keys) or (), strict=False):
            self._promised.setdefault(key, label)

    def _loads(self, _: Any, task: tuple[str, list[int], list[str], Any]) -> None:
        """A thread begins a load."""
        self._wanted = self._labels(task[0], task[2])

    def _allocated(self, _: None, answer: list[tuple[str, int]], *__: Any) -> None:
        """Each key has got a page of a file: a new one, or the page that it has already."""
        self._pages = [page for _, page in answer]
        new = [page for page in self._pages if page >= 0 and page not in self._taken and page not in self._names]
        if new:
            self._taken.update(new)
            self.emit(Take(OFFLOAD, FILES, [*new]))

    def _confirmed(
        self, _: None, __: None, ___: Any, ____: int, written: list[tuple[str, int]], failed: list[int] | None = None
    ) -> None:
        """Pages were written, or are free again because they could not be written."""
        for key, page in written:
            if page not in self._names:
                self._names[page] = key
                label = self._promised.get(key)
                self.emit(Publish(FILES, [page], [key], None if label is None else [label]))
        for page in failed or ():
            if page in self._names:
                self.emit(Drop(FILES, [page], [self._names.pop(page)]))
        given = [page for page in [*(page for _, page in written), *(failed or ())] if page in self._taken]
        if given:
            self._taken.difference_update(given)
            self.emit(Release(OFFLOAD, FILES, given))

    def _located(self, _: None, answer: list[int | None], __: Any, ___: int, keys: list[str]) -> None:
        """The pages of a load are known; `None`: it fails."""
        self._pages = found = [page for page in answer if page is not None]
        if len(found) == len(answer):
            self._pinned = found
            self.emit(Share(OFFLOAD, FILES, [*found], keys, pin=True))

    def _loaded(self, *_: Any) -> None:
        if self._pinned:
            pinned, self._pinned = self._pinned, ()
            self.emit(Release(OFFLOAD, FILES, [*pinned]))

    def _copies(self, _: Any, blocks: list[int], __: Any, operation: str) -> None:
        """A copy of blocks is queued on the current stream."""
        labels = self._wanted if operation == "scatter" else None
        copies = [
            (Use(pool=POOL, pages=[block]), Use(pool=FILES, pages=[page], labels=labels and [labels[at]]))
            for at, (block, page) in enumerate(zip(blocks, self._pages, strict=True))
        ]
        if operation == "gather":
            self._streams.begin("save", [], [], copies)
        else:
            self._streams.begin("load", [], [], [(page, block) for block, page in copies])
