"""LMCache from an unpacked wheel: its own engine, pool and disk, between a stand-in of a serving engine and files."""
