"""How long SGLang's hooks hold the engine's thread up at each decode step, at once and late.

    python -m benchmarks.late_hooks [--page-size 64] [--steps 200]

A stand-in engine with tensors on the device allocates slots, writes rows, launches, publishes prompts and frees rows as
SGLang's scheduler does; its classes are small, the hooks are those of `kvattach.sglang`. A launch is a kernel that
sleeps for about two milliseconds. Prints the median microseconds of a step without hooks, with hooks on a tape, and
with hooks that read at once. Without a GPU a tape copies on the CPU, no kernel sleeps, and hooks at once read arrays.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from kvattach.hooks import Trace
from kvattach.sglang.hooks import Attached
from kvattach.tape import Tape
from kvspec.memory.events import MemoryEvent, Pool

T = TypeVar("T", bound=Tape)

WIDTH = 4096
CYCLES = 4_000_000
"""How long the device sleeps in a launch."""


class Events:
    """Keeps all events, or only counts them."""

    def __init__(self, *, keep: bool = True) -> None:
        """No event yet."""
        self.all: list[MemoryEvent] = []
        self._keep = keep

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """The pools follow from the engine."""

    def emit(self, *events: MemoryEvent) -> None:
        """Take events."""
        if self._keep:
            self.all += events


class Rows:
    """The table of rows."""

    def __init__(self, size: int, device: str) -> None:
        """Row 0 is for padding."""
        self.size = size
        self.req_to_token = torch.zeros((size + 1, WIDTH), dtype=torch.int32, device=device)
        self.free_slots = [*range(1, size + 1)]

    def write(self, indices: Any, values: Any) -> None:
        """Write entries."""
        self.req_to_token[indices] = values

    def alloc(self, reqs: list[Any]) -> list[int]:
        """A row for each request."""
        for req in reqs:
            req.kv.req_pool_idx = self.free_slots.pop(0)
        return [req.kv.req_pool_idx for req in reqs]

    def free(self, req: Any) -> None:
        """A request gives its row back: the next one gets it."""
        self.free_slots.insert(0, req.kv.req_pool_idx)
        req.kv.req_pool_idx = None


class Allocator:
    """The allocator of pages."""

    def __init__(self, pages: int, page_size: int, device: str) -> None:
        """Page 0 is for padding."""
        self.page_size, self.size = page_size, pages * page_size
        self.free_pages = torch.arange(1, pages + 1, dtype=torch.int64, device=device)
        self._places = torch.arange(page_size, dtype=torch.int64, device=device)

    def alloc(self, tokens: int) -> Any:
        """The slots of whole pages."""
        pages = self.free_pages[: tokens // self.page_size]
        self.free_pages = self.free_pages[len(pages) :]
        return (pages[:, None] * self.page_size + self._places).reshape(-1)

    def free(self, slots: Any) -> None:
        """Whole pages go back."""
        self.free_pages = torch.cat((slots[:: self.page_size].long() // self.page_size, self.free_pages))

    def free_group_end(self) -> None:
        """There are no groups."""


class Core:
    """The core of a tree with one node for each prompt."""

    kv_events = SimpleNamespace(enabled=False)

    def __init__(self) -> None:
        """An empty tree."""
        self.nodes: dict[int, Any] = {}

    def collect_path_info(self, nodes: list[int]) -> Any:
        """The path to a node: itself."""
        (node,) = nodes
        return ([SimpleNamespace(node_id=node, path_start=0, path_end=len(self.nodes[node]))],)

    def walk_for_kv_canary(self, **_: bool) -> Any:
        """The slots of all nodes."""
        return SimpleNamespace(slot_indices=torch.cat([*self.nodes.values()]))

    def inc_lock_ref(self, node: int) -> None:
        """Lock a path."""

    def dec_lock_ref(self, node: int) -> None:
        """Unlock a path."""

    def commit_backup(self, *_: Any) -> None:
        """There is no host tier."""

    commit_load_back = insert_host = commit_backup


RustCore = type("RustCore", (Core,), {name: vars(Core)[name] for name in ("inc_lock_ref", "dec_lock_ref")})


class Cache:
    """The tree."""

    def __init__(self, rows: Rows, allocator: Allocator) -> None:
        """An empty tree."""
        self.rows, self.allocator, self.tree_core = rows, allocator, RustCore()
        self.page_size = allocator.page_size

    def supports_swa(self) -> bool:
        """No windows."""
        return False

    supports_mamba = supports_swa

    def path_device_indices(self, node: int) -> Any:
        """The slots of a path."""
        return self.tree_core.nodes[node].clone()

    def insert(self, params: Any) -> Any:
        """A prompt gets its node."""
        node = len(self.tree_core.nodes) + 1
        self.tree_core.nodes[node] = params.value
        return SimpleNamespace(last_device_node=node)

    def checkpoint(self, req: Any) -> None:
        """Publish a prompt, and lock it."""
        length = len(req.origin_input_ids)
        values = self.rows.req_to_token[req.kv.req_pool_idx, :length].long()
        node = self.insert(SimpleNamespace(key=Key(req.origin_input_ids), value=values)).last_device_node
        self.rows.write((req.kv.req_pool_idx, slice(0, length)), values.int())
        req.lock = self.lock(node)

    def lock(self, node: int) -> Any:
        """Lock a path."""
        self.tree_core.inc_lock_ref(node)
        return SimpleNamespace(node=node)

    def unlock(self, lock: Any) -> None:
        """Unlock a path."""
        self.tree_core.dec_lock_ref(lock.node)

    def free_kv_row(self, kv: Any, start: int, stop: int) -> None:
        """Free the pages of a part of a row, by a view of it."""
        self.allocator.free(self.rows.req_to_token[kv.req_pool_idx, start:stop])

    def nothing(self, *_: Any, **__: Any) -> Any:
        """Not used here."""


class Key(list[int]):
    """The key of an insert."""

    extra_key = None

    @property
    def token_ids(self) -> list[int]:
        """Its tokens."""
        return self


UNUSED = (
    "reset check_hicache_events on_release _drain_device_frees _drain_host_frees release_swa _apply_cache_action "
    "load_back _execute_and_commit_kv_backup _finish_write_through_ack take_events writing_check loading_check "
    "prefetch_from_storage _handle_prefetch_result _retire_ongoing_prefetch inc_host_lock_ref dec_host_lock_ref "
    "_drain_storage_control_queues_impl"
)
for name in UNUSED.split():
    setattr(Cache, name, Cache.nothing)


class Batch:
    """A batch of requests."""

    def _evict_swa(self, *_: Any) -> None:
        """There are no windows."""


class Unused:
    """Stands for the parts of an engine that a plain memory does not use."""

    def nothing(self, *_: Any, **__: Any) -> Any:
        """Not used here."""

    alloc = free = backup_from_device_all_layer = load_to_device_per_layer = set = get = clear = nothing
    get_data_page = set_from_flat_data_page = load = write = write_storage = extend_image_inputs = nothing
    allocate_storage_hit = nothing


def release() -> Any:
    """The modules of the stand-in."""
    return SimpleNamespace(
        torch=torch, unified=True, checkpoints=True, scheduled=False, pairs=False, rows_by_number=False,
        relay=None, session_slots=None, weight_updater=None, state_allocator=None, window_allocator=Unused2,
        opaque_core=RustCore, row_pools=[Rows], cache_class=Cache, tree_class=Cache,
        controller_class=Unused, host_class=Unused,
        allocators=SimpleNamespace(TokenToKVPoolAllocator=Unused2, PagedTokenToKVPoolAllocator=Allocator),
        host=SimpleNamespace(HostKVCache=Unused), storage=SimpleNamespace(HiCacheFile=Unused),
        batches=SimpleNamespace(Req=Unused, ScheduleBatch=Batch), core=SimpleNamespace(UnifiedTreeCore=Core),
        component=SimpleNamespace(ComponentType=SimpleNamespace(FULL=0, SWA=1, MAMBA=2)),
        writes_rows=SimpleNamespace(write_cache_indices=lambda *_: None),
    )  # fmt: skip


class Unused2:
    """An allocator that is not used."""

    def free_group_end(self) -> None:
        """Not used here."""


class Engine:
    """Requests in rows, which decode together."""

    def __init__(self, requests: int, page_size: int, device: str, prompt: int) -> None:
        """Room for the requests, each with a prompt of so many tokens, in whole pages."""
        self.device, self.prompt, self._size = device, prompt, page_size
        self.rows = Rows(requests, device)
        pages = requests * 2 * WIDTH // page_size
        self.allocator = Allocator(pages, page_size, device)
        self.cache = Cache(self.rows, self.allocator)
        self.reqs: list[Any] = []
        self.attached: Attached | None = None
        self._numbers = 0

    def admit(self, count: int) -> None:
        """Compute the prompts of further requests, and publish them."""
        fresh = []
        for _ in range(count):
            self._numbers += 1
            tokens = [self._numbers * 7 + at for at in range(self.prompt)]
            kv = SimpleNamespace(req_pool_idx=None, kv_allocated_len=0)
            made = {"origin_input_ids": tokens, "output_ids": [], "kv": kv, "lock": None, "extra_key": None}
            fresh.append(SimpleNamespace(rid=f"r{self._numbers}", cache_salt=None, **made))
        self.rows.alloc(fresh)
        for req in fresh:
            self.rows.write((req.kv.req_pool_idx, slice(0, self.prompt)), self.allocator.alloc(self.prompt).int())
        self._launch(fresh, [0] * count, [self.prompt] * count)
        for req in fresh:
            req.output_ids.append(self._numbers)
            self.cache.checkpoint(req)
        self.reqs += fresh

    def decode(self) -> None:
        """Each request computes one token."""
        lengths = [self.prompt + len(req.output_ids) for req in self.reqs]
        rows = self._sent([req.kv.req_pool_idx for req in self.reqs])
        where = self._sent([at - 1 for at in lengths])
        slots = self.rows.req_to_token[rows, where - 1] + 1
        starting = [place for place, at in enumerate(lengths) if (at - 1) % self._size == 0]
        if starting:
            slots[self._sent(starting)] = self.allocator.alloc(len(starting) * self._size)[:: self._size].int()
        self.rows.write((rows, where), slots)
        self._launch(self.reqs, [at - 1 for at in lengths], lengths)
        for req in self.reqs:
            req.output_ids.append(len(req.output_ids))
        if self.attached is not None:
            self.attached.looked()

    def _sent(self, numbers: list[int]) -> Any:
        """Numbers on the device, without a wait for it."""
        made = torch.tensor(numbers)
        return made if self.device == "cpu" else made.pin_memory().to(self.device, non_blocking=True)

    def _launch(self, reqs: list[Any], starts: list[int], stops: list[int]) -> None:
        if self.attached is not None:
            self.attached.reads_rows(reqs, stops)
        if self.device == "cuda":
            torch.cuda._sleep(CYCLES)
        if self.attached is not None:
            self.attached.launch(reqs, starts, stops)

    def finish(self, count: int) -> None:
        """The oldest requests end: their rows are freed, and at once overwritten."""
        for req in self.reqs[:count]:
            stop = self.prompt + len(req.output_ids) - 1
            row = req.kv.req_pool_idx
            self.cache.free_kv_row(req.kv, self.prompt, stop)
            self.cache.unlock(req.lock)
            self.rows.free(req)
            self.rows.req_to_token[row] = 0
        del self.reqs[:count]


class Stream:
    """Stands in for a stream of a CPU."""

    cuda_stream = 0

    def wait_stream(self, _: "Stream") -> None: ...
    def wait_event(self, _: "Event") -> None: ...
    def synchronize(self) -> None: ...


class Event:
    """Stands in for an event of a CPU."""

    def record(self, _: Stream) -> None: ...
    def wait(self, _: Stream) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True


def tape_of(device: str, kind: type[T]) -> T:
    """A tape for tensors of a device."""
    return kind(torch.cuda.current_stream, partial(torch.Event, device)) if device == "cuda" else kind()


@contextmanager
def attached(engine: Engine, trace: Trace, tape: Tape | None) -> Iterator[Attached]:
    """Hook an engine, at once or with a tape, which is empty in the end."""
    on_gpu = engine.device == "cuda"
    device: Any = torch.cuda if on_gpu else SimpleNamespace(current_stream=Stream)
    hooked = Attached(
        release(), trace, device.Stream if on_gpu else Stream, device.Event if on_gpu else Event, 100, device
    )
    try:
        hooked.hooks.tape = tape
        hooked.watch(SimpleNamespace(cache=engine.cache, allocator=engine.allocator, rows=engine.rows, host=None))
        if tape is not None:
            tape.start()
        engine.attached = hooked
        yield hooked
        if tape is not None:
            tape.drain()
        if hooked.hooks.problem is not None:
            raise RuntimeError(hooked.hooks.problem)
    finally:
        engine.attached = None
        hooked.hooks.detach()


def timed(requests: int, page_size: int, steps: int, device: str, late: bool | None) -> tuple[float, float]:
    """The median and the longest of nearly all (95 %) decode steps of the engine's thread, in microseconds."""
    engine = Engine(requests, page_size, device, prompt=page_size * (256 // page_size))

    def run() -> tuple[float, float]:
        engine.admit(requests)
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            engine.decode()
            times.append((time.perf_counter() - begin) * 1e6)
            # The engine reads the result of the step, as without overlap.
            if device == "cuda":
                torch.cuda.synchronize()
            else:
                time.sleep(0.002)
        return statistics.median(times), sorted(times)[int(len(times) * 0.95)]

    if late is None:
        return run()
    with attached(engine, Events(keep=False), tape_of(device, Tape) if late else None):
        return run()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(torch.cuda.get_device_name() if device == "cuda" else "CPU", f"torch {torch.__version__}")
    print("| requests | without | late | 95 % | at once | 95 % |\n| --- | --- | --- | --- | --- | --- |")
    for requests in (1, 64, 256):
        forms: list[bool | None] = [None, True, False]
        (bare, _), late, at_once = (timed(requests, options.page_size, options.steps, device, form) for form in forms)
        print(f"| {requests} | {bare:,.0f} | {late[0]:,.0f} | {late[1]:,.0f} | {at_once[0]:,.0f} | {at_once[1]:,.0f} |")


if __name__ == "__main__":
    main()
