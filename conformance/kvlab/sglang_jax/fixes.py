"""Fixes of sglang-jax's known issues: a remaining finding is a new issue.

Each fix is the smallest that removes the issue, not a proposal. A checkout with other lines lacks the issue, or has it
elsewhere.
"""

from kvattach.patches import Patches
from kvattach.sglang_jax.modules import Engine
from kvlab.injection import Defect, mend

_COUNTED = """= adder.new_chunked_reqs[dp_rank]
            self.chunked_reqs[dp_rank].is_chunked += 1"""

_ALWAYS_COUNTED = """= adder.new_chunked_reqs[dp_rank]
        if self.chunked_reqs[dp_rank] is not None:
            self.chunked_reqs[dp_rank].is_chunked += 1"""

_CUT = """
    )
    truncated = req.extend_input_len > _rem_tokens
"""

_CUT_TO_SOMETHING = """
    )
    if _rem_tokens <= 0:
        _rem_tokens = self.rem_chunk_tokens_list[dp_rank]
    truncated = req.extend_input_len > _rem_tokens
"""

_FULL = "if self.running_batch.reqs_info[dp_rank].batch_is_full or (\n"

_FULL_OR_CUT = """if adder.new_chunked_reqs[dp_rank] is not None:
            continue
        if self.running_batch.reqs_info[dp_rank].batch_is_full or (
"""

_IN_FLIGHT = "if i >= first_decode_idx:"

_IN_A_PAGE_OF_ITS_OWN = "if i >= first_decode_idx and (req.seqlen - 1) % self.page_size == 0:"

_FORGOTTEN = """self.process_batch_result(tmp_batch, tmp_result)
        self.last_batch = None
        self.cur_batch = None
"""

_KEPT = """self.process_batch_result(tmp_batch, tmp_result)
    if self.last_batch and self.last_batch.forward_mode.is_extend():
        cut = {rank: req for rank, req in enumerate(self.chunked_reqs) if req is not None}
        self.last_batch.filter_batch(chunked_req_to_exclude=cut)
        if self.running_batch.is_empty():
            self.running_batch = self.last_batch
        elif not self.last_batch.is_empty():
            self.running_batch.merge_batch(self.last_batch)
    self.last_batch = None
    self.cur_batch = None
"""

_GOES_ON = "self._engine_paused = False\n"

_HAS_ROOM = """self._engine_paused = False
    for info in self.running_batch.reqs_info:
        info.batch_is_full = False
"""

_AT_ITS_PREFIX = "old_prefix_len = len(req.prefix_indices)"
_AT_ITS_TREE = "old_prefix_len = req.last_matched_prefix_len"

_THE_BUFFER = """return cache_loc_cpu.copy()
    return cache_loc_cpu
"""

_A_COPY = """return cache_loc_cpu.copy()
    return cache_loc_cpu.copy()
"""


def _mends(engine: Engine) -> list[Defect]:
    """The fixes, each with the name of the defect that it fixes."""
    scheduler, results = engine.scheduler.Scheduler, engine.scheduler.SchedulerOutputProcessorMixin
    tree = engine.radix.RadixCache
    return [
        Defect(
            "chunk-not-counted",
            "later chunks count as chunks (its pull request 994)",
            ((scheduler, "get_new_batch_prefill", _COUNTED, _ALWAYS_COUNTED),),
        ),
        Defect(
            "freed-in-flight",
            "a finished request's slot in flight beside a chunk is freed if its page is not (its pull request 994)",
            ((results, "process_batch_result_prefill", _IN_FLIGHT, _IN_A_PAGE_OF_ITS_OWN),),
        ),
        Defect(
            "negative-chunk",
            "a prompt that is begun gets a whole chunk where nothing is left for it (its pull request 1234)",
            ((engine.policy.PrefillAdder, "add_chunked_req", _CUT, _CUT_TO_SOMETHING),),
        ),
        Defect(
            "chunk-forgotten",
            "no request is admitted beside a prompt that was cut (its pull request 1408)",
            ((scheduler, "get_new_batch_prefill", _FULL, _FULL_OR_CUT),),
        ),
        Defect(
            "unaligned-protected",
            "the part of a request that the tree has is noted, before pull request 994",
            (
                (tree, "cache_unfinished_req", _AT_ITS_PREFIX, _AT_ITS_TREE),
                (tree, "cache_finished_req", _AT_ITS_PREFIX, _AT_ITS_TREE),
            ),
        ),
        Defect(
            "unaligned-protected",
            "the part of a request that the tree has is noted, after pull request 994 (its pull request 1401)",
            (
                (
                    engine.batch.ScheduleBatch,
                    "prepare_for_extend",
                    "req.cache_protected_len = pre_len",
                    "req.cache_protected_len = req.last_matched_prefix_len",
                ),
            ),
        ),
        Defect(
            "pause-forgets",
            "a pause adds those of the last prefill to the running ones",
            ((scheduler, "pause_generation", _FORGOTTEN, _KEPT),),
        ),
        Defect(
            "pause-forgets-chunk",
            "a pause keeps who is in the middle of its prompt (its pull request 1471)",
            ((scheduler, "pause_generation", "self.chunked_reqs = [None] * self.dp_size", "pass"),),
        ),
        Defect(
            "pause-stays-full",
            "after a pause the batch is not taken for full",
            ((scheduler, "continue_generation", _GOES_ON, _HAS_ROOM),),
        ),
        Defect(
            "cache-loc-reused",
            "a launch gets a copy of the buffer that the next batch overwrites",
            ((engine.batch.ScheduleBatch, "_merge_cache_loc", _THE_BUFFER, _A_COPY),),
        ),
    ]


def fix(engine: Engine, patches: Patches, but: str | None = None) -> None:
    """Apply all fixes except the named one. Undoing `patches` restores the defects."""
    for one in _mends(engine):
        if one.name != but:
            mend(patches, one.name, *one.places)
