"""Parts of the canary's kernels: the slot and the label of a position, the digest of its bytes, and reports."""

# backend decides how kernels are decorated, so it comes before triton.
# isort: off
from kvcuda import backend as _backend  # noqa: F401
import triton
import triton.language as tl
# isort: on

from kvcuda.canary import words as layout
from kvcuda.canary.words import Kind
from kvcuda.digest_kernels import M2, mix

SPAN_WORDS = tl.constexpr(layout.SPAN_WORDS)
ENTRY_WORDS = tl.constexpr(layout.ENTRY_WORDS)
RECENT = tl.constexpr(layout.RECENT)
STATES = tl.constexpr(int(Kind.STATES))
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
