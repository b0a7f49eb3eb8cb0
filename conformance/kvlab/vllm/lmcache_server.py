"""Stands in for LMCache's server of several processes: its messages, its store of chunks, and its stream.

It follows the rules of LMCache 0.5.6 with `--separate-object-groups`: one object for each chunk of each KV cache group,
a hit that every group can serve, and locks from a lookup until the chunks are loaded. Messages are handled at random
times, those of the worker in their order.
"""

import hashlib
import importlib
import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

from kvlab.device import Entered, Event, Stream
from kvlab.vllm.workload import Workload

STREAM = "lmcache"
"""The name of the server's stream."""

MODULE = "lmcache.v1.multiprocess.modules.lmcache_driven_transfer"
"""The engine's own server of copies."""

AT_ONCE: dict[str, Any] = {"get_experimental": (), "register_kv_cache": None, "report_block_allocation": None}
"""Messages that are answered at once, and their answers."""

TRANSFERS = ("store", "retrieve")
"""Messages that are handled in the order in which they were sent."""

LONGEST = 400
"""The number of messages after which a lookup's locks end."""


class Shared(Event):
    """An event that another process can wait for, by its handle."""

    known: ClassVar[list["Shared"]] = []

    def ipc_handle(self) -> bytes:
        """A handle of this event."""
        Shared.known.append(self)
        return str(len(Shared.known) - 1).encode()

    @classmethod
    def from_ipc_handle(cls, _: object, handle: bytes) -> "Shared":
        """The event of a handle."""
        return cls.known[int(handle)]


class Events:
    """Stands in for the engine's operations on events of several processes."""

    check_event_support = staticmethod(lambda _: None)
    create_event = staticmethod(lambda _: Shared())
    export_event = staticmethod(lambda event, _: event.ipc_handle())
    import_event = staticmethod(lambda handle, device: Shared.from_ipc_handle(device, handle))
    record_event = staticmethod(lambda event, stream: event.record(stream))
    wait_event = staticmethod(lambda event, stream: stream.wait_event(event))
    synchronize_event = staticmethod(lambda event, _: event.synchronize())
    query_event = staticmethod(lambda event: event.query())


DEVICE = SimpleNamespace(
    Event=Shared,
    stream=Entered,
    current_stream=lambda *_: Stream.current,
    current_device=lambda: 0,
    synchronize=lambda *_: Stream.current.synchronize(),
)
"""The worker's device. Waiting for it does not wait for the server's stream, which belongs to another process."""


class Client:
    """Stands in for a message queue between one side of the connector and the server."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """A connection to the server."""
        self._server = Server.now

    def submit_request(self, kind: Any, payloads: list[Any], _: Any) -> Any:
        """Send a message, in releases until 0.5.4."""
        return self._server.sent(kind.name.lower(), payloads)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **_: self._server.sent(name, args)


@dataclass
class Object:
    """One chunk of one KV cache group."""

    pages: list[int]
    written: bool = False
    locks: int = 0


@dataclass
class Lock:
    """A request's lock on one chunk of one group."""

    request: str
    chunk: int
    name: str
    until: int


@dataclass(frozen=True)
class Plane:
    """The objects of one KV cache group."""

    blocks: int
    """Blocks of a chunk."""
    kept: int
    """The last blocks of a chunk, which an object has."""
    window: int
    """The last chunks of a prefix, which a hit needs; 0: all."""


