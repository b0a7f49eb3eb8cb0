"""The device manager under the canary, which checks each launch on the stream of forward passes.

The tokens of a pass may still be in flight; `oracle` has them. So a violation means wrong rows, pages or streams, never
wrong tokens.
"""

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import kvref.manager
from kvcuda.backend import DEVICE
from kvcuda.canary import Canary, Known, Pass, Places, Pool, States, Violation
from kvcuda.canary.chain import extended
from kvcuda.canary.words import Kind
from kvcuda.device_manager import DeviceManager
from kvcuda.forward import ForwardBatch
from kvcuda.manager import Manager
from kvcuda.records import Run
from kvcuda.streams import Streams
from kvref.scheduler.req import GenerateReq
from kvspec.events import A, Config, Done, Evict, EvictAnswer, Operation
from kvspec.tokens import Element, Tokens

Oracle = Callable[[Run], list[int]]
"""All tokens that a run will ever have, as far as they are known."""

UNKNOWN = 1 << 20
"""A token that never became known."""


def token_ids(tokens: Tokens) -> list[int]:
    """Token ids; those of a page that is known by its key alone are made up from the key."""
    ids: list[int] = []
    for page in tokens.pages:
        if isinstance(page, str):
            ids += [zlib.crc32(f"{page} {i}".encode()) >> 1 for i in range(tokens.page_size)]
        else:
            ids += page
    return ids + tokens.rest


