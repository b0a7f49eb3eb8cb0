"""The kernels of the digest model: a stub for a transformer whose samples depend on every slot that it reads.

The "KV" of a token is a 64-bit digest of the token, its position, and a read *through the row* of the KV of all
positions before it:

    full(i)    = sum of contribute(kv[slot of j], j) for j < i
    kv(i)      = digest(token i, i, read(i))
    sampled    = a function of the read behind position i

One wrong slot, one overwritten page, or one row written too early or too late changes every later token. A read is
`full`, and besides

    with window layers       the sum of contribute(window_kv[window slot of j], j) for the WINDOW positions before i;
                             behind i, i itself too. window_kv(i) = mix(kv(i) + M2)
    with recurrent states    the state after i positions: state(i + 1) = mix(state(i) + kv(i)), from the slot that the
                             launch names to the one that it computes in, and at a page border to a tracking slot

`kvcuda.digest.states` computes the same on the host, from the tokens alone. Jobs are in `words`:

    words 0 to 6     row   start   end   out index   token index   samples   sample index
    words 7 to 11    window index   source slot   state slot   border   border slot

`samples` counts the last positions that sample. A token index of -1 means the row's last sample, which the host does
not know yet. `look_up_kernel` writes the window slots of the positions from `start - WINDOW` on to `window_loc`, from
the window index on.
"""

# backend decides how kernels are decorated, so it comes before triton.
# isort: off
from kvcuda import backend as _backend  # noqa: F401
import torch
import triton
import triton.language as tl
# isort: on

from kvcuda.jit import kernel

FIELDS_PER_JOB = 12
"""Words of a job."""
FIELDS = tl.constexpr(FIELDS_PER_JOB)
MULTIPLIERS = (0x2545F4914F6CDD1D, 0x369DEA0F31A53F85)
M1 = tl.constexpr(MULTIPLIERS[0])
M2 = tl.constexpr(MULTIPLIERS[1])


@triton.jit
def mix(x: tl.tensor) -> tl.tensor:
    """Scramble 64 bits; shifts are arithmetic, products wrap."""
    x = (x ^ (x >> 32)) * M1
    x = (x ^ (x >> 29)) * M2
    return x ^ (x >> 32)


@triton.jit
def contribute(value: tl.tensor, position: tl.tensor) -> tl.tensor:
    """The contribution of the KV at one position to the reads of all later ones."""
    return mix(value + position.to(tl.int64) * M1)


@triton.jit
def digest(token: tl.tensor, position: tl.tensor, state: tl.tensor) -> tl.tensor:
    """The KV of a token."""
    return mix(state ^ mix(token.to(tl.int64) * M2 + position.to(tl.int64)))


@triton.jit
def sample(state: tl.tensor) -> tl.tensor:
    """The token that follows a state: 15 bits."""
    return ((mix(state) >> 20) & 0x7FFF).to(tl.int32)


