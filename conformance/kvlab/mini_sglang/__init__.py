"""mini-sglang from a checkout: its own scheduler loops, tables and radix cache, without a model."""
