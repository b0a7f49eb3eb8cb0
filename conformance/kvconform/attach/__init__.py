"""Hooks into engines as they run: what an engine does to memory, told in the law's events."""
