"""SGLang's own strict check while it is busy, beside the memory checker: cost and findings on the same steps.

python benchmarks/busy_check.py FOLDER-OF-A-WHEEL (0.5.23)

The check is what `SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY=1` runs at the end of each turn of the scheduler's loop,
and with it what `SGLANG_CHECK_KV_PAGE_INVARIANTS=1` adds. Walks and defects are those of `kvlab.sglang`.
"""

import importlib
import logging
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvattach.patches import Patches
from kvattach.sglang.hooks import Attached
from kvattach.sglang.release import Release
from kvlab.device import Event, Stream
from kvlab.drives import CheckedTrace
from kvlab.injection import Defect, inject_fault
from kvlab.sglang import walk as walking
from kvlab.sglang.faults import in_host_cache
from kvlab.sglang.release import load
from kvspec.memory.events import MemoryEvent, Pool

WALKS = 12
_COMPONENTS = "sglang.srt.managers.scheduler_components"


class Checked:
    """The release's own check, run at each turn of a walk's loop."""

    def __init__(self, release: Release, *, pages: bool) -> None:
        """`pages`: with the invariants of pages, too."""
        self.module = importlib.import_module(f"{_COMPONENTS}.invariant_checker")
        self._observer = importlib.import_module(f"{_COMPONENTS}.pool_stats_observer")
        self._pages = pages
        self.seconds, self.turns = 0.0, 0
        self.found: str | None = None

    def of(self, walk: Any) -> Callable[[], None]:
        """The check of one walk."""
        memory, size = walk.memory, walk.memory.shape.page_size
        total = memory.shape.pages * size
        observer = SimpleNamespace(
            get_pool_stats=lambda: self._observer.PoolStats(
                full_num_used=0,
                full_token_usage=0.0,
                full_available_size=memory.allocator.available_size(),
                full_evictable_size=memory.cache.evictable_size(),
            ),
            session_held_tokens=lambda: 0,
        )
        checker = self.module.SchedulerInvariantChecker(
            is_hybrid_swa=False,
            is_hybrid_ssm=False,
            disaggregation_mode=None,
            page_size=size,
            full_tokens_per_layer=None,
            swa_tokens_per_layer=None,
            max_total_num_tokens=total,
            tree_cache=memory.cache,
            token_to_kv_pool_allocator=memory.allocator,
            req_to_token_pool=memory.rows,
            pool_stats_observer=observer,
            get_last_batch=lambda: SimpleNamespace(reqs=[turn.req for turn in walk._running]),
            get_running_batch=lambda: None,
            scheduler_stage_metrics=SimpleNamespace(),
            get_chunked_req=lambda: walk._chunked.req if walk._chunked else None,
        )
        check = type(checker).self_check_during_busy
        check = getattr(check, "__wrapped__", check)

        def checks() -> None:
            start = time.thread_time()
            try:
                check(checker)
                if self._pages:
                    checker._check_kv_page_invariants()
            except (AssertionError, ValueError) as error:
                # It stops the engine, and ends the walk.
                self.found = f"{type(error).__name__}: {error}"
                raise AssertionError from error
            finally:
                self.seconds += time.thread_time() - start
                self.turns += 1

        return checks


def walks(release: Release, attached: Attached | None, checked: Checked | None, stop: Callable[[], bool]) -> float:
    """Walk, and answer the processor time of it in seconds."""
    patches, start = Patches(), time.thread_time()
    original = walking.Walk.run

    def run(walk: Any) -> None:
        if checked is not None:
            checks, look = checked.of(walk), walk.memory.cache.check_hicache_events

            def looked() -> None:
                checks()
                look()

            walk.memory.cache.check_hicache_events = looked
        original(walk)

    if checked is not None:
        patches.set(checked.module, "get_parallel", lambda: SimpleNamespace(dcp_enabled=False))
    patches.set(walking.Walk, "run", run)
    try:
        for seed in range(WALKS):
            walking.run(release, seed, attached)
            if stop():
                break
    finally:
        patches.undo()
    return time.thread_time() - start


class Silent:
    """Takes the emitted events, and does nothing with them."""

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """Another memory."""

    def emit(self, *events: MemoryEvent) -> None:
        """Events."""


def measure(release: Release) -> None:
    """Print what a turn of the walks costs, with the check and with hooks."""
    plain = walks(release, None, None, lambda: False)
    for pages in (False, True):
        checked = Checked(release, pages=pages)
        walks(release, None, checked, lambda: False)
        name = "its own check" + (" with pages" if pages else "")
        each = 1000 * checked.seconds / checked.turns
        print(f"{name}: {each:.3f} ms a turn, in {checked.turns} turns; found: {checked.found}")
        if not pages:
            attached = Attached(release, Silent(), Stream, Event)
            hooked = walks(release, attached, None, lambda: False)
            attached.hooks.detach()
            line = f"a turn: {1000 * plain / checked.turns:.3f} ms, "
            print(line + f"hooks: {1000 * (hooked - plain) / checked.turns:.3f} ms more")


def checked_with(release: Release, defect: Defect, *, pages: bool) -> str:
    """The finding of the release's own check on a defect."""
    patches, checked = Patches(), Checked(release, pages=pages)
    inject_fault(defect, patches)
    try:
        walks(release, None, checked, lambda: checked.found is not None)
    finally:
        patches.undo()
    return "not found" if checked.found is None else f"turn {checked.turns}: {checked.found[:60]}"


def found_by_kvspec(release: Release, defect: Defect) -> str:
    """The finding of the memory checker on a defect."""
    patches, trace = Patches(), CheckedTrace()
    inject_fault(defect, patches)
    attached = Attached(release, trace, Stream, Event)
    try:
        walks(release, attached, None, lambda: bool(trace.found))
    finally:
        attached.hooks.detach()
        patches.undo()
    return "not found" if trace.first is None else f"{trace.first[1].rule} at event {trace.first[0]:,}"


def main(folder: Path) -> None:
    """Measure, then plant."""
    logging.disable(logging.CRITICAL)
    release = load(folder)
    measure(release)
    for defect in in_host_cache(release):
        own = [checked_with(release, defect, pages=pages) for pages in (False, True)]
        print(" | ".join([defect.name, *own, found_by_kvspec(release, defect)]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
