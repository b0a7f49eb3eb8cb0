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
import triton
import triton.language as tl
# isort: on

from kvcuda.canary import words as layout
from kvcuda.canary.words import Kind, ViolationKind
from kvcuda.digest_kernels import M2, mix

HEADER = tl.constexpr(layout.HEADER)
POOL_WORDS = tl.constexpr(layout.POOL_WORDS)
REQUEST_WORDS = tl.constexpr(layout.REQUEST_WORDS)
PLACE_WORDS = tl.constexpr(layout.PLACE_WORDS)
STATIC_WORDS = tl.constexpr(layout.STATIC_WORDS)
SPAN_WORDS = tl.constexpr(layout.SPAN_WORDS)
ENTRY_WORDS = tl.constexpr(layout.ENTRY_WORDS)
LAUNCH_BITS = tl.constexpr(layout.LAUNCH_BITS)
RECENT = tl.constexpr(layout.RECENT)
STATES = tl.constexpr(int(Kind.STATES))
OTHER = tl.constexpr(int(ViolationKind.OTHER))
NEVER = tl.constexpr(int(ViolationKind.NEVER))
LAST = tl.constexpr(int(ViolationKind.LAST))
KNOWN = tl.constexpr(int(ViolationKind.KNOWN))
RANGE = tl.constexpr(int(ViolationKind.RANGE))
BYTES_DIFFER = tl.constexpr(int(ViolationKind.BYTES))
WRITES = tl.constexpr(int(ViolationKind.WRITES))
NEW_SLOTS = tl.constexpr(4)
"""New slots that are compared with a block of positions at a time."""
NO_POSITION = tl.constexpr(1 << 30)


@triton.jit
def term(token: tl.tensor, position: tl.tensor) -> tl.tensor:
    """The contribution of one token to the label of its prefix."""
    return mix(token.to(tl.int64) * M2 + position.to(tl.int64) + 1)


@triton.jit
def translated(translation: tl.tensor, slot: tl.tensor, live: tl.tensor) -> tl.tensor:
    """Translate the slots of another pool's table to slots of this pool."""
    if translation.to(tl.int64) != 0:
        slot = tl.load(translation + slot, mask=live & (slot >= 0), other=-1)
    return slot


