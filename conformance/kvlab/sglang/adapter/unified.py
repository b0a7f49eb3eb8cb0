"""SGLang from 0.5.22 on behind the protocol: one tree, `UnifiedRadixCache`, which owns the sessions' records.

A request's lengths and row are in a record (`req.kv`) that a session's slot lends to its turns; `cache_unfinished_req`
has become a checkpoint; allocation is in a separate module. Requests and slots get the older names of their record's
fields, so that the rest of the adapter works unchanged.

Sliding windows and recurrent states are components of the tree. Without a prefix cache servers build the same tree,
switched off.
"""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvconform.scheduler_state import Entry, Run
from kvlab.sglang.adapter.base import Adapter
from kvlab.sglang.adapter.engine import Engine
from kvlab.sglang.adapter.finder import prepare
from kvlab.sglang.adapter.one_tree import OneTree
from kvlab.sglang.adapter.records import name_as_before, window_in_components
from kvlab.stubs import EngineError
from kvspec.events import Config, MatchAnswer, Refusal, ReleaseAnswer
from kvspec.pages import ceil_align


def is_unified(folder: Path) -> bool:
    """Whether the release in a folder has the single tree, and no longer a chunk cache."""
    memory = folder / "sglang" / "srt" / "mem_cache"
    return (memory / "unified_radix_cache.py").is_file() and not (memory / "chunk_cache.py").is_file()


class UnifiedEngine(Engine):
    """The classes of such a release."""

    rows_are_kept = True
    excludes_lent_slots = True
    counts_decoded = True
    estimates_room = False

    def __init__(self, folder: Path | None) -> None:
        """Import the release in `folder`, or the installed one.

        Raises:
            EngineError: the release cannot be loaded.
        """
        prepare(folder)
        memory = "sglang.srt.mem_cache"
        try:
            self.torch = importlib.import_module("torch")
            self.batches = importlib.import_module("sglang.srt.managers.schedule_batch")
            self.common = importlib.import_module(f"{memory}.common")
            self.allocation = importlib.import_module(f"{memory}.allocation")
            self.allocators = importlib.import_module(f"{memory}.allocator")
            self.pools = importlib.import_module(f"{memory}.memory_pool")
            self.radix = importlib.import_module(f"{memory}.radix_cache")
            self.base = importlib.import_module(f"{memory}.base_prefix_cache")
            self.init_params = importlib.import_module(f"{memory}.cache_init_params")
            self.tree = importlib.import_module(f"{memory}.unified_radix_cache")
            kinds = importlib.import_module(f"{memory}.unified_cache.component_type").ComponentType
            self.states = importlib.import_module(f"{memory}.unified_cache.components.mamba")
            self.window_pools = importlib.import_module(f"{memory}.swa_memory_pool")
            self.window_allocator = importlib.import_module(f"{memory}.allocator.swa").SWATokenToKVPoolAllocator
            self.core = importlib.import_module(f"{memory}.rust_tree_core.adapter")
            self.settings = importlib.import_module("sglang.srt.runtime_context")
            sessions = importlib.import_module("sglang.srt.session.streaming_session")
            controller = importlib.import_module("sglang.srt.session.session_controller")
        except Exception as error:
            raise EngineError(f"this SGLang cannot be imported: {type(error).__name__}: {error}") from error
        self.session_cache = sessions.StreamingSession
        self.session_controller = controller.SessionController
        self.full, self.window, self.state = kinds.FULL, kinds.SWA, kinds.MAMBA
        self._ids_are_arrays = True
        self._spec = SimpleNamespace(speculative_algorithm=None)
        serving = SimpleNamespace(strip_thinking_cache=False)
        backends = "torch_native", "torch_native"  # torch then writes rows: the same writes, without a kernel
        states = SimpleNamespace(mamba_max_states_per_path=-1, enable_mamba_extra_buffer_lazy=False)
        functions: dict[str, Any] = {"get_spec": self._spec, "get_serving": serving, "attention_backends": backends}
        functions["get_parallel"] = SimpleNamespace(tp_rank=0, dcp_enabled=False)
        functions["get_exec"] = SimpleNamespace(mamba=states)
        for module in (self.common, self.batches, self.allocation, self.states, self.core):
            for name, value in functions.items():
                if hasattr(module, name):
                    setattr(module, name, lambda value=value: value)
        for module in (self.batches, self.states, self.core, self.settings):
            module.__dict__["mamba_cache_chunk_size"] = lambda: self._state_interval
        name_as_before(self.batches.ReqKvInfo, self.batches.Req, sessions.SessionSlot)
        window_in_components(self.batches.ReqKvInfo, self.window, self.batches.Req, sessions.SessionSlot)

    @property
    def lacks(self) -> set[str]:
        """The lacking features: none that concern a pool."""
        return set()

    def set_page_size(self, page_size: int, *, speculates: bool) -> None:
        """Set the settings that the release reads: states are kept at every page border."""
        self._spec.speculative_algorithm = "EAGLE" if speculates else None
        self._state_interval = page_size

    def release_kv_cache(self, req: Any, tree_cache: Any, *, is_insert: bool) -> None:
        """Release a request as SGLang does."""
        self.common.release_kv_cache(req, tree_cache, checkpoint=is_insert)

    def prefix_cache(self, config: Config, pool: Any, allocator: Any) -> Any:
        """The tree with a component for each pool and the release's own core; switched off without a prefix cache."""
        window = (self.window,) if config.sliding_window else ()
        states = (self.state,) if config.num_states else ()
        return self.tree.UnifiedRadixCache(
            self.init_params.CacheInitParams(
                disable=not config.prefix_cache,
                req_to_token_pool=pool,
                token_to_kv_pool_allocator=allocator,
                page_size=config.page_size,
                enable_mamba_extra_buffer=bool(config.num_states and config.prefix_cache),
                sliding_window_size=config.sliding_window or None,
                tree_components=(self.full, *window, *states),
            )
        )

    def with_sessions(self, prefix_cache: Any) -> Any:
        """The tree owns the sessions' records itself."""
        return prefix_cache

    def set_extend(self, req: Any, start: int, end: int) -> None:
        """Set the positions `[start, end)` of a request's next prefill."""
        req.prefix_len, req.extend_end = start, end

    def publish(self, tree_cache: Any, req: Any, *, chunked: bool) -> None:
        """Hand what a prefill wrote to the tree, up to where the prefill ended."""
        self.common.checkpoint_kv_cache(req, tree_cache)

    def lock(self, tree_cache: Any, req: Any) -> None:
        """Lock the match of a request; a turn's slot already has its lock."""
        req.lock = tree_cache.lock(req.last_node)

    def match_without_state(self, tree_cache: Any, req: Any) -> None:
        """Match without taking a state slot."""
        req.init_next_round_input(tree_cache, cow_mamba=False)


