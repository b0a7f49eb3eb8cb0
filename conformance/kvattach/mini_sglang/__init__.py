"""Hooks into mini-sglang."""
