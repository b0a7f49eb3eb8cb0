"""transformers' continuous batching with a real, tiny model, on the CPU."""
