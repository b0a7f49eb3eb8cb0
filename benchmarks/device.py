"""How fast the device manager is: each operation against engines' ways of doing it, and against the floor.

    python -m benchmarks.device [--sglang FOLDER] [--operation TEXT] [--page-size N] [--repeat N]

Prints tables in Markdown: medians over repetitions, with device, versions and date. Per operation:

    host      until the call returns: what the scheduler's thread pays
    device    what the GPU is busy with, all launches queued up beforehand; none for a path that synchronizes
    wall      from the call until the device is done, as a scheduler sees it that needs the outcome
    floor     the bytes that must move at measured copy bandwidth, or one empty kernel, whichever is longer

`unique` is the operation built from PyTorch calls as engines did it: `torch.unique(free_index // page_size)`,
`torch.cat`, `index_put`. `strided` is what newer engines do: one strided slice, a division and a `torch.cat` a request,
without a synchronization. `sglang` is the paged allocator of the release whose unpacked wheel is in FOLDER (at page
size 1 that engine has another one, which is not measured).

With `--operation` only the operations whose names have TEXT in them are measured, and no other table: for a profiler.
"""

import datetime
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NamedTuple, Protocol

import torch
import typer
from benchmarks.device_cases import INTS, Case, Pool, Sized, decode, free_rows, sized_operations
from benchmarks.sglang_paged import Release

from kvcuda.backend import DEVICE
from kvcuda.decode_graph import DecodeGraph
from kvcuda.device_manager import DeviceManager
from kvcuda.digest_step import DigestStep
from kvcuda.kernels import empty_kernel
from kvlab.stubs import EngineError
from kvspec.events import Config

REPEAT = 50


class Times(NamedTuple):
    """Medians, in microseconds."""

    host: float
    device: float | None
    wall: float


class Clock(Protocol):
    """The device manager and tensors with which cases are timed."""

    def time(self, case: Case) -> Times:
        """The times of one case."""
        ...


class CudaClock:
    """Times on a GPU."""

    def __init__(self, repeat: int = REPEAT) -> None:
        self._repeat = repeat
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def time(self, case: Case) -> Times:
        hosts, devices, walls = [], [], []
        for _ in range(self._repeat + 3):
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
    """The limits that no implementation can beat on this device."""

    def __init__(self, clock: Clock, *, copied: int = 1 << 30) -> None:
        source = torch.zeros(copied // INTS, dtype=torch.int32, device=DEVICE)
        target = torch.empty_like(source)
        copy = clock.time(Case(lambda: None, lambda _: target.copy_(source)))
        self.bytes_per_us = 2 * copied / (copy.device or copy.wall)
        word = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        self.empty = clock.time(Case(lambda: None, lambda _: empty_kernel[(1,)](word)))

    def of(self, moved: float) -> float:
        """Microseconds for so many bytes."""
        return max(moved / self.bytes_per_us, self.empty.device or self.empty.wall)


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


def operations(clock: Clock, floor: Callable[[float], float], sized: list[Sized]) -> list[tuple[str, ...]]:
    """Operations against their baselines; `floor` gives the least microseconds for so many bytes."""
    table = []
    for one in sized:
        times = {way: clock.time(case) for way, case in one.ways().items()}
        ours = times["kvcuda"]
        for way, time_of in times.items():
            table.append(
                (
                    str(one.page_size),
                    one.name,
                    way,
                    *map(figure, (time_of.host, time_of.device, time_of.wall, floor(one.moved))),
                    "" if time_of is ours else f"{time_of.wall / ours.wall:.1f}",
                )
            )
    return table


def flatness(clock: Clock, pools: tuple[int, ...], batches: tuple[int, ...]) -> list[tuple[str, ...]]:
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
    manager.streams.synchronize()
    begin = time.perf_counter()
    for launch in range(1, steps + 1):
        if replay is None:
            manager.decode(reqs)
            manager.launch(launch, reqs)
        else:
            replay.decode_and_launch(launch, reqs)
        manager.complete(launch - 1, tokens)
    manager.streams.synchronize()
    return (time.perf_counter() - begin) / steps * 1e6


def steps_table(batches: tuple[int, ...], steps: int) -> list[tuple[str, ...]]:
    """Whole decode steps: the manager's host time, and wall time with the model, launched and replayed."""
    table = []
    for batch in batches:
        hosts = manager_steps(batch, steps)
        walls = [whole_steps(batch, steps, graph=graph) for graph in (False, True)]
        table.append((str(batch), *map(figure, (*hosts.values(), sum(hosts.values()), *walls))))
    return table


def main(
    sglang: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the unpacked wheel of an SGLang release is.")
    ] = None,
    operation: Annotated[str, typer.Option(help="Measure only the operations whose names have this in them.")] = "",
    page_size: Annotated[int, typer.Option(help="Measure them at this page size only; 0 for all.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions that medians are of.")] = REPEAT,
) -> None:
    """Measure the device manager on this machine's GPU."""
    if not torch.cuda.is_available():
        raise SystemExit(_complain("no CUDA GPU here, so there is nothing to measure"))
    if DEVICE != "cuda":
        raise SystemExit(_complain("TRITON_INTERPRET=1 is set, so nothing would run on the GPU"))
    try:
        release = None if sglang is None else Release(sglang)
    except (EngineError, ImportError) as error:
        raise SystemExit(_complain(f"no SGLang in {sglang}: {error}")) from error
    chosen = [one for one in sized_operations(release) if operation in one.name and page_size in (0, one.page_size)]
    if not chosen:
        raise SystemExit(_complain(f"no operation has {operation!r} in its name at page size {page_size}"))
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {version('triton')}, "
        f"CUDA {torch.version.cuda}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}; medians of {repeat}\n"
    )
    clock = CudaClock(repeat)
    floor = Floor(clock)
    print(
        f"Floors: copy {floor.bytes_per_us / 1e3:,.0f} GB/s (read and write counted), empty kernel "
        f"{figure(floor.empty.device)} us on the device and {figure(floor.empty.host)} us on the host.\n"
    )
    print_table(
        ("page size", "operation", "way", "host us", "device us", "wall us", "floor us", "x ours, wall"),
        operations(clock, floor.of, chosen),
    )
    if operation or page_size:
        return
    print_table(
        ("size", "decode host us", "decode device us", "free host us", "free device us"),
        flatness(clock, (10_000, 100_000, 1_000_000, 4_000_000), (1, 4, 16, 64, 256, 1024)),
    )
    print_table(
        ("batch", "decode host us", "launch", "complete", "all three", "wall us with the model", "as a graph"),
        steps_table((1, 16, 64, 256), 200),
    )


def _complain(reason: str) -> int:
    print(f"benchmarks/device.py: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    typer.run(main)
