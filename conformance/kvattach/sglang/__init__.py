"""Hooks into SGLang."""
