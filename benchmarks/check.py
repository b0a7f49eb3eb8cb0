"""How fast a trace is checked, against decoding its lines as plain JSON, and in how much memory.

    python benchmarks/check.py [--requests N] [--tokens N]
    python benchmarks/check.py --trace FILE     a trace of either level, for instance of `kvspec replay --record`
    python benchmarks/check.py --against FOLDER     in turns with another checkout of this repository

Without a file the trace is of decode steps with page labels, at the memory level: each step is a row write, a forward
pass, its end and a token delivered for each request; now and then a request ends and another one begins. Seconds are
processor time of one process; the ratio is taken in turns, so that a busy machine moves it little.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import typer

from kvcheck import Checker
from kvconform.findings.baseline import Baseline
from kvconform.levels.memory.grouping import Grouping
from kvconform.levels.requests.recovery import check_whole
from kvconform.traces.codec import TraceReader
from kvconform.traces.memory import open_trace
from kvspec.memory import Pool
from kvspec.memory.events import (
    Begin,
    Deliver,
    Drop,
    End,
    EndHolder,
    Map,
    MemoryEvent,
    Pages,
    Publish,
    Release,
    Take,
    Unmap,
    Use,
)
from kvtrace.header import VERSION, MemoryHeader

PAGE_SIZE = 64
SIZES = (100_000, 1_000_000, 10_000_000)
"""Events whose memory is measured; they are made, encoded, decoded and checked one by one, and no file holds them."""
ROUNDS = 5
TURNS = 31
"""Pairs of runs; a busy machine needs many."""


def main(
    requests: Annotated[int, typer.Option(help="Requests that decode together.")] = 16,
    tokens: Annotated[int, typer.Option(help="Tokens of a prompt.")] = 4096,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Measure this trace instead.")] = None,
    against: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Compare with this checkout only.")] = None,
    peak_of: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    if peak_of is not None:
        print(streamed_kib(requests, tokens, peak_of))
        return
    if trace is not None:
        with open_trace(trace) as opened:
            count = sum(1 for _ in opened)
        print(f"{trace.name}: {count:,} events, {trace.stat().st_size / count:,.0f} bytes each")
        compare(trace, count)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        count = write(path, requests, tokens, SIZES[0])
        if against is not None:
            compare_with(against, path)
            return
        print(
            f"{count:,} events of decode steps, {requests} requests of {tokens:,} tokens and more, {PAGE_SIZE} a page"
        )
        compare(path, count)
    alone = step_seconds(requests, tokens)
    print(f"  one decode step of {requests} requests in one operation, the memory checker alone: {1e3 * alone:.3f} ms")
    for size in SIZES:
        command = [
            sys.executable,
            __file__,
            "--requests",
            str(requests),
            "--tokens",
            str(tokens),
            "--peak-of",
            str(size),
        ]
        peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"  peak memory    {peak / 1024:9.1f} MiB above the start, {size:,} events", flush=True)


def compare(path: Path, count: int) -> None:
    """Print what checking a trace costs, and decoding alone."""
    checks, decodes = [], []
    for _ in range(ROUNDS):
        checks.append(timed(check, path))
        decodes.append(timed(decode, path))
    share = median(one / other for one, other in zip(checks, decodes, strict=True))
    print(f"  checked        {count / min(checks):9,.0f} events a second, {1e6 * min(checks) / count:6.2f} us each")
    print(f"  plain JSON     {count / min(decodes):9,.0f} events a second; checking costs {share:.2f} times that")


def compare_with(other: Path, path: Path) -> None:
    """Print what checking a trace costs here, as a multiple of its cost in another checkout."""
    turns = [(seconds_in(Path(__file__).parents[1], path), seconds_in(other, path)) for _ in range(TURNS)]
    ratios = sorted(here / there for here, there in turns)
    print(f"  checked in {median(ratios):.3f} times the time ({ratios[0]:.3f} to {ratios[-1]:.3f} in {TURNS} turns)")


def seconds_in(checkout: Path, path: Path) -> float:
    """The processor time of checking a trace in a process that imports a checkout."""
    folders = [str(checkout / name) for name in ("benchmarks", "conformance", "cuda_impl", "reference", "spec")]
    command = "import sys, pathlib, check; print(check.timed(check.check, pathlib.Path(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", command, str(path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def streamed_kib(requests: int, tokens: int, events: int) -> int:
    """How much more memory this process has needed at most, once so many events are checked."""
    grouping = Grouping(Checker({"kv": Pool(PAGE_SIZE, 4 * requests * (tokens // PAGE_SIZE + 2))}), Baseline())
    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(MemoryEvent).decode
    before = peak_kib()
    for line, event in enumerate(islice(traffic(requests, tokens), events), start=2):
        grouping.step(line, decode(encode(event)))
    assert not grouping.outcome().groups
    return peak_kib() - before


def traffic(requests: int, tokens: int) -> Iterator[MemoryEvent]:
    """Requests that decode together, each step one forward pass for all of them; one ends every 64 steps."""
    free: Pages = list(range(1, 1 + 4 * requests * (tokens // PAGE_SIZE + 2)))
    tables: dict[str, Pages] = {}
    lengths: dict[str, int] = {}
    published: dict[str, int] = {}
    last: list[str] = []
    born = step = 0
    while True:
        while len(tables) < requests:
            name = f"r{born}"
            born += 1
            # Prompts of different lengths, so that page borders are not crossed all at once.
            lengths[name] = tokens + born % PAGE_SIZE
            pages: Pages = [free.pop() for _ in range(-(-lengths[name] // PAGE_SIZE))]
            tables[name] = pages
            labels = [f"{name}.{index}" for index in range(len(pages))]
            yield Take(name, "kv", pages[:])
            yield Map(name, name, "kv", 0, pages[:], labels)
            yield Begin(f"prefill {name}", "compute", writes=[Use(table=name, stop=lengths[name])])
            full = published[name] = lengths[name] // PAGE_SIZE
            yield Publish("kv", pages[:full], labels[:full], labels[:full])
        for name, pages in tables.items():
            if lengths[name] % PAGE_SIZE == 0:
                pages.append(free.pop())
                yield Take(name, "kv", pages[-1:])
                yield Map(name, name, "kv", len(pages) - 1, pages[-1:], [f"{name}.{len(pages) - 1}"])
            lengths[name] += 1
        yield decode_step(step, lengths)
        if step:
            yield End(step - 1)
            for name in last:
                yield Deliver(step - 1, name)
        last = [*tables]
        step += 1
        if step % 64 == 0:
            name = next(iter(tables))
            pages = tables.pop(name)
            del lengths[name]
            yield Unmap(name)
            yield Drop("kv", list(pages[: published.pop(name)]))
            yield Release(name, "kv", pages)
            yield EndHolder(name)
            free.extend(pages)


def decode_step(step: int, lengths: dict[str, int]) -> Begin:
    """One forward pass that reads all of each request and writes one slot."""
    reads = [Use(table=name, stop=length) for name, length in lengths.items()]
    writes = [Use(table=name, start=length - 1, stop=length) for name, length in lengths.items()]
    return Begin(step, "compute", reads, writes)


def write(path: Path, requests: int, tokens: int, events: int) -> int:
    """Write a trace of so many events."""
    encode = msgspec.json.Encoder().encode
    pages = 4 * requests * (tokens // PAGE_SIZE + 2)
    header = MemoryHeader(VERSION, "memory", "benchmarks/check.py", {"kv": Pool(PAGE_SIZE, pages)})
    with path.open("wb") as file:
        file.write(encode(header) + b"\n")
        for event in islice(traffic(requests, tokens), events):
            file.write(encode(event) + b"\n")
    return events


def check(path: Path) -> None:
    """The work of `kvspec check` on a trace that conforms."""
    with open_trace(path) as trace:
        if isinstance(trace, TraceReader):
            assert not check_whole(trace.header.config, trace, Baseline()).found
            return
        grouping = Grouping(Checker(trace.header.pools), Baseline())
        for line, event in trace:
            grouping.step(line, event)
    assert not grouping.outcome().groups, grouping.outcome().groups[0].finding


def decode(path: Path) -> None:
    """Nothing but decoding each line, with the library that is at hand everywhere."""
    with path.open("rb") as file:
        for line in file:
            json.loads(line)


def timed(work: Callable[[Path], None], path: Path) -> float:
    gc.collect()
    start = time.process_time()
    work(path)
    return time.process_time() - start


def peak_kib() -> int:
    """The most memory that this process has had, in KiB (Linux)."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def step_seconds(requests: int, tokens: int) -> float:
    """The memory checker's time for one decode step, the median of many: one operation, and the end of another."""
    checker = Checker({"kv": Pool(PAGE_SIZE, 4 * requests * (tokens // PAGE_SIZE + 2))})
    spent: dict[int, float] = {}
    for event in islice(traffic(requests, tokens), SIZES[0] // 4):
        start = time.perf_counter()
        checker.step(event)
        if isinstance(event, (Begin, End)) and isinstance(event.id, int):
            step = event.id + isinstance(event, End)
            spent[step] = spent.get(step, 0.0) + time.perf_counter() - start
    return median(spent.values())


if __name__ == "__main__":
    typer.run(main)
