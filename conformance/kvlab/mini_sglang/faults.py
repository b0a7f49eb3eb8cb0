"""Faults for mini-sglang's own scheduler, tables and radix cache; `fixes` has its known issues."""

from kvattach.mini_sglang.modules import Engine
from kvlab.injection import Defect


def defects(engine: Engine) -> list[Defect]:
    """Sixteen faults, the last four only in tokens, for an engine with fixed known issues."""
    manager, tree = engine.cache.CacheManager, engine.radix.RadixPrefixCache
    scheduler, table, adder = engine.scheduler.Scheduler, engine.table.TableManager, engine.prefill.PrefillAdder
    reply = "reply.append(DetokenizeMsg(uid=req.uid, next_token=next_token, finished=finished))"
    start = "new_handle.cached_len :]"
    return [
        Defect(
            "lock kept",
            "the lock on a request's prefix hit is never released",
            ((manager, "cache_req", "self.unlock(old_handle)", "pass"),),
        ),
        Defect(
            "lock not taken",
            "a request goes on without a lock on its published pages",
            ((manager, "cache_req", "self.lock(new_handle)", "pass"),),
        ),
        Defect(
            "duplicates kept",
            "pages that the tree had already are not given back",
            ((manager, "cache_req", "self._free(page_indices[old_handle.cached_len : cached_len])", "pass"),),
        ),
        Defect(
            "tail not freed",
            "the page that is not full is forgotten at the end",
            ((manager, "cache_req", f"self._free(page_indices[{start})", "pass"),),
        ),
        Defect(
            "tail freed too early",
            "a page that the tree has is given back with the tail",
            ((manager, "cache_req", f"[{start}", "[max(0, new_handle.cached_len - self.page_size) :]"),),
        ),
        Defect(
            "evicted and still found",
            "a node that was evicted stays in the tree",
            ((tree, "evict", "del parent.children[self.key_fn(node._key)]", "pass"),),
        ),
        Defect(
            "left in the free list",
            "a page is handed out and stays in the list of free ones",
            ((manager, "_allocate", "self.free_slots[needed_pages:]", "self.free_slots[needed_pages - 1 :]"),),
        ),
        Defect(
            "row handed out twice",
            "a row is handed out and stays in the list of free ones",
            ((table, "allocate", "self._free_slots.pop()", "self._free_slots[-1]"),),
        ),
        Defect(
            "launch without its fence",
            "a launch does not wait for the rows that are written for it",
            ((scheduler, "overlap_loop", "self.engine.stream.wait_stream(self.stream)", "pass"),),
        ),
        Defect(
            "index tensors not kept",
            "the index tensors of a launch in flight are given back",
            (
                (
                    scheduler,
                    "overlap_loop",
                    "(forward_input, self._forward(forward_input))",
                    "(forward_input._replace(input_tuple=None, write_tuple=None), self._forward(forward_input))",
                ),
            ),
        ),
        Defect(
            "index tensor overwritten",
            "an index tensor of a launch is cleared once the launch is queued",
            (
                (
                    scheduler,
                    "_forward",
                    "self.decode_manager.filter_reqs(",
                    "batch.out_loc.zero_(); self.decode_manager.filter_reqs(",
                ),
            ),
        ),
        Defect(
            "prefix copied in part",
            "a row does not get the last position of the prefix that was found",
            (
                (
                    adder,
                    "_try_allocate_one",
                    "page_entry.copy_(handle.get_matched_indices())",
                    "page_entry[:-1].copy_(handle.get_matched_indices()[:-1])",
                ),
            ),
        ),
        Defect(
            "token answered twice",
            "the first token of an answer is sent twice",
            ((scheduler, "_process_last_data", reply, f"{reply}; batch.is_prefill and reply.append(reply[-1])"),),
        ),
        Defect(
            "token not answered",
            "the first token of an answer is not sent",
            ((scheduler, "_process_last_data", reply, f"batch.is_prefill or {reply}"),),
        ),
        Defect(
            "token of another request",
            "a request gets the token of the one before it in its batch",
            ((scheduler, "_process_last_data", "next_tokens_cpu[i]", "next_tokens_cpu[i - 1]"),),
        ),
        Defect(
            "token not written",
            "a token is written one position late to the tokens that launches take",
            (
                (
                    engine.scheduler,
                    "_make_write_tuple",
                    "(req.device_len if req.can_decode else -1)",
                    "(req.device_len + 1 if req.can_decode else -1)",
                ),
            ),
        ),
    ]
