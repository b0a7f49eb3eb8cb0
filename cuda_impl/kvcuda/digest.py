"""The digest model: its memory on the device, and an oracle on the host that recomputes it without a cache."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from kvcuda import digest_kernels
from kvcuda.arrays import Ints, Words
from kvcuda.backend import DEVICE
from kvcuda.forward import ForwardBatch
from kvcuda.memory import DeviceMemory
from kvcuda.memory_events import Listener, Uses
from kvcuda.staging import Slot, Staging
from kvcuda.streams import Event
from kvspec.events import Config
from kvspec.memory.events import Use

BLOCK = 512
LOOKUP_BUFFERS = 4
"""Launches whose window slots are kept at a time; one more waits for the oldest."""
FIELDS = digest_kernels.FIELDS_PER_JOB
_M1, _M2 = digest_kernels.MULTIPLIERS
_WRAP, _SIGN = (1 << 64) - 1, 1 << 63


class Layers(NamedTuple):
    """The model's layers besides full attention."""

    window: int = 0
    """Positions before each one that a window layer reads; 0 without window layers."""
    recurrent: bool = False


PLAIN = Layers()


def layers_of(config: Config) -> Layers:
    """The layers that use all pools of a configuration."""
    return Layers(config.sliding_window, bool(config.num_states))


class Sampling(NamedTuple):
    """The work of a forward pass for one request."""

    tokens: list[int] | None
    """The token ids of its new positions; `None` for one position whose token is still only on the device."""
    samples: int
    """Last positions that sample a token: 1, none in the middle of a prefill, all of a speculative step."""


