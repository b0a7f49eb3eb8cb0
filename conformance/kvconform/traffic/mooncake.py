"""Real traffic in the format of the Mooncake traces (kvcache-ai/Mooncake, FAST25-release).

One JSON object a line is one request:

    timestamp       when it came, in ms
    input_length    tokens of its prompt
    output_length   tokens that were sampled for it
    hash_ids        one id for each block of 512 prompt tokens, the last of which may be partial;
                    equal ids stand for equal prefixes up to the end of that block

There is no text. A block becomes 512 / page_size page keys, and tokens known by their number alone (the rest of a last
page, all outputs) become token ids that no other request has.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from kvconform.errors import InputError
from kvconform.traces.lines import Lines
from kvref.scheduler.req import GenerateReq
from kvspec.pages import ceil_align, ceil_pages
from kvspec.tokens import Element

BLOCK = 512
"""The number of tokens of a block."""
MIN_SHARED_BLOCKS = 2
"""The least full blocks that requests of one conversation share: all requests share the first, a system prompt."""

Count = Annotated[int, msgspec.Meta(ge=1, lt=2**31)]


class Entry(msgspec.Struct, frozen=True):
    """One line. Other fields are ignored."""

    timestamp: float
    input_length: Count
    output_length: Count
    hash_ids: list[int]


_entry = msgspec.json.Decoder(Entry)


def read(path: Path, limit: int | None = None) -> list[Entry]:
    """The first `limit` requests of a trace, or all.

    Raises:
        InputError: the file or a line of it is invalid.
    """
    entries: list[Entry] = []
    with Lines(path) as lines:
        for number, line in lines:
            if len(entries) == limit:
                break
            entries.append(_parse(path, number, line))
    if not entries:
        raise InputError(path, 1, "the file is empty")
    return entries


def _parse(path: Path, number: int, line: bytes) -> Entry:
    try:
        entry = _entry.decode(line)
    except msgspec.ValidationError as error:
        raise InputError(path, number, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not line.strip():
            raise InputError(path, number, "an empty line") from error
        if not line.endswith(b"\n"):
            raise InputError(path, number, "truncated last line: the file ends in the middle of it") from error
        raise InputError(path, number, f"not JSON: {str(error).removeprefix('JSON is malformed: ')}") from error
    blocks = ceil_pages(entry.input_length, BLOCK)
    if len(entry.hash_ids) != blocks:
        reason = f"input_length {entry.input_length} is {blocks} blocks of {BLOCK}, but there are {len(entry.hash_ids)}"
        raise InputError(path, number, f"{reason} hash_ids")
    return entry


def duration(entries: Sequence[Entry]) -> float:
    """Seconds from the first request to the last."""
    return (entries[-1].timestamp - entries[0].timestamp) / 1000


def previous_turns(entries: Sequence[Entry]) -> list[int | None]:
    """For each request the index of the earlier one that it continues.

    A request continues an earlier, shorter one if all full blocks of that one, at least `MIN_SHARED_BLOCKS`, begin its
    own; of several the longest, then the latest, and one that nothing continues yet, so that conversations are
    chains. In the conversation trace of the FAST'25 paper, 3,975 of 12,031 requests extend an earlier one; in 3,835
    chains do, the others being alternatives: a second continuation of the same request, or no longer than it.
    """
    prefixes: dict[tuple[int, int], int] = {}
    open_ends: dict[int, int] = {}
    previous: list[int | None] = []
    for index, entry in enumerate(entries):
        path = _path(prefixes, entry.hash_ids)
        found = None
        for prefix in reversed(path[MIN_SHARED_BLOCKS - 1 :]):
            earlier = open_ends.get(prefix)
            if earlier is not None and entries[earlier].input_length < entry.input_length:
                found = earlier
                del open_ends[prefix]
                break
        previous.append(found)
        full = entry.input_length // BLOCK
        if full >= MIN_SHARED_BLOCKS:
            open_ends[path[full - 1]] = index
    return previous


def _path(prefixes: dict[tuple[int, int], int], hash_ids: list[int]) -> list[int]:
    """A number for each prefix of `hash_ids`; equal prefixes get equal numbers."""
    path: list[int] = []
    parent = 0
    for hash_id in hash_ids:
        parent = prefixes.setdefault((parent, hash_id), len(prefixes) + 1)
        path.append(parent)
    return path


def requests(entries: Sequence[Entry], page_size: int, *, sessions: bool) -> Iterator[GenerateReq]:
    """The requests, one by one. With `sessions` requests that continue an earlier one are turns of a session.

    `page_size` divides `BLOCK`.
    """
    previous: list[int | None] = previous_turns(entries) if sessions else [None] * len(entries)
    continued = {index for index in previous if index is not None}
    session_of: dict[int, str] = {}
    histories: dict[int, tuple[list[Element], int]] = {}
    for index, entry in enumerate(entries):
        before = previous[index]
        history, known = histories.pop(before) if before is not None else ([], 0)
        length = max(entry.input_length, known + 1)
        first_id = index << 32
        tokens = history + _rest(entry, page_size, first_id, known, length)
        outputs = range(first_id + length, first_id + length + entry.output_length)
        session = None
        if before is not None or index in continued:
            session = session_of.pop(before) if before is not None else f"s{index + 1}"
        if session is not None and index in continued:
            session_of[index] = session
            histories[index] = [*tokens, *outputs], length + entry.output_length
        yield GenerateReq(f"r{index + 1}", tokens, outputs, session, last_turn=index not in continued)


def _rest(entry: Entry, page_size: int, first_id: int, start: int, end: int) -> list[Element]:
    """The tokens of positions `[start, end)` of a prompt; `start` is the length of its session's history.

    [start, border)      own ids: the history's outputs end in the middle of a page
    [border, whole)      page keys: the whole pages of the prompt
    [whole, end)         own ids
    """
    border = min(ceil_align(start, page_size), end)
    whole = max(border, entry.input_length - entry.input_length % page_size)
    pages_a_block = BLOCK // page_size
    suffixes = [f".{page}" for page in range(pages_a_block)]
    first_block = border // BLOCK
    names = map(str, entry.hash_ids[first_block:])
    keys = [name + suffix for name in names for suffix in suffixes]
    skipped = first_block * pages_a_block
    rest: list[Element] = [*range(first_id + start, first_id + border)]
    rest += keys[border // page_size - skipped : whole // page_size - skipped]
    rest += range(first_id + whole, first_id + end)
    return rest
