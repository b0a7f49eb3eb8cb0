"""Parts of the canary's kernels: the stamps of the slots that a pass writes."""

# backend decides how kernels are decorated, so it comes before triton.
# isort: off
from kvcuda import backend as _backend  # noqa: F401
import triton
import triton.language as tl
# isort: on

from kvcuda.canary import words as layout
from kvcuda.canary.slots import NO_POSITION, RECENT, STATES, report, term, translated
from kvcuda.canary.words import ViolationKind

LAUNCH_BITS = tl.constexpr(layout.LAUNCH_BITS)
WRITES = tl.constexpr(int(ViolationKind.WRITES))


@triton.jit
def stamp_slots(
    static: tl.tensor,
    labels: tl.tensor,
    tokens: tl.tensor,
    places: tl.tensor,
    writers: tl.tensor,
    sealed: tl.tensor,
    ring: tl.tensor,
    count: tl.tensor,
    capacity: tl.tensor,
    launch: tl.tensor,
    number: tl.tensor,
    pool: tl.tensor,
    slot: tl.tensor,
    live: tl.tensor,
    position: tl.tensor,
    token: tl.tensor,
    label: tl.tensor,
    BYTES: tl.constexpr,
) -> None:
    """Stamp the live slots of one block of new tokens, and report the first one that does not exist."""
    slots = tl.load(static + 2)
    writer = (number << LAUNCH_BITS) | launch
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
        nothing = launch * 0
        its_slot = tl.sum(tl.where(position == at, slot, 0), 0)
        report(
            ring,
            count,
            capacity,
            nothing + WRITES,
            launch,
            number,
            pool,
            at,
            its_slot,
            nothing,
            nothing,
            nothing,
            nothing,
            nothing,
            times,
        )


@triton.jit
def stamp_states(
    place: tl.tensor,
    static: tl.tensor,
    labels: tl.tensor,
    tokens: tl.tensor,
    places: tl.tensor,
    writers: tl.tensor,
    launch: tl.tensor,
    number: tl.tensor,
    last: tl.tensor,
    token: tl.tensor,
    label: tl.tensor,
    at_border: tl.tensor,
) -> None:
    """Stamp a request's state slot, with its `last` position, and the slot that keeps the state at its border."""
    slots = tl.load(static + 2)
    writer = (number << LAUNCH_BITS) | launch
    target = tl.load(place + 1)
    border = tl.load(place + 2).to(tl.int32)
    kept = tl.load(place + 3)
    if (target > 0) & (target < slots):
        tl.store(labels + target, label)
        tl.store(tokens + target, token)
        tl.store(places + target, last)
        tl.store(writers + target, writer)
    if (kept > 0) & (kept < slots):
        tl.store(labels + kept, at_border)
        tl.store(tokens + kept, token * 0)
        tl.store(places + kept, border - 1)
        tl.store(writers + kept, writer)


@triton.jit
def stamp(
    place: tl.tensor,
    static: tl.tensor,
    labels: tl.tensor,
    tokens: tl.tensor,
    places: tl.tensor,
    writers: tl.tensor,
    sealed: tl.tensor,
    head: tl.tensor,
    ring: tl.tensor,
    count: tl.tensor,
    capacity: tl.tensor,
    input_ids: tl.tensor,
    translation: tl.tensor,
    new_slots: tl.tensor,
    launch: tl.tensor,
    number: tl.tensor,
    pool: tl.tensor,
    first: tl.tensor,
    new: tl.tensor,
    start: tl.tensor,
    behind: tl.tensor,
    BLOCK: tl.constexpr,
    BYTES: tl.constexpr,
) -> None:
    """Stamp a request's new tokens, from token `first` of the batch on, behind a prefix with the label `behind`."""
    kind = tl.load(static)
    border = tl.load(place + 2).to(tl.int32)
    at_border = behind
    for begin in range(0, new, BLOCK):
        index = begin + tl.arange(0, BLOCK)
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
            stamp_slots(
                static,
                labels,
                tokens,
                places,
                writers,
                sealed,
                ring,
                count,
                capacity,
                launch,
                number,
                pool,
                slot,
                live,
                position,
                token,
                label,
                BYTES,
            )
    if kind == STATES:
        token = tl.load(input_ids + first + new - 1).to(tl.int32)
        stamp_states(
            place,
            static,
            labels,
            tokens,
            places,
            writers,
            launch,
            number,
            start + new - 1,
            token,
            behind,
            at_border,
        )