class UnifiedAdapter(OneTree, Adapter):
    """The memory of one engine of such a release."""

    first_turn_chunks = ("published",)
    turns_count_as = ("sessions",)
    overshoot = ("freed",)
    engine: UnifiedEngine  # type: ignore[misc]

    def match_prefix(self, req: str) -> MatchAnswer:
        """Match as a scheduling round does for each waiting request."""
        entry = self.scheduling.entry(req)
        if entry.run is not None:
            raise Refusal("OP-1", f"request {req} is running")
        before = self.pools.free()
        self.engine.match_without_state(self.tree_cache, entry.req)
        entry.prefix_len = int(entry.req.prefix_len)
        entry.resumed = entry.session is not None and entry.req.kv.holds_kv
        return MatchAnswer(entry.prefix_len, int(entry.req.cache_protected_len), *self._freed(before))

    def abort(self, req: str) -> ReleaseAnswer:
        """After a waiting turn its session can take another; the borrowed record stays the slot's."""
        entry = self.scheduling.entry(req)
        if entry.run is None and entry.req.session is not None:
            entry.req.session.abort_req()
        return super().abort(req)

    def _match_still_stands(self, entry: Entry, prefix_len: int) -> None:
        if not prefix_len:
            return
        found = self.engine.matched(self.prefix_cache, self.engine.full_ids(entry.req)[:prefix_len])
        if found.device_prefix_len < prefix_len:
            raise Refusal("STORE-5", f"what {entry.name} matched has been evicted: match again")
        entry.req.last_node = found.last_device_node

    def _look_for_branch(self, req: Any, matched: int) -> None:
        found = self.engine.matched(self.prefix_cache, self.engine.full_ids(req)[:-1])
        req.mamba_branching_seqlen = found.mamba_branching_seqlen if found.device_prefix_len == matched else None

    def _lock_anew(self, req: Any) -> None:
        """The lock of a session's slot stays the slot's."""
        owner = self.tree_cache.session.borrowed_slot(req) or req
        node = owner.lock.node
        self.prefix_cache.unlock(owner.lock)
        self._cut_at_window(req, int(req.cache_protected_len))
        owner.lock = self.prefix_cache.lock(node)

    def _stash_without_cache(self, run: Run, req: Any) -> None:
        """The next chunk continues from the row."""

    def _session_slots(self) -> dict[str, Any]:
        return {name: slot for name, slot in self.tree_cache.session.slots.items() if slot.kv.holds_kv}

    def _counted_as_requests(self, holders: dict[str, Any]) -> list[Any]:
        records = {id(kv) for kv in self.tree_cache.session_records().values()}
        return [req for req in holders.values() if id(req.kv) not in records]

    def _session_held(self, *known: set[int]) -> tuple[int, int]:
        """The sums of SGLang's own check: a record counts as its session's even while a turn runs on it."""
        held = self._session_slots().values()
        size = self.config.page_size
        return sum(ceil_align(slot.kv_allocated_len, size) - slot.cache_protected_len for slot in held), len(held)

    def _session_window(self, *known: set[int]) -> int:
        return sum(map(self._window_of, self._session_slots().values()))

    def _session_states(self, *known: set[int]) -> int | None:
        return sum(self._states_of(slot).total() for slot in self._session_slots().values())
