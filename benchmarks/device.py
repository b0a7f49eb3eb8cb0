"""How fast the device manager is: each operation against engines' ways of doing it, and against the floor.

    python benchmarks/device.py

Prints tables in Markdown: medians over repetitions, with device, versions and date. Per operation:

    host      until the call returns: what the scheduler's thread pays
    device    what the GPU is busy with, all launches queued up beforehand; none for a path that synchronizes
    wall      from the call until the device is done, as a scheduler sees it that needs the outcome
    floor     the bytes that must move at measured copy bandwidth, or one empty kernel, whichever is longer

`unique` is the operation built from PyTorch calls as engines did it: `torch.unique(free_index // page_size)`,
`torch.cat`, `index_put`. `strided` is what newer engines do: one strided slice, a division and a `torch.cat` a request,
without a synchronization.
"""

import datetime
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton

from kvcuda.arena import Run
from kvcuda.backend import DEVICE
from kvcuda.decode_graph import DecodeGraph
from kvcuda.device_manager import DeviceManager
from kvcuda.digest_step import DigestStep
from kvcuda.kernels import empty_kernel
from kvcuda.lanes import default_lanes
from kvcuda.memory import DeviceMemory
from kvcuda.row_table import ints
from kvcuda.tensors import Ints
from kvspec.events import Config
from kvspec.pages import ceil_pages

REPEAT = 50
INTS = 4
"""Bytes of a slot index or a page number."""


class Case(NamedTuple):
    """One way to do one operation."""

    setup: Callable[[], Any]
    """Brings the memory into the state before the operation; not timed."""
    run: Callable[[Any], object]
    """The operation, on what `setup` returned."""
    synchronizes: bool = False


class Times(NamedTuple):
    """Medians, in microseconds."""

    host: float
    device: float | None
    wall: float


class CudaClock:
    """Times on a GPU."""

    def __init__(self) -> None:
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def time(self, case: Case, repeat: int = REPEAT) -> Times:
        hosts, devices, walls = [], [], []
        for _ in range(repeat + 3):
            state = case.setup()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            case.run(state)
            hosts.append(time.perf_counter() - begin)
            torch.cuda.synchronize()
            walls.append(time.perf_counter() - begin)
            if not case.synchronizes:
                state = case.setup()
                torch.cuda.synchronize()
                torch.cuda._sleep(5_000_000)  # all launches are queued before the first one begins
                self._begin.record()
                case.run(state)
                self._end.record()
                torch.cuda.synchronize()
                devices.append(self._begin.elapsed_time(self._end) * 1e-3)
        middle = [statistics.median(times[3:]) * 1e6 if times else None for times in (hosts, devices, walls)]
        return Times(middle[0] or 0.0, middle[1], middle[2] or 0.0)


