"""Hooks into Modular MAX."""
