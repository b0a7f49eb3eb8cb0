"""Attaches to the mini-sglang that this process has imported.

On a GPU the hooks never wait for the device: they put copies on a tape, which a thread of its own resolves
(`kvattach.tape`).
"""

from functools import partial
from typing import Any

from kvattach import standstill
from kvattach.hooks import Hooks, Trace
from kvattach.mini_sglang.hooks import Attached
from kvattach.mini_sglang.modules import Engine, imported
from kvattach.standstill import Standstill
from kvattach.tape import Tape

COUNT_EVERY = 100
"""Results between two counts of the engine's free list and tree, whose length follows the memory's size."""


def attach(trace: Trace) -> Attached:
    """Install the hooks; they stay until the process ends."""
    engine = imported()
    cuda = engine.torch.cuda
    attached = Attached(engine, trace, cuda.Stream, cuda.Event, COUNT_EVERY, simulated=False)
    hooks = attached.hooks
    hooks.hook(engine.cache.CacheManager, "__init__", after=partial(_begins, hooks, engine))
    still = Standstill(hooks)

    def turned(_: None, batch: Any, scheduler: Any) -> None:
        still.turns(batch is not None, lambda: who_waits(scheduler))

    hooks.hook(engine.scheduler.Scheduler, "_schedule_next_batch", after=turned)
    return attached


def _begins(hooks: Hooks, engine: Engine, _: None, __: None, manager: Any, *___: Any) -> None:
    """A memory was made. A process has one."""
    if manager.device.type != "cpu":
        hooks.tape = Tape(engine.torch.cuda.current_stream, partial(engine.torch.Event, manager.device))
        hooks.tape.start()


def who_waits(scheduler: Any) -> str:
    """The waiting requests and the free room, in words; empty if none waits."""
    queue, table, manager = scheduler.prefill_manager.pending_list, scheduler.table_manager, scheduler.cache_manager
    if not queue:
        return ""
    return standstill.who_waits(
        len(queue),
        f"r{queue[0].uid}",
        queue[0].input_len,
        rows=(table.available_size, len(table.page_table) - 1),
        tokens=(len(manager.free_slots) * manager.page_size, manager.num_pages * manager.page_size),
        evictable=manager.prefix_cache.size_info.evictable_size,
    )
