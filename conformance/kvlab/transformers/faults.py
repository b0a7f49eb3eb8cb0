"""Defects for transformers' own cache, ledger, scheduler and offloading manager."""

from kvattach.transformers.modules import Engine
from kvlab.injection import Defect


def defects(engine: Engine) -> list[Defect]:
    """Thirteen of them."""
    allocator, ledger = engine.allocator.CacheAllocator, engine.allocator.BlockLedger
    full, cache = engine.full.FullAttentionCacheAllocator, engine.cache.PagedAttentionCache
    trees, scheduler = engine.pool.RegularTrees, engine.scheduler.Scheduler
    return [
        Defect(
            "tail not freed",
            "the last block of a request is forgotten",
            ((allocator, "free_blocks", "for block_id in blocks_ids if", "for block_id in blocks_ids[:-1] if"),),
        ),
        Defect(
            "hit not counted",
            "a block that is in use is shared without a reference",
            ((ledger, "acquire", "self.shared_ref_counts[block_id] = ", "_ = "),),
        ),
        Defect(
            "cached and in use",
            "a block that is found again stays among those that may be evicted",
            ((ledger, "acquire", "self.cached_blocks.pop(block_id)", "pass"),),
        ),
        Defect(
            "evicted and found",
            "a block that is evicted keeps its hash",
            ((ledger, "evict_cached_blocks", "self.hash_to_block.pop(block_hash)", "pass"),),
        ),
        Defect(
            "hash kept at a reset",
            "a block of a request that is reset goes back to the pool and keeps its hash",
            ((ledger, "release", "self.hash_to_block.pop(block_hash)", "pass"),),
        ),
        Defect(
            "hash without its prefix",
            "a block's hash is made of its own tokens only",
            (
                (allocator, "match_prefix_blocks", "(current_hash, tokens)", "(None, tokens)"),
                (allocator, "mark_complete_blocks", "(parent_hash, tokens)", "(None, tokens)"),
            ),
        ),
        Defect(
            "published too early",
            "a block counts as complete one token before it is",
            (
                (
                    cache,
                    "count_new_complete_blocks",
                    "(tokens_in_last_block + request_len)",
                    "(tokens_in_last_block + request_len + 1)",
                ),
            ),
        ),
        Defect(
            "duplicate kept",
            "a block that has an identical one is replaced, and never goes back to the pool",
            ((allocator, "mark_complete_blocks", "if self.ledger.release(block_id):", "if False:"),),
        ),
        Defect(
            "left in the free list",
            "a block is handed out and stays free",
            ((trees, "pop_leaves", "self.trees.pop(root)", "pass"),),
        ),
        Defect(
            "cancelled and kept",
            "a request that is cancelled keeps its blocks",
            ((scheduler, "clear_cancelled_requests", "self.cache.free_blocks(request_id)", "pass"),),
        ),
        Defect(
            "fork not copied",
            "the last block of a fork gets no copy of its parent's",
            ((cache, "perform_cache_copy", "if src_blocks:", "if False:"),),
        ),
        Defect(
            "written one slot late",
            "a token's keys and values are written one slot after their own, where the block has room",
            (
                (
                    full,
                    "get_write_indices",
                    "local_start = start_offset if b == start_page else 0",
                    "local_start = min(start_offset + 1, self.tokens_per_page - 1) if query_length == 1 else "
                    "(start_offset if b == start_page else 0)",
                ),
                (
                    full,
                    "get_write_indices",
                    "local_end = (end_pos - 1) % self.tokens_per_page + 1 if b == end_page else self.tokens_per_page",
                    "local_end = local_start + 1 if query_length == 1 else "
                    "((end_pos - 1) % self.tokens_per_page + 1 if b == end_page else self.tokens_per_page)",
                ),
            ),
        ),
        Defect(
            "counted as computed",
            "one token more than the blocks that were found have counts as computed",
            (
                (
                    scheduler,
                    "_infer_request_tokens",
                    "prefill_length = self.cache.search_prefix_match(state.request_id, state.remaining_prefill_tokens)",
                    "prefill_length = self.cache.search_prefix_match(state.request_id, state.remaining_prefill_tokens);"
                    " prefill_length += 0 < prefill_length < len(state.initial_tokens) - 1",
                ),
            ),
        ),
    ]
