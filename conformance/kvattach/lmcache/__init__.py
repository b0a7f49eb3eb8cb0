"""Hooks into LMCache."""
