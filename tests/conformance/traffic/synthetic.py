"""Made traffic in the format of `kvconform.traffic.mooncake`, small enough for a test."""

import random
from pathlib import Path

import msgspec

from kvconform.traffic.mooncake import BLOCK, Entry
from kvspec.pages import ceil_pages

MAX_PROMPT_BLOCKS = 6
"""Conversations end once their prompt is longer than so many blocks."""
MAX_GOING = 6
"""Conversations that go on at a time; older ones are over."""


def conversations(count: int, seed: int) -> list[Entry]:
    """`count` requests that share a system prompt of one block; about half of them continue an earlier one."""
    draw = random.Random(seed)
    blocks = 1
    going: list[Entry] = []
    entries: list[Entry] = []
    for index in range(count):
        known, length = [0], BLOCK
        if going and draw.random() < 0.6:
            earlier = going.pop(draw.randrange(len(going)))
            known = earlier.hash_ids[: earlier.input_length // BLOCK]
            length = earlier.input_length + earlier.output_length
        length += draw.randint(1, BLOCK)
        fresh = ceil_pages(length, BLOCK) - len(known)
        entry = Entry(index * 250, length, draw.randint(1, 300), [*known, *range(blocks, blocks + fresh)])
        blocks += fresh
        entries.append(entry)
        if len(entry.hash_ids) <= MAX_PROMPT_BLOCKS:
            going = [*going[1 - MAX_GOING :], entry]
    return entries


def write(path: Path, entries: list[Entry]) -> Path:
    """Write a trace and return its path."""
    path.write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
    return path
