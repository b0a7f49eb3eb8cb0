"""Fixes of MAX's known issues: a remaining finding is a new issue, or a defect of kvspec.

Each fix is the smallest that removes the issue, not a proposal.
"""

from typing import Any

from kvattach.max.modules import Engine
from kvattach.patches import Patches
from kvlab.injection import Defect, inject_fault
from kvlab.issues import remaining


def chunks_are_reserved(engine: Engine, patches: Patches) -> None:
    """Reserve all blocks of a request for a window: a chunk or a prompt allocates them at once."""
    region = engine.params.PagedKVLeafRegion

    def fixed(self: Any, num_blocks: int, *, enable_prefix_caching: bool) -> int:
        return num_blocks

    patches.set(region, "blocks_to_reserve", fixed)


def own_huge_blocks_come_first(engine: Engine, patches: Patches) -> None:
    """A leaf takes a new huge block only if none of its own has a free block."""
    pool = engine.core.JengaBlockPool
    alloc, touch, uncommit = pool.alloc_block, pool.touch, pool.uncommit_block

    def fixed(self: Any, cache_id: str) -> Any:
        ratio = self.cache_ratios[cache_id]
        free = []
        for first in range(ratio, self.num_huge_blocks * ratio, ratio):
            blocks = [self.block(cache_id, first + at) for at in range(ratio)]
            if any(block.ref_cnt for block in blocks):
                free += [block for block in blocks if not block.ref_cnt]
        if not free:
            return alloc(self, cache_id)
        block = min(free, key=lambda one: one.block_hash is not None)
        uncommit(self, block)
        touch(self, block)
        return block

    patches.set(pool, "alloc_block", fixed)


def hits_that_do_not_fit_are_given_up(engine: Engine, patches: Patches) -> None:
    """A request that is alone, and does not fit together with its hit, is served without the hit."""
    manager, error = engine.manager.JengaBlockManager, engine.core.InsufficientBlocksError
    alloc = manager.alloc

    def fixed(self: Any, ctx: Any) -> Any:
        cold, replica = vars(self).setdefault("kvspec_cold", set()), self._replica_of(ctx)
        self._state_of(ctx).skips_connector |= ctx.request_id in cold
        try:
            return alloc(self, ctx)
        except error:
            others = [one for one in self._requests.values() if one.replica_idx == replica]
            if len(others) > 1 or ctx.tokens.processed_length:
                raise
            cold.add(ctx.request_id)
            self._state_of(ctx).skips_connector = True
            self.pools[replica].reset_prefix_cache()
            return alloc(self, ctx)

    patches.set(manager, "alloc", fixed)


def prefills_that_hold_blocks_are_preempted(engine: Engine, patches: Patches) -> None:
    """Before a prompt that does not fit ends the worker, requests between two chunks are preempted, one by one.

    It gets their blocks at once: a request that is put back loses its own.
    """
    constructor, error = engine.constructor.TextBatchConstructor, engine.core.InsufficientBlocksError

    def alloc(self: Any, ctx: Any, batch: Any, replica: int) -> Any:
        while True:
            try:
                return self.kv_cache.alloc(ctx)
            except error:
                idle = not self.replicas[replica].tg_reqs and not len(batch)
                if not self._is_insufficient_blocks_fatal(replica, idle) or not self._preempt_ce_block_holder(replica):
                    raise

    patches.set(constructor, "kvspec_alloc", alloc)
    place = "onload_event = self.kv_cache.alloc(ctx)", "onload_event = self.kvspec_alloc(ctx, batch, replica_idx)"
    inject_fault(Defect("prefill-holds-blocks", "", ((constructor, "_add_ce_requests", *place),)), patches)


def unprotected_adapters_go_first(engine: Engine, patches: Patches) -> None:
    """A new adapter takes the slot of one that is not in use: those in use count as used last."""
    requests = engine.constructor.ReplicaRequests
    add = requests.add_active_lora

    def fixed(self: Any, context: Any, manager: Any) -> None:
        for name in sorted(self.active_loras) if manager is not None else ():
            if manager.is_active_lora(name):
                manager.activate_adapter(name)
        add(self, context, manager)

    patches.set(requests, "add_active_lora", fixed)


def replaced_weights_are_packed(engine: Engine, patches: Patches) -> None:
    """Packed weights are not kept when an adapter is unloaded: its name may get other ones."""
    manager = engine.lora.LoRAManagerV3
    unload = manager.unload_adapter

    def fixed(self: Any, name: str) -> Any:
        self._buffer_cache = None
        return unload(self, name)

    patches.set(manager, "unload_adapter", fixed)