class Guard:
    """Passes a manager's launches to a canary; a `kvcuda.forward.Forward`."""

    def __init__(self, manager: DeviceManager, oracle: Oracle, **options: Any) -> None:
        config = manager.config
        self._manager = manager
        self._oracle = oracle
        size = config.page_size
        pools = [Pool("kv", (config.num_pages + 1) * size, size)]
        if config.sliding_window:
            window = (config.num_window_pages + 1) * size
            pools.append(Pool("window", window, size, window=config.sliding_window))
        if config.num_states:
            pools.append(Pool("states", config.num_states + 1, kind=Kind.STATES))
        self.canary = Canary(
            pools,
            rows=2 * config.num_rows + 8,
            max_requests=config.num_rows,
            new_wide=False,
            streams=manager.streams,
            **options,
        )
        self._names: dict[int, tuple[Run, str]] = {}
        self.passes = 0
        self._kept: list[object] = []
        """Tensors that streams on a GPU may still read: the allocator must not reuse them."""

    def __call__(self, batch: ForwardBatch) -> None:
        runs = [self._manager.running[req] for req in batch.reqs]
        ids: list[int] = []
        known: dict[int, Known] = {}
        starts, ends = batch.starts.tolist(), batch.ends.tolist()
        for index, (run, start, end) in enumerate(zip(runs, starts, ends, strict=True)):
            tokens = self._oracle(run)
            tokens = tokens + [UNKNOWN] * (end - len(tokens))
            ids += tokens[start:end]
            if id(run) not in self._names:
                self._names[id(run)] = run, f"{run.name}#{len(self._names)}"
                known[index] = Known(start - 1, extended(0, tokens[:start], 0), fresh=True)
        positions = np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)])
        counts = batch.ends - batch.starts
        outs = np.concatenate([np.arange(out, out + count) for out, count in zip(batch.outs, counts, strict=True)])
        memory, config = self._manager.memory, self._manager.config
        streams = self._manager.streams
        source, at = memory.out_cache_loc, on_device(outs)
        new_slots = torch.empty(len(ids), dtype=torch.int32, device=DEVICE)
        # New slots are looked up when the pass runs, as the model does.
        streams.forward.run(lambda: new_slots.copy_(source[at]))
        places: list[Places | States] = [Places(memory.req_to_token, batch.rows * config.max_context_len, new_slots)]
        if config.sliding_window:
            places.append(self._windows(batch, starts, ends))
        if batch.states is not None:
            places.append(States(*batch.states))
        self.passes += 1
        staged = self.canary.stage(
            Pass(
                [self._names[id(run)][1] for run in runs],
                counts,
                on_device(np.array(ids), torch.int32),
                on_device(positions),
                places,
                known,
                longest=max(ends),
            )
        )
        self._kept.append(staged)
        self.canary.enqueue(staged)

    def _windows(self, batch: ForwardBatch, starts: list[int], ends: list[int]) -> Places:
        """Window slots are looked up on the scheduler's stream: a page's window side changes when the page is freed."""
        memory, config, streams = self._manager.memory, self._manager.config, self._manager.streams
        lowest = [max(0, start - config.sliding_window) for start in starts]
        lengths = np.array([end - low for low, end in zip(lowest, ends, strict=True)])
        begins = lengths.cumsum() - lengths
        rows = on_device(np.repeat(batch.rows, lengths))
        columns = on_device(np.concatenate([np.arange(low, end) for low, end in zip(lowest, ends, strict=True)]))
        new = np.concatenate(
            [
                np.arange(begin + start - low, begin + end - low)
                for begin, low, start, end in zip(begins, lowest, starts, ends, strict=True)
            ]
        )
        table = torch.zeros(int(lengths.sum()), dtype=torch.int32, device=DEVICE)
        new_slots = torch.zeros(len(new), dtype=torch.int32, device=DEVICE)
        index = on_device(new)

        def look_up() -> None:
            slots = memory.req_to_token[rows, columns]
            pages = memory.windows.window_of[slots // config.page_size]
            table.copy_(pages * config.page_size + slots % config.page_size)
            new_slots.copy_(table[index])

        streams.scheduler.run(look_up)
        noted = streams.event()
        streams.scheduler.record(noted)
        streams.forward.wait(noted)
        return Places(table, begins - np.array(lowest), new_slots)

    def found(self) -> list[Violation]:
        """All violations, once both streams are empty."""
        self._manager.memory.flush()
        self._manager.streams.synchronize()
        return self.canary.poll()


def on_device(numbers: Any, dtype: Any = torch.int64) -> Any:
    return torch.as_tensor(numbers, dtype=dtype, device=DEVICE)


def guarded(oracle: "Callable[[Guarded, Run], list[int]]") -> "type[Guarded]":
    """A manager class for conformance whose launches are checked by a canary."""

    class Made(Guarded):
        made: list[Guarded] = []  # noqa: RUF012

        def __init__(self, config: Config) -> None:
            super().__init__(config)
            self.made.append(self)
            self.forward = self.guard = Guard(self, lambda run: oracle(self, run))

    return Made


class Guarded(Manager):
    """The device manager with complete answers, under the canary."""

    guard: Guard
    made: "list[Guarded]"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.submitted: list[Tokens] = []

    def submit(self, req: str, tokens: list[Element], session: str | None = None) -> Done:
        done = super().submit(req, tokens, session)
        self.submitted.append(self.requests[req].tokens)
        return done

    def ordinal(self, run: Run) -> int:
        """Which request this is, in the order in which they came."""
        return next(number for number, tokens in enumerate(self.submitted) if tokens is run.tokens)


class Recorded(kvref.manager.Manager):
    """The reference, which carries out the same operations first, so that all tokens are known."""

    def __init__(self, config: Config, into: list[Tokens]) -> None:
        super().__init__(config)
        self._into = into

    def submit(self, req: str, tokens: list[Element], session: str | None = None) -> Done:
        done = super().submit(req, tokens, session)
        self._into.append(self.requests[req].tokens)
        return done


class GuardedStep:
    """Carries operations out on a device manager under the canary, with streams that may be late; a `Step`."""

    def __init__(
        self,
        config: Config,
        traffic: Sequence[GenerateReq],
        *,
        manager: type[DeviceManager] = DeviceManager,
        streams: Streams | None = None,
        **options: Any,
    ) -> None:
        self.manager = manager(config, streams=streams)
        self.tokens = {one.name: [*one.tokens, *one.outputs] for one in traffic}
        """All tokens that each request will ever have."""
        self.guard = Guard(self.manager, lambda run: [int(token) for token in self.tokens[run.name]], **options)
        self.manager.forward = self.guard

    def __call__(self, op: Operation[A], /) -> A:
        if isinstance(op, Evict):
            pages, window, states = self.manager.evict_pages(op.n, op.window, op.states)
            return EvictAnswer([0] * pages, [0] * window, states)  # type: ignore[return-value]
        arguments = [getattr(op, name) for name in op.__struct_fields__ if name not in ("obs", "refused")]
        answer: A = getattr(self.manager, str(op.__struct_config__.tag))(*arguments)
        return answer
