"""The canary's kernels. One launch before a forward pass verifies the slots it reads and stamps those it writes.

For each slot of each pool, all pools behind each other:

    labels      int64   the label of the prefix that ends there, see `kvcuda.canary.chain`
    tokens      int32   its last token
    places      int32   its position
    writers     int64   its writer: the request's number and the launch's
    sealed      int64   the digest of its real bytes; 0 while it has none

A position is right if its label follows from the label before it and its own token. So all positions are verified in
parallel. The last one must have the label that the request wrote there itself (`heads`), or that the host computed;
this pins all before it.

Programs of one launch have no order, so no position is written and read back in it. Only a request's first program
reads and writes its heads. A slot that another request of the same pass writes is verified by its position in this
launch, and by its label in the next one.
"""

# backend decides how kernels are decorated, so it comes before triton.
# isort: off
from kvcuda import backend as _backend  # noqa: F401
import torch
import triton.language as tl
# isort: on

from kvcuda.canary import words as layout
from kvcuda.canary.slots import RECENT, SPAN_WORDS, STATES, digest_bytes
from kvcuda.canary.stamping import stamp
from kvcuda.canary.verification import verify_last, verify_links
from kvcuda.jit import kernel

HEADER = tl.constexpr(layout.HEADER)
POOL_WORDS = tl.constexpr(layout.POOL_WORDS)
REQUEST_WORDS = tl.constexpr(layout.REQUEST_WORDS)
PLACE_WORDS = tl.constexpr(layout.PLACE_WORDS)
STATIC_WORDS = tl.constexpr(layout.STATIC_WORDS)


