"""The kernels of the device manager. Each carries out one step of a whole batch in one launch.

Every kernel reads its jobs from `words` (see `kvcuda.words`). All take the same tensors:

    req_to_token    int32 [num_rows, max_context_len]   slot index of each position of each row
    ring            int32 [num_pages]                   free pages, from the head on; the host knows head and tail
    arena           int32 [num_pages]                   pages of the prefix store, at the places of the host's tree
    out_cache_loc   int32 [tokens]                      slot index of each token that the next forward pass writes
    page_used       int32 [num_pages + 1]               debug mode: 1 while a page is in use
    fault           int64 [1]                           debug mode: the worst fault, see `note_fault`
    window_of       int32 [num_pages + 1]               the window page behind each page, 0 where there is none
    window_ring     int32 [num_window_pages]            free window pages, as `ring` has the free pages
    window_used     int32 [num_window_pages + 1]        debug mode: 1 while a window page is in use

Without a sliding window the last three are `None`, and their code is not compiled.

A row times `max_context_len` passes 2^31, so rows are widened to 64 bits before they are multiplied. All other numbers
stay below, by the checks of `DeviceTensors`: slot indices, ring indices before they wrap, and positions.
"""

# backend decides how kernels are decorated, so it comes before triton.
# isort: off
from kvcuda import backend as _backend  # noqa: F401
import torch
import triton
import triton.language as tl
# isort: on

from kvcuda.jit import kernel
from kvcuda.words import FIELDS as _FIELDS
from kvcuda.words import Fault, Move

FIELDS = tl.constexpr(_FIELDS)
FREE = tl.constexpr(int(Move.FREE))
EVICT = tl.constexpr(int(Move.EVICT))
PUBLISH = tl.constexpr(int(Move.PUBLISH))
REPLACE = tl.constexpr(int(Move.REPLACE))
REVIVE = tl.constexpr(int(Move.REVIVE))
SHED = tl.constexpr(int(Move.SHED))
DROP = tl.constexpr(int(Move.DROP))
DOUBLE_FREE = tl.constexpr(int(Fault.DOUBLE_FREE))
DOUBLE_USE = tl.constexpr(int(Fault.DOUBLE_USE))
PAGE_BOUNDS = tl.constexpr(int(Fault.PAGE_BOUNDS))
WINDOW_DOUBLE_FREE = tl.constexpr(int(Fault.WINDOW_DOUBLE_FREE))
WINDOW_DOUBLE_USE = tl.constexpr(int(Fault.WINDOW_DOUBLE_USE))
WINDOW_BOUNDS = tl.constexpr(int(Fault.WINDOW_BOUNDS))
WINDOW_KEPT = tl.constexpr(int(Fault.WINDOW_KEPT))


@triton.jit
def sum_before(column: tl.tensor, job: tl.tensor, JOB_BLOCK: tl.constexpr) -> tl.tensor:
    """The sum of one field over all jobs before `job`."""
    offsets = tl.arange(0, JOB_BLOCK)
    total = tl.sum(tl.load(column + offsets * FIELDS, mask=offsets < job, other=0))
    for first in range(JOB_BLOCK, job, JOB_BLOCK):
        other = first + offsets
        total += tl.sum(tl.load(column + other * FIELDS, mask=other < job, other=0))
    return total


@triton.jit
def ring_slot(index: tl.tensor, num_pages: tl.tensor) -> tl.tensor:
    """`index` modulo `num_pages`, for an index below twice that."""
    return tl.where(index >= num_pages, index - num_pages, index)


@triton.jit
def note_fault(fault: tl.tensor, KIND: tl.constexpr, row: tl.tensor, page: tl.tensor, found: tl.tensor) -> None:
    """Keep the largest of all faults: kind, row + 1, and page in one 64-bit word."""
    kind = tl.zeros_like(page).to(tl.int64) + KIND
    word = (kind << 60) | ((row.to(tl.int64) + 1) << 32) | (page.to(tl.int64) & 0xFFFFFFFF)
    tl.atomic_max(fault + tl.zeros_like(page), word, mask=found)


