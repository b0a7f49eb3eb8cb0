"""Defects for nano-vllm's own scheduler and block manager."""

from kvattach.nano_vllm.modules import Engine
from kvlab.injection import Defect


def defects(engine: Engine) -> list[Defect]:
    """Fourteen of them; the last four are only in tokens."""
    manager, scheduler = engine.block_manager.BlockManager, engine.scheduler.Scheduler
    no_prefix = ("self.compute_hash(token_ids, h)", "self.compute_hash(token_ids)")
    return [
        Defect(
            "hit not counted",
            "a block that is in use is shared without a reference",
            ((manager, "allocate", "block.ref_count += 1", "pass"),),
        ),
        Defect(
            "tail not freed",
            "the last block of a sequence is forgotten",
            ((manager, "deallocate", "reversed(seq.block_table)", "reversed(seq.block_table[:-1])"),),
        ),
        Defect(
            "hash not removed",
            "a block that is handed out keeps its name",
            ((manager, "_allocate_block", "del self.hash_to_block_id[block.hash]", "pass"),),
        ),
        Defect(
            "left in the free list",
            "a block is handed out and stays in the list of free ones",
            ((manager, "_allocate_block", "self.free_block_ids.popleft()", "self.free_block_ids[0]"),),
        ),
        Defect(
            "freed twice",
            "a block is put into the list of free ones twice",
            ((manager, "_deallocate_block", "append(block_id)", "extend([block_id] * 2)"),),
        ),
        Defect(
            "published too far",
            "the block that is being filled gets a name, too",
            ((manager, "hash_blocks", "if start == end: return", "end = min(end + 1, len(seq.block_table))"),),
        ),
        Defect(
            "name without its prefix",
            "a block's name is made of its own tokens only",
            tuple((manager, name, *no_prefix) for name in ("can_allocate", "allocate", "hash_blocks")),
        ),
        Defect(
            "preempted and forgotten",
            "a preempted sequence loses its table, and its blocks stay",
            ((scheduler, "preempt", "self.block_manager.deallocate(seq)", "seq.block_table.clear()"),),
        ),
        Defect(
            "counted as computed",
            "one token more than the cache has counts as computed",
            ((manager, "allocate", "num_cached_blocks * self.block_size", "num_cached_blocks * self.block_size + 1"),),
        ),
        Defect(
            "block taken late",
            "the block for a token is taken one token too late",
            tuple((manager, name, "== 1", "== 2") for name in ("can_append", "may_append")),
        ),
        Defect(
            "token recorded twice",
            "the first token of an answer is recorded twice",
            (
                (
                    scheduler,
                    "postprocess",
                    "seq.append_token(token_id)",
                    "seq.append_token(token_id); seq.num_completion_tokens == 1 and seq.append_token(token_id)",
                ),
            ),
        ),
        Defect(
            "token of another request",
            "the requests of a batch get each other's tokens",
            ((scheduler, "postprocess", "zip(seqs, token_ids)", "zip(seqs, token_ids[::-1])"),),
        ),
        Defect(
            "token lost",
            "the third token of an answer is never recorded",
            (
                (
                    scheduler,
                    "postprocess",
                    "if is_prefill and seq.num_cached_tokens < seq.num_tokens:",
                    "if is_prefill and seq.num_cached_tokens < seq.num_tokens or seq.num_completion_tokens == 2 and "
                    "not hasattr(seq, 'lost') and not setattr(seq, 'lost', True):",
                ),
            ),
        ),
        Defect(
            "last token not taken over",
            "a decode step takes the token before the last one",
            (
                (
                    engine.sequence.Sequence,
                    "append_token",
                    "self.last_token = token_id",
                    "self.last_token = self.token_ids[-2]",
                ),
            ),
        ),
    ]
