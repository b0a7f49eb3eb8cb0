"""Continuous batching of transformers ends for a prompt of one token and several sequences: `empty-batch`.

    python empty_batch.py

A prompt of which several sequences are asked for is prefilled but for its last token, and then forked
(`Scheduler._schedule_request`). Of a prompt of one token, or one whose other tokens were found in the cache, nothing is
left to prefill. If the batch has no other request the model is called without a token and raises. The thread that
called it ends, and with it all requests.
"""

import torch
import transformers


def main() -> None:
    """Generate for a prompt of two tokens, and for one of one token."""
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
    generation = transformers.GenerationConfig(
        do_sample=True, num_return_sequences=2, max_new_tokens=4, eos_token_id=-1
    )
    batching = transformers.ContinuousBatchingConfig(page_size=16, num_blocks=16, max_batch_tokens=64)
    for prompt in ([5, 6], [5]):
        outputs = model.generate_batch([prompt], generation, batching)
        for name, output in outputs.items():
            print(f"prompt {prompt}, {name}: {len(output.generated_tokens)} tokens, error: {output.error}")
        print(f"prompt {prompt}: {len(outputs)} of 2 sequences")


if __name__ == "__main__":
    main()