@triton.jit
def mark_pages(
    page: tl.tensor,
    live: tl.tensor,
    row: tl.tensor,
    num_pages: tl.tensor,
    page_used: tl.tensor,
    fault: tl.tensor,
    USED: tl.constexpr,
    TWICE: tl.constexpr,
    BOUNDS: tl.constexpr,
) -> None:
    """Debug mode: mark the live pages as used (1) or free (0). A page that was so already is a fault."""
    inside = (page >= 1) & (page <= num_pages)
    note_fault(fault, BOUNDS, row, page, live & (inside == 0))
    known = live & inside
    before = tl.atomic_xchg(page_used + tl.where(known, page, 0), tl.zeros_like(page) + USED, mask=known)
    note_fault(fault, TWICE, row, page, known & (before == USED))


@triton.jit
def give_windows(
    page: tl.tensor,
    index: tl.tensor,
    live: tl.tensor,
    row: tl.tensor,
    num_pages: tl.tensor,
    window_of: tl.tensor,
    window_ring: tl.tensor,
    window_used: tl.tensor,
    num_window_pages: tl.tensor,
    fault: tl.tensor,
    DEBUG: tl.constexpr,
) -> None:
    """Put the window pages at `index` of their ring behind the live pages, which are fresh from the ring."""
    window_page = tl.load(window_ring + ring_slot(index, num_window_pages), mask=live, other=0)
    if DEBUG:
        mark_pages(window_page, live, row, num_window_pages, window_used, fault, 1, WINDOW_DOUBLE_USE, WINDOW_BOUNDS)
        live = live & (page >= 1) & (page <= num_pages)
        note_fault(fault, WINDOW_KEPT, row, page, live & (tl.load(window_of + page, mask=live, other=0) != 0))
    tl.store(window_of + page, window_page, mask=live)


@triton.jit
def take_windows(
    page: tl.tensor,
    index: tl.tensor,
    live: tl.tensor,
    row: tl.tensor,
    num_pages: tl.tensor,
    window_of: tl.tensor,
    window_ring: tl.tensor,
    window_used: tl.tensor,
    num_window_pages: tl.tensor,
    fault: tl.tensor,
    DEBUG: tl.constexpr,
) -> None:
    """Put the window sides of the live pages back on their ring, at `index`."""
    if DEBUG:
        live = live & (page >= 1) & (page <= num_pages)
    window_page = tl.load(window_of + page, mask=live, other=0)
    if DEBUG:
        mark_pages(window_page, live, row, num_window_pages, window_used, fault, 0, WINDOW_DOUBLE_FREE, WINDOW_BOUNDS)
    tl.store(window_ring + ring_slot(index, num_window_pages), window_page, mask=live)
    tl.store(window_of + page, tl.zeros_like(page), mask=live)


