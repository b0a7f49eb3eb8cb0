"""Hooks into LMCache's engine: its pool on the host, and its files on disk.

A page of the pool is `align_bytes` long. A memory object has the pages of its address range, and its content is a label
of its first page: it is made from the tokens and images up to the end of the chunk, and not from the engine's key. Each
reference and each pin belongs to the call of the engine that takes it (a store, a retrieve, a lookup), or to a write to
disk. The hot cache's reference is only its name. A file on disk is a page of a keyed pool.
"""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from kvattach.acting import Acting
from kvattach.hooks import Hooks, Trace, chained
from kvattach.lmcache.modules import Engine
from kvspec.memory.events import Begin, Count, Drop, End, EndHolder, Idle, Pool, Publish, Release, Share, Take, Use

CPU, DISK = "cpu", "disk"


@dataclass
class Call:
    """A call of the engine, or a write to disk: the holder of the references that it takes."""

    name: str
    tokens: tuple[object, ...] = ()
    apart: object = None
    """The request's tags, which separate its content from others'."""
    own: bool = False
    """Whether the hot cache takes or gives back its own reference."""
    file: str | None = None
    """The name of the file to write."""
    label: str | None = None
    """The content of the file."""


@dataclass
class Object:
    """A memory object."""

    pages: list[int]
    label: str | None = None
    pins: list[str] = field(default_factory=list)
    """The holder of each pin."""


