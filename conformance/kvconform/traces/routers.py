"""Recorded KV events: the batches in which vLLM and SGLang announce to routers which blocks they hold.

A file has a message after the other, as a subscriber got them: either JSON Lines, or in a `.msgpack` file the three
frames of each (topic, number, payload) as an array. Its events have no pages: each batch is checked against the ones
before it. The fields of events are those of vLLM's and SGLang's `distributed/kv_events.py`; other fields are ignored.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import msgspec

from kvconform.errors import InputError
from kvconform.traces.codec import decode_line
from kvconform.traces.lines import Ended, Lines
from kvspec.memory.events import Announce, Pool
from kvtrace.header import VERSION, MemoryHeader

MSGPACK = ".msgpack"
"""The end of a file's name that has the frames themselves, with `.gz` or `.zst` behind it if it is compressed."""

LARGEST = 1 << 63
"""A number of a batch is less."""


class Events(NamedTuple):
    """A file of recorded KV events, to be checked by itself."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    def is_file(self) -> bool:
        """Whether it can be read a second time."""
        return self.path.is_file()


class Message(msgspec.Struct, forbid_unknown_fields=True):
    """One line: the number of a batch, its decoded payload `[time, events, rank]`, and its topic."""

    seq: int
    batch: list[Any]
    topic: str = ""


class BlockStored(msgspec.Struct, tag=True):
    """Blocks that a tier holds from now on, each the child of the one before. With drafters tokens may be pairs."""

    block_hashes: list[Any]
    token_ids: list[Any]
    block_size: int
    parent_block_hash: Any = None
    lora_id: Any = None
    medium: str | None = None
    lora_name: str | None = None
    cache_salt: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None

    @property
    def skips(self) -> bool:
        """Whether the parent may be gone: windows and recurrent states leave out blocks, as do vLLM's host tiers."""
        windowed = bool(self.kv_cache_spec_sliding_window) or self.kv_cache_spec_kind not in WHOLE
        return windowed or self.medium in PIECEMEAL


class BlockRemoved(msgspec.Struct, tag=True):
    """Blocks that a tier holds no longer."""

    block_hashes: list[Any]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """The engine holds no block any more."""


WHOLE = (None, "full_attention", "mla_attention", "sink_full_attention")
"""Kinds of cache of which every block is kept."""

PIECEMEAL = ("CPU", "STORAGE")
"""Tiers of vLLM that evict blocks without regard to the blocks that follow them."""

FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}
"""Fields in order, as older releases write events: `["BlockRemoved", [1, 2], "GPU"]`."""

_message = msgspec.json.Decoder(Message)
_payload = msgspec.msgpack.Decoder()


class Messages(Lines):
    """The messages of a `.msgpack` file, used like lines: arrays of three byte strings, of bounded length."""

    def read(self) -> bytes:
        """The next message; empty at the end."""
        first = self.stream.read(1)
        if not first:
            return b""
        if first != b"\x93":
            raise InputError(self.path, self.number, "no array of three frames: topic, number and payload")
        return first + b"".join(self._frame() for _ in range(3))

    def _frame(self) -> bytes:
        head = self._exactly(1)
        width = {0xC4: 1, 0xC5: 2, 0xC6: 4}.get(head[0])
        if width is None:
            raise InputError(self.path, self.number, "a frame that is no byte string")
        length = self._exactly(width)
        size = int.from_bytes(length, "big")
        if size > self.max_line:
            raise InputError(self.path, self.number, f"the message is longer than {self.max_line} bytes")
        return head + length + self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = self.stream.read(size)
        if len(found) < size:
            raise InputError(self.path, self.number, "truncated last message: the file ends in the middle of it")
        return found


