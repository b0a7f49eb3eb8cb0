"""Fixes of mini-sglang's known issues: a remaining finding is a new issue, or a defect of kvspec.

Each fix is the smallest that removes the issue, not a proposal. Fixes are applied before or after the hooks.
"""

from typing import Any

from kvattach.mini_sglang.modules import Engine
from kvattach.patches import Patches
from kvlab.injection import Defect, inject_fault


def rows_follow_the_tree(engine: Engine, patches: Patches) -> None:
    """A request with duplicate pages continues with the tree's pages, and its row names them."""
    manager = engine.cache.CacheManager
    cache_req = manager.cache_req

    def fixed(self: Any, req: Any, *, finished: bool) -> None:
        # The lazily freed indices are a view of the row.
        row, self.page_table = self.page_table, self.page_table.clone()
        cache_req(self, req, finished=finished)
        self.page_table = row
        if not finished and (cached := req.cache_handle.cached_len):
            self.page_table[req.table_idx, :cached] = req.cache_handle.get_matched_indices()

    patches.set(manager, "cache_req", fixed)


def aborts_wait(engine: Engine, patches: Patches) -> None:
    """A request in a launch in flight is aborted only after the results of that launch."""
    scheduler = engine.scheduler.Scheduler
    process, overlap = scheduler._process_one_msg, scheduler.overlap_loop

    def held_back(self: Any, msg: Any) -> None:
        flying = getattr(self, "kvspec_flying", ())
        if isinstance(msg, engine.message.AbortBackendMsg) and msg.uid in flying:
            self.kvspec_aborts = [*getattr(self, "kvspec_aborts", ()), msg]
        else:
            process(self, msg)

    def loop(self: Any, last_data: Any) -> Any:
        self.kvspec_flying = {req.uid for req in last_data[0].batch.reqs} if last_data else set()
        waiting, self.kvspec_aborts = getattr(self, "kvspec_aborts", []), []
        for msg in waiting:
            held_back(self, msg)
        return overlap(self, last_data)

    patches.set(scheduler, "_process_one_msg", held_back)
    patches.set(scheduler, "overlap_loop", loop)


def rows_wait_for_launches(engine: Engine, patches: Patches) -> None:
    """A row with a new owner is written after the launches that were queued before."""
    adder = engine.prefill.PrefillAdder
    admit = adder._try_allocate_one

    def fixed(self: Any, req: Any) -> Any:
        launches = engine.core.get_global_ctx().kvspec_launches
        engine.torch.cuda.current_stream().wait_stream(launches)
        return admit(self, req)

    patches.set(adder, "_try_allocate_one", fixed)


def indices_are_kept(engine: Engine, patches: Patches) -> None:
    """The index tensors of a launch are kept until the result of the next launch."""
    scheduler = engine.scheduler.Scheduler
    overlap = scheduler.overlap_loop

    def loop(self: Any, last_data: Any) -> Any:
        made = overlap(self, last_data)
        self.kvspec_kept = last_data
        return made

    patches.set(scheduler, "overlap_loop", loop)


def ended_with_the_last(engine: Engine, patches: Patches) -> None:
    """A request is done when the host has its last token, regardless of queued launches."""
    places = (
        (
            engine.scheduler.Scheduler,
            "_process_last_data",
            "finished = not req.can_decode\n",
            "finished = len(req.input_ids) >= req.max_device_len\n",
        ),
    )
    inject_fault(Defect("done with the last token", "", places), patches)


def ended_once(engine: Engine, patches: Patches) -> None:
    """Results of launches that were in flight when their request ended are ignored."""
    chunk = "if isinstance(req, ChunkedReq):"
    places = (
        (
            engine.scheduler.Scheduler,
            "_process_last_data",
            chunk,
            "if isinstance(req, ChunkedReq) or req in self.finished_reqs:",
        ),
    )
    inject_fault(Defect("answered to the end", "", places), patches)


FIXES = {
    "freed-duplicates": rows_follow_the_tree,
    "abort-in-flight": aborts_wait,
    "row-handed-on": rows_wait_for_launches,
    "indices-given-back": indices_are_kept,
    "ended-one-early": ended_with_the_last,
    "answered-after-end": ended_once,
}
"""Known defect -> its fix."""


def fix(engine: Engine, patches: Patches, but: str | None = None) -> None:
    """Apply all fixes except the named one. Undoing `patches` restores the defects."""
    for name, one in FIXES.items():
        if name != but:
            one(engine, patches)
