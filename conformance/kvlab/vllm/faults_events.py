"""Defects for the KV events of vLLM's block pool and scheduler."""

from kvlab.injection import Defect


def event_defects() -> list[Defect]:
    """Eight of them, for 0.33.0."""
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.sched.scheduler import Scheduler

    cached, built = (BlockPool, "cache_full_blocks"), (BlockPool, "_build_block_stored_event")
    removed = (BlockPool, "_emit_block_removed_events")
    evicted = "self._emit_block_removed_events(evicted_hashes)"
    published = "self.kv_event_publisher.publish(batch)"
    return [
        Defect(
            "event: eviction",
            "an evicted block is not removed",
            ((BlockPool, "_maybe_evict_cached_block", evicted, "pass"),),
        ),
        Defect(
            "event: removed twice",
            "a block is removed once more",
            ((*removed, "in block_hashes:", "in block_hashes * 2:"),),
        ),
        Defect(
            "event: group",
            "blocks of any group are removed from the first one",
            ((*removed, "get_group_id(block_hash)", "0"),),
        ),
        Defect(
            "event: parent",
            "a block is stored behind its parent's parent",
            ((*cached, "block_hashes[num_cached_blocks - 1]", "block_hashes[num_cached_blocks - 2]"),),
        ),
        Defect(
            "event: tokens",
            "a block is stored with the tokens one place further",
            ((*built, "[start_token_idx:end_token_idx]", "[start_token_idx + 1 : end_token_idx + 1]"),),
        ),
        Defect(
            "event: adapter",
            "a block is stored without its adapter",
            ((*built, "request.lora_request.adapter_id if request.lora_request else None", "None"),),
        ),
        Defect(
            "event: hash",
            "blocks are stored with the hash of the first of them",
            ((*cached, "maybe_convert_block_hash(block_hash)", "maybe_convert_block_hash(new_block_hashes[0])"),),
        ),
        Defect(
            "event: batch",
            "a batch of one event is not published",
            ((Scheduler, "update_from_output", published, f"len(events) > 1 and {published}"),),
        ),
    ]
