"""Hooks into further memory that SGLang's launches read: index tensors of their batches, and the relay.

The scheduler makes index tensors on its own stream for the next launch. The relay (`FutureMap`) passes lengths and
tokens from one launch to the next, and a pinned copy of the lengths to the host. Without overlap nothing is in flight
when the scheduler continues, and nothing is emitted.
"""

from collections.abc import Callable
from typing import Any

from kvattach.buffers import Buffers
from kvattach.hooks import Hooks
from kvattach.sglang.release import Release
from kvattach.streams import Streams
from kvspec.memory.events import Use

INDICES = ("req_pool_indices", "seq_lens", "out_cache_loc", "mamba_track_indices")
"""The tensors of a batch that its launch reads."""
LENGTHS, TOKENS, PINNED = "relay lengths", "relay tokens", "relay pinned"


class _Pinned:
    """The pinned copy of the relay's lengths, which the device writes and the host reads."""

    def __init__(self, tensor: Any, relay: "Relay") -> None:
        self._tensor, self._relay = tensor, relay

    def copy_(self, source: Any, **options: Any) -> None:
        self._relay.pulled()
        self._tensor.copy_(source, **options)

    def __getitem__(self, rows: Any) -> Any:
        self._relay.read_by_host()
        return self._tensor[rows]


class Relay:
    """Follows the buffers of one scheduler's launches."""

    def __init__(self, release: Release, hooks: Hooks, streams: Streams, *, simulated: bool) -> None:
        """Install the hooks; `simulated`: a simulated device calls `late` when it reaches a launch."""
        self._simulated = simulated
        self.buffers = Buffers(hooks, streams)
        self._hooks, self._streams = hooks, streams
        self.reads: list[Use] = []
        """Index tensors of the launch that is being queued."""
        self.late: Callable[[], None] | None = None
        """Called by a simulated device when it reaches this launch."""
        self._overlaps = False
        self._results = 0
        batch, scheduler = release.batches.ScheduleBatch, release.scheduler
        relay = release.relay.FutureMap
        for name in ("prepare_for_extend", "prepare_for_decode", "filter_batch", "merge_batch"):
            hooks.hook(batch, name, after=lambda _, __, made, *___, at=name, **____: self._made(at, made))
        hooks.hook(scheduler.Scheduler, "run_batch", before=self._runs)
        if release.pairs:  # decode's first tokens come from prefill, before any launch
            hooks.hook(batch, "process_prebuilt", before=lambda batch, _: self._runs(None, batch))
        hooks.hook(scheduler, "resolve_forward_inputs", before=lambda batch, _: self._gathers(batch))
        hooks.hook(relay, "__init__", after=lambda _, __, made, *___, **____: self._relay_made(made))
        hooks.hook(relay, "publish", before=lambda _, indices, *__, **___: self._written("publish", LENGTHS, indices))
        hooks.hook(relay, "stash", before=lambda _, indices, *__: self._written("stash", TOKENS, indices))
        hooks.hook(relay, "resolve_seq_lens_cpu", after=lambda _, __, ___, batch, *____, **_____: self._resolved(batch))
        hooks.hook(release.results.GenerationBatchResult, "copy_to_cpu", before=self._copied)
        hooks.hook(scheduler.Scheduler, "process_batch_result", after=self._processed)

    def watch(self) -> None:
        """A memory was made."""
        self.buffers.clear()
        self.reads, self.late = [], None

    def _made(self, at: str, batch: Any) -> None:
        if not batch.enable_overlap:
            return
        tensors = [tensor for name in INDICES if (tensor := getattr(batch, name, None)) is not None]
        self.reads = self.buffers.tensors(at, tensors)
        if self._simulated:
            self.late = self.buffers.late("forward_batch_generation", zip(tensors, self.reads, strict=False))

    def _runs(self, scheduler: Any, batch: Any, *_: Any) -> None:
        """A launch begins; its reads are known together with the lengths."""
        self._overlaps, self.reads, self.late = batch.enable_overlap, [], None

    # The relay

    def _relay_made(self, relay: Any) -> None:
        if relay.new_seq_lens_cpu_pinned is not None:
            relay.new_seq_lens_cpu_pinned = _Pinned(relay.new_seq_lens_cpu_pinned, self)

    def _written(self, at: str, name: str, indices: Any) -> None:
        if self._overlaps and len(indices):
            self._streams.begin(at, [], self.buffers.use(name))

    def _gathers(self, batch: Any) -> None:
        """A decode launch takes the tokens of the previous launch."""
        if self._overlaps and batch.prefill_input_ids_cpu is None:
            self._streams.begin("resolve_forward_inputs", self.buffers.use(TOKENS), [])

    def _resolved(self, batch: Any) -> None:
        """The scheduler has taken the lengths of the launch in flight, on its own stream."""
        if getattr(batch.spec_info, "future_indices", None) is not None:
            self._streams.begin("resolve_seq_lens_cpu", self.buffers.use(LENGTHS), [])
        self._made("resolve_seq_lens_cpu", batch)

    def pulled(self) -> None:
        """The lengths are copied to the host on the current stream."""
        self._streams.begin("resolve_seq_lens_cpu", self.buffers.use(LENGTHS), self.buffers.use(PINNED))

    def read_by_host(self) -> None:
        """The host reads the lengths."""
        self.buffers.host("resolve_seq_lens_cpu", reads=self.buffers.use(PINNED))

    # Results

    def _copied(self, result: Any, *_: Any, **__: Any) -> None:
        """A result is copied to the host, on a separate stream."""
        self._results += 1
        result.kvspec_buffer = f"result {self._results}"
        self._streams.begin("copy_to_cpu", [], self.buffers.use(result.kvspec_buffer))

    def _processed(self, _: None, __: None, scheduler: Any, ___: Any, result: Any) -> None:
        """The host has read a result."""
        buffer = getattr(result, "kvspec_buffer", None)
        if buffer is not None:
            self.buffers.host("process_batch_result", reads=self.buffers.use(buffer))
            self.buffers.release(buffer)
