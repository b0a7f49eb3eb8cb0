"""How fast the canary is: one launch before a forward pass, against the bytes that it must read and write.

    python -m benchmarks.canary [--sglang FOLDER] [--repeat N]

Prints a table in Markdown: medians over repetitions, with device, versions and date. `host` is what the engine's thread
pays until the call returns, `device` what the GPU is busy with, `floor` the bytes at measured copy bandwidth, `ratio`
the device time over the floor. With the unpacked wheel of an SGLang release in FOLDER its own canary (plan, verify and
write kernels, the head of a pass) does the same work in the same run; what it compiles it needs `nvcc` and tvm-ffi for.
"""

import datetime
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import typer
from benchmarks.device import REPEAT, Clock, CudaClock, Floor, figure, print_table
from benchmarks.device_cases import Case
from benchmarks.sglang_canary import Peer

from kvcuda.backend import DEVICE
from kvcuda.canary import Canary, Known, Pass, Places, Pool
from kvcuda.canary.chain import extended

READ = 4 + 8 + 4
"""Bytes of a position that is verified: its slot index, the label, the token."""
WRITTEN = 4 + 8 + 8 + 8 + 4 + 4 + 8
"""Bytes of a position that is stamped: token id, position and slot are read, four columns are written."""


class Sized(NamedTuple):
    """One pass at one size."""

    name: str
    batch: int
    length: int
    """Positions of each request that were written before."""
    new: int
    """Positions of each that the pass writes."""
    page_size: int = 1
    """Above 1 there are block tables."""
    share: int = 1

    @property
    def moved(self) -> float:
        """The fewest bytes that must be read or written."""
        slots = READ if self.page_size == 1 else READ - 4 + 4 / self.page_size
        return self.batch * (self.length / self.share * slots + self.new * WRITTEN)


def sizes(scale: int = 1) -> list[Sized]:
    """The passes of the table in `cuda_impl/README.md`; `scale` divides all sizes."""
    batch, length, wide = 256 // scale, 4096 // scale, max(1, 16 // scale)
    return [
        Sized(f"decode, {batch} requests of {length}, rows", batch, length, 1),
        Sized(f"decode, {batch} requests of {length}, block tables", batch, length, 1, 16),
        Sized("the same, one of 8 blocks", batch, length, 1, 16, 8),
        Sized(f"decode, 1 request of {32 * length}, rows", 1, 32 * length, 1),
        Sized(f"prefill, {wide} requests of {length}, rows", wide, 0, length),
    ]


class Rows:
    """Requests that hold their positions in rows, or block tables, of one pool."""

    def __init__(self, size: Sized) -> None:
        self.size = size
        room = -(-(size.length + size.new) // size.page_size) * size.page_size
        self.slots = (size.batch * room) + size.page_size
        pages = torch.arange(1, 1 + size.batch * room // size.page_size, dtype=torch.int32, device=DEVICE)
        # Pages lie anywhere in the pool, as they do after a while.
        pages = pages[torch.randperm(len(pages), device=DEVICE)].reshape(size.batch, -1)
        self.table: Any = pages.contiguous()
        offsets = torch.arange(room, device=DEVICE)
        self.of: Any = pages[:, offsets // size.page_size].to(torch.int64) * size.page_size + offsets % size.page_size
        """int64 [requests, positions]: the slot of each position."""

    def new_slots(self, start: int, stop: int) -> Any:
        return self.of[:, start:stop].contiguous().flatten()


def canary(rows: Rows) -> tuple[Canary, Case]:
    """The canary with everything before the pass written, and the pass."""
    size = rows.size
    made = Canary(
        [Pool("kv", rows.slots, size.page_size, block_tables=size.page_size > 1)],
        rows=size.batch,
        max_requests=size.batch,
        share=size.share,
    )
    names = [f"r{number}" for number in range(size.batch)]
    offsets = np.arange(size.batch, dtype=np.int64) * rows.table.shape[1]

    def pass_(start: int, stop: int) -> Pass:
        count = stop - start
        known = {}
        if not start or start == size.length:
            label = extended(0, [7] * start, 0)
            known = {index: Known(start - 1, label, fresh=True) for index in range(size.batch)}
        return Pass(
            names,
            np.full(size.batch, count, dtype=np.int64),
            torch.full((size.batch * count,), 7, dtype=torch.int32, device=DEVICE),
            torch.arange(start, stop, dtype=torch.int64, device=DEVICE).repeat(size.batch),
            [Places(rows.table, offsets, rows.new_slots(start, stop))],
            known,
            longest=stop,
        )

    if size.length:
        made.launch(pass_(0, size.length))
    timed = pass_(size.length, size.length + size.new)
    made.launch(timed)
    # As in a server, nothing is said anew of requests that go on.
    going_on = timed._replace(known={}) if size.length else timed
    return made, Case(lambda: None, lambda _: made.launch(going_on))


def table(clock: Clock, floor: Any, sized: list[Sized], sglang: Path | None) -> Iterator[tuple[str, ...]]:
    """A line for each pass and way; `floor` gives the least microseconds for so many bytes."""
    for size in sized:
        rows = Rows(size)
        made, case = canary(rows)
        cases = {"kvcuda": case}
        peer = None
        if sglang is not None and size.share == 1 and size.page_size == 1:
            peer = Peer(sglang, rows.of, size.length, size.new)
            cases[f"sglang {peer.version}"] = peer.case()
        for way, one in cases.items():
            times = clock.time(one)
            least = floor(size.moved)
            busy = times.device or times.wall
            yield size.name, way, *map(figure, (times.host, busy, least)), f"{busy / least:.1f}"
        found = made.poll()
        if found:
            raise SystemExit(_complain(f"{size.name}: the clean pass is not silent: {found[0]}"))
        if peer is not None and not peer.silent():
            raise SystemExit(_complain(f"{size.name}: SGLang's kernels did not run, or the clean pass is not silent"))


def main(
    sglang: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the unpacked wheel of an SGLang release is.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions that medians are of.")] = REPEAT,
) -> None:
    """Measure the canary on this machine's GPU."""
    if not torch.cuda.is_available():
        raise SystemExit(_complain("no CUDA GPU here, so there is nothing to measure"))
    if DEVICE != "cuda":
        raise SystemExit(_complain("TRITON_INTERPRET=1 is set, so nothing would run on the GPU"))
    clock = CudaClock(repeat)
    floor = Floor(clock)
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {version('triton')}, "
        f"CUDA {torch.version.cuda}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}; medians of {repeat}\n"
    )
    print(f"Copy: {floor.bytes_per_us / 1e3:,.0f} GB/s, read and write counted.\n")
    head = ("pass", "way", "host us", "device us", "floor us", "ratio")
    print_table(head, list(table(clock, floor.of, sizes(), None)))
    if sglang is not None:
        try:
            print_table(head, list(table(clock, floor.of, sizes(), sglang)))
        except (ImportError, RuntimeError, OSError) as error:
            raise SystemExit(_complain(f"SGLang's canary cannot be loaded: {type(error).__name__}: {error}")) from error


def _complain(reason: str) -> int:
    print(f"benchmarks/canary.py: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    typer.run(main)
