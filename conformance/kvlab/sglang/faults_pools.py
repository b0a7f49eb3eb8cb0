"""Defects for SGLang 0.5.23 in its pools of window pages and of recurrent states."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect


def in_pools(release: Release) -> list[Defect]:
    """Thirteen of them."""
    return _of_windows(release) + _of_states(release)


def _of_windows(release: Release) -> list[Defect]:
    windows, allocator, common = release.window_component, release.window_allocator, release.common
    passed = "free_segment(free_slots, start_pos=evicted_seqlen)"
    grown = "evict_threshold = pre_len - ceil_align("
    return [
        Defect(
            "window not freed",
            "a request's window moves on, and the pages behind it stay the request's",
            ((common, "free_swa_out_of_window_slots", passed, "pass"),),
        ),
        Defect(
            "window moves too early",
            "a request frees pages that its next token still reads",
            ((common, "free_swa_out_of_window_slots", grown, "evict_threshold = pre_len - 0 * ceil_align("),),
        ),
        Defect(
            "window freed twice",
            "the engine does not note how far a window has moved",
            (
                (
                    common,
                    "free_swa_out_of_window_slots",
                    "req.kv.set_evicted_seqlen(component_type, new_evi",
                    "max(0, new_evi",
                ),
            ),
        ),
        Defect(
            "window kept by an evicted page",
            "the tree evicts a window, and its pages are forgotten",
            ((windows, "apply_component_action", "alloc.free_swa_segment(indices, start_pos=0)", "pass"),),
        ),
        Defect(
            "window lock not counted",
            "two locks on the same window count as one",
            ((windows, "acquire_component_lock", "comp.lock_ref = ref + 1", "comp.lock_ref = 1"),),
        ),
        Defect(
            "window lock too short",
            "a lock covers one node of the window, where it is in several",
            ((windows, "acquire_component_lock", "covered += len(cur.key)", "covered = sliding_window_size"),),
        ),
        Defect(
            "window published that is gone",
            "a request that ends publishes the window that it has given back, too",
            ((windows, "prepare_for_caching_req", "req.kv.get_evicted_seqlen(self.component_type)", "0"),),
        ),
        Defect(
            "window left in the free list",
            "a window page is handed out and stays in the list of free ones",
            (
                (
                    allocator,
                    "alloc",
                    "alloc_swa_indices = self.swa_attn_allocator.alloc(need_size)",
                    "free = self.swa_attn_allocator.free_pages; "
                    "alloc_swa_indices = self.swa_attn_allocator.alloc(need_size); "
                    "self.swa_attn_allocator.free_pages = free[need_size - 1 :]",
                ),
            ),
        ),
    ]


def _of_states(release: Release) -> list[Defect]:
    rows, states = release.pools.HybridReqToTokenPool, release.state_component
    freed = "self.mamba_allocator.free(mamba_index.unsqueeze(0))"
    taken = "self.free_slots = self.free_slots[need_size:]"
    return [
        Defect(
            "state freed twice",
            "a request that ends gives its state back twice",
            ((rows, "free_mamba_cache", freed, f"{freed}; {freed}"),),
        ),
        Defect(
            "tracked states kept",
            "a request that is retracted keeps the slots in which its states are tracked",
            ((rows, "free_mamba_cache", "self.mamba_allocator.free(row)", "pass"),),
        ),
        Defect(
            "state lock not counted",
            "two locks on the same state count as one",
            ((states, "acquire_component_lock", "cd.lock_ref += 1", "cd.lock_ref = 1"),),
        ),
        Defect(
            "found state not copied",
            "a request goes on from a state of its own that was never written",
            (
                (
                    release.batches.ScheduleBatch,
                    "_collect_deferred_mamba_cow_and_clear",
                    "if req.kv.mamba_cow_src_index is not None:",
                    "if False:",
                ),
            ),
        ),
        Defect(
            "state left in the free list",
            "a slot for a state is handed out and stays in the list of free ones",
            ((release.state_allocator, "_do_alloc", taken, taken.replace("need_size:", "need_size - 1 :")),),
        ),
    ]
