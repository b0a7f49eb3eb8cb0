"""Defects for SGLang 0.5.23 in its handling of drafts of speculative decoding."""

import importlib

from kvattach.sglang.release import Release
from kvlab.injection import Defect


def in_drafts(release: Release) -> list[Defect]:
    """Eight of them, four of them with recurrent states."""
    return _of_pages(release) + _of_states(release)


def _of_pages(release: Release) -> list[Defect]:
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


def _of_states(release: Release) -> list[Defect]:
    results, verifying = release.scheduler.SchedulerBatchResultProcessor, release.verifying
    border = "return True, cur // interval * interval"
    slot = "req.kv.mamba_next_track_idx\n                if"
    return [
        Defect(
            "state kept too late",
            "a step keeps the state behind the one at the border that it passes",
            (
                (
                    verifying,
                    "_verify_commit_step_indices",
                    "tracking_point - seq_lens_pre_verify - 1",
                    "(tracking_point - seq_lens_pre_verify).clamp(max=draft_token_num - 1)",
                ),
            ),
        ),
        Defect(
            "kept state counted further",
            "a state that is kept counts as the one at the next border",
            ((results, "_mamba_check_track_boundary", border, f"{border} + interval"),),
        ),
        Defect(
            "kept in the first slot",
            "each state is kept in the first of a request's two slots",
            ((verifying, "set_mamba_track_indices_from_reqs", slot, slot.replace("idx", "idx * 0")),),
        ),
        Defect(
            "slots not exchanged",
            "the next state is kept in the slot of the last one, which may be published",
            (
                (
                    results,
                    "_mamba_prefix_cache_update",
                    "batch.req_to_token_pool.get_mamba_ping_pong_other_idx(track_idx)",
                    "track_idx",
                ),
            ),
        ),
    ]
