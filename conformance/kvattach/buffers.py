"""Follows memory besides pages that operations read late: buffers on the host, and index tensors of a launch.

Each buffer or tensor is a page of a separate pool. The host fills a buffer at once; an operation reads it when its
stream gets there. A tensor that no variable holds any more is free, and the next tensor may take its place.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from kvattach.hooks import Hooks
from kvattach.streams import HOST, Streams
from kvspec.memory.events import Begin, OpId, Pages, Pool, Release, Take, Use

BUFFERS = "buffers"
"""The pool, and the holder of all that is in it."""
PAGES = 4096
"""The most buffers that are followed at once. Uses of further buffers are not emitted."""


class Buffers:
    """The buffers of one process."""

    def __init__(self, hooks: Hooks, streams: Streams) -> None:
        """None is followed."""
        self._hooks, self._streams = hooks, streams
        self._uses: dict[object, Use] = {}
        """Buffer -> the use of its page."""
        self._free: Pages = [*range(PAGES)][::-1]
        self._tensors: dict[object, tuple[weakref.ref[Any], int | None, Use]] = {}
        """Index tensor, by identity -> itself, how often it was written to (`None`: not counted), and the use of it."""
        self._gone: list[object] = []
        self._filled: dict[int, int] = {}
        """Page -> the operation on a stream that wrote it last."""
        self._writes = 0

    @property
    def pool(self) -> Pool:
        """The pool, as a header has it."""
        return Pool(num_pages=PAGES, first_page=0)

    def clear(self) -> None:
        """A new trace begins."""
        self._uses.clear()
        self._tensors.clear()
        self._gone.clear()
        self._filled.clear()
        self._free = [*range(PAGES)][::-1]

    def use(self, *buffers: object) -> list[Use]:
        """The uses of these buffers, each identified by a name that never changes. New buffers are taken."""
        known = self._uses
        fresh = [buffer for buffer in buffers if buffer not in known]
        if fresh:
            taken = {buffer: self._free.pop() for buffer in [*dict.fromkeys(fresh)][: len(self._free)]}
            known |= {buffer: Use(pool=BUFFERS, pages=[page], holder=BUFFERS) for buffer, page in taken.items()}
            if taken:
                self._hooks.emit(Take(BUFFERS, BUFFERS, [*taken.values()]))
        return [known[buffer] for buffer in buffers if buffer in known]

    def release(self, *buffers: object) -> None:
        """Buffers are given back: the next new buffers may take their places."""
        pages = [page for buffer in buffers if buffer in self._uses for page in self._uses.pop(buffer).pages]
        if pages:
            self._free += pages
            self._hooks.emit(Release(BUFFERS, BUFFERS, [*pages]))

    def host(
        self, at: str, *, reads: Iterable[Use] = (), writes: Iterable[Use] = (), after: Iterable[OpId] = ()
    ) -> None:
        """The host reads or writes buffers."""
        self._writes += 1
        self._hooks.emit(Begin(f"{HOST} {self._writes}", HOST, [*reads], [*writes], after=[*after], at=at))

    def late(self, at: str, read: Iterable[tuple[Any, Use]]) -> Callable[[], None]:
        """A function that a simulated device calls when it gets to an operation that reads these tensors.

        If one is other than when the operation was queued, the host has written to it before `at`. The tensor may
        die meanwhile; its memory is kept.
        """
        queued = [(tensor.detach(), tensor.tolist(), use) for tensor, use in read]
        filled = [self._filled[page] for _, _, use in queued for page in use.pages if page in self._filled]

        def read_now() -> None:
            changed = [use for now, was, use in queued if now.tolist() != was]
            if changed:
                self.host(f"before {at}", writes=changed, after=filled)

        return read_now

    def tensors(self, at: str, tensors: Sequence[Any]) -> list[Use]:
        """The uses of index tensors.

        Those that are new, or were written to since the last look, are written on the current stream, in `at`.
        """
        if self._gone:
            self._collect()
        known = self._tensors
        if fresh := [key for key in map(id, tensors) if key not in known]:
            self.use(*fresh)
        written, seen = [], []
        for tensor in tensors:
            key = id(tensor)
            if key in known:
                kept, version, use = known[key]
                changed = version is not None and version != tensor._version
            elif key in self._uses:
                kept, use, changed = weakref.ref(tensor, partial(self._died, key)), self._uses[key], True
            else:
                continue
            if changed:
                written.append(use)
                known[key] = kept, None if tensor.is_inference() else tensor._version, use
            seen.append(use)
        if written:
            queued = self._streams.begin(at, [], written)
            self._filled |= {page: queued for use in written for page in use.pages if isinstance(page, int)}
        return seen

    def _died(self, key: object, _: weakref.ref[Any]) -> None:
        self._gone.append(key)

    def _collect(self) -> None:
        """Release the tensors that have died since the last look: where one dies, an event may be under way."""
        gone = []
        while self._gone:
            gone.append(self._gone.pop())
            del self._tensors[gone[-1]]
        self.release(*gone)
