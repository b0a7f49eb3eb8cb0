"""Hooks into sglang-jax."""
