"""Defects for the host cache of SGLang 0.5.23, in its own tree, allocators and transfer controller."""

from kvconform.attach.planting import Defect
from kvconform.attach.sglang.release import Release

_MIXED = "op = CacheOperation.merge_ops(self.load_queue); op.host_indices = op.host_indices.flip(0)"


def defects(release: Release) -> list[Defect]:
    """Ten of them."""
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
            "a request that publishes keeps the lock on what it had found",
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
