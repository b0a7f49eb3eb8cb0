"""Attaches to the scheduler's process of a running SGLang server, once its memory is complete.

On a CPU operations are done at once, and the hooks read tensors at once. On a GPU they never wait for the device: they
put copies on a tape, which a thread of its own resolves (`kvattach.tape`).
"""

import importlib
import logging
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvattach import standstill
from kvattach.hooks import Hooks, Trace
from kvattach.sglang.hooks import Attached
from kvattach.sglang.launches import kept_states, spans
from kvattach.sglang.mooncake import Chunks, Mooncake
from kvattach.sglang.mooncake import host as host_name
from kvattach.sglang.release import Release
from kvattach.standstill import Standstill
from kvattach.tape import Tape

_log = logging.getLogger("kvspec")

COUNT_EVERY = 100
"""Batches between two counts of the free lists, whose length follows the size of the pools."""

ALONE = "null"
"""The `disaggregation_mode` of a server that is not one of two."""

DRAFTER = "NGRAM"
"""The `--speculative-algorithm` with which a server is hooked."""


def attach(trace: Trace) -> None:
    """Hook the scheduler of the SGLang that this process has imported, when it makes its memory."""
    scheduler = importlib.import_module("sglang.srt.managers.scheduler").Scheduler
    hooks = Hooks(trace)
    hooks.hook(scheduler, "__init__", before=partial(_begin, hooks), after=partial(_watch, trace))


def _begin(hooks: Hooks, *_: Any, **__: Any) -> tuple[Release, Chunks | None]:
    """A scheduler is about to be made, and with it the threads of transfers."""
    release = Release(Path(importlib.import_module("sglang").__path__[0]))
    return release, Chunks(hooks, release.pair) if release.pairs else None


def _watch(trace: Trace, seen: tuple[Release, Chunks | None], _: None, scheduler: Any, *__: Any, **___: Any) -> None:
    """A scheduler was made with its memory: all of it is free."""
    release, chunks = seen
    reason = not_hooked(scheduler, release)
    if reason:
        _log.warning("kvspec: this SGLang server is not recorded: %s", reason)
        return
    cache = cache_of(scheduler)
    release = Release(release.root, type(cache).__name__)
    host = host_pool(cache)
    if host is not None:
        release.host_class = type(host)
    if scheduler.device == "cpu":
        attached = Attached(release, trace, count_every=COUNT_EVERY)
    else:
        device = release.torch.get_device_module(scheduler.device)
        attached = Attached(release, trace, device.Stream, device.Event, COUNT_EVERY, device)
        attached.hooks.tape = Tape(device.current_stream, partial(release.torch.Event, scheduler.device))
    live = _Live(scheduler, attached)
    worker = type(scheduler.model_worker)
    attached.hooks.hook(worker, "forward_batch_generation", before=live.launches, after=live.launched)
    attached.hooks.hook(type(scheduler), "process_batch_result", before=live.processed)
    attached.hooks.hook(type(scheduler), "on_idle", before=live.idled)
    watch_loops(attached.hooks, type(scheduler))
    half = scheduler.disaggregation_mode.value
    turn = "get_next_batch_to_run" if half == ALONE else f"get_next_disagg_{half}_batch_to_run"
    attached.hooks.hook(type(scheduler), turn, after=live.turned)
    memory = SimpleNamespace(
        cache=cache,
        allocator=scheduler.token_to_kv_pool_allocator,
        rows=scheduler.req_to_token_pool,
        host=host,
    )
    if half == ALONE or chunks is None:
        attached.watch(memory)
    else:
        Mooncake(attached, chunks)
        slots = scheduler.req_to_metadata_buffer_idx_allocator.size
        attached.watch(memory, slots, host_name(half, _session(scheduler)))
    if attached.hooks.tape is not None:
        attached.hooks.tape.start()
    version = getattr(importlib.import_module("sglang"), "__version__", "?")
    _log.info("kvspec: recording the scheduler of SGLang %s", version)


def watch_loops(hooks: Hooks, scheduler: type[Any]) -> None:
    """Emit `failed` if an error ends one of the scheduler's loops; its process runs one of them."""
    for name in dir(scheduler):
        if name.startswith("event_loop_"):
            hooks.watch(scheduler, name)


def _session(scheduler: Any) -> str:
    """The address and port of a prefill or decode server, as Mooncake has it."""
    queue = scheduler.disagg_prefill_bootstrap_queue or scheduler.disagg_decode_prealloc_queue
    return str(queue.kv_manager.engine.get_session_id())