def failures_of_an_earlier_claim_are_forgotten(engine: Engine, patches: Patches) -> None:
    """A load that fails after its request was released does not affect the request's later blocks."""
    manager = engine.manager.JengaBlockManager
    release = manager.release

    def fixed(self: Any, ctx: Any) -> None:
        for pending in self._pending_transfers[self._replica_of(ctx)]:
            if pending.splice is not None and pending.splice.request_id == ctx.request_id:
                pending.splice = None
        release(self, ctx)

    patches.set(manager, "release", fixed)


def half_drawn_loads_are_given_back(engine: Engine, patches: Patches) -> None:
    """If not all blocks for a load can be allocated, the allocated ones are freed, and the load is a miss."""
    drawn = """rows = {
        leaf_id: [pool.alloc_block(leaf_id) for _ in range(num_blocks)]
        for leaf_id, num_blocks in held.items()
    }"""
    given_back = """rows = {leaf_id: [] for leaf_id in held}
    try:
        for leaf_id, num_blocks in held.items():
            for _ in range(num_blocks):
                rows[leaf_id].append(pool.alloc_block(leaf_id))
    except InsufficientBlocksError:
        for blocks in rows.values():
            for block in blocks:
                pool.free_block(block)
        return miss"""
    place = engine.manager.JengaBlockManager, "_lookup_connector_prefix_cache_hit", drawn, given_back
    inject_fault(Defect("load-draws-half", "", (place,)), patches)


def chunks_have_no_drafts(engine: Engine, patches: Patches) -> None:
    """A chunk of a prompt in a step that verifies drafts counts none: no later pass takes any back."""
    counted = "] * num_draft_tokens_to_verify"
    exactly = "] * (num_draft_tokens_to_verify if context.tokens.generated_length else 0)"
    place = engine.overlap.OverlapTextGenerationPipeline, "_execute", counted, exactly
    inject_fault(Defect("chunk-counts-drafts", "", (place,)), patches)


def advanced_states_are_not_published(engine: Engine, patches: Patches) -> None:
    """No checkpoint is made while the number of accepted drafts is unknown, or behind the end of a request."""
    group = engine.recurrent.RecurrentKVGroupCoordinator
    checkpoint = group.checkpoint

    def fixed(self: Any, ctx: Any, replica_idx: int) -> Any:
        unknown = ctx.spec_decoding_state.maybe_accepted_draft_tokens or ctx.is_done
        return {} if unknown else checkpoint(self, ctx, replica_idx)

    patches.set(group, "checkpoint", fixed)


def least_chunks_leave_room_for_drafts(engine: Engine, patches: Patches) -> None:
    """The shortest chunk is at most half of the room that the drafts of a step leave: any longer prompt can be cut."""
    least = "min_chunk_tokens=self.scheduler_config.chunked_prefill_min_chunk_size"
    room = """min_chunk_tokens=min(
                    self.scheduler_config.chunked_prefill_min_chunk_size,
                    (
                        self.scheduler_config.target_tokens_per_batch_ce
                        - self.scheduler_config.spec_decode_mixed_verify_width
                    )
                    // 2,
                )"""
    place = engine.constructor.TextBatchConstructor, "_create_new_token_budget", least, room
    inject_fault(Defect("prompt-restarts", "", (place,)), patches)


FIXES = {
    "chunk-not-reserved": chunks_are_reserved,
    "room-promised-twice": own_huge_blocks_come_first,
    "hit-does-not-fit": hits_that_do_not_fit_are_given_up,
    "failure-of-an-earlier-claim": failures_of_an_earlier_claim_are_forgotten,
    "load-draws-half": half_drawn_loads_are_given_back,
    "prefill-holds-blocks": prefills_that_hold_blocks_are_preempted,
    "protected-adapter-evicted": unprotected_adapters_go_first,
    "old-weights-packed": replaced_weights_are_packed,
    "chunk-counts-drafts": chunks_have_no_drafts,
    "state-past-its-name": advanced_states_are_not_published,
    "prompt-restarts": least_chunks_leave_room_for_drafts,
}
"""Known issue -> the patch that fixes it."""


WITH = {"load-draws-half": "room-promised-twice"}
"""Known issue -> the other issue without which it does not occur: the room that was promised is missing."""


def fix(engine: Engine, patches: Patches, but: str = "") -> None:
    """Apply all fixes except the named one and the one that it needs. Undoing `patches` restores the issues."""
    for one in remaining(FIXES, but, WITH):
        one(engine, patches)
