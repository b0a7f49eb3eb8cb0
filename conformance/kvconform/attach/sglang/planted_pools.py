"""Defects for SGLang 0.5.23 in its window pools: its allocator, its tree's windows, what a request leaves behind."""

from kvconform.attach.planting import Defect
from kvconform.attach.sglang.release import Release


def in_pools(release: Release) -> list[Defect]:
    """Eight of them."""
    windows, allocator, common = release.window_component, release.window_allocator, release.common
    passed = "free_segment(free_slots, start_pos=evicted_seqlen)"
    grown = "evict_threshold = pre_len - ceil_align("
    return [
        Defect(
            "window not freed",
            "a request's window moves on, and what it has left behind stays the request's",
            ((common, "free_swa_out_of_window_slots", passed, "pass"),),
        ),
        Defect(
            "window moves too early",
            "a request gives back what its next token still looks at",
            ((common, "free_swa_out_of_window_slots", grown, "evict_threshold = pre_len - 0 * ceil_align("),),
        ),
        Defect(
            "window freed twice",
            "nobody notes how far a window has moved",
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
            "found without a window",
            "a prompt is found up to a place whose window is not there any more",
            ((windows, "create_match_validator", "return False", "return True"),),
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
