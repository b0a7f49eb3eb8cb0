"""Defects in the tokens of vLLM's scheduler. They break no rule of memory."""

from kvlab.injection import Defect


def token_defects() -> list[Defect]:
    """Seven of them, for 0.33.0."""
    from vllm.v1.core.sched.scheduler import Scheduler

    answered, index = "new_token_ids=new_token_ids,\n", "model_runner_output.req_id_to_index[req_id]"
    append = "request.append_output_token_ids(output_token_id)"
    others = "(model_runner_output.req_id_to_index[req_id] + 1) % len(model_runner_output.req_ids)"
    return [
        Defect(
            "token not delivered",
            "of the tokens of a step the client does not get the first, if there are several",
            ((Scheduler, "update_from_output", answered, "new_token_ids=new_token_ids[len(new_token_ids) > 1 :],\n"),),
        ),
        Defect(
            "token delivered twice",
            "the token of a step with which a request ends is delivered twice",
            (
                (
                    Scheduler,
                    "update_from_output",
                    answered,
                    "new_token_ids=new_token_ids + new_token_ids[-1:] * stopped,\n",
                ),
            ),
        ),
        Defect(
            "token of another request",
            "a request is given the tokens of the next one in its batch",
            ((Scheduler, "update_from_output", index, others),),
        ),
        Defect(
            "token after the end",
            "the tokens behind the one that ends a request are delivered, too",
            ((Scheduler, "_update_request_with_output", "del new_token_ids[num_new:]", "pass"),),
        ),
        Defect(
            "stale token delivered",
            "tokens of launches before a reset are delivered, though they are sampled again",
            ((Scheduler, "update_from_output", "if output_is_stale and request.drop_stale_output:", "if False:"),),
        ),
        Defect(
            "token recorded twice",
            "the first token of an answer is recorded twice",
            (
                (
                    Scheduler,
                    "_update_request_with_output",
                    append,
                    f"{append}; request.num_output_tokens == 1 and {append}",
                ),
            ),
        ),
        Defect(
            "launched one position late",
            "a running request's launch begins one position behind what is computed",
            (
                (
                    Scheduler,
                    "_make_cached_request_data",
                    "num_computed_tokens.append(req.num_computed_tokens)",
                    "num_computed_tokens.append(req.num_computed_tokens + (req.num_output_tokens == 2))",
                ),
            ),
        ),
    ]