@triton.jit
def read_full(table: tl.tensor, kv: tl.tensor, length: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The contributions of the first `length` positions of a row."""
    offsets = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.int64)
    for first in range(0, length, BLOCK):
        position = first + offsets
        live = position < length
        slot = tl.load(table + position, mask=live, other=0)
        value = tl.load(kv + slot.to(tl.int64), mask=live, other=0)
        total += tl.where(live, contribute(value, position), 0)
    return tl.sum(total, 0)


@triton.jit
def noted_slots(entry: tl.tensor, window_loc: tl.tensor, WINDOW: tl.constexpr) -> tl.tensor:
    """The address for the window slot of a job's position 0; only those from `start - WINDOW` on are written."""
    return window_loc + tl.load(entry + 7) - tl.maximum(tl.load(entry + 1) - WINDOW, 0)


@triton.jit
def read_window(
    noted: tl.tensor, window_kv: tl.tensor, start: tl.tensor, WINDOW: tl.constexpr, RECENT: tl.constexpr
) -> tl.tensor:
    """The contributions of the `WINDOW` positions before `start` to window layers, indexed by position % WINDOW."""
    offsets = tl.arange(0, RECENT)
    position = start - 1 - (start - 1 - offsets + 2 * WINDOW) % WINDOW
    live = (offsets < WINDOW) & (position >= 0)
    slot = tl.load(noted + position, mask=live, other=0)
    value = tl.load(window_kv + slot.to(tl.int64), mask=live, other=0)
    return tl.where(live, contribute(value, position), 0)


@kernel()
def look_up_kernel(
    words: torch.Tensor,
    req_to_token: torch.Tensor,
    window_of: torch.Tensor,
    window_loc: torch.Tensor,
    max_context_len: int,
    P: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Look up the window slots of all positions that a launch uses in window layers. Grid: (batch,)."""
    entry = words + tl.program_id(0) * FIELDS
    table = req_to_token + tl.load(entry).to(tl.int64) * max_context_len
    end = tl.load(entry + 2)
    noted = noted_slots(entry, window_loc, WINDOW)
    for begin in range(tl.maximum(tl.load(entry + 1) - WINDOW, 0), end, BLOCK):
        position = begin + tl.arange(0, BLOCK)
        live = position < end
        slot = tl.load(table + position, mask=live, other=0)
        window_page = tl.load(window_of + slot // P, mask=live, other=0)
        tl.store(noted + position, window_page * P + slot % P, mask=live)


@kernel()
def prefill_kernel(
    words: torch.Tensor,
    req_to_token: torch.Tensor,
    out_cache_loc: torch.Tensor,
    kv: torch.Tensor,
    sampled: torch.Tensor,
    samples: torch.Tensor,
    window_loc: torch.Tensor | None,
    window_kv: torch.Tensor | None,
    recurrent: torch.Tensor | None,
    max_context_len: int,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    RECENT: tl.constexpr,
) -> None:
    """Compute positions [start, end) of each request, whose tokens are in `words`. Grid: (batch,)."""
    entry = words + tl.program_id(0) * FIELDS
    row = tl.load(entry)
    start = tl.load(entry + 1)
    end = tl.load(entry + 2)
    out = out_cache_loc + tl.load(entry + 3)
    tokens = words + tl.load(entry + 4)
    count = tl.load(entry + 5)
    kept = samples + tl.load(entry + 6) + count - end
    full = read_full(req_to_token + row.to(tl.int64) * max_context_len, kv, start, BLOCK)
    behind = full * 0
    recent = full * 0
    state = full * 0
    if WINDOW:
        recent = read_window(noted_slots(entry, window_loc, WINDOW), window_kv, start, WINDOW, RECENT)
    if recurrent is not None:
        state = tl.load(recurrent + tl.load(entry + 8))
    for step in range(start, end):
        position = step + row * 0
        read = full
        if WINDOW:
            read += tl.sum(recent, 0)
        if recurrent is not None:
            read += state
        value = digest(tl.load(tokens + position - start), position, read)
        tl.store(kv + tl.load(out + position - start).to(tl.int64), value)
        full += contribute(value, position)
        behind = full
        if WINDOW:
            window_value = mix(value + M2)
            window_slot = tl.load(noted_slots(entry, window_loc, WINDOW) + position)
            tl.store(window_kv + window_slot.to(tl.int64), window_value)
            added = contribute(window_value, position)
            behind += tl.sum(recent, 0) + added
            recent = tl.where(tl.arange(0, RECENT) == position % WINDOW, added, recent)
        if recurrent is not None:
            state = mix(state + value)
            behind += state
            tl.store(recurrent + tl.load(entry + 11), state, mask=position + 1 == tl.load(entry + 10))
        tl.store(kept + position, sample(behind), mask=position >= end - count)
    if recurrent is not None:
        tl.store(recurrent + tl.load(entry + 9), state)
    tl.store(sampled + row, sample(behind))


@kernel()
def decode_kernel(
    words: torch.Tensor,
    req_to_token: torch.Tensor,
    out_cache_loc: torch.Tensor,
    kv: torch.Tensor,
    sampled: torch.Tensor,
    samples: torch.Tensor,
    window_loc: torch.Tensor | None,
    window_kv: torch.Tensor | None,
    recurrent: torch.Tensor | None,
    max_context_len: int,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    RECENT: tl.constexpr,
) -> None:
    """Compute position `start` of each request and sample the next token. Grid: (batch,)."""
    entry = words + tl.program_id(0) * FIELDS
    row = tl.load(entry)
    start = tl.load(entry + 1)
    slot = tl.load(out_cache_loc + tl.load(entry + 3)).to(tl.int64)
    token_at = tl.load(entry + 4)
    last = tl.load(sampled + row)
    token = tl.where(token_at < 0, last, tl.load(words + tl.maximum(token_at, 0)))
    read = read_full(req_to_token + row.to(tl.int64) * max_context_len, kv, start, BLOCK)
    if WINDOW:
        recent = read_window(noted_slots(entry, window_loc, WINDOW), window_kv, start, WINDOW, RECENT)
        read += tl.sum(recent, 0)
    behind = read
    state = read * 0
    if recurrent is not None:
        state = tl.load(recurrent + tl.load(entry + 8))
        read += state
    value = digest(token, start, read)
    tl.store(kv + slot, value)
    behind += contribute(value, start)
    if WINDOW:
        window_value = mix(value + M2)
        window_slot = tl.load(noted_slots(entry, window_loc, WINDOW) + start)
        tl.store(window_kv + window_slot.to(tl.int64), window_value)
        behind += contribute(window_value, start)
    if recurrent is not None:
        state = mix(state + value)
        behind += state
        tl.store(recurrent + tl.load(entry + 11), state, mask=start + 1 == tl.load(entry + 10))
        tl.store(recurrent + tl.load(entry + 9), state)
    following = sample(behind)
    tl.store(sampled + row, following)
    tl.store(samples + tl.load(entry + 6), following)
