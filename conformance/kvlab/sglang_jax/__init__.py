"""sglang-jax from a checkout: its own scheduler, tables and trees, without jax and without a model."""
