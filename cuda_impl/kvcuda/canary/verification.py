"""Parts of the canary's kernels: the verification of the slots that a pass reads."""

# backend decides how kernels are decorated, so it comes before triton.
# isort: off
from kvcuda import backend as _backend  # noqa: F401
import triton
import triton.language as tl
# isort: on

from kvcuda.canary.slots import NO_POSITION, STATES, digest_bytes, report, slots_at, term, translated
from kvcuda.canary.words import ViolationKind

OTHER = tl.constexpr(int(ViolationKind.OTHER))
NEVER = tl.constexpr(int(ViolationKind.NEVER))
LAST = tl.constexpr(int(ViolationKind.LAST))
KNOWN = tl.constexpr(int(ViolationKind.KNOWN))
RANGE = tl.constexpr(int(ViolationKind.RANGE))
BYTES_DIFFER = tl.constexpr(int(ViolationKind.BYTES))
NEW_SLOTS = tl.constexpr(4)
"""New slots that are compared with a block of positions at a time."""


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
def verify_last(
    entry: tl.tensor,
    place: tl.tensor,
    static: tl.tensor,
    labels: tl.tensor,
    tokens: tl.tensor,
    places: tl.tensor,
    writers: tl.tensor,
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
    lowest: tl.tensor,
    start: tl.tensor,
    behind: tl.tensor,
) -> None:
    """Verify a request's last position, whose label is `behind`, then the one whose label the host knows, if any."""
    kind = tl.load(static)
    unit = tl.load(static + 3).to(tl.int32)
    known_at = tl.load(entry + 4).to(tl.int32)
    known = tl.load(entry + 5)
    fresh = tl.load(entry + 6)
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
