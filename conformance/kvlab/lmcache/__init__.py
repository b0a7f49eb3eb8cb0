"""LMCache from an unpacked wheel: its own engine, pool and disk, between the stub of a serving engine and files."""
