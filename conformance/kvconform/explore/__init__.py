"""Bounded exhaustive exploration."""
