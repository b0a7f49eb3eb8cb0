"""Hooks into nano-vllm."""
