"""The digest model: its memory on the device, and the oracle on the host that recomputes it without any cache."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from kvcuda import digest_kernels
from kvcuda.backend import DEVICE
from kvcuda.forward import ForwardBatch
from kvcuda.memory import DeviceMemory
from kvcuda.staging import Slot, Staging
from kvcuda.words import FIELDS

BLOCK = 512
_M1, _M2 = digest_kernels.MULTIPLIERS
_WRAP, _SIGN = (1 << 64) - 1, 1 << 63


class Sampling(NamedTuple):
    """What one request of a forward pass computes."""

    tokens: list[int] | None
    """The token ids of its new positions; `None` for one position whose token only the device knows yet."""
    samples: int
    """How many of its last positions sample a token: 1, none in the middle of a prefill, all of speculative ones."""


class DigestModel:
    """The model's KV, and what it has sampled."""

    def __init__(self, memory: DeviceMemory, *, max_words: int = 1 << 14, max_samples: int = 1 << 16) -> None:
        """Nothing is computed yet. `max_words` bounds a forward pass: eight words a request, and one a token."""
        config = memory.config
        self._memory = memory
        self._max_words = max_words
        self.kv: Any = torch.full(((config.num_pages + 1) * config.page_size,), -1, dtype=torch.int64, device=DEVICE)
        """int64 [slots]: the "KV" of each slot. Poisoned: a read of what was never written shows."""
        self.sampled: Any = torch.zeros(config.num_rows, dtype=torch.int32, device=DEVICE)
        """int32 [num_rows]: the token that each row sampled last."""
        self.samples: Any = torch.full((max_samples,), -1, dtype=torch.int32, device=DEVICE)
        """int32 [max_samples]: every token that was sampled, in the order of the forward passes."""
        self.num_samples = 0
        self._staging = Staging(max_words, DEVICE, memory.lanes)

    def run(self, batch: ForwardBatch, parts: Sequence[Sampling]) -> list[int]:
        """Enqueue a forward pass on the forward lane. Returns where in `samples` each request's begin.

        Raises:
            ValueError: more tokens or samples than there is room for; nothing was enqueued.
        """
        num_words = len(parts) * FIELDS + sum(len(part.tokens or ()) for part in parts)
        num_samples = sum(part.samples for part in parts)
        if num_words > self._max_words or self.num_samples + num_samples > len(self.samples):
            raise ValueError(f"{num_words} words and {num_samples} samples do not fit into the digest model's buffers")
        begins = [0] * len(parts)
        decoding = [i for i, part in enumerate(parts) if part.samples == 1 and len(part.tokens or (0,)) == 1]
        prefilling = [i for i in range(len(parts)) if i not in set(decoding)]
        for kernel, chosen in (
            (digest_kernels.prefill_kernel, prefilling),
            (digest_kernels.decode_kernel, decoding),
        ):
            if chosen:
                self._run_kernel(kernel, batch, parts, chosen, begins)
        return begins

    def _run_kernel(
        self, kernel: Any, batch: ForwardBatch, parts: Sequence[Sampling], chosen: list[int], begins: list[int]
    ) -> None:
        """Enqueue one kernel for the chosen requests of a batch, and note where their samples begin."""
        slot = self._staging.take()
        used = len(chosen) * FIELDS
        entries = slot.words[:used].reshape(-1, FIELDS)
        entries[:, 0] = batch.rows[chosen]
        entries[:, 1] = batch.starts[chosen]
        entries[:, 2] = batch.ends[chosen]
        entries[:, 3] = batch.outs[chosen]
        for entry, i in zip(entries, chosen, strict=True):
            tokens, samples = parts[i]
            begins[i] = self.num_samples
            self.num_samples += samples
            entry[4:7] = -1 if tokens is None else used, samples, begins[i]
            if tokens is not None:
                slot.words[used : used + len(tokens)] = tokens
                used += len(tokens)

        def work() -> None:
            slot.upload(used)
            self.enqueue(kernel, slot.device, len(chosen))

        lane = self._memory.lanes.forward
        lane.run(work)
        lane.record(slot.passed)

    def stage_decode(self, batch: ForwardBatch, begin: int) -> Slot:
        """The words of a decode step whose tokens only the device knows; its samples begin at `begin`."""
        slot = self._staging.take()
        requests = len(batch.rows)
        entries = slot.words[: requests * FIELDS].reshape(-1, FIELDS)
        entries[:, 0] = batch.rows
        entries[:, 1] = batch.starts
        entries[:, 2] = batch.ends
        entries[:, 3] = batch.outs
        entries[:, 4] = -1
        entries[:, 5] = 1
        entries[:, 6] = range(begin, begin + requests)
        return slot

    def enqueue(self, kernel: Any, words: Any, batch: int) -> None:
        """Enqueue one of the kernels on the current stream; `words` is on the device. A CUDA graph captures this."""
        memory = self._memory
        kernel[(batch,)](
            words,
            memory.req_to_token,
            memory.out_cache_loc,
            self.kv,
            self.sampled,
            self.samples,
            memory.config.max_context_len,
            BLOCK=BLOCK,
        )


# The oracle


def signed(x: int) -> int:
    """The low 64 bits of a number, as a signed one."""
    return ((x & _WRAP) ^ _SIGN) - _SIGN


def mix(x: int) -> int:
    """Scramble 64 bits."""
    x = signed((x ^ (x >> 32)) * _M1)
    x = signed((x ^ (x >> 29)) * _M2)
    return x ^ (x >> 32)


def sample(state: int) -> int:
    """The token that follows a state."""
    return mix(state) >> 20 & 0x7FFF


def states(tokens: Sequence[int], generated: int = 0) -> Iterator[int]:
    """The state after each token, from the tokens alone: no cache, no rows, no pages.

    Behind them come the states of `generated` tokens that the model samples itself.
    """
    state = 0
    for position in range(len(tokens) + generated):
        token = tokens[position] if position < len(tokens) else sample(state)
        value = mix(state ^ mix(signed(token * _M2 + position)))
        state = signed(state + mix(signed(value + position * _M1)))
        yield state


def generate(tokens: Sequence[int], count: int) -> list[int]:
    """The `count` tokens that the model samples after `tokens`."""
    return [sample(state) for state in states(tokens, count - 1)][len(tokens) - 1 :]
