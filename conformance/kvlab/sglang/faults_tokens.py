"""Defects in the tokens of SGLang 0.5.23's scheduler. They break no rule of memory."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect


def in_tokens(release: Release) -> list[Defect]:
    """Five of them."""
    results = release.scheduler.SchedulerBatchResultProcessor
    decode, prefill = "req.output_ids.extend(next_token_id)", "req.output_ids.append(next_token_id)"
    return [
        Defect(
            "token recorded twice",
            "the second token of an answer is recorded twice",
            (
                (
                    results,
                    "process_batch_result_decode",
                    decode,
                    "req.output_ids.extend(next_token_id * (1 + (len(req.output_ids) == 1)))",
                ),
            ),
        ),
        Defect(
            "token lost",
            "the second token of an answer is dropped once",
            (
                (
                    results,
                    "process_batch_result_decode",
                    decode,
                    "req.output_ids.extend(next_token_id if hasattr(req, 'lost') or len(req.output_ids) != 1 else []); "
                    "req.lost = True",
                ),
            ),
        ),
        Defect(
            "token of another request",
            "a request that decodes gets the token of the one before it in its batch",
            ((results, "process_batch_result_decode", "next_token_ids[i]", "next_token_ids[i - 1]"),),
        ),
        Defect(
            "first token not its own",
            "the requests of a prefill get each other's tokens",
            ((results, "process_batch_result_prefill", prefill, "req.output_ids.append(next_token_ids[i - 1])"),),
        ),
        Defect(
            "token taken for another",
            "the requests of a decode step take each other's last tokens",
            (
                (
                    release.scheduler,
                    "resolve_forward_inputs",
                    "batch.input_ids = future_map.output_tokens_buf[batch.req_pool_indices]",
                    "batch.input_ids = future_map.output_tokens_buf[batch.req_pool_indices].flip(0)",
                ),
            ),
        ),
    ]