class DigestModel:
    """The model's KV, states and samples."""

    def __init__(self, memory: DeviceMemory, *, max_words: int = 1 << 14, max_samples: int = 1 << 16) -> None:
        """Nothing is computed yet.

        `max_words` bounds a forward pass: `FIELDS` words a request, and one a token. It also bounds the positions that
        its window layers use.
        """
        config = memory.config
        self._memory = memory
        self._max_words = max_words
        self.layers = layers_of(config)
        self.kv: torch.Tensor = _poisoned((config.num_pages + 1) * config.page_size)
        """int64 [slots]: the "KV" of each slot. Poisoned, so that a read of an unwritten slot changes the samples."""
        self.window_kv: torch.Tensor | None = None
        """int64 [window slots]: the "KV" of window layers, if there are any."""
        self.window_loc: torch.Tensor | None = None
        """int32 [LOOKUP_BUFFERS * max_words]: the window slots of the last launches' positions."""
        if self.layers.window:
            self.window_kv = _poisoned((config.num_window_pages + 1) * config.page_size)
            self.window_loc = torch.zeros(LOOKUP_BUFFERS * max_words, dtype=torch.int32, device=DEVICE)
        self.recurrent: torch.Tensor | None = None
        """int64 [num_states + 1]: the state in each slot, if there are any; slot 0 has the state of no tokens."""
        if self.layers.recurrent:
            self.recurrent = _poisoned(config.num_states + 1)
            self.recurrent[0] = 0
        self.sampled: torch.Tensor = torch.zeros(config.num_rows, dtype=torch.int32, device=DEVICE)
        """int32 [num_rows]: the last token that each row sampled."""
        self.samples: torch.Tensor = torch.full((max_samples,), -1, dtype=torch.int32, device=DEVICE)
        """int32 [max_samples]: all sampled tokens, in the order of the forward passes."""
        self.num_samples = 0
        self._staging = Staging(max_words, DEVICE, memory.streams)
        self._lookups = 0
        self._lookup_readers: list[Event | None] = [None] * LOOKUP_BUFFERS

    def run(self, batch: ForwardBatch, parts: Sequence[Sampling]) -> list[int]:
        """Enqueue a forward pass on the forward stream. Returns the index in `samples` where each request's begin.

        Raises:
            ValueError: more tokens, positions or samples than the buffers hold; nothing was enqueued.
        """
        num_words = len(parts) * FIELDS + sum(len(part.tokens or ()) for part in parts)
        num_samples = sum(part.samples for part in parts)
        most_words = max(num_words, int(self._lookup_lengths(batch).sum()))
        if most_words > self._max_words or self.num_samples + num_samples > len(self.samples):
            raise ValueError(f"{most_words} words and {num_samples} samples do not fit into the digest model's buffers")
        begins = [0] * len(parts)
        decoding = [i for i, part in enumerate(parts) if part.samples == 1 and len(part.tokens or (0,)) == 1]
        prefilling = [i for i in range(len(parts)) if i not in set(decoding)]
        for chosen in (prefilling, decoding):
            if chosen:
                self._run_kernel(batch.only(chosen), [parts[i] for i in chosen], chosen, begins, chosen is decoding)
        return begins

    def _run_kernel(
        self, batch: ForwardBatch, parts: Sequence[Sampling], chosen: list[int], begins: list[int], decode: bool
    ) -> None:
        """Enqueue one kernel for the chosen requests of a batch; write where their samples begin to `begins`."""
        slot = self._staging.take()
        requests = len(chosen)
        used = requests * FIELDS
        entries = self._fill(slot, batch)
        for entry, i, (tokens, samples) in zip(entries, chosen, parts, strict=True):
            begins[i] = self.num_samples
            self.num_samples += samples
            entry[4:7] = -1 if tokens is None else used, samples, begins[i]
            if tokens is not None:
                slot.words[used : used + len(tokens)] = tokens
                used += len(tokens)
        if self.layers.window:
            self._look_up(slot, entries, batch)

        def work() -> None:
            slot.upload(used)
            self.enqueue(slot.device, requests, decode=decode)

        stream = self._memory.streams.forward
        stream.run(work, self.uses(slot, batch))
        stream.record(slot.passed)
        if self.layers.window:
            self._lookup_readers[self._lookups % LOOKUP_BUFFERS] = done = self._memory.streams.event()
            stream.record(done)

    def _look_up(self, slot: Slot, entries: Words, batch: ForwardBatch) -> None:
        """Look a batch's window slots up on the scheduler's stream, and let the forward stream wait for that.

        A page's window side changes when the page is freed, even while a launch that reads it waits on its stream.
        """
        streams, requests = self._memory.streams, len(entries)
        self._take_lookups(entries, batch)

        def work() -> None:
            slot.upload(requests * FIELDS)
            self.enqueue_look_up(slot.device, requests)

        streams.scheduler.run(work, self.look_up_uses(slot, batch))
        noted = streams.event()
        streams.scheduler.record(noted)
        streams.forward.wait(noted)

    def uses(self, slot: Slot, batch: ForwardBatch) -> Uses | None:
        """The memory that a batch's forward pass uses, with its own buffers; `None` without a listener."""
        listener = self._memory.streams.listener
        if listener is None:
            return None
        uses = listener.forward(*batch[2:6], self._memory.out_cache_loc)
        return uses.joined(listener.words(slot), Uses(self._noted(listener, slot, batch), []))

    def look_up_uses(self, slot: Slot, batch: ForwardBatch) -> Uses | None:
        """The memory that the look-up of its window slots uses; `None` without a listener."""
        listener = self._memory.streams.listener
        if listener is None:
            return None
        return listener.look_up(slot, batch.rows, batch.ends, self._noted(listener, slot, batch))

    def _noted(self, listener: Listener, slot: Slot, batch: ForwardBatch) -> list[Use]:
        """The spans that keep a batch's window slots; none without window layers."""
        starts = slot.words[: len(batch.rows) * FIELDS].reshape(-1, FIELDS)[:, 7]
        return listener.noted(self.window_loc, starts, self._lookup_lengths(batch))

    def stage_decode(self, batch: ForwardBatch, begin: int) -> Slot:
        """The words of a decode step whose tokens are still on the device; its samples begin at `begin`."""
        slot = self._staging.take()
        entries = self._fill(slot, batch)
        entries[:, 4] = -1
        entries[:, 5] = 1
        entries[:, 6] = range(begin, begin + len(batch.rows))
        if self.layers.window:
            self._take_lookups(entries, batch)
        return slot

    def _fill(self, slot: Slot, batch: ForwardBatch) -> Words:
        """Write a batch's rows, lengths and states to a slot's entries, which are returned."""
        entries = slot.words[: len(batch.rows) * FIELDS].reshape(-1, FIELDS)
        entries[:, 0] = batch.rows
        entries[:, 1] = batch.starts
        entries[:, 2] = batch.ends
        entries[:, 3] = batch.outs
        if batch.states is not None:
            for field, column in enumerate(batch.states, 8):
                entries[:, field] = column
        return entries

    def _lookup_lengths(self, batch: ForwardBatch) -> Ints:
        """Positions that each request uses in window layers: its new ones, and those that their window reads."""
        window = self.layers.window
        lengths: Ints = (batch.ends - (batch.starts - window).clip(min=0)) * bool(window)
        return lengths

    def _take_lookups(self, entries: Words, batch: ForwardBatch) -> None:
        """Assign a batch's window slots to the next buffer, once its last reader is done."""
        self._lookups += 1
        buffer = self._lookups % LOOKUP_BUFFERS
        reader = self._lookup_readers[buffer]
        if reader is not None:
            self._memory.streams.scheduler.wait(reader)
            self._lookup_readers[buffer] = None
        lengths = self._lookup_lengths(batch)
        entries[:, 7] = buffer * self._max_words + lengths.cumsum() - lengths

    def enqueue_look_up(self, words: torch.Tensor, batch: int) -> None:
        """Enqueue the look-up of a batch's window slots on the current stream; `words` is on the device."""
        assert self.window_loc is not None, "only window layers look slots up"
        memory = self._memory
        digest_kernels.look_up_kernel[(batch,)](
            words,
            memory.req_to_token,
            memory.windows.window_of,
            self.window_loc,
            memory.config.max_context_len,
            P=memory.config.page_size,
            WINDOW=self.layers.window,
            BLOCK=BLOCK,
        )

    def enqueue(self, words: torch.Tensor, batch: int, *, decode: bool) -> None:
        """Enqueue one of the kernels on the current stream; `words` is on the device. A CUDA graph captures this."""
        memory = self._memory
        kernel = digest_kernels.decode_kernel if decode else digest_kernels.prefill_kernel
        kernel[(batch,)](
            words,
            memory.req_to_token,
            memory.out_cache_loc,
            self.kv,
            self.sampled,
            self.samples,
            self.window_loc,
            self.window_kv,
            self.recurrent,
            memory.config.max_context_len,
            BLOCK=BLOCK,
            WINDOW=self.layers.window,
            RECENT=1 << max(0, self.layers.window - 1).bit_length(),
        )


