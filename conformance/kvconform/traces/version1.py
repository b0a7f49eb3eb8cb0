"""Format version 1, in which the memory level had other names for three events and four fields."""

from typing import Any

import msgspec

_EVENTS = {"learn": "unify", "pass_on": "transfer", "leave": "end_holder"}
_FIELDS = {
    "sinks": "padding",
    "writes_told": "writes_reported",
    "sees_own": "reads_own_writes",
    "may": "at_most",
}
_OLD = tuple(f'"{name}"'.encode() for name in (*_EVENTS, *_FIELDS))
_PARTS = ("reads", "writes", "copies", "unwritten")
"""The fields of events with lists of uses."""


def upgraded(line: bytes) -> bytes:
    """Convert a line of a memory-level file of version 1 to version 2; a line that is no object stays the same."""
    if not any(name in line for name in _OLD):
        return line
    try:
        read = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line
    if not isinstance(read, dict):
        return line
    if isinstance(pools := read.get("pools"), dict):
        read["pools"] = {name: _renamed(pool) for name, pool in pools.items()}
    for name in _PARTS:
        if name in read:
            read[name] = _uses(read[name])
    if isinstance(tag := read.get("op"), str):
        read["op"] = _EVENTS.get(tag, tag)
    return msgspec.json.encode(_renamed(read)) + b"\n"


def _uses(read: Any) -> Any:
    """Uses, or pairs of uses, with their fields renamed."""
    return [_uses(one) for one in read] if isinstance(read, list) else _renamed(read)


def _renamed(read: Any) -> Any:
    """An object with its own fields renamed. The names of pools, holders and labels are values, and stay the same."""
    return {_FIELDS.get(name, name): value for name, value in read.items()} if isinstance(read, dict) else read
