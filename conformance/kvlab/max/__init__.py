"""Modular MAX from an unpacked wheel: its own scheduler, batches and KV cache, between a stub model and clients."""
