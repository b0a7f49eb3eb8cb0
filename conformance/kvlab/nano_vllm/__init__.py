"""nano-vllm from a checkout: its own scheduler and block manager, without a model."""
