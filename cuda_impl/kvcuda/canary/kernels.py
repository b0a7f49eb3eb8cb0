"""The canary's kernels. One launch before a forward pass verifies what it reads and stamps what it writes.

For each slot of each pool, all pools behind each other:

    labels      int64   the label of the prefix that ends there, see `kvcuda.canary.chain`
    tokens      int32   its last token
    places      int32   its position
    writers     int64   who wrote it: the request's number and the launch's
    sealed      int64   the digest of its real bytes; 0 while it has none

A position is right if its label follows from the one before it by its own token: so each is looked at by itself, and
all are looked at at once. The last one must have the label that the request wrote there itself (`heads`), or that the
host computed, which pins all before it.

In one launch nothing is ordered. So no position is written and read back in it: a request's first program alone reads
and writes its heads, and what another request of the same pass writes, which the pass itself reads as it should, is
judged by its position here and by its label in the next launch.
"""

# backend decides how kernels are decorated, so it comes before triton.
# isort: off
from kvcuda import backend as _backend  # noqa: F401
import triton
import triton.language as tl
# isort: on

from kvcuda.canary import words as layout
from kvcuda.canary.words import Kind, What
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
OTHER = tl.constexpr(int(What.OTHER))
NEVER = tl.constexpr(int(What.NEVER))
LAST = tl.constexpr(int(What.LAST))
KNOWN = tl.constexpr(int(What.KNOWN))
RANGE = tl.constexpr(int(What.RANGE))
BYTES_DIFFER = tl.constexpr(int(What.BYTES))
WRITES = tl.constexpr(int(What.WRITES))
NEW_SLOTS = tl.constexpr(4)
"""New slots that a block of positions is held against at a time."""
NO_POSITION = tl.constexpr(1 << 30)


@triton.jit
def term(token: tl.tensor, position: tl.tensor) -> tl.tensor:
    """What one token adds to the label of the prefix before it."""
    return mix(token.to(tl.int64) * M2 + position.to(tl.int64) + 1)


@triton.jit
def translated(translation: tl.tensor, slot: tl.tensor, live: tl.tensor) -> tl.tensor:
    """The slots of this pool for those that a table of another one names."""
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
def tell(
    ring: tl.tensor,
    count: tl.tensor,
    capacity: tl.tensor,
    what: tl.tensor,
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
    """Put a violation on the ring. Its last word is a digest of the others: the host takes no half-written one."""
    index = tl.atomic_add(count, 1)
    entry = ring + index % capacity * ENTRY_WORDS
    # Each word stands in its lane, and all are stored at once.
    lane = tl.arange(0, ENTRY_WORDS)
    word = tl.where(lane == 0, index + 1, 0)
    word = tl.where(lane == 1, what, word)
    word = tl.where(lane == 2, launch, word)
    word = tl.where(lane == 3, number, word)
    word = tl.where(lane == 4, pool, word)
    word = tl.where(lane == 5, position, word)
    word = tl.where(lane == 6, slot, word)
    word = tl.where(lane == 7, expected, word)
    word = tl.where(lane == 8, found, word)
    word = tl.where(lane == 9, token, word)
    word = tl.where(lane == 10, place, word)
    word = tl.where(lane == 11, writer, word)
    word = tl.where(lane == 12, times, word)
    check = mix(tl.sum(mix(word + lane), 0))
    tl.store(entry + lane, tl.where(lane == ENTRY_WORDS - 1, check, word))


@triton.jit
def written_now(
    new_slots: tl.tensor,
    translation: tl.tensor,
    positions: tl.tensor,
    tokens: tl.tensor,
    slot: tl.tensor,
    position: tl.tensor,
) -> tl.tensor:
    """Which slots this very pass writes, at the same positions."""
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
    """Look at the positions of one block that the pass reads, and tell of the first one that is wrong."""
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
        spoilt = known & (there != 0) & (there != bytes_now)
    else:
        spoilt = live & False
    if tl.max((bad | spoilt).to(tl.int32), 0) != 0:
        now = written_now(new_slots, translation, positions, num_tokens, slot, position)
        now = now | written_now(new_slots, translation, positions, num_tokens, before, position - 1)
        bad = bad & (now == 0)
        spoilt = spoilt & (now == 0)
        times = tl.sum((bad | spoilt).to(tl.int64), 0)
        if times != 0:
            first = tl.min(tl.where(bad | spoilt, position, NO_POSITION), 0)
            here = position == first
            its_slot = tl.sum(tl.where(here, slot, 0), 0)
            its_label = tl.sum(tl.where(here, label, 0), 0)
            its_expected = tl.sum(tl.where(here, expected, 0), 0)
            is_outside = tl.max((here & outside).to(tl.int32), 0)
            is_bad = tl.max((here & bad).to(tl.int32), 0)
            what = tl.where(is_outside != 0, RANGE, tl.where(its_label == 0, NEVER, OTHER))
            what = tl.where(is_bad != 0, what, BYTES_DIFFER)
            inside = tl.where(is_outside != 0, 0, its_slot)
            tell(
                ring,
                count,
                capacity,
                what,
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
    """Tell of one slot, as `wrong`, if it has not the label that it should have.

    Where it is `shared`, another request of this pass may be writing it right now.
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
            what = tl.where(outside, RANGE, tl.where(label == 0, NEVER, wrong))
            tell(
                ring,
                count,
                capacity,
                what,
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
    """Verify what a pass reads and stamp what it writes. Grid: (requests, pools, 1 + programs that verify).

    The first program of a request and pool looks at its last position and stamps; the others look at its blocks in
    turn. New slots are int64 with `NEW_WIDE`, else int32.
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
            # First the last position, then the one whose label the host knows, if there is one.
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
            tl.debug_barrier()  # all of it is read before any lane writes
            lanes = tl.arange(0, BLOCK)
            slots = tl.load(static + 2)
            writer = (number << LAUNCH_BITS) | launch
            border = tl.load(place + 2).to(tl.int32)
            at_border = behind
            for begin in range(0, new, BLOCK):
                index = begin + lanes
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
                    # Page 0 takes what nobody reads, and negative slots stand for no write.
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
                        tell(
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
    """Note the real bytes of what a pass has written. Grid: (blocks of its tokens, pools)."""
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
    """All that is known of slots goes with their content to other slots. Grid: (blocks,)."""
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