class Floor:
    """What no implementation can beat on this device."""

    def __init__(self, clock: CudaClock, *, copied: int = 1 << 30) -> None:
        source = torch.zeros(copied // INTS, dtype=torch.int32, device=DEVICE)
        target = torch.empty_like(source)
        copy = clock.time(Case(lambda: None, lambda _: target.copy_(source)))
        self.bytes_per_us = 2 * copied / (copy.device or copy.wall)
        word = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        self.empty = clock.time(Case(lambda: None, lambda _: empty_kernel[(1,)](word)))

    def of(self, moved: float) -> float:
        """Microseconds for so many bytes."""
        return max(moved / self.bytes_per_us, self.empty.device or self.empty.wall)


class Pool:
    """A memory with `batch` rows that hold `length` tokens each, and PyTorch twins of its tensors for the baselines."""

    def __init__(self, page_size: int, batch: int, length: int, *, num_pages: int = 0, room: int = 8192) -> None:
        held = batch * ceil_pages(length, page_size)
        self.config = Config(
            page_size, num_pages or 2 * held + batch * ceil_pages(room, page_size), batch, length + room
        )
        self.batch, self.length = batch, length
        self.memory = DeviceMemory(self.config, default_lanes(DEVICE))
        self.rows = ints(list(range(batch)))
        self.zeros = self.rows * 0
        self.lengths = self.zeros + length
        self.device_rows = torch.arange(batch, device=DEVICE)
        self.device_lengths = torch.full((batch,), length, dtype=torch.int64, device=DEVICE)

    def fill(self) -> None:
        """Give every row its tokens, on an otherwise empty memory."""
        memory = self.memory
        if memory.available < self.config.num_pages:
            memory.flush()
            memory.popped = memory.pushed = 0
            memory.ring.copy_(torch.arange(1, self.config.num_pages + 1, dtype=torch.int32, device=DEVICE))
        if self.length:
            memory.extend(self.rows, self.zeros, self.lengths)

    def filled(self, free_pages: Any) -> Any:
        """Fill, for a baseline that has its own list of free pages."""
        self.fill()
        return free_pages

    def pages(self) -> Ints:
        return self.zeros + ceil_pages(self.length, self.config.page_size)


def free_rows(pool: Pool, first_page: int = 0) -> dict[str, Case]:
    """Free each row's pages from `first_page` on: a batch of requests that end, or of tails."""
    memory, page_size, length = pool.memory, pool.config.page_size, pool.length
    free_pages = torch.arange(1, 1 + pool.config.num_pages, device=DEVICE)

    def setup() -> Any:
        return pool.filled(free_pages)

    def ours(_: Any) -> None:
        memory.free_all(pool.rows, pool.zeros + first_page, pool.pages())
        memory.flush()

    def unique(free: Any) -> None:
        for row in range(pool.batch):
            indices = memory.req_to_token[row, first_page * page_size : length]
            free = torch.cat((torch.unique(indices // page_size), free))

    def strided(free: Any) -> None:
        for row in range(pool.batch):
            indices = memory.req_to_token[row, first_page * page_size : length : page_size]
            free = torch.cat((indices // page_size, free))

    def unique_at_once(free: Any) -> None:
        parts = [memory.req_to_token[row, first_page * page_size : length] for row in range(pool.batch)]
        torch.cat((torch.unique(torch.cat(parts) // page_size), free))

    return {
        "kvcuda": Case(setup, ours),
        "unique": Case(setup, unique, synchronizes=True),
        "unique, one call a batch": Case(setup, unique_at_once, synchronizes=True),
        "strided": Case(setup, strided),
    }


def decode(pool: Pool) -> dict[str, Case]:
    """One decode step: a token each."""
    memory, page_size = pool.memory, pool.config.page_size
    free_pages = torch.arange(1, 1 + pool.config.num_pages, device=DEVICE, dtype=torch.int32)

    def ours(_: Any) -> None:
        _, _, slot = memory.stage_decode(pool.rows, pool.lengths, pool.lengths, 1)
        memory.run_decode(slot, pool.batch)

    def torch_ops(free: Any, count: int | None) -> Any:
        rows, lengths = pool.device_rows, pool.device_lengths
        last = memory.req_to_token[rows, lengths - 1]
        needs = lengths % page_size == 0
        order = torch.cumsum(needs, 0) - 1
        slots = torch.where(needs, free[order.clamp(min=0)] * page_size, last + 1)
        memory.req_to_token[rows, lengths] = slots.to(torch.int32)
        return free[int(needs.sum().item()) if count is None else count :]

    crossing = pool.batch if pool.length % page_size == 0 else 0
    return {
        "kvcuda": Case(pool.fill, ours),
        "unique": Case(lambda: pool.filled(free_pages), lambda free: torch_ops(free, None), synchronizes=True),
        "strided": Case(lambda: pool.filled(free_pages), lambda free: torch_ops(free, crossing)),
    }


def extend(pool: Pool, tokens: int) -> dict[str, Case]:
    """Prefill `tokens` tokens of each row."""
    memory, page_size = pool.memory, pool.config.page_size
    pages = ceil_pages(tokens, page_size)
    free_pages = torch.arange(1, 1 + pool.config.num_pages, device=DEVICE, dtype=torch.int32)
    offsets = torch.arange(page_size, device=DEVICE, dtype=torch.int32)

    def torch_ops(free: Any, *, wait: bool) -> None:
        outs = []
        for row in range(pool.batch):
            taken, free = free[:pages], free[pages:]
            slots = (taken[:, None] * page_size + offsets).reshape(-1)[:tokens]
            memory.req_to_token[row, :tokens] = slots
            outs.append(slots)
        out = torch.cat(outs)
        if wait:
            out[-1].item()

    return {
        "kvcuda": Case(pool.fill, lambda _: memory.extend(pool.rows, pool.zeros, pool.zeros + tokens)),
        "unique": Case(lambda: pool.filled(free_pages), lambda free: torch_ops(free, wait=True), synchronizes=True),
        "strided": Case(lambda: pool.filled(free_pages), lambda free: torch_ops(free, wait=False)),
    }


def publish(pool: Pool) -> dict[str, Case]:
    """Half of each row goes to the store, the other half are duplicates whose row is rewritten."""
    memory, half = pool.memory, ceil_pages(pool.length, pool.config.page_size) // 2

    def setup() -> None:
        pool.fill()
        memory.arena.copy_(memory.ring)

    def ours(_: Any) -> None:
        for row in range(pool.batch):
            memory.replace(row, 0, [Run(row * half, half)])
            memory.publish(row, half, [Run((pool.batch + row) * half, half)])
        memory.flush()

    return {"kvcuda": Case(setup, ours)}


def evict(pool: Pool, runs: int, pages: int) -> dict[str, Case]:
    """The store gives `runs` runs of `pages` pages up."""
    memory = pool.memory

    def ours(_: Any) -> None:
        memory.evict([Run(pages * number, pages) for number in range(runs)])
        memory.flush()

    return {"kvcuda": Case(pool.fill, ours)}


def print_table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A table in Markdown."""
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def figure(microseconds: float | None) -> str:
    """Microseconds with three digits."""
    return "-" if microseconds is None else f"{microseconds:,.3g}" if microseconds < 1000 else f"{microseconds:,.0f}"


def operations(clock: CudaClock, floor: Floor, scale: int = 1) -> list[tuple[str, ...]]:
    """Every operation against its baselines; `scale` divides all sizes."""
    batch, prompt, ended = 256 // scale, 4096 // scale, 8192 // scale
    wide = max(1, 16 // scale)
    table = []
    for page_size in (1, 16, 64):
        pages = ended // page_size
        tail = max(1, 128 // page_size)
        cases: dict[str, tuple[dict[str, Case], float]] = {
            f"decode, {batch} requests": (
                decode(Pool(page_size, batch, 512 // scale)),
                32 * batch * 2 + 6 * INTS * batch,
            ),
            f"extend, {wide} x {prompt} tokens": (
                extend(Pool(page_size, wide, 0, room=prompt), prompt),
                wide * (2 * INTS * prompt + INTS * prompt / page_size),
            ),
            f"free {batch} rows of {ended} tokens": (
                free_rows(Pool(page_size, batch, ended)),
                batch * pages * (min(32, INTS * page_size) + INTS),
            ),
            f"free {batch} tails of {tail * page_size} tokens": (
                free_rows(Pool(page_size, batch, ended), pages - tail),
                batch * tail * (min(32, INTS * page_size) + INTS),
            ),
            f"publish {wide} rows of {prompt} tokens": (
                publish(Pool(page_size, wide, prompt)),
                wide * (prompt / page_size * 4 * INTS + INTS * prompt / 2),
            ),
            f"evict {wide} x {tail} pages": (
                evict(Pool(page_size, batch, ended), wide, tail),
                wide * tail * 2 * INTS,
            ),
        }
        for name, (ways, moved) in cases.items():
            times = {way: clock.time(case) for way, case in ways.items()}
            ours = times["kvcuda"]
            for way, one in times.items():
                table.append(
                    (
                        str(page_size),
                        name,
                        way,
                        *map(figure, (one.host, one.device, one.wall, floor.of(moved))),
                        "" if one is ours else f"{one.wall / ours.wall:.1f}",
                    )
                )
    return table


def flatness(clock: CudaClock, pools: tuple[int, ...], batches: tuple[int, ...]) -> list[tuple[str, ...]]:
    """Decode and free over pool sizes and batches: flat in the one, linear in the other."""
    table = []
    for num_pages in pools:
        pool = Pool(16, 64, 512, num_pages=num_pages)
        one, other = clock.time(decode(pool)["kvcuda"]), clock.time(free_rows(pool)["kvcuda"])
        table.append((f"{num_pages:,} pages, batch 64", *map(figure, (one.host, one.device, other.host, other.device))))
    for batch in batches:
        pool = Pool(16, batch, 512)
        one, other = clock.time(decode(pool)["kvcuda"]), clock.time(free_rows(pool)["kvcuda"])
        table.append((f"batch {batch}", *map(figure, (one.host, one.device, other.host, other.device))))
    return table


def start(manager: DeviceManager, batch: int) -> list[str]:
    """Let `batch` requests run that have prefilled 16 tokens each; their launch, number 0, is in flight."""
    reqs = [f"r{number}" for number in range(batch)]
    for number, req in enumerate(reqs):
        manager.submit(req, [number % 1000] * 16)
        manager.match_prefix(req)
    manager.extend([(req, 16) for req in reqs])
    manager.launch(0, reqs)
    return reqs


def manager_steps(batch: int, steps: int) -> dict[str, float]:
    """Median microseconds of host time of each operation of a decode step, without any forward pass."""
    manager = DeviceManager(Config(16, batch * 64, batch, 1024))
    reqs = start(manager, batch)
    tokens = dict.fromkeys(reqs, 0)
    spans: dict[str, list[float]] = {"decode": [], "launch": [], "complete": []}
    for launch in range(1, steps + 1):
        begin = time.perf_counter()
        manager.decode(reqs)
        decoded = time.perf_counter()
        manager.launch(launch, reqs)
        launched = time.perf_counter()
        manager.complete(launch - 1, tokens)
        ended = time.perf_counter()
        for name, span in zip(spans, (decoded - begin, launched - decoded, ended - launched), strict=True):
            spans[name].append(span)
    return {name: statistics.median(times) * 1e6 for name, times in spans.items()}


def whole_steps(batch: int, steps: int, *, graph: bool) -> float:
    """Microseconds of wall time per decode step with the digest model."""
    step = DigestStep(
        DeviceManager, Config(16, batch * 64, batch, 1024), max_words=1 << 16, max_samples=(steps + 8) * batch
    )
    replay = DecodeGraph(step, batch) if graph else None
    manager = step.manager
    reqs = start(manager, batch)
    tokens = dict.fromkeys(reqs, 0)
    manager.lanes.synchronize()
    begin = time.perf_counter()
    for launch in range(1, steps + 1):
        if replay is None:
            manager.decode(reqs)
            manager.launch(launch, reqs)
        else:
            replay.decode_and_launch(launch, reqs)
        manager.complete(launch - 1, tokens)
    manager.lanes.synchronize()
    return (time.perf_counter() - begin) / steps * 1e6


def steps_table(batches: tuple[int, ...], steps: int) -> list[tuple[str, ...]]:
    """Whole decode steps: the manager's host time, and wall time with the model, launched and replayed."""
    table = []
    for batch in batches:
        hosts = manager_steps(batch, steps)
        walls = [whole_steps(batch, steps, graph=graph) for graph in (False, True)]
        table.append((str(batch), *map(figure, (*hosts.values(), sum(hosts.values()), *walls))))
    return table


def main() -> int:
    if not torch.cuda.is_available():
        print("benchmarks/device.py: no CUDA GPU here, so there is nothing to measure", file=sys.stderr)
        return 2
    if DEVICE != "cuda":
        print("benchmarks/device.py: TRITON_INTERPRET=1 is set, so nothing would run on the GPU", file=sys.stderr)
        return 2
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
        f"CUDA {torch.version.cuda}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}; medians of {REPEAT}\n"
    )
    clock = CudaClock()
    floor = Floor(clock)
    print(
        f"Floors: copy {floor.bytes_per_us / 1e3:,.0f} GB/s (read and write counted), empty kernel "
        f"{figure(floor.empty.device)} us on the device and {figure(floor.empty.host)} us on the host.\n"
    )
    print_table(
        ("page size", "operation", "way", "host us", "device us", "wall us", "floor us", "x ours, wall"),
        operations(clock, floor),
    )
    print_table(
        ("size", "decode host us", "decode device us", "free host us", "free device us"),
        flatness(clock, (10_000, 100_000, 1_000_000, 4_000_000), (1, 4, 16, 64, 256, 1024)),
    )
    print_table(
        ("batch", "decode host us", "launch", "complete", "all three", "wall us with the model", "as a graph"),
        steps_table((1, 16, 64, 256), 200),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
