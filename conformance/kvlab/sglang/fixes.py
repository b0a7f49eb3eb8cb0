"""Fixes of known defects of SGLang's hybrid pools, so that every remaining finding is another defect.

A release with other lines is left unchanged.
"""

import sys

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.injection import mend

_PREPARED = "set_mamba_track_indices_from_reqs(self)\n\n"
_TURNED = """set_mamba_track_indices_from_reqs(self)
            for req, length in zip(self.reqs, self.seq_lens_cpu.tolist()):
                if length % mamba_track_interval == 0:
                    other = self.req_to_token_pool.get_mamba_ping_pong_other_idx(req.kv.mamba_next_track_idx)
                    req.kv.mamba_next_track_idx = other

"""

_MERGED = "self.merge_batch(running_batch)\n"
_KEPT = """slots, kept = self.mamba_track_indices, self.mamba_prefill_track_mask_cpu
    self.merge_batch(running_batch)
    if slots is not None:
        self.mamba_track_indices = torch.cat([slots, slots.new_full((running_bs,), -1)])
        self.mamba_prefill_track_mask_cpu = kept + [False] * running_bs
"""

_ROOM = "no_token = not self.memory_budget.has_capacity()\n"
_ONE = """if self.new_chunked_req is not None:
        return AddReqResult.OTHER
    no_token = not self.memory_budget.has_capacity()
"""

_SEEN = "cache_len = req.kv.mamba_last_track_seqlen\n"
_NAMED = """cache_len = req.kv.mamba_last_track_seqlen
        if cache_len is not None and cache_len % self.cache.page_size:
            cache_len = None
"""

_LAST_SEEN = "cache_len = req.kv.mamba_last_track_seqlen or 0\n"
_LAST_NAMED = """cache_len = req.kv.mamba_last_track_seqlen or 0
    if cache_len % self.cache.page_size:
        return None
"""

_ANY = "return available if available > 0 else chunk_limit\n"
_WHAT_FITS = "return available if available > 0 else None\n"


def fix_turns(release: Release, patches: Patches) -> None:
    """A request switches its two slots for kept states when a launch is prepared, not afterwards."""
    results = release.scheduler.SchedulerBatchResultProcessor
    asked = "completed_mamba_boundary if lazy else known_mamba_boundary"
    turned = "completed_mamba_boundary if lazy or known_mamba_boundary is None else False"
    mend(
        patches,
        "turns at once",
        (release.batches.ScheduleBatch, "prepare_for_decode", _PREPARED, _TURNED),
        (results, "_handle_finish_state_updated_req", asked, turned),
    )


def fix_mixed(release: Release, patches: Patches) -> None:
    """A mixed launch keeps the states of its prompts: it remembers their slots."""
    batch, mask = release.batches.ScheduleBatch, "mamba_prefill_track_mask_cpu"
    # Until 0.5.20 a launch has no such mask.
    if hasattr(batch, mask) and mask not in batch.mix_with_running.__code__.co_names:
        mend(patches, "prompts' states kept", (batch, "mix_with_running", _MERGED, _KEPT))


def fix_chunks(release: Release, patches: Patches) -> None:
    """A launch that has chunked a prompt takes in no further one."""
    mend(patches, "one chunk", (release.scheduler.PrefillAdder, "budget_state", _ROOM, _ONE))


def fix_names(release: Release, patches: Patches) -> None:
    """A state within a page is not given to the tree, which would key it by the beginning of the page."""
    states = release.state_component
    mend(
        patches,
        "states named",
        (states, "prepare_for_caching_req", _SEEN, _NAMED),
        (states, "_select_finished_checkpoint", _LAST_SEEN, _LAST_NAMED),
    )


def fix_windows(release: Release, patches: Patches) -> None:
    """A request keeps whole pages of its window when it publishes, so that later requests can find them."""
    name, kept = "free_swa_out_of_window_slots", "max(sliding_window_size, page_size)"
    whole = "-(-sliding_window_size // page_size) * page_size"
    if mend(patches, "whole pages of windows", (release.common, name, kept, whole)):
        patches.set(sys.modules[release.window_component.__module__], name, vars(release.common)[name])


def fix_chunk_room(release: Release, patches: Patches) -> None:
    """A chunk without room waits. Decoding requests go on or are retracted, as without a chunk."""
    budgets = sys.modules.get("sglang.srt.mem_cache.prefill_budget")
    if budgets is not None:
        mend(patches, "chunks wait for room", (budgets.PrefillBudget, "available_chunk_tokens", _ANY, _WHAT_FITS))


FIXES = (fix_turns, fix_mixed, fix_chunks, fix_names, fix_windows, fix_chunk_room)
"""The fixes in the order of their application."""
