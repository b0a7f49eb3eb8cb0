"""The device manager (not yet written)."""
