"""Defects for vLLM's own block pool, managers and scheduler, and the fix of one of its own."""

from kvlab.injection import Defect


def defects() -> list[Defect]:
    """Fourteen defects, for 0.33.0."""
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import SingleTypeKVCacheManager

    freed = "req_blocks = self.req_to_blocks.pop(request_id, [])"
    popped = (SingleTypeKVCacheManager, "pop_blocks_for_free", freed)
    waiting = "if request_id not in self.finished_recving_kv_req_ids:"
    arrived = "self.finished_recving_kv_req_ids.remove(request.request_id)"
    cached = "if num_cached_blocks >= num_full_blocks:"
    hashed = "len(request.block_hashes) * self.block_pool.hash_block_size // self.block_size"
    held = "len(self.req_to_blocks[request.request_id])"
    further = f"if num_cached_blocks >= (num_full_blocks := min(num_full_blocks + 1, {hashed}, {held})):"
    processed = "max(0, total_computed_tokens - request.num_in_flight_tokens),"
    sent = "for req_id in kv_connector_output.finished_sending or ():"
    blocks = "req_to_new_blocks[req_id].get_block_ids(allow_none=True)"
    again = "self.waiting.prepend_request(request)"
    hashes = "del session.block_hashes[keep_end // self.hash_block_size :]"
    return [
        Defect(
            "hit not counted",
            "a block that is hit is shared without a reference",
            ((BlockPool, "touch", "block.ref_cnt += 1", "pass"),),
        ),
        Defect(
            "left in the free list",
            "a block that is hit stays in the list of free ones",
            ((BlockPool, "touch", "self.free_block_queue.remove(block)", "pass"),),
        ),
        Defect(
            "hash not removed",
            "a block that is handed out keeps its name",
            ((BlockPool, "_maybe_evict_cached_block", "self._remove_cached_block_hashes(block)", "[]"),),
        ),
        Defect(
            "tail not freed",
            "the last block of a request is forgotten",
            ((*popped, f"{freed}[:-1]"),),
        ),
        Defect(
            "freed twice",
            "the last block of a request is given back twice",
            ((*popped, f"{freed}; req_blocks = req_blocks + req_blocks[-1:]"),),
        ),
        Defect(
            "fence taken away",
            "blocks of a request whose launch is in flight go back at once; pull request 45357 fixed that",
            ((Scheduler, "_request_blocks_can_be_freed", "not self.defer_block_free or", "True or"),),
        ),
        Defect(
            "window moved too early",
            "blocks behind the window are freed as if launches in flight were done",
            ((KVCacheManager, "allocate_slots", processed, "total_computed_tokens,"),),
        ),
        Defect(
            "published too far",
            "the block that is being filled gets a name, too",
            ((SingleTypeKVCacheManager, "cache_blocks", cached, further),),
        ),
        Defect(
            "load taken for done",
            "a request goes on while its blocks are still being loaded",
            (
                (Scheduler, "_handle_blocked_waiting_request", waiting, "if False:"),
                (Scheduler, "_update_waiting_for_remote_kv", arrived, "pass"),
            ),
        ),
        Defect(
            "failed load ignored",
            "blocks that could not be loaded count as loaded",
            (
                (
                    Scheduler,
                    "_handle_invalid_blocks",
                    "should_fail = not self.recompute_kv_load_failures",
                    "return set()",
                ),
            ),
        ),
        Defect(
            "sent pages freed",
            "a finished request's blocks go back while they are being sent away",
            (
                (Scheduler, "_free_request", "delay_free_blocks |= connector_delay_free_blocks", "pass"),
                (Scheduler, "_update_from_kv_xfer_finished", sent, "for req_id in ():"),
            ),
        ),
        Defect(
            "row not reported",
            "the workers do not get a running request's new blocks",
            ((Scheduler, "_make_cached_request_data", blocks, "None"),),
        ),
        Defect(
            "forgotten when preempted",
            "a request that is preempted for the second time is in no queue any more",
            ((Scheduler, "_preempt_request", again, f"request.num_preemptions == 2 or {again}"),),
        ),
        Defect(
            "stale hash",
            "a session's next turn keeps the hash of a token that was discarded",
            ((Scheduler, "_update_request_as_session", hashes, "pass"),),
        ),
    ]


def names_without_content() -> Defect:
    """The fix of an issue of 0.33.0.

    A request that is preempted in the step that should compute its blocks loses these blocks with their hashes. Its
    earlier blocks keep their hashes, and may be in flight to the host.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    found = "scheduled_running_reqs.remove(preempted_req)"
    groups = "zip(self.kv_cache_manager.coordinator.single_type_managers, rows, strict=True)"
    computed = "preempted_req.num_computed_tokens // group.block_size"
    fixed = "; ".join(
        (
            found,
            "rows = self.kv_cache_manager.get_block_ids(preempted_req_id)",
            f"self.kv_cache_manager.evict_blocks({{page for group, row in {groups} for page in row[{computed}:]}})",
        )
    )
    return Defect("names without content", "names go with the blocks", ((Scheduler, "schedule", found, fixed),))