@triton.jit
def slots_at(
    table: tl.tensor, translation: tl.tensor, position: tl.tensor, live: tl.tensor, unit: tl.tensor
) -> tl.tensor:
    """The slots of the live positions; a table's entry covers `unit` of them."""
    slot = tl.load(table + position // unit, mask=live, other=0).to(tl.int64) * unit + position % unit
    return translated(translation, slot, live)


@triton.jit
def digest_bytes(
    spans: tl.tensor, count: tl.tensor, slot: tl.tensor, live: tl.tensor, page_size: tl.tensor
) -> tl.tensor:
    """The digest of the live slots' real bytes; never 0."""
    total = tl.zeros_like(slot)
    for number in range(0, count):
        span = spans + number * SPAN_WORDS
        begin = tl.load(span) + slot // page_size * tl.load(span + 1) + slot % page_size * tl.load(span + 2)
        for word in range(0, tl.load(span + 3).to(tl.int32)):
            total = mix(total + M2 + tl.load((begin + word * 8).to(tl.pointer_type(tl.int64)), mask=live, other=0))
    return tl.where(total == 0, 1, total)


@triton.jit
def report(
    ring: tl.tensor,
    count: tl.tensor,
    capacity: tl.tensor,
    kind: tl.tensor,
    launch: tl.tensor,
    number: tl.tensor,
    pool: tl.tensor,
    position: tl.tensor,
    slot: tl.tensor,
    expected: tl.tensor,
    found: tl.tensor,
    token: tl.tensor,
    place: tl.tensor,
    writer: tl.tensor,
    times: tl.tensor,
) -> None:
    """Put a violation on the ring. Its last word is a digest of the others, so the host skips a half-written entry."""
    index = tl.atomic_add(count, 1)
    entry = ring + index % capacity * ENTRY_WORDS
    # One element for each field: all are stored at once.
    field = tl.arange(0, ENTRY_WORDS)
    word = tl.where(field == 0, index + 1, 0)
    word = tl.where(field == 1, kind, word)
    word = tl.where(field == 2, launch, word)
    word = tl.where(field == 3, number, word)
    word = tl.where(field == 4, pool, word)
    word = tl.where(field == 5, position, word)
    word = tl.where(field == 6, slot, word)
    word = tl.where(field == 7, expected, word)
    word = tl.where(field == 8, found, word)
    word = tl.where(field == 9, token, word)
    word = tl.where(field == 10, place, word)
    word = tl.where(field == 11, writer, word)
    word = tl.where(field == 12, times, word)
    check = mix(tl.sum(mix(word + field), 0))
    tl.store(entry + field, tl.where(field == ENTRY_WORDS - 1, check, word))


@triton.jit
def written_now(
    new_slots: tl.tensor,
    translation: tl.tensor,
    positions: tl.tensor,
    tokens: tl.tensor,
    slot: tl.tensor,
    position: tl.tensor,
) -> tl.tensor:
    """Which of the slots this pass writes itself, at the same positions."""
    found = tl.zeros_like(position)
    for first in range(0, tokens, NEW_SLOTS):
        other = first + tl.arange(0, NEW_SLOTS)
        live = other < tokens
        new = translated(translation, tl.load(new_slots + other, mask=live, other=-1).to(tl.int64), live)
        at = tl.load(positions + other, mask=live, other=-1).to(tl.int32)
        same = (slot[:, None] == new[None, :]) & (position[:, None] == at[None, :]) & live[None, :]
        found = found | tl.max(same.to(tl.int32), 1)
    return found != 0


@triton.jit
def verify_links(
    static: tl.tensor,
    spans: tl.tensor,
    labels: tl.tensor,
    tokens: tl.tensor,
    places: tl.tensor,
    writers: tl.tensor,
    sealed: tl.tensor,
    ring: tl.tensor,
    count: tl.tensor,
    capacity: tl.tensor,
    table: tl.tensor,
    translation: tl.tensor,
    new_slots: tl.tensor,
    positions: tl.tensor,
    num_tokens: tl.tensor,
    launch: tl.tensor,
    number: tl.tensor,
    pool: tl.tensor,
    block: tl.tensor,
    lowest: tl.tensor,
    start: tl.tensor,
    BLOCK: tl.constexpr,
    BYTES: tl.constexpr,
) -> None:
    """Verify the positions of one block that the pass reads, and report the first wrong one."""
    slots = tl.load(static + 2)
    unit = tl.load(static + 3).to(tl.int32)
    position = block * BLOCK + tl.arange(0, BLOCK)
    live = (position >= lowest) & (position < start)
    linked = live & (position > lowest)
    slot = slots_at(table, translation, position, live, unit)
    before = slots_at(table, translation, position - 1, linked, unit)
    outside = live & ((slot < 0) | (slot >= slots))
    known = live & (outside == 0)
    linked = linked & (before >= 0) & (before < slots)
    label = tl.load(labels + slot, mask=known, other=0)
    token = tl.load(tokens + slot, mask=known, other=0)
    expected = tl.load(labels + before, mask=linked, other=0) + term(token, position)
    bad = outside | (known & (label == 0)) | (known & (linked | (position == 0)) & (label != expected))
    if BYTES:
        there = tl.load(sealed + slot, mask=known, other=0)
        page_size = tl.load(static + 8)
        bytes_now = digest_bytes(spans, tl.load(static + 7).to(tl.int32), slot, known & (there != 0), page_size)
        changed = known & (there != 0) & (there != bytes_now)
    else:
        changed = live & False
    if tl.max((bad | changed).to(tl.int32), 0) != 0:
        now = written_now(new_slots, translation, positions, num_tokens, slot, position)
        now = now | written_now(new_slots, translation, positions, num_tokens, before, position - 1)
        bad = bad & (now == 0)
        changed = changed & (now == 0)
        times = tl.sum((bad | changed).to(tl.int64), 0)
        if times != 0:
            first = tl.min(tl.where(bad | changed, position, NO_POSITION), 0)
            here = position == first
            its_slot = tl.sum(tl.where(here, slot, 0), 0)
            its_label = tl.sum(tl.where(here, label, 0), 0)
            its_expected = tl.sum(tl.where(here, expected, 0), 0)
            is_outside = tl.max((here & outside).to(tl.int32), 0)
            is_bad = tl.max((here & bad).to(tl.int32), 0)
            kind = tl.where(is_outside != 0, RANGE, tl.where(its_label == 0, NEVER, OTHER))
            kind = tl.where(is_bad != 0, kind, BYTES_DIFFER)
            inside = tl.where(is_outside != 0, 0, its_slot)
            report(
                ring,
                count,
                capacity,
                kind,
                launch,
                number,
                pool,
                first,
                its_slot,
                its_expected,
                its_label,
                tl.load(tokens + inside),
                tl.load(places + inside),
                tl.load(writers + inside),
                times,
            )


@triton.jit
def verify_one(
    static: tl.tensor,
    labels: tl.tensor,
    tokens: tl.tensor,
    places: tl.tensor,
    writers: tl.tensor,
    ring: tl.tensor,
    count: tl.tensor,
    capacity: tl.tensor,
    new_slots: tl.tensor,
    translation: tl.tensor,
    positions: tl.tensor,
    num_tokens: tl.tensor,
    launch: tl.tensor,
    number: tl.tensor,
    pool: tl.tensor,
    position: tl.tensor,
    slot: tl.tensor,
    expected: tl.tensor,
    wrong: tl.tensor,
    shared: tl.tensor,
) -> None:
    """Report one slot, with the kind `wrong`, if its label is not the expected one.

    If it is `shared`, another request of this pass may be writing it right now.
    """
    outside = (slot < 0) | (slot >= tl.load(static + 2))
    inside = tl.where(outside, 0, slot)
    label = tl.load(labels + inside)
    if outside | (label != expected):
        now = outside & False
        if shared:
            one = tl.arange(0, 1)
            now = (
                tl.max(
                    written_now(new_slots, translation, positions, num_tokens, slot + one, position + one).to(tl.int32),
                    0,
                )
                != 0
            )
        if now == 0:
            kind = tl.where(outside, RANGE, tl.where(label == 0, NEVER, wrong))
            report(
                ring,
                count,
                capacity,
                kind,
                launch,
                number,
                pool,
                position,
                slot,
                expected,
                label,
                tl.load(tokens + inside),
                tl.load(places + inside),
                tl.load(writers + inside),
                launch * 0 + 1,
            )


@triton.jit
def watch_kernel(
    words: tl.tensor,
    statics: tl.tensor,
    all_spans: tl.tensor,
    all_labels: tl.tensor,
    all_tokens: tl.tensor,
    all_places: tl.tensor,
    all_writers: tl.tensor,
    all_sealed: tl.tensor,
    heads: tl.tensor,
    ring: tl.tensor,
    count: tl.tensor,
    input_ids: tl.tensor,
    positions: tl.tensor,
    capacity: tl.tensor,
    num_rows: tl.tensor,
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
            unit = tl.load(static + 3).to(tl.int32)
            known_at = tl.load(entry + 4).to(tl.int32)
            known = tl.load(entry + 5)
            fresh = tl.load(entry + 6)
            head = heads + (pool * num_rows + row) * RECENT
            behind = tl.load(head + (start + RECENT - 1) % RECENT)
            behind = tl.where(fresh != 0, known, behind)
            behind = tl.where(start == 0, 0, behind)
            # The last position, then the one whose label the host knows, if there is one.
            for by_host in range(0, 2):
                position = tl.where(by_host != 0, known_at, start - 1)
                asked = (known_at < start) & (fresh == 0) & (kind != STATES)
                if (position >= lowest) & ((by_host == 0) | asked):
                    slot = tl.load(place)
                    if kind != STATES:
                        slot = slots_at(table, translation, position, position >= 0, unit)
                    verify_one(
                        static,
                        labels,
                        tokens,
                        places,
                        writers,
                        ring,
                        count,
                        capacity,
                        new_slots,
                        translation,
                        positions,
                        num_tokens,
                        launch,
                        number,
                        pool,
                        position,
                        slot,
                        tl.where(by_host != 0, known, behind),
                        tl.where(by_host != 0, KNOWN, LAST),
                        kind != STATES,
                    )
            tl.debug_barrier()  # every thread has read before any writes
            offsets = tl.arange(0, BLOCK)
            slots = tl.load(static + 2)
            writer = (number << LAUNCH_BITS) | launch
            border = tl.load(place + 2).to(tl.int32)
            at_border = behind
            for begin in range(0, new, BLOCK):
                index = begin + offsets
                live = index < new
                position = start + index
                token = tl.load(input_ids + first + index, mask=live, other=0).to(tl.int32)
                added = tl.where(live, term(token, position), 0)
                label = behind + tl.cumsum(added, 0)
                at_border += tl.sum(tl.where(position < border, added, 0), 0)
                behind += tl.sum(added, 0)
                recent = live & (position >= start + new - RECENT)
                tl.store(head + position % RECENT, label, mask=recent)
                if kind != STATES:
                    slot = tl.load(new_slots + first + index, mask=live, other=0).to(tl.int64)
                    slot = translated(translation, slot, live)
                    # Page 0 takes the writes of padding, and a negative slot means no write.
                    stamped = live & (slot >= tl.load(static + 8)) & (slot < slots)
                    tl.store(labels + slot, label, mask=stamped)
                    tl.store(tokens + slot, token, mask=stamped)
                    tl.store(places + slot, position, mask=stamped)
                    tl.store(writers + slot, tl.zeros_like(slot) + writer, mask=stamped)
                    if BYTES:
                        tl.store(sealed + slot, tl.zeros_like(slot), mask=stamped)
                    outside = live & (slot >= slots)
                    times = tl.sum(outside.to(tl.int64), 0)
                    if times != 0:
                        at = tl.min(tl.where(outside, position, NO_POSITION), 0)
                        report(
                            ring,
                            count,
                            capacity,
                            launch * 0 + WRITES,
                            launch,
                            number,
                            pool,
                            at,
                            tl.sum(tl.where(position == at, slot, 0), 0),
                            launch * 0,
                            launch * 0,
                            launch * 0,
                            launch * 0,
                            launch * 0,
                            times,
                        )
            if kind == STATES:
                last = start + new - 1
                token = tl.load(input_ids + first + new - 1).to(tl.int32)
                target = tl.load(place + 1)
                kept = tl.load(place + 3)
                if (target > 0) & (target < slots):
                    tl.store(labels + target, behind)
                    tl.store(tokens + target, token)
                    tl.store(places + target, last)
                    tl.store(writers + target, writer)
                if (kept > 0) & (kept < slots):
                    tl.store(labels + kept, at_border)
                    tl.store(tokens + kept, token * 0)
                    tl.store(places + kept, border - 1)
                    tl.store(writers + kept, writer)


@triton.jit
def seal_kernel(
    words: tl.tensor,
    statics: tl.tensor,
    all_spans: tl.tensor,
    all_sealed: tl.tensor,
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


@triton.jit
def copy_kernel(
    sources: tl.tensor,
    targets: tl.tensor,
    labels: tl.tensor,
    tokens: tl.tensor,
    places: tl.tensor,
    writers: tl.tensor,
    sealed: tl.tensor,
    from_base: tl.tensor,
    from_slots: tl.tensor,
    to_base: tl.tensor,
    to_slots: tl.tensor,
    num: tl.tensor,
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