def not_hooked(scheduler: Any, release: Release) -> str:
    """Why the hooks of its release do not know this server's memory; empty if they do."""
    args, cache = scheduler.server_args, cache_of(scheduler)
    if not hasattr(scheduler, "on_idle"):
        return "its release is too old: its scheduler has no on_idle"
    if getattr(args, "enable_streaming_session", False) and release.sessions is None:
        return "it has streaming sessions (--enable-streaming-session), which are hooked from 0.5.12 on"
    if type(cache).__name__ not in release.trees:
        return f"its tree is a {type(cache).__name__}; hooked in this release: {', '.join(release.trees)}"
    core, python = getattr(cache, "tree_core", None), "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python is hooked"
    hybrid = any(getattr(cache, name, bool)() for name in ("supports_swa", "supports_mamba"))
    hosted = getattr(args, "enable_hierarchical_cache", False)
    half = getattr(args, "disaggregation_mode", ALONE) != ALONE
    if hybrid and not release.windows:
        return "it has windows or states, which are hooked from 0.5.20 on"
    if hybrid and (hosted or half):
        return f"it has windows or states, and {'a host cache' if hosted else 'is one of two halves'}"
    if type(core).__name__.startswith("Rust"):
        if hosted:
            return f"it has a host cache, and the core of its tree is in Rust ({python})"
        if hybrid and not hasattr(core, "collect_path_info"):
            return f"it has windows or states, and the core of its tree, in Rust, does not show their nodes ({python})"
    if half and not release.pairs:
        return "it is one of two halves (--disaggregation-mode), which are hooked from 0.5.23 on"
    if half and scheduler.transfer_backend.value != "mooncake":
        return "it is one of two halves, and transfers with another library than Mooncake"
    drafter = getattr(args, "speculative_algorithm", None)
    if drafter is not None and (drafter != DRAFTER or release.drafts is None):
        return (
            f"it has drafts (--speculative-algorithm {drafter}), of which those of {DRAFTER} are hooked from 0.5.21 on"
        )
    if drafter is not None and (hybrid or half):
        return f"it has drafts, and {'windows or states' if hybrid else 'is one of two halves'}"
    return ""


def cache_of(scheduler: Any) -> Any:
    """The tree of a server. Until 0.5.18 its sessions are around it."""
    return getattr(scheduler.tree_cache, "inner", scheduler.tree_cache)


def host_pool(cache: Any) -> Any:
    """The pool of pages on the host; `None` without a host cache."""
    group = getattr(cache, "host_pool_group", None)
    return getattr(cache, "token_to_kv_pool_host", None) if group is None else group.anchor_entry.host_pool


class _Live:
    """Follows the scheduler's loop between the hooks of its memory."""

    def __init__(self, scheduler: Any, attached: Attached) -> None:
        self._scheduler, self._attached = scheduler, attached
        self._seen = 0
        """The number of events or captures until the scheduler was last idle."""
        self._spans: tuple[list[int], list[int]] = [], []
        """The first and the last position (exclusive) of each request of the pass that is being queued."""
        self._still = Standstill(attached.hooks)

    def launches(self, worker: Any, batch: Any = None, *_: Any, **__: Any) -> Any:
        """A forward pass is about to be queued. An event that it records after it has read its rows comes later.

        Returns the tensor with the first position of each request, if it verifies drafts.
        """
        if batch is None:
            return None
        drafts = getattr(worker, "speculative_num_draft_tokens", 0)
        if drafts and not batch.forward_mode.is_extend():
            self._attached.reads_drafts(batch.reqs, drafts, batch.seq_lens)
            return batch.seq_lens
        self._spans = spans(batch)
        self._attached.reads_rows(batch.reqs, self._spans[1])
        return None

    def launched(self, firsts: Any, result: Any, worker: Any, batch: Any = None, *_: Any, **__: Any) -> None:
        """A forward pass was queued; in a release with a host cache its layers' waits are already queued."""
        if batch is None:
            return
        if firsts is not None:
            self._attached.verify(batch.reqs, worker.speculative_num_draft_tokens, firsts, result.accept_lens)
            return
        starts, stops = self._spans
        self._attached.launch(batch.reqs, starts, stops, kept_states(batch, stops))

    def processed(self, *_: Any, **__: Any) -> None:
        """The scheduler reads a result; without overlap that waits for the forward pass."""
        if not self._scheduler.enable_overlap:
            self._attached.synchronized()
        self._attached.looked()

    def turned(self, _: None, plan: Any, scheduler: Any, *__: Any, **___: Any) -> None:
        """One turn of the loop, which may launch a batch; in newer releases that is part of a plan."""
        batch = getattr(plan, "batch_to_run", plan)
        self._still.turns(batch is not None, lambda: who_waits(scheduler))

    def idled(self, scheduler: Any) -> None:
        """Emit `idle` once: an idle server keeps running its loop."""
        hooks = self._attached.hooks
        if hooks.seen != self._seen and scheduler.is_fully_idle():
            self._attached.idle(sessions=True)
            self._seen = hooks.seen


def who_waits(scheduler: Any) -> str:
    """The waiting requests and the free room, in words; empty if none waits."""
    queue = scheduler.waiting_queue
    if not queue:
        return ""
    rows, slots, first = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator, queue[0]
    return standstill.who_waits(
        len(queue),
        first.rid,
        len(first.origin_input_ids) + len(first.output_ids),
        rows=(rows.available_size(), rows.size),
        tokens=(slots.available_size(), scheduler.max_total_num_tokens),
        evictable=scheduler.tree_cache.evictable_size(),
    )
