"""Defects for sglang-jax's own scheduler, tables, allocators and tree."""

from kvattach.sglang_jax.modules import Engine
from kvlab.injection import Defect


def defects(engine: Engine) -> list[Defect]:
    """Sixteen of them, the last three only in tokens, for the lines after pull request 994."""
    tree = engine.radix.RadixCache
    token = engine.allocator.TokenToKVPoolAllocator
    batch, rows = engine.batch.ScheduleBatch, engine.pool.ReqToTokenPool
    output = engine.scheduler.SchedulerOutputProcessorMixin
    scheduler, sent = engine.scheduler.Scheduler, "output_ids_[send_token_offset:]"
    next_chunk = ".init_next_round_input()"
    row_freed = "self.req_to_token_pool.free_slots.append(self.chunked_reqs[dp_rank].req_pool_idx)"
    written = "(req_pool_indices[i], slice(prefix_lens[i], seq_lens[i]))"
    taken = "self.free_slots[dp_rank] = slots[need_size:]"
    locked = "self.dec_lock_ref(req.last_node)"
    moved = "out_cache_loc[pt : pt + extend_lens[i]]"
    return [
        Defect(
            "lock kept",
            "a request that publishes keeps the lock on its prefix hit",
            ((tree, "cache_unfinished_req", locked, "pass"),),
        ),
        Defect(
            "lock not taken",
            "a request goes on without a lock on its published pages",
            ((tree, "cache_unfinished_req", "self.inc_lock_ref(new_last_node)", "pass"),),
        ),
        Defect(
            "duplicates kept",
            "pages that the tree had already are not given back",
            ((tree, "cache_unfinished_req", "kv_indices[old_prefix_len:new_prefix_len]", "kv_indices[:0]"),),
        ),
        Defect(
            "row keeps duplicates",
            "a row goes on naming duplicates that were given back",
            (
                (
                    tree,
                    "cache_unfinished_req",
                    "new_indices[old_prefix_len:],",
                    "kv_indices[old_prefix_len:len(new_indices)],",
                ),
            ),
        ),
        Defect(
            "freed and still found",
            "a node that was evicted stays in the tree",
            ((tree, "evict", "self._delete_leaf(x)", "x.parent.children = dict(x.parent.children)"),),
        ),
        Defect(
            "locks ignored",
            "pages that requests have locked are evicted",
            ((tree, "evict", "if x.lock_ref > 0:", "if False:"),),
        ),
        Defect(
            "left in the free list",
            "a slot is handed out and stays in the list of free ones",
            ((token, "alloc", taken, "self.free_slots[dp_rank] = slots[need_size - 1:]"),),
        ),
        Defect(
            "tail not freed",
            "a request's pages outside the tree are forgotten when it is retracted",
            ((tree, "cache_finished_req", "kv_indices[old_prefix_len:page_aligned_len]", "kv_indices[:0]"),),
        ),
        Defect(
            "row handed out twice",
            "a row is handed out and stays in the list of free ones",
            ((rows, "alloc", "self.free_slots = self.free_slots[need_size:]", "pass"),),
        ),
        Defect(
            "row names another slot",
            "a chunk's row names its slots one place too late",
            ((batch, "prepare_for_extend", moved, "out_cache_loc[max(pt - 1, 0) :][: extend_lens[i]]"),),
        ),
        Defect(
            "row handed on between chunks",
            "the row of a prompt that is cut may be given to another request between two chunks",
            ((scheduler, "get_new_batch_prefill", next_chunk, f"{next_chunk}; {row_freed}"),),
        ),
        Defect(
            "row of another request",
            "each prompt of a batch is written to the row of the first one",
            ((batch, "prepare_for_extend", written, written.replace("[i]", "[0]", 1)),),
        ),
        Defect(
            "rows where they lie",
            "a launch gets the rows themselves, and no copy of their entries",
            (
                (
                    batch,
                    "get_model_worker_batch",
                    "cache_loc=cache_loc_cpu,",
                    "cache_loc=self.req_to_token_pool.req_to_token,",
                ),
            ),
        ),
        Defect(
            "token streamed twice",
            "a streamed slice begins with the last token of the one before",
            (
                (
                    output,
                    "stream_output_generation",
                    sent,
                    sent.replace("send_token_offset", "max(0, send_token_offset - 1)"),
                ),
            ),
        ),
        Defect(
            "token of another request",
            "the requests of a decode step get each other's tokens",
            ((output, "process_batch_result_decode", "zip(reqs, dp_output_ids)", "zip(reqs, dp_output_ids[::-1])"),),
        ),
        Defect(
            "token taken for another",
            "the requests of a decode step take each other's last tokens",
            (
                (
                    batch,
                    "prepare_for_decode",
                    "info.input_ids = info.output_ids",
                    "info.input_ids = info.output_ids[::-1]",
                ),
            ),
        ),
    ]
