"""Hooks into transformers' continuous batching."""
