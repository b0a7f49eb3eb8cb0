"""Hooks into vLLM."""
