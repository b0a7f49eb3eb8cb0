"""The reference manager and the reference scheduler."""