class Attached:
    """Emits the events of one engine, from the creation of its pool on."""

    def __init__(self, engine: Engine, trace: Trace) -> None:
        """Install the hooks."""
        self.hooks = hooks = Hooks(trace)
        self._engine, self._numbers = engine, count(1)
        self._acting = Acting(hooks, Call("engine"))
        self._disk: Any = None
        self._files: dict[str, str | None] = {}
        """File -> the label of its content."""
        self.contents: dict[str, tuple[object, ...]] = {}
        """Request -> its tokens, with its media in the place of the numbers that its key has for them."""
        whole, memory, cpu, disk = engine.cache_engine.LMCacheEngine, engine.memory, engine.cpu, engine.disk
        within = self._acting.within
        for name in ("store", "retrieve"):
            within(whole, name, self._call_of(name), self._ended)
            self._within_steps(whole, f"{name}_layer", self._call_of(name))
        for name in ("lookup", "lookup_unpin"):
            within(whole, name, lambda _, *args, **kwargs: Call(f"lookup {kwargs.get('lookup_id') or args[0]}"))
        within(whole, "_clear", lambda *_, **__: Call(f"clear {next(self._numbers)}"))
        hooks.hook(whole, "lookup_unpin", after=lambda _, __, ___, name: hooks.emit(EndHolder(f"lookup {name}")))
        for name in ("submit_put_task", "remove"):
            within(cpu.LocalCPUBackend, name, lambda *_, **__: Call(self._acting.now.name, own=True))
        hooks.hook(cpu.LocalCPUBackend, "__init__", after=self._cpu_made)
        hooks.hook(disk.LocalDiskBackend, "__init__", after=self._disk_made)
        allocator = engine.allocator.TensorMemoryAllocator
        hooks.hook(allocator, "allocate", after=lambda _, made, *__: self._taken([made] if made else []))
        hooks.hook(allocator, "batched_allocate", after=lambda _, made, *__: self._taken(made or []))
        for name, do in {"ref_count_up": self._up, "ref_count_down": self._down}.items():
            hooks.hook(memory.TensorMemoryObj, name, before=do)
        for name, do in {"pin": self._pinned, "unpin": self._unpinned}.items():
            hooks.hook(memory.TensorMemoryObj, name, before=do)
        files = disk.LocalDiskBackend
        for name in ("submit_put_task", "async_save_bytes_to_disk"):
            within(files, name, self._write_of)
        hooks.hook(files, "write_file", after=self._written)
        hooks.hook(files, "read_file", before=lambda _, __, ___, path: Path(path).exists(), after=self._read)

    # Holders of references

    def _within_steps(self, owner: Any, name: str, call: Callable[..., Call]) -> None:
        """Attribute references that a generator takes, one layer at a time, to the call that `call` returns."""
        original = getattr(owner, name)

        def within(*args: Any, **kwargs: Any) -> Iterator[Any]:
            made = self.hooks.guarded(call, *args, **kwargs) or self._acting.now
            steps, end = original(*args, **kwargs), object()
            answer = None
            while answer is not end:
                with self._acting.as_one(made):
                    answer = next(steps, end)
                if answer is not end:
                    yield answer
            self.hooks.guarded(self._ended, made)

        self.hooks.set(owner, name, within)

    def _call_of(self, name: str) -> Callable[..., Call]:
        def call(_: Any, tokens: Any, *args: Any, **kwargs: Any) -> Call:
            numbers = self.contents.get(kwargs.get("req_id", ""))
            numbers = numbers or tuple(tokens.tolist() if hasattr(tokens, "tolist") else tokens)
            tags = tuple(sorted((kwargs.get("request_configs") or {}).items()))
            return Call(f"{name} {next(self._numbers)}", numbers, tags)

        return call

    def _write_of(self, backend: Any, key: Any, memory_obj: Any, *_: Any, **__: Any) -> Call:
        file = Path(backend._key_to_path(key)).name
        return Call(f"write {file}", file=file, label=self._object(memory_obj).label)

    def _ended(self, call: Call) -> None:
        self.hooks.emit(EndHolder(call.name))
        self.counted()

    # The pool on the host

    def _cpu_made(self, _: None, __: None, backend: Any, *___: Any, **____: Any) -> None:
        pool = backend.memory_allocator.pin_allocator
        self._buffer, self._addresses = pool.buffer, pool.address_manager
        self._align = pool.address_manager.compute_aligned_size(1)
        self._disk = None
        host = Pool(num_pages=pool.buffer.numel() // self._align, first_page=0)
        self.hooks.trace.header("lmcache", {CPU: host, DISK: Pool(keyed=True)})
        backend.hot_cache = self._observed(backend.hot_cache, self._named, self._unnamed)

    def _observed(self, mapping: Any, put: Callable[..., None], gone: Callable[..., None]) -> Any:
        """A mapping of the same kind that reports insertions and removals."""
        guarded = self.hooks.guarded

        class Observed(type(mapping)):  # type: ignore[misc]
            def __setitem__(self, key: Any, value: Any) -> None:
                super().__setitem__(key, value)
                guarded(put, key, value)

            def __delitem__(self, key: Any) -> None:
                value = self[key]
                super().__delitem__(key)
                guarded(gone, key, value)

            def pop(self, key: Any, *default: Any) -> Any:
                if key not in self:
                    return super().pop(key, *default)
                value = self[key]
                del self[key]
                return value

        return Observed()

    def _object(self, made: Any) -> Object:
        """The record of a memory object, which the object keeps."""
        record: Object | None = getattr(made, "kvspec", None)
        if record is None:
            first = made.meta.address // self._align
            record = made.kvspec = Object([*range(first, first + -(-made.meta.phy_size // self._align))])
        return record

    def _taken(self, made: list[Any]) -> None:
        for one in made:
            self.hooks.emit(Take(self._acting.now.name, CPU, [*self._object(one).pages]))

    def _up(self, made: Any) -> None:
        if self._acting.now.own:
            return
        record = self._object(made)
        self.hooks.emit(Share(self._acting.now.name, CPU, [*record.pages], pin=self._acting.now.file is not None))

    def _down(self, made: Any) -> None:
        if not self._acting.now.own:
            self.hooks.emit(Release(self._acting.now.name, CPU, [*self._object(made).pages]))

    def _pinned(self, made: Any) -> None:
        record = self._object(made)
        record.pins.append(self._acting.now.name)
        self.hooks.emit(Share(self._acting.now.name, CPU, [*record.pages], pin=True))

    def _unpinned(self, made: Any) -> None:
        """A holder releases its pin, or a removal takes the pin of any holder."""
        record = self._object(made)
        who = record.pins[0] if self._acting.now.own and record.pins else self._acting.now.name
        if who in record.pins:
            record.pins.remove(who)
        self.hooks.emit(Release(who, CPU, [*record.pages]))

    def _names(self, key: Any, record: Object) -> list[str]:
        return [key.to_string(), *(f"{key.to_string()}+{index}" for index in range(1, len(record.pages)))]

    def _named(self, key: Any, made: Any) -> None:
        record = self._object(made)
        labels = None if record.label is None else [record.label] * len(record.pages)
        self.hooks.emit(Publish(CPU, [*record.pages], self._names(key, record), labels))

    def _unnamed(self, key: Any, made: Any) -> None:
        record = self._object(made)
        self.hooks.emit(Drop(CPU, [*record.pages], self._names(key, record)))

    def counted(self) -> None:
        """Emit the engine's own list of free memory."""
        free = self._addresses._explicit_list
        self.hooks.emit(Count(CPU, free=[(block.start // self._align, block.size // self._align) for block in free]))

    def idle(self) -> None:
        """No operation is in progress."""
        self.counted()
        if self._disk is not None:
            # The engine counts bytes; each file here is as long as a page.
            self.hooks.emit(Count(DISK, cached=int(self._disk.current_cache_size) // self._align))
        self.hooks.emit(Idle())

    # Content

    def label(self, start: int, stop: int, layer: int | None) -> str:
        """The label of a chunk of the call's tokens, in one layer or, without a layer, in all of them."""
        return chained("", (start, self._acting.now.tokens[:stop], self._acting.now.apart, layer))

    def wrote(self, made: Any, label: str) -> None:
        """The connector to the device has written a chunk into a memory object."""
        record = self._object(made)
        record.label = label
        self._done(writes=[self._use(record)])

    def reads(self, made: Any, label: str) -> None:
        """The connector to the device reads a chunk from a memory object."""
        self._done(reads=[self._use(self._object(made), label)])

    def _use(self, record: Object, label: str | None = None) -> Use:
        label = record.label if label is None else label
        return Use(
            pool=CPU, pages=[record.pages[0]], labels=None if label is None else [label], holder=self._acting.now.name
        )

    def _done(self, **uses: Any) -> None:
        """Emit an operation that is complete when its function returns."""
        number = next(self._numbers)
        self.hooks.emit(Begin(number, **uses))
        self.hooks.emit(End(number))

    # The files

    def _disk_made(self, _: None, __: None, backend: Any, *___: Any, **____: Any) -> None:
        self._files.clear()
        self._disk = backend
        backend.dict = self._observed(backend.dict, self._stored, self._removed)

    def _page(self, buffer: Any) -> int:
        """The page of the pool in which a buffer begins."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer)) - self._buffer.data_ptr()
        return int(address // self._align)

    def _written(self, _: None, __: None, ___: Any, buffer: Any, path: str) -> None:
        """A file was written from a memory object. The object is read now, and not when the write was queued."""
        file, call = Path(path).name, self._acting.now
        self._files[file] = call.label
        source = Use(pool=CPU, pages=[self._page(buffer)], holder=call.name)
        self._done(copies=[(source, Use(pool=DISK, pages=[file]))])

    def _stored(self, key: Any, data: Any) -> None:
        file = Path(data.path).name
        label = self._files.get(file)
        self.hooks.emit(Publish(DISK, [file], [key.to_string()], None if label is None else [label]))

    def _removed(self, key: Any, data: Any) -> None:
        self.hooks.emit(Drop(DISK, [Path(data.path).name], [key.to_string()]))

    def _read(self, there: bool, _: None, __: Any, ___: Any, buffer: Any, path: str) -> None:
        """A file was read into a memory object."""
        if not there:
            return
        target = Use(pool=CPU, pages=[self._page(buffer)], holder=self._acting.now.name)
        self._done(copies=[(Use(pool=DISK, pages=[Path(path).name]), target)])
