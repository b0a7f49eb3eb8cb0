"""vLLM: its own scheduler, hooked, driven on a CPU without a model, and with injected faults."""
