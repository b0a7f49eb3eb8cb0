"""Continuous batching of transformers schedules no request any more: `blocked-for-ever`.

    python blocked_for_ever.py

Two requests outgrow the memory. One is put back to the waiting ones, and no waiting request is scheduled until another
one finishes (`block_new_requests`). The other one is cancelled instead. Then nothing runs that could finish, and both
the request that was put back and each new one wait for ever.
"""

import queue
import time
from typing import Any

import torch
import transformers

MOST = 44
"""Tokens that are asked for: with their prompts, two such requests do not fit the memory of 64 tokens."""
PATIENCE = 10.0
"""Seconds without a token after which a request counts as forgotten."""


def tokens(manager: Any, until: Any) -> dict[str, int]:
    """The tokens of each request so far, until that is true of them, or none has come for a while."""
    counts: dict[str, int] = {}
    last = time.monotonic()
    while not until(counts) and time.monotonic() - last < PATIENCE:
        try:
            output = manager.get_result(timeout=0.5)
        except queue.Empty:
            continue
        if output is not None:
            counts[output.request_id] = len(output.generated_tokens)
            last = time.monotonic()
    return counts


def main() -> None:
    """Let two requests outgrow the memory; cancel one, or none."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    model = transformers.LlamaForCausalLM(config)
    generation = transformers.GenerationConfig(do_sample=False, eos_token_id=-1)
    batching = transformers.ContinuousBatchingConfig(
        page_size=4, num_blocks=16, max_batch_tokens=64, safety_margin=0.0, allow_block_sharing=False
    )
    for cancels in (False, True):
        with model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=batching
        ) as manager:
            other, counts = outgrow(manager, cancels)
            print(
                f"one is {'cancelled' if cancels else 'finished'}: the other has {counts[other]} of {MOST} tokens,",
                f"a new one {counts['new']} of 4",
            )
            manager.stop(hard_stop=True)


def outgrow(manager: Any, cancels: bool) -> tuple[str, dict[str, int]]:
    """The request that was put back, and the tokens of each in the end."""
    for name in ("first", "second"):
        manager.add_request([5, 6, 7, 8], name, MOST, streaming=True, eos_token_id=-1)
    # Each has half of the memory with 28 tokens; then one is put back.
    counts = tokens(manager, lambda seen: max(seen.values(), default=0) > 34)
    other, goes_on = sorted(counts, key=lambda name: counts[name])
    if cancels:
        manager.cancel_request(goes_on)
    manager.add_request([9, 10, 11, 12], "new", 4, streaming=True, eos_token_id=-1)
    then = tokens(manager, lambda seen: seen.get(other) == MOST and seen.get("new") == 4)
    return other, {"new": 0, **counts, **then}


if __name__ == "__main__":
    main()
