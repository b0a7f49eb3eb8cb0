"""Defects for recurrent states under drafts, in vLLM's scheduler and its manager of states."""

from kvlab.injection import Defect


def drafted_state_defects() -> list[Defect]:
    """Five of them, for 0.33.0."""
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import MambaManager

    room = "cdiv(num_tokens, self.block_size) + self.num_speculative_blocks"
    computed = "< cdiv(processed_computed_tokens, self.block_size) - 1"
    freed = "super().pop_blocks_for_free(request_id)"
    border = "if start % block_size != 0 and not use_internal_checkpoint"
    return [
        Defect(
            "draft's block in two places",
            "a block that is moved behind the others stays where it was, too",
            ((MambaManager, "_relocate_speculative_block", "req_blocks[block_idx] = self._null_block", "pass"),),
        ),
        Defect(
            "no block for the last draft",
            "a request has a block less than it has states to verify",
            (
                (MambaManager, "get_num_blocks_to_allocate", room, f"{room} - (self.num_speculative_blocks > 0)"),
                (MambaManager, "allocate_new_blocks", room, f"{room} - (self.num_speculative_blocks > 0)"),
            ),
        ),
        Defect(
            "last state freed too early",
            "the block of a state is given back while the next pass goes on from it",
            ((MambaManager, "remove_skipped_blocks", computed, computed[: -len(" - 1")]),),
        ),
        Defect(
            "chunk ends in a block",
            "a chunk of a prompt ends wherever its budget does, and a block gets the name of a state that is not in it",
            (
                (Scheduler, "_mamba_block_aligned_split", "if end < prefill_end:", "if end < last_cache_position:"),
                (Scheduler, "_mamba_block_aligned_split", border, f"{border} and start < last_cache_position"),
            ),
        ),
        Defect(
            "drafts' blocks forgotten",
            "the blocks of a request's drafts are forgotten when it ends",
            ((MambaManager, "pop_blocks_for_free", freed, f"{freed}[: -self.num_speculative_blocks or None]"),),
        ),
    ]