class Server:
    """The server, and its pages: an object has one for each of its blocks."""

    now: ClassVar["Server"]

    def __init__(self, work: Workload, chunk: int, future: type[Any]) -> None:
        """A server without objects; a chunk has `chunk` tokens. `future` is the engine's own class of answers."""
        self.chunk, self._failing = chunk, work.failing
        self._dice = random.Random(f"{work.seed} server")
        self._answer = type("Answer", (future,), {"wait": _wait})
        self._stream = Stream()
        self._stream.cuda_stream = STREAM
        self._mask = getattr(importlib.import_module(MODULE), "all_null_chunk_masks", None)
        """The engine's own rule for chunks without blocks. Until 0.5.3 every chunk has its states."""
        last = self._mask is not None
        self.planes = [_plane(kind, size, window, chunk, last) for kind, size, window in work.groups]
        """The objects of each group."""
        self._objects: OrderedDict[str, Object] = OrderedDict()
        self._free = list(range(work.host))
        self._locks: list[Lock] = []
        self._hits: dict[str, int] = {}
        """Request -> the number of chunks that its lookup has found."""
        self._transfers: list[tuple[str, Any, Any]] = []
        self._questions: list[tuple[str, Any, Any]] = []
        self._handled = 0
        self._known = AT_ONCE | {"get_chunk_size": chunk}

    # Messages

    def sent(self, name: str, args: Any) -> Any:
        """A message arrives. Returns its future answer."""
        answer = self._answer()
        answer.kvspec_server = self
        if name in self._known:
            answer.set_result(self._known[name])
        else:
            (self._transfers if name in TRANSFERS else self._questions).append((name, args, answer))
        return answer

    def turn(self) -> None:
        """Handle one message, if there is one: the first transfer, or any other message."""
        if self._transfers and (not self._questions or self._dice.random() < 0.5):
            self._handle(self._transfers.pop(0))
        elif self._questions:
            self._handle(self._questions.pop(self._dice.randrange(len(self._questions))))

    def until(self, answer: Any) -> None:
        """Handle messages until one of them has its answer."""
        while not answer.query():
            self.turn()

    def _handle(self, message: tuple[str, Any, Any]) -> None:
        name, args, answer = message
        self._handled += 1
        for lock in [lock for lock in self._locks if lock.until < self._handled]:
            self._unlock(lock)
        answer.set_result(getattr(self, f"_{name}")(*args))

    # Lookups

    def _lookup(self, key: Any, _: int) -> None:
        found, names = 0, [list(self._names(group, key, 0)) for group in range(len(self.planes))]
        for length in range(1, key.end // self.chunk + 1):
            if all(self._served(group, names[group][:length]) for group in range(len(self.planes))):
                found = length
        self._hits[key.request_id] = found
        for group, plane in enumerate(self.planes):
            for at in range(max(0, found - plane.window) if plane.window else 0, found):
                self._objects[names[group][at]].locks += 1
                self._locks.append(Lock(key.request_id, at, names[group][at], self._handled + LONGEST))

    def _served(self, group: int, names: list[str]) -> bool:
        """Whether a group can serve a prefix of these chunks."""
        needed = names[-self.planes[group].window :]
        return all(name in self._objects and self._objects[name].written for name in needed)

    def _query_prefetch_status(self, request: str) -> int | None:
        """The number of chunks that a lookup has found; `None`: not known yet."""
        if self._dice.random() < 0.3:
            return None
        return self._hits.get(request, 0)

    def _free_lookup_locks(self, key: Any, _: int) -> None:
        self._unlock_all(key)

    def _end_session(self, request: str) -> None:
        self._hits.pop(request, None)

    def _unlock_all(self, key: Any) -> None:
        first, stop = key.start // self.chunk, key.end // self.chunk
        for lock in [one for one in self._locks if one.request == key.request_id and first <= one.chunk < stop]:
            self._unlock(lock)

    def _unlock(self, lock: Lock) -> None:
        self._locks.remove(lock)
        self._objects[lock.name].locks -= 1

    # Transfers

    def _store(self, key: Any, _: int, blocks: list[list[int]], handle: bytes) -> tuple[bytes, bool]:
        event, new = Shared.from_ipc_handle(None, handle), []
        self._stream.wait_event(event)
        chunks = (key.end - key.start) // self.chunk
        if any(len(row) < chunks * plane.blocks for row, plane in zip(blocks, self.planes, strict=True)):
            return self._done(), False
        empty = self._empty(blocks, chunks)
        for group, plane in enumerate(self.planes):
            for at, name in enumerate(self._names(group, key, key.start)):
                first = at * plane.blocks
                if not empty[group][at] and (pages := self.reserve(name, plane.kept)):
                    first += plane.blocks - plane.kept
                    self.transfer(key, "store", group, first, blocks[group][first : first + plane.kept], pages)
                    new.append((name, group, first))
        self._stream.queue(lambda: self._written(key, new))
        return self._done(), True

    def _empty(self, blocks: list[list[int]], chunks: int) -> list[list[bool]]:
        """For each group, its chunks that have no block."""
        if self._mask is None:
            return [[False] * chunks for _ in self.planes]
        objects = [SimpleNamespace(kernel_group_indices=[group]) for group in range(len(self.planes))]
        masks: list[list[bool]] = self._mask(blocks, objects, [plane.blocks for plane in self.planes], chunks)
        return masks

    def _written(self, key: Any, new: list[tuple[str, int, int]]) -> None:
        for name, group, first in new:
            self._objects[name].written = True
            self.publish(key, name, group, first, self._objects[name].pages)

    def _retrieve(self, key: Any, _: int, blocks: list[list[int]], handle: bytes, skip: int = 0) -> tuple[bytes, bool]:
        self._stream.wait_event(Shared.from_ipc_handle(None, handle))
        good, read = True, []
        for group, plane in enumerate(self.planes):
            names = list(self._names(group, key, key.start))
            left_out = max(0, len(names) - plane.window) if plane.window else 0
            found = [name for name in names[left_out:] if name in self._objects and self._objects[name].written]
            if len(found) < len(names) - left_out or self._dice.random() < self._failing:
                good = False
                break
            for at, name in enumerate(found, left_out):
                pages = self._objects[name].pages
                self._objects.move_to_end(name)
                first = (at + 1) * plane.blocks - plane.kept
                size = self.chunk // plane.blocks
                past = min(max(0, skip // size - first), plane.kept)
                if past < plane.kept:
                    self.pin(pages)
                    self._objects[name].locks += 1
                    read.append(name)
                    ids = blocks[group][first + past : first + plane.kept]
                    self.transfer(key, "load", group, first + past, ids, pages[past:])
        self._stream.queue(lambda: self._read(key, read))
        return self._done(), good

    def _read(self, key: Any, names: list[str]) -> None:
        for name in names:
            self._objects[name].locks -= 1
            self.unpin(self._objects[name].pages)
        self._unlock_all(key)

    def _done(self) -> bytes:
        """The handle of an event behind all that the stream has."""
        event = Shared()
        event.record(self._stream)
        return event.ipc_handle()

    def transfer(self, key: Any, kind: str, group: int, first: int, blocks: list[int], pages: list[int]) -> None:
        """Queue copies between blocks of the engine and pages; `first` is the first one's place in the key's range."""
        self._stream.queue()

    # Objects

    def _names(self, group: int, key: Any, start: int) -> Iterator[str]:
        """The names of a group's objects for the chunks of a key from token `start` on."""
        for stop in range(start + self.chunk, key.end + 1, self.chunk):
            what = repr((key.model_name, key.cache_salt, key.token_ids[:stop]))
            yield f"{hashlib.sha256(what.encode()).hexdigest()[:12]}.{group}"

    def reserve(self, name: str, count: int) -> list[int]:
        """Pages for a new object; none if it exists, or if all others are locked."""
        if name in self._objects:
            return []
        old = [one for one, kept in self._objects.items() if kept.written and not kept.locks]
        while len(self._free) < count and old:
            self.evict(old.pop(0))
        if len(self._free) < count:
            return []
        pages, self._free = self._free[:count], self._free[count:]
        self._objects[name] = Object(pages)
        return pages

    def publish(self, key: Any, name: str, group: int, first: int, pages: list[int]) -> None:
        """An object is complete. It was stored under `key`; `first` is its first block's place in the key's range."""

    def evict(self, name: str) -> None:
        """Forget an object."""
        self._free += self._objects.pop(name).pages

    def pin(self, pages: list[int]) -> None:
        """An object is being read."""

    def unpin(self, pages: list[int]) -> None:
        """An object was read."""


def _plane(kind: str, size: int, window: int, chunk: int, only_last: bool) -> Plane:
    """The objects of a group. With `only_last` a state's object has the last block of a chunk alone."""
    needed = {"full": 0, "window": window, "state": size * only_last}[kind]
    kept = min(needed, chunk) if needed else chunk
    return Plane(chunk // size, kept // size, -(-needed // chunk))


def _wait(answer: Any, timeout: float | None = None) -> bool:
    """Wait for an answer: the server handles messages meanwhile."""
    answer.kvspec_server.until(answer)
    return True
