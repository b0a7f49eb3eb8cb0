"""The measurements of `benchmarks/device.py`: each operation as the device manager does it, and as engines do."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from benchmarks.sglang_paged import PagedPool, Release

from kvcuda.arena import Run
from kvcuda.arrays import Ints
from kvcuda.backend import DEVICE
from kvcuda.memory import DeviceMemory
from kvcuda.row_table import ints
from kvcuda.streams import default_streams
from kvspec.events import Config
from kvspec.pages import ceil_pages

INTS = 4
"""Bytes of a slot index or a page number."""


class Case(NamedTuple):
    """One way to do one operation."""

    setup: Callable[[], Any]
    """Brings the memory into the state before the operation; not timed."""
    run: Callable[[Any], object]
    """The operation, on what `setup` returned."""
    synchronizes: bool = False


class Pool:
    """A memory with `batch` rows that hold `length` tokens each, and PyTorch twins of its tensors for the baselines."""

    def __init__(self, page_size: int, batch: int, length: int, *, num_pages: int = 0, room: int = 8192) -> None:
        held = batch * ceil_pages(length, page_size)
        self.config = Config(
            page_size, num_pages or 2 * held + batch * ceil_pages(room, page_size), batch, length + room
        )
        self.batch, self.length = batch, length
        self.memory = DeviceMemory(self.config, default_streams(DEVICE))
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


def peers(pool: Pool, release: Release | None) -> dict[str, PagedPool]:
    """SGLang's allocator with rows and pages as in `pool`, by the name of its way; none where it does not apply."""
    if release is None or pool.config.page_size == 1:
        return {}
    return {f"sglang {release.version}": PagedPool(release, pool.config, pool.batch, pool.length, DEVICE)}


def free_rows(pool: Pool, first_page: int = 0, release: Release | None = None) -> dict[str, Case]:
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
        **{
            name: Case(peer.fill, _sglang_free(peer, first_page * page_size))
            for name, peer in peers(pool, release).items()
        },
    }


def _sglang_free(peer: PagedPool, start: int) -> Callable[[Any], object]:
    return lambda _: peer.free(start)


def decode(pool: Pool, release: Release | None = None) -> dict[str, Case]:
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
        **{name: Case(peer.fill, _sglang_decode(peer, pool.length)) for name, peer in peers(pool, release).items()},
    }


def extend(pool: Pool, tokens: int, release: Release | None = None) -> dict[str, Case]:
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
        **{name: Case(peer.fill, _sglang_extend(peer, tokens)) for name, peer in peers(pool, release).items()},
    }


def _sglang_decode(peer: PagedPool, length: int) -> Callable[[Any], object]:
    lengths = peer.lengths(length)
    return lambda _: peer.decode(*lengths)


def _sglang_extend(peer: PagedPool, tokens: int) -> Callable[[Any], object]:
    starts, ends = peer.lengths(0), peer.lengths(tokens)
    return lambda _: peer.extend(*starts, *ends, peer.batch * tokens)


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


class Sized(NamedTuple):
    """One operation at one size."""

    page_size: int
    name: str
    ways: Callable[[], dict[str, Case]]
    """Makes its memory, which is large; called once, right before it is measured."""
    moved: float
    """The fewest bytes that must be read or written."""


def sized_operations(release: Release | None, scale: int = 1) -> list[Sized]:
    """Every operation, at the sizes of the table in `cuda_impl/README.md`; `scale` divides all sizes."""
    return [one for page_size in (1, 16, 64) for one in _sized(page_size, release, scale)]


def _sized(page_size: int, release: Release | None, scale: int) -> list[Sized]:
    batch, prompt, ended, wide = 256 // scale, 4096 // scale, 8192 // scale, max(1, 16 // scale)
    pages = ended // page_size
    tail = min(pages, max(1, 128 // page_size))
    freed = min(32, INTS * page_size) + INTS

    def held(rows: int, length: int, room: int = ended) -> Pool:
        return Pool(page_size, rows, length, room=room)

    return [
        Sized(
            page_size,
            f"decode, {batch} requests",
            lambda: decode(held(batch, 512 // scale), release),
            32 * batch * 2 + 6 * INTS * batch,
        ),
        Sized(
            page_size,
            f"extend, {wide} x {prompt} tokens",
            lambda: extend(held(wide, 0, prompt), prompt, release),
            wide * (2 * INTS * prompt + INTS * prompt / page_size),
        ),
        Sized(
            page_size,
            f"free {batch} rows of {ended} tokens",
            lambda: free_rows(held(batch, ended), 0, release),
            batch * pages * freed,
        ),
        Sized(
            page_size,
            f"free {batch} tails of {tail * page_size} tokens",
            lambda: free_rows(held(batch, ended), pages - tail, release),
            batch * tail * freed,
        ),
        Sized(
            page_size,
            f"publish {wide} rows of {prompt} tokens",
            lambda: publish(held(wide, prompt)),
            wide * (prompt / page_size * 4 * INTS + INTS * prompt / 2),
        ),
        Sized(
            page_size,
            f"evict {wide} x {tail} pages",
            lambda: evict(held(batch, ended), wide, tail),
            wide * tail * 2 * INTS,
        ),
    ]