class RouterReader:
    """Reads recorded KV events in bounded memory; a context manager and an iterator over `(line, announcement)`.

    Raises:
        InputError: the file, or a message of it, cannot be used. All before it has been yielded by then.
    """

    level: Literal["memory"] = "memory"

    def __init__(self, events: Events, *, follow: Ended | None = None) -> None:
        """Open the file; with `follow` wait at its end for more."""
        name = events.path.name.removesuffix(".gz").removesuffix(".zst")
        self._binary = name.endswith(MSGPACK)
        self.lines = (Messages if self._binary else Lines)(events.path, follow=follow)
        self.header = MemoryHeader(VERSION, "memory", "KV events", {"blocks": Pool(keyed=True)})

    def __enter__(self) -> "RouterReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lines.__exit__(kind, error, trace)

    def place(self, line: int) -> tuple[Path, int]:
        """The file and the line of the event that was read last."""
        return self.lines.path, line

    def __iter__(self) -> Iterator[tuple[int, Announce]]:
        """Each announcement. A batch has at least one, and the first has the batch's number."""
        for number, line in self.lines:
            path = self.lines.path
            message = self._unpacked(number, line) if self._binary else decode_line(_message, path, number, line)
            try:
                announced = [*announcements(message)]
            except (msgspec.ValidationError, ValueError) as error:
                raise InputError(path, number, str(error)) from error
            for event in announced:
                yield number, event
        if not self.lines.number - 1 and not self.lines.follows:
            raise InputError(self.lines.path, 1, "the file is empty")

    def _unpacked(self, number: int, line: bytes) -> Message:
        try:
            topic, seq, payload = _payload.decode(line)
            batch = msgspec.convert(_payload.decode(payload), list[Any])
            return Message(int.from_bytes(seq, "big"), batch, topic.decode())
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(self.lines.path, number, f"not msgpack: {error}") from error


def announcements(message: Message) -> Iterator[Announce]:
    """The announcements of one batch.

    Raises:
        ValueError: it is no batch, or one of its events is no event.
    """
    if not 0 <= message.seq < LARGEST:
        raise ValueError(f"seq is {message.seq}, not the number of a batch")
    if len(message.batch) < 2 or not isinstance(message.batch[1], list):
        raise ValueError("a batch is [time, events, rank]")
    rank = message.batch[2] if len(message.batch) > 2 else None
    host = "/".join(filter(None, [message.topic, f"rank {rank}" if rank else ""])) or None
    events = [_announced(event) for event in message.batch[1]] or [Announce()]
    for index, event in enumerate(events):
        event.host, event.batch = host, None if index else message.seq
        yield event


def _announced(raw: Any) -> Announce:
    """One event, tagged by its `type` or, in older releases, an array that begins with it."""
    if isinstance(raw, list):
        names = FIELDS.get(raw[0] if raw and isinstance(raw[0], str) else "")
        if names is None:
            raise ValueError(f"unknown event {raw[:1]}")
        raw = {"type": raw[0], **dict(zip(names, raw[1:], strict=False))}
    event = msgspec.convert(raw, BlockStored | BlockRemoved | AllBlocksCleared)
    match event:
        case AllBlocksCleared():
            return Announce(cleared=True)
        case BlockRemoved():
            return Announce(_tier(event), removed=[*map(_key, event.block_hashes)])
    stored = [*map(_key, event.block_hashes)]
    parent = None if event.parent_block_hash is None or event.skips else _key(event.parent_block_hash)
    # Where the tokens are not known any more there are none.
    return Announce(_tier(event), stored, parent, [*_contents(event, stored)] if stored and event.token_ids else None)


def _tier(event: BlockStored | BlockRemoved) -> str:
    """The medium, and the KV cache group if it is not the first."""
    return (event.medium or "GPU") + (f" group {event.group_idx}" if event.group_idx else "")


def _key(block: Any) -> str:
    """A block's hash: a number, bytes, or in JSON their hexadecimal digits."""
    if isinstance(block, bytes):
        return block.hex()
    if isinstance(block, (int, str)) and not isinstance(block, bool):
        return str(block)
    raise ValueError(f"a block hash is a number or a string, not {block!r}")


def _contents(event: BlockStored, stored: list[str]) -> Iterator[str]:
    """A label for each block, from its tokens, the block before and the tenant; none if the tokens do not fit."""
    size = event.block_size
    if size < 1:
        raise ValueError(f"block_size is {size}, less than 1")
    if len(event.token_ids) != size * len(stored):
        return
    extra = event.extra_keys or []
    before = None if event.parent_block_hash is None else _key(event.parent_block_hash)
    for index, block in enumerate(stored):
        whose = event.lora_name or event.lora_id, event.cache_salt, extra[index] if index < len(extra) else None
        tokens = event.token_ids[index * size : (index + 1) * size]
        content = repr((None if event.skips else before, size, tokens, whose))
        yield hashlib.blake2b(content.encode(), digest_size=8).hexdigest()
        before = block