@kernel(aligned=True)
def extend_kernel(
    words: torch.Tensor,
    req_to_token: torch.Tensor,
    ring: torch.Tensor,
    arena: torch.Tensor,
    out_cache_loc: torch.Tensor,
    page_used: torch.Tensor,
    fault: torch.Tensor,
    window_of: torch.Tensor | None,
    window_ring: torch.Tensor | None,
    window_used: torch.Tensor | None,
    num_pages: int,
    num_window_pages: int,
    max_context_len: int,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
    DEBUG: tl.constexpr,
) -> None:
    """Write the rows of a prefill batch. Grid: (jobs, blocks of `BLOCK` tokens in the longest job).

    An extend job gives slots to positions [start, end): first in the page that `start` cuts, which is in the row
    already, then in pages from the ring, after those of earlier jobs. A copy job writes positions [start, end)
    of a fresh row from the pages that it matched in the prefix store.
    """
    job = tl.program_id(0)
    entry = words + FIELDS + job * FIELDS
    # Reading words takes long, so all are read at once.
    row = tl.load(entry)
    start = tl.load(entry + 1)
    end = tl.load(entry + 2)
    before = tl.load(entry + 3)
    tokens_before = tl.load(entry + 4)
    head = tl.load(words)
    extends = tl.load(words + 2)
    out = tl.load(words + 3)
    window_head = tl.load(words + 4)
    first = start + tl.program_id(1) * BLOCK
    if first < end:
        table = req_to_token + row.to(tl.int64) * max_context_len
        position = first + tl.arange(0, BLOCK)
        live = position < end
        index = position // P
        offset = position % P
        if job < extends:
            held = (start + P - 1) // P
            cut = start % P != 0
            cut_slot = tl.load(table + start // P * P, mask=cut, other=0)
            fresh = live & (index >= held)
            at = before + index - held
            page = tl.load(ring + ring_slot(head + at, num_pages), mask=fresh, other=0)
            first_slot = fresh & (offset == 0)
            if DEBUG:
                mark_pages(page, first_slot, row, num_pages, page_used, fault, 1, DOUBLE_USE, PAGE_BOUNDS)
            if window_of is not None:
                give_windows(
                    page,
                    window_head + at,
                    first_slot,
                    row,
                    num_pages,
                    window_of,
                    window_ring,
                    window_used,
                    num_window_pages,
                    fault,
                    DEBUG,
                )
            slot = tl.where(fresh, page * P, cut_slot) + offset
            tl.store(out_cache_loc + out + tokens_before + position - start, slot, mask=live)
        else:
            known = tl.load(arena + before + index - start // P, mask=live, other=0)
            slot = known * P + offset
        tl.store(table + position, slot, mask=live)


@kernel(aligned=True)
def decode_kernel(
    words: torch.Tensor,
    req_to_token: torch.Tensor,
    ring: torch.Tensor,
    out_cache_loc: torch.Tensor,
    page_used: torch.Tensor,
    fault: torch.Tensor,
    window_of: torch.Tensor | None,
    window_ring: torch.Tensor | None,
    window_used: torch.Tensor | None,
    num_pages: int,
    num_window_pages: int,
    max_context_len: int,
    P: tl.constexpr,
    JOB_BLOCK: tl.constexpr,
    DEBUG: tl.constexpr,
) -> None:
    """Make room for n positions past the committed ones of each request. Grid: (blocks of `JOB_BLOCK` requests,).

    Positions below `allocated` have their slots already. Then comes the rest of the page that `allocated` cuts, then
    pages from the ring, behind those of the requests before.
    """
    job = tl.program_id(0) * JOB_BLOCK + tl.arange(0, JOB_BLOCK)
    live = job < tl.load(words + 1)
    entry = words + FIELDS + job * FIELDS
    row = tl.load(entry, mask=live, other=0)
    committed = tl.load(entry + 1, mask=live, other=0)
    allocated = tl.load(entry + 2, mask=live, other=0)
    pages = tl.load(entry + 3, mask=live, other=0)
    before = sum_before(words + FIELDS + 3, tl.program_id(0) * JOB_BLOCK, JOB_BLOCK)
    taken = before + tl.cumsum(pages, 0) - pages

    table = req_to_token + row.to(tl.int64) * max_context_len
    held = (allocated + P - 1) // P
    cut_slot = tl.load(table + allocated // P * P, mask=live & (allocated % P != 0), other=0)
    head = tl.load(words)
    window_head = tl.load(words + 4)
    n = tl.load(words + 2)
    out = out_cache_loc + tl.load(words + 3) + job * n
    for step in range(0, n):
        position = committed + step
        offset = position % P
        missing = live & (position >= allocated)
        fresh = missing & (position // P >= held)
        at = taken + position // P - held
        page = tl.load(ring + ring_slot(head + at, num_pages), mask=fresh, other=0)
        first_slot = fresh & (offset == 0)
        if DEBUG:
            mark_pages(page, first_slot, row, num_pages, page_used, fault, 1, DOUBLE_USE, PAGE_BOUNDS)
        if window_of is not None:
            give_windows(
                page,
                window_head + at,
                first_slot,
                row,
                num_pages,
                window_of,
                window_ring,
                window_used,
                num_window_pages,
                fault,
                DEBUG,
            )
        slot = tl.where(fresh, page * P, cut_slot) + offset
        slot = tl.where(missing, slot, tl.load(table + position, mask=live & (position < allocated), other=0))
        tl.store(table + position, slot, mask=missing)
        tl.store(out + step, slot, mask=live)


@kernel(aligned=True)
def move_kernel(
    words: torch.Tensor,
    req_to_token: torch.Tensor,
    ring: torch.Tensor,
    arena: torch.Tensor,
    page_used: torch.Tensor,
    fault: torch.Tensor,
    window_of: torch.Tensor | None,
    window_ring: torch.Tensor | None,
    window_used: torch.Tensor | None,
    num_pages: int,
    num_window_pages: int,
    max_context_len: int,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
    DEBUG: tl.constexpr,
) -> None:
    """Move runs of pages between rows, ring and arena. Grid: (jobs, blocks of `BLOCK` pages in the longest run).

    Their window sides go with them, or alone. The host names the position of each run on the rings and in the arena.
    Within one launch no job reads another job's writes: the host begins a new launch where one would.
    """
    entry = words + FIELDS + tl.program_id(0) * FIELDS
    kind = tl.load(entry)
    row = tl.load(entry + 1)
    start = tl.load(entry + 2)
    count = tl.load(entry + 3)
    ring_index = tl.load(entry + 4)
    place = tl.load(entry + 5)
    bare = tl.load(entry + 6)
    window_index = tl.load(entry + 7)
    first = tl.program_id(1) * BLOCK
    if first < count:
        index = first + tl.arange(0, BLOCK)
        live = index < count
        position = (start + index) * P
        table = req_to_token + row.to(tl.int64) * max_context_len
        listed = arena + place + index
        if (kind == EVICT) | (kind == DROP):
            page = tl.load(listed, mask=live, other=0)
        else:
            page = tl.load(table + position, mask=live, other=0) // P
        if kind == PUBLISH:
            tl.store(listed, page, mask=live)
        elif kind < SHED:
            at = ring_slot(ring_index + index, num_pages)
            if DEBUG:
                mark_pages(page, live, row, num_pages, page_used, fault, 0, DOUBLE_FREE, PAGE_BOUNDS)
            tl.store(ring + at, page, mask=live)
        if window_of is not None:
            sided = live & (index >= bare)
            if kind == REVIVE:
                tombstone = tl.load(listed, mask=sided, other=0)
                if DEBUG:
                    sided = sided & (page >= 1) & (page <= num_pages)
                    note_fault(fault, WINDOW_KEPT, row, tombstone, sided & (tl.load(window_of + tombstone) != 0))
                tl.store(window_of + tombstone, tl.load(window_of + page, mask=sided, other=0), mask=sided)
                tl.store(window_of + page, tl.zeros_like(page), mask=sided)
            elif kind != PUBLISH:
                take_windows(
                    page,
                    window_index + index - bare,
                    sided,
                    row,
                    num_pages,
                    window_of,
                    window_ring,
                    window_used,
                    num_window_pages,
                    fault,
                    DEBUG,
                )
        if (kind == REPLACE) | (kind == REVIVE):
            tl.debug_barrier()  # every thread has read its pages from the row before they are overwritten
            slots = tl.minimum(count - first, BLOCK) * P
            run = arena + place + first
            rewritten = table + (start + first) * P
            # Neighbouring threads write neighbouring slots.
            for written in range(0, slots, BLOCK):
                slot = written + tl.arange(0, BLOCK)
                kept = tl.load(run + slot // P, mask=slot < slots, other=0)
                tl.store(rewritten + slot, kept * P + slot % P, mask=slot < slots)


@kernel()
def empty_kernel(words: torch.Tensor) -> None:
    """Do nothing: the least cost of a launch."""