@kernel(num_warps=8)  # enough that no register is spilled
def watch_kernel(
    words: torch.Tensor,
    statics: torch.Tensor,
    all_spans: torch.Tensor,
    all_labels: torch.Tensor,
    all_tokens: torch.Tensor,
    all_places: torch.Tensor,
    all_writers: torch.Tensor,
    all_sealed: torch.Tensor,
    heads: torch.Tensor,
    ring: torch.Tensor,
    count: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    capacity: int,
    num_rows: int,
    POOLS: tl.constexpr,
    BLOCK: tl.constexpr,
    NEW_WIDE: tl.constexpr,
    BYTES: tl.constexpr,
) -> None:
    """Verify the slots that a pass reads and stamp those that it writes. Grid: (requests, pools, 1 + verifiers).

    The first program of a request and pool verifies its last position and stamps; the others verify its blocks in turn.
    New slots are int64 with `NEW_WIDE`, else int32.
    """
    request, pool, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    entry = words + HEADER + POOLS * POOL_WORDS + request * (REQUEST_WORDS + POOLS * PLACE_WORDS)
    row = tl.load(entry)
    if row >= 0:
        launch = tl.load(words)
        num_tokens = tl.load(words + 2).to(tl.int32)
        number = tl.load(entry + 1)
        first = tl.load(entry + 2).to(tl.int32)
        new = tl.load(entry + 3).to(tl.int32)
        start = tl.load(positions + first).to(tl.int32)
        place = entry + REQUEST_WORDS + pool * PLACE_WORDS
        static = statics + pool * STATIC_WORDS
        base = tl.load(static + 1)
        labels, tokens, places = all_labels + base, all_tokens + base, all_places + base
        writers, sealed = all_writers + base, all_sealed + base
        spans = all_spans + tl.load(static + 6) * SPAN_WORDS
        kind = tl.load(static)
        window = tl.load(static + 4).to(tl.int32)
        lowest = tl.where(window > 0, tl.maximum(start - window, 0), 0)
        translation = tl.load(static + 5).to(tl.pointer_type(tl.int64))
        its_words = words + HEADER + pool * POOL_WORDS
        table = tl.load(its_words).to(tl.pointer_type(tl.int32)) + tl.load(place)
        if NEW_WIDE:
            new_slots = tl.load(its_words + 1).to(tl.pointer_type(tl.int64))
        else:
            new_slots = tl.load(its_words + 1).to(tl.pointer_type(tl.int32))
        if part > 0:
            if kind != STATES:
                share = tl.load(words + 3).to(tl.int32)
                parts = tl.num_programs(2) - 1
                for block in range(lowest // BLOCK + part - 1, (start + BLOCK - 1) // BLOCK, parts):
                    if (block + launch) % share == 0:
                        verify_links(
                            static,
                            spans,
                            labels,
                            tokens,
                            places,
                            writers,
                            sealed,
                            ring,
                            count,
                            capacity,
                            table,
                            translation,
                            new_slots,
                            positions,
                            num_tokens,
                            launch,
                            number,
                            pool,
                            block,
                            lowest,
                            start,
                            BLOCK,
                            BYTES,
                        )
        else:
            head = heads + (pool * num_rows + row) * RECENT
            behind = tl.load(head + (start + RECENT - 1) % RECENT)
            behind = tl.where(tl.load(entry + 6) != 0, tl.load(entry + 5), behind)
            behind = tl.where(start == 0, 0, behind)
            verify_last(
                entry,
                place,
                static,
                labels,
                tokens,
                places,
                writers,
                ring,
                count,
                capacity,
                table,
                translation,
                new_slots,
                positions,
                num_tokens,
                launch,
                number,
                pool,
                lowest,
                start,
                behind,
            )
            tl.debug_barrier()  # every thread has read before any writes
            stamp(
                place,
                static,
                labels,
                tokens,
                places,
                writers,
                sealed,
                head,
                ring,
                count,
                capacity,
                input_ids,
                translation,
                new_slots,
                launch,
                number,
                pool,
                first,
                new,
                start,
                behind,
                BLOCK,
                BYTES,
            )


@kernel()
def seal_kernel(
    words: torch.Tensor,
    statics: torch.Tensor,
    all_spans: torch.Tensor,
    all_sealed: torch.Tensor,
    POOLS: tl.constexpr,
    BLOCK: tl.constexpr,
    NEW_WIDE: tl.constexpr,
) -> None:
    """Digest the real bytes that a pass has written. Grid: (blocks of its tokens, pools)."""
    pool = tl.program_id(1)
    static = statics + pool * STATIC_WORDS
    spans = tl.load(static + 7).to(tl.int32)
    if spans > 0:
        its_words = words + HEADER + pool * POOL_WORDS
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        live = index < tl.load(words + 2)
        if NEW_WIDE:
            new_slots = tl.load(its_words + 1).to(tl.pointer_type(tl.int64))
        else:
            new_slots = tl.load(its_words + 1).to(tl.pointer_type(tl.int32))
        slot = tl.load(new_slots + index, mask=live, other=0).to(tl.int64)
        page_size = tl.load(static + 8)
        live = live & (slot >= page_size) & (slot < tl.load(static + 2))
        value = digest_bytes(all_spans + tl.load(static + 6) * SPAN_WORDS, spans, slot, live, page_size)
        tl.store(all_sealed + tl.load(static + 1) + slot, value, mask=live)


@kernel()
def copy_kernel(
    sources: torch.Tensor,
    targets: torch.Tensor,
    labels: torch.Tensor,
    tokens: torch.Tensor,
    places: torch.Tensor,
    writers: torch.Tensor,
    sealed: torch.Tensor,
    from_base: int,
    from_slots: int,
    to_base: int,
    to_slots: int,
    num: int,
    BLOCK: tl.constexpr,
) -> None:
    """Copy labels, stamps and digests of slots to other slots. Grid: (blocks,)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = index < num
    source = tl.load(sources + index, mask=live, other=-1).to(tl.int64)
    target = tl.load(targets + index, mask=live, other=-1).to(tl.int64)
    live = live & (source >= 0) & (source < from_slots) & (target >= 0) & (target < to_slots)
    source += from_base
    target += to_base
    tl.store(labels + target, tl.load(labels + source, mask=live, other=0), mask=live)
    tl.store(tokens + target, tl.load(tokens + source, mask=live, other=0), mask=live)
    tl.store(places + target, tl.load(places + source, mask=live, other=0), mask=live)
    tl.store(writers + target, tl.load(writers + source, mask=live, other=0), mask=live)
    tl.store(sealed + target, tl.load(sealed + source, mask=live, other=0), mask=live)