def _poisoned(slots: int) -> torch.Tensor:
    return torch.full((slots,), -1, dtype=torch.int64, device=DEVICE)


# The oracle


def signed(x: int) -> int:
    """The low 64 bits of a number, as a signed one."""
    return ((x & _WRAP) ^ _SIGN) - _SIGN


def mix(x: int) -> int:
    """Scramble 64 bits."""
    x = signed((x ^ (x >> 32)) * _M1)
    x = signed((x ^ (x >> 29)) * _M2)
    return x ^ (x >> 32)


def contribute(value: int, position: int) -> int:
    """The contribution of the KV at one position to the reads of all later ones."""
    return mix(signed(value + position * _M1))


def sample(read: int) -> int:
    """The token that follows a read: 15 bits."""
    return mix(read) >> 20 & 0x7FFF


def states(tokens: Sequence[int], generated: int = 0, layers: Layers = PLAIN) -> Iterator[int]:
    """The read behind each token, computed from the tokens alone: no cache, no rows, no pages.

    Then the reads behind `generated` further tokens that the model samples itself.
    """
    full = recurrent = behind = 0
    recent: deque[int] = deque(maxlen=layers.window)
    for position in range(len(tokens) + generated):
        token = tokens[position] if position < len(tokens) else sample(behind)
        value = mix(signed(full + sum(recent) + recurrent) ^ mix(signed(token * _M2 + position)))
        full += contribute(value, position)
        behind = full
        if layers.window:
            added = contribute(mix(signed(value + _M2)), position)
            behind += sum(recent) + added
            recent.append(added)
        if layers.recurrent:
            recurrent = mix(signed(recurrent + value))
            behind += recurrent
        behind = signed(behind)
        yield behind


def generate(tokens: Sequence[int], count: int, layers: Layers = PLAIN) -> list[int]:
    """The `count` tokens that the model samples after `tokens`."""
    return [sample(behind) for behind in states(tokens, count - 1, layers)][len(tokens) - 1 :]
