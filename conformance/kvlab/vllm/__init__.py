"""vLLM: its own scheduler with hooks, driven on a CPU without a model, and with injected faults."""
