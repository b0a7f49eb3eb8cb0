"""Defects for SGLang 0.5.23 in what it does with drafts of speculative decoding."""

import importlib

from kvattach.sglang.release import Release
from kvlab.injection import Defect


def in_drafts(release: Release) -> list[Defect]:
    """Four of them."""
    common, results = release.common, release.scheduler.SchedulerBatchResultProcessor
    utils = importlib.import_module("sglang.srt.speculative.eagle_utils")
    freed = "tree_cache.free_kv_row(req.kv, [(start_p, end_p)])"
    counted = "req.kv.kv_committed_len += num_accept_tokens"
    room = "double_alloc = get_alloc_reserve_per_decode()"
    return [
        Defect(
            "drafts kept",
            "a request that ends keeps the slots of drafts that were rejected",
            ((common, "_release_overallocated_kv_indices", freed, "pass"),),
        ),
        Defect(
            "drafts freed twice",
            "a request that ends gives the slots of rejected drafts back twice",
            ((common, "_release_overallocated_kv_indices", freed, f"{freed}; {freed}"),),
        ),
        Defect(
            "rejected draft counted",
            "a token more counts as computed than was accepted, if drafts were rejected",
            (
                (
                    results,
                    "_resolve_spec_v2_tokens",
                    counted,
                    f"{counted} + (req.spec_verify_ct == 0 and num_accept_tokens < stride)",
                ),
            ),
        ),
        Defect(
            "room for one step",
            "slots for one step's drafts are reserved, where another step may be in flight",
            ((utils, "eagle_prepare_for_decode", room, f"{room} // 2"),),
        ),
    ]
