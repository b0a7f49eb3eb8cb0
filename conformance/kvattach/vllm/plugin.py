"""The plugin that vLLM loads in all its processes, by the entry point `vllm.general_plugins`."""

import importlib
from collections import Counter
from typing import Any

from kvattach.hooks import Trace
from kvattach.live import wait_for_engines
from kvattach.observable import observable
from kvattach.standstill import Standstill
from kvattach.vllm.chunks import CHUNKS, chunks
from kvattach.vllm.hooks import Attached
from kvattach.vllm.offload import COPIES, Offload


def register() -> None:
    """Install the hooks if `KVSPEC` or `KVSPEC_CANARY` switch them on, once there is a scheduler or model runner."""
    wait_for_engines()


def attach(trace: Trace) -> None:
    """Install the hooks into vLLM, after its scheduler has been imported."""
    torch = importlib.import_module("torch")
    hooks = Attached(trace, torch.cuda.Stream, observable(torch.Event), {COPIES: Offload, CHUNKS: chunks}).hooks
    still = Standstill(hooks)

    def scheduled(_: None, output: Any, scheduler: Any, *__: Any, **___: Any) -> None:
        still.turns(bool(output.num_scheduled_tokens), lambda: who_waits(scheduler))

    scheduling = importlib.import_module("vllm.v1.core.sched.scheduler")
    hooks.hook(scheduling.Scheduler, "schedule", after=scheduled)


def who_waits(scheduler: Any) -> str:
    """The states of waiting requests, and the number of free blocks, in words; empty if none waits."""
    states = Counter(one.status.name for one in scheduler.requests.values() if not one.is_finished())
    if not states:
        return ""
    waiting = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    pool = scheduler.kv_cache_manager.block_pool
    return f"requests are {waiting}; {pool.get_num_free_blocks()} of {pool.num_gpu_blocks - 1} blocks are free"
