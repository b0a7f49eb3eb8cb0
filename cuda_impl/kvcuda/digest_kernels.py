"""The kernels of the digest model: a stand-in for a transformer that notices every page that is not what it should be.

The "KV" of a token is a 64-bit digest of the token, its position, and what is read back *through the row* from the KV
of all positions before it:

    state(i)   = sum of contribute(kv[slot of j], j) for j < i
    kv(i)      = digest(token i, i, state(i))
    sampled    = a function of state(i + 1)

so one wrong slot, one overwritten page, or one row written too early or too late changes everything after it.
`kvcuda.digest.states` computes the same on the host, from the tokens alone. Jobs are read from `words`:

    entry   row   start   end   out index   token index   samples   sample index

`samples` counts the last positions that sample; a token index of -1 stands for the token that the row sampled last,
which only the device knows yet.
"""

# backend decides how kernels are decorated, so it comes before triton.
# isort: off
from kvcuda import backend as _backend  # noqa: F401
import triton
import triton.language as tl
# isort: on

from kvcuda.words import FIELDS as _FIELDS

FIELDS = tl.constexpr(_FIELDS)
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
    """What the KV at one position adds to the state of all later ones."""
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
def read_state(table: tl.tensor, kv: tl.tensor, length: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The state that the first `length` positions of a row read back."""
    lanes = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], dtype=tl.int64)
    for first in range(0, length, BLOCK):
        position = first + lanes
        live = position < length
        slot = tl.load(table + position, mask=live, other=0)
        value = tl.load(kv + slot.to(tl.int64), mask=live, other=0)
        total += tl.where(live, contribute(value, position), 0)
    return tl.sum(total, 0)


@triton.jit
def prefill_kernel(
    words: tl.tensor,
    req_to_token: tl.tensor,
    out_cache_loc: tl.tensor,
    kv: tl.tensor,
    sampled: tl.tensor,
    samples: tl.tensor,
    max_context_len: tl.tensor,
    BLOCK: tl.constexpr,
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
    state = read_state(req_to_token + row.to(tl.int64) * max_context_len, kv, start, BLOCK)
    for position in range(start, end):
        value = digest(tl.load(tokens + position - start), position + row * 0, state)
        tl.store(kv + tl.load(out + position - start).to(tl.int64), value)
        state += contribute(value, position + row * 0)
        tl.store(kept + position, sample(state), mask=position + row * 0 >= end - count)
    tl.store(sampled + row, sample(state))


@triton.jit
def decode_kernel(
    words: tl.tensor,
    req_to_token: tl.tensor,
    out_cache_loc: tl.tensor,
    kv: tl.tensor,
    sampled: tl.tensor,
    samples: tl.tensor,
    max_context_len: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Compute position `start` of each request and sample the next token. Grid: (batch,)."""
    entry = words + tl.program_id(0) * FIELDS
    row = tl.load(entry)
    start = tl.load(entry + 1)
    slot = tl.load(out_cache_loc + tl.load(entry + 3)).to(tl.int64)
    token_at = tl.load(entry + 4)
    last = tl.load(sampled + row)
    token = tl.where(token_at < 0, last, tl.load(words + tl.maximum(token_at, 0)))
    state = read_state(req_to_token + row.to(tl.int64) * max_context_len, kv, start, BLOCK)
    value = digest(token, start, state)
    tl.store(kv + slot, value)
    following = sample(state + contribute(value, start))
    tl.store(sampled + row, following)
    tl.store(samples + tl.load(entry + 6), following)
