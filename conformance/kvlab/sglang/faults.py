"""Defects for SGLang 0.5.23, in its own scheduler, tree, allocators and transfer controller."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect
from kvlab.sglang.faults_buffers import in_buffers
from kvlab.sglang.faults_drafts import in_drafts
from kvlab.sglang.faults_events import in_events
from kvlab.sglang.faults_keys import in_keys
from kvlab.sglang.faults_pairs import in_pairs
from kvlab.sglang.faults_pictures import in_pictures
from kvlab.sglang.faults_pools import in_pools
from kvlab.sglang.faults_radix import in_radix
from kvlab.sglang.faults_ranks import in_ranks
from kvlab.sglang.faults_sessions import in_sessions
from kvlab.sglang.faults_storage import in_storage
from kvlab.sglang.faults_tokens import in_tokens

_MIXED = "op = CacheOperation.merge_ops(self.load_queue); op.host_indices = op.host_indices.flip(0)"


def defects(release: Release) -> list[Defect]:
    """A hundred and twenty-seven; fewer if a release is not driven with sessions, drafts, buffers or two servers.

    Seven in releases with older trees.
    """
    if not release.unified:
        return in_radix(release)
    in_server = _in_scheduler(release) + _in_rows(release) + in_host_cache(release)
    in_server += in_pools(release) + in_tokens(release) + in_events() + in_ranks(release)
    in_server += in_pairs(release) if release.pairs else []
    if release.drives_sessions:
        in_server += in_sessions(release) + in_drafts(release) + in_buffers(release)
        in_server += in_keys(release) + in_pictures(release)
    return in_server + in_storage(release)


def _in_scheduler(release: Release) -> list[Defect]:
    scheduler, batches = release.scheduler.Scheduler, release.batches
    results = release.scheduler.SchedulerBatchResultProcessor
    adder = release.scheduler.PrefillAdder
    release_chunk = "release_kv_cache(req, self.tree_cache, checkpoint=False)"
    tail = "self.tree_cache.free_kv_row(req.kv, [(req.kv.cache_protected_len, req.kv.kv_allocated_len)])"
    return [
        Defect(
            "aborted chunk freed twice",
            "a prompt that is aborted between two chunks gives its pages back twice",
            ((scheduler, "process_pending_chunked_abort", release_chunk, f"{tail}; {release_chunk}"),),
        ),
        Defect(
            "aborted chunk kept",
            "a prompt that is aborted between two chunks keeps its pages",
            ((scheduler, "process_pending_chunked_abort", release_chunk, "pass"),),
        ),
        Defect(
            "retracted and kept",
            "a request that is retracted keeps the pages after its prefix",
            (
                (
                    batches,
                    "release_req",
                    "release_kv_cache(req, tree_cache, checkpoint=False)",
                    "req.kv.kv_allocated_len = req.kv.kv_committed_len = req.kv.cache_protected_len; "
                    "release_kv_cache(req, tree_cache, checkpoint=False)",
                ),
            ),
        ),
        Defect(
            "pause forgets the prefilled",
            "a pause forgets the requests that were prefilled last",
            (
                (
                    scheduler,
                    "pause_generation",
                    "retract_reqs += [r for r in self.last_batch.reqs if not r.finished()]",
                    "pass",
                ),
            ),
        ),
        Defect(
            "pause keeps who is retracted",
            "a pause leaves retracted requests among the running ones",
            ((scheduler, "pause_generation", "self.running_batch.reqs = []", "pass"),),
        ),
        Defect(
            "result of the retracted",
            "the result of the launch in flight is taken for a request that was retracted",
            (
                (
                    results,
                    "process_batch_result_decode",
                    "    req.finished() or req.is_retracted\n",
                    "    req.finished()\n",
                ),
            ),
        ),
        Defect(
            "finished and kept",
            "a request that finishes gives nothing back",
            (
                (
                    results,
                    "_handle_finish_state_updated_req",
                    "release_kv_cache(req, self.tree_cache, checkpoint=checkpoint)",
                    "pass",
                ),
            ),
        ),
        Defect(
            "no look for room",
            "the room for the next token of each request is not checked",
            ((scheduler, "update_running_batch", "not batch.check_decode_mem()", "False"),),
        ),
        Defect(
            "chunk begins too late",
            "a prompt goes on one token after its published part",
            (
                (
                    release.scheduler,
                    "checkpoint_kv_cache",
                    "req.prefix_len = req.extend_end",
                    "req.prefix_len = req.extend_end + 1",
                ),
            ),
        ),
        Defect(
            "admitted without a lock",
            "a request is admitted without a lock on its prefix hit",
            ((adder, "_commit_prefill_admission", "req.lock = self.tree_cache.lock(req.last_node)", "pass"),),
        ),
    ]


def _in_rows(release: Release) -> list[Defect]:
    rows, scheduler = release.pools.ReqToTokenPool, release.scheduler.Scheduler
    return [
        Defect(
            "row rewritten under a launch",
            "nothing orders what is written into rows after the launch in flight that reads them",
            ((scheduler, "_apply_war_barrier", "not self._war_barrier_enabled", "True"),),
        ),
        Defect(
            "row given out twice",
            "a row that is given out stays in the list of free ones",
            ((rows, "alloc_rows", "del self.free_slots[-need_size:]", "pass"),),
        ),
        Defect(
            "row kept",
            "a request that ends forgets its row, which is never free again",
            ((rows, "free", "self.free_rows([req.kv.req_pool_idx])", "pass"),),
        ),
        Defect(
            "row written short",
            "the last slot of a prompt is not written into its row",
            (
                (
                    release.writes_rows,
                    "write_cache_indices",
                    "slice(prefix_len, seq_len)",
                    "slice(prefix_len, seq_len - 1)",
                ),
                (release.writes_rows, "write_cache_indices", "pt : pt + extend_len", "pt : pt + extend_len - 1"),
            ),
        ),
    ]


def in_host_cache(release: Release) -> list[Defect]:
    """Ten of them, outside the scheduler."""
    base, counter = release.controller.HiCacheController, release.controller.LayerDoneCounter
    cache, common = release.cache_class, release.common
    paged, full = release.allocators.PagedTokenToKVPoolAllocator, release.full_component
    tail = "tree_cache.free_kv_row(req.kv, [(req.kv.cache_protected_len, owned_kv_len)])"
    return [
        Defect(
            "load without its fence",
            "a load-back does not wait for the launches that use the pages",
            ((base, "start_loading", "self.load_fence_stream is not None", "False"),),
        ),
        Defect(
            "write without its fence",
            "a write-through does not wait for the launch that writes the pages",
            ((base, "start_writing", "self.write_fence_stream is not None", "False"),),
        ),
        Defect(
            "launch without its load",
            "a launch does not wait for the layers that are loaded for it",
            ((counter, "wait_until", "self.events[self.consumer_index].wait(threshold)", "pass"),),
        ),
        Defect(
            "write without a lock",
            "pages may be evicted while they are written to the host",
            (
                (
                    cache,
                    "_execute_and_commit_kv_backup",
                    "lock_params = self.inc_lock_ref(node_id).to_dec_params()",
                    "pass",
                ),
            ),
        ),
        Defect(
            "lock kept",
            "a request that publishes keeps the lock on its prefix hit",
            ((cache, "checkpoint_into_tree", "self.unlock(req.lock)", "pass"),),
        ),
        Defect(
            "duplicates kept",
            "pages that the tree had already are not given back",
            (
                (
                    cache,
                    "_apply_cache_action",
                    "self.token_to_kv_pool_allocator.free_segment(indices, start_pos=0)",
                    "pass",
                ),
            ),
        ),
        Defect(
            "tail not freed", "the pages after the prefix are forgotten", ((common, "release_kv_cache", tail, "pass"),)
        ),
        Defect(
            "left in the free list",
            "a page is handed out and stays in the list of free ones",
            (
                (
                    paged,
                    "alloc",
                    "self.free_pages = self.free_pages[num_pages:]",
                    "self.free_pages = self.free_pages[num_pages - 1 :]",
                ),
            ),
        ),
        Defect(
            "freed and still found",
            "the tree keeps the host pages of a node that it has evicted from the host",
            ((full, "evict_component", "cd.host_value = None", "pass"),),
        ),
        Defect(
            "host pages mixed up",
            "a load-back reads the host pages in another order",
            ((base, "start_loading", "op = CacheOperation.merge_ops(self.load_queue)", _MIXED),),
        ),
    ]
