"""Trace files of the memory level: JSON Lines, a header that names the pools, and then one event a line."""

from typing import Literal

import msgspec

from kvspec.memory.events import Pool


class MemoryHeader(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The first line of a memory-level file."""

    kvspec: int
    """The version of the format."""
    level: Literal["memory"]
    producer: str
    """Who wrote the file: an engine and its version, or a person's vector collection."""
    pools: dict[str, Pool]
