"""The first line of a memory-level file, and the version of the format."""

from typing import Literal

import msgspec

from kvspec.memory.events import Pool

VERSION = 2
"""The written version of the format."""

encode = msgspec.json.Encoder().encode
"""Encodes one line of a file, without the line end."""


class MemoryHeader(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The first line of a memory-level file."""

    kvspec: int
    """The version of the format."""
    level: Literal["memory"]
    producer: str
    """The producer of the file: an engine and its version, or a vector collection."""
    pools: dict[str, Pool]
    host: str | None = None
    """The host of all events, where each host has a file of its own: `kvspec merge` joins them."""
    description: str | None = None
    """Vectors only: the scenario, and the defect that it would show."""
    rules: list[str] = []
    """Vectors only: the ids of the rules that it exercises."""
    source: str | None = None
    """Vectors only: the document that it comes from."""
