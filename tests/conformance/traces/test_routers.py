"""Recorded KV events: what each kind of wrong stream shows, in each form of file; and bad input."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvcheck import Checker
from kvcli.main import run_command
from kvconform.traces.routers import Events, RouterReader


def stored(block: Any, parent: Any = None, tokens: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    """A block of four tokens."""
    event = {"type": "BlockStored", "block_hashes": [block], "parent_block_hash": parent, "block_size": 4}
    return event | {"token_ids": tokens or [1, 2, 3, 4], "lora_id": None, "medium": "GPU"} | more


def removed(*blocks: Any, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [*blocks], "medium": "GPU"} | more


CLEARED = {"type": "AllBlocksCleared"}

Batch = tuple[int, list[Any]]
BASE: list[Batch] = [(0, [stored(1), stored(2, 1, group_idx=0)]), (1, [])]
STREAMS: dict[str, tuple[list[Batch], list[tuple[str, int]]]] = {
    "nothing wrong": ([(0, [stored(1), stored(2, 1)]), (1, [removed(1), stored(1)]), (2, [CLEARED, stored(1)])], []),
    "stored twice": ([*BASE, (2, [stored(2, 1)])], [("twice", 3)]),
    "two contents": ([*BASE, (2, [stored(2, 1, [9, 9, 9, 9])])], [("content", 3)]),
    "two sizes": ([*BASE, (2, [stored(2, 1, [1, 2], block_size=2)])], [("content", 3)]),
    "two adapters": ([*BASE, (2, [stored(1, lora_name="a")])], [("content", 3)]),
    "two parents": ([*BASE, (2, [stored(2)])], [("content", 3)]),
    "tokens that do not fill the blocks": (
        [(0, [stored(1, None, [1, 2])]), (1, [stored(2, None, [1] * 8)])],
        [("content", 1), ("content", 2)],
    ),
    "removed without being stored": ([*BASE, (2, [removed(1, 3)])], [("not-announced", 3)]),
    "cleared, and then removed": ([*BASE, (2, [CLEARED]), (3, [removed(1)])], [("not-announced", 4)]),
    "another tier": ([*BASE, (2, [stored(1, medium="CPU")]), (3, [removed(2, medium="CPU")])], [("not-announced", 4)]),
    "another group": ([*BASE, (2, [removed(2, group_idx=1)])], [("not-announced", 3)]),
    "an orphan": ([*BASE, (2, [stored(3, 7)])], [("orphan", 3)]),
    "a window, whose blocks are not all kept": (
        [(0, [stored(3, 7, kv_cache_spec_sliding_window=8)]), (1, [stored(4, 8, kv_cache_spec_kind="mamba")])],
        [],
    ),
    "a tier that keeps no parents, and blocks whose tokens are not known": (
        [(0, [stored(3, 7, medium="CPU"), stored(4, 8, medium="STORAGE", kv_cache_spec_kind="full_attention")])],
        [],
    ),
    "no tokens": ([(0, [stored(1) | {"token_ids": []}]), (1, [removed(1)]), (2, [stored(1)])], []),
    "a gap, which explains much": (
        [*BASE, (3, [removed(9), stored(5, 8), stored(1)]), (4, [stored(1)]), (5, [CLEARED]), (6, [removed(1)])],
        [("gap", 3), ("twice", 4), ("not-announced", 6)],
    ),
    "a doubled batch": ([*BASE, (2, [removed(1)]), (2, [removed(1)]), (3, [stored(1)])], [("again", 4)]),
    "two batches that change places": ([*BASE, (3, []), (2, [removed(1)]), (4, [])], [("gap", 3), ("late", 4)]),
    "a restart": ([*BASE, (0, [stored(1)]), (1, [removed(1)])], []),
    "an older release": (
        [(0, [["BlockStored", [1, 2], None, [1] * 8, 4, None, "GPU"]]), (1, [["BlockRemoved", [1, 3], "GPU"]])],
        [("not-announced", 2)],
    ),
    "bigrams, and bytes as hashes": (
        [(0, [stored("ab", None, [[1, 2], [2, 3], [3, 4], [4, 5]])]), (1, [removed("ab", "ac")])],
        [("not-announced", 2)],
    ),
}


def written(path: Path, batches: list[Batch], rank: int = 0) -> Path:
    """A file of batches, in the form that its name asks for."""
    with path.open("wb") as file:
        for seq, events in batches:
            batch = [0.5, events, rank]
            if path.suffix == ".msgpack":
                file.write(msgspec.msgpack.encode([b"kv", seq.to_bytes(8, "big"), msgspec.msgpack.encode(batch)]))
            else:
                file.write(json.dumps({"seq": seq, "batch": batch}).encode() + b"\n")
    return path


def found(path: Path) -> list[tuple[str, int]]:
    """The case and the line of each finding."""
    with RouterReader(Events(path)) as reader:
        checker = Checker(reader.header.pools)
        return [(one.code.removeprefix("MEM-ANNOUNCE/"), line) for line, event in reader for one in checker.step(event)]


@pytest.mark.parametrize("suffix", ["jsonl", "msgpack"])
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_shows(name: str, suffix: str, tmp_path: Path) -> None:
    batches, due = STREAMS[name]
    assert found(written(tmp_path / f"events.{suffix}", batches)) == due


def test_ranks_and_topics_are_distinguished(tmp_path: Path) -> None:
    lines = [{"seq": 0, "batch": [0.5, [stored(1)], rank], "topic": topic} for rank in (0, 1) for topic in ("a", "b")]
    path = tmp_path / "events.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with RouterReader(Events(path)) as reader:
        assert [event.host for _, event in reader] == ["a", "b", "a/rank 1", "b/rank 1"]
    assert found(path) == []


def test_what_is_forgotten_does_not_count(tmp_path: Path) -> None:
    """Only blocks that are alive are remembered."""
    batches: list[Batch] = [(seq, [stored(seq), *([removed(seq - 1)] if seq else [])]) for seq in range(50)]
    with RouterReader(Events(written(tmp_path / "events.jsonl", batches))) as reader:
        checker = Checker(reader.header.pools)
        assert [finding for _, event in reader for finding in checker.step(event)] == []
    (tier,) = checker.state.announced[None].tiers.values()
    assert [*tier.blocks] == ["49"] and not tier.removed and not tier.stored


def message(batch: Any, seq: Any = 0) -> bytes:
    return json.dumps({"seq": seq, "batch": batch}).encode() + b"\n"


GOOD = message([0.5, [stored(1)], 0])
FRAMES = msgspec.msgpack.encode([b"", bytes(8), msgspec.msgpack.encode([0.5, [], 0])])
BAD: dict[str, tuple[str, bytes, int, str]] = {
    "empty file": ("e.jsonl", b"", 1, "the file is empty"),
    "an empty binary file": ("e.msgpack", b"", 1, "the file is empty"),
    "not JSON": ("e.jsonl", GOOD + b"seq 1\n", 2, "not JSON: invalid character (byte 0)"),
    "cut off": ("e.jsonl", GOOD + GOOD[:30], 2, "truncated last line: the file ends in the middle of it"),
    "another file": ("e.jsonl", b'{"kvspec": 2}\n', 1, "Object contains unknown field `kvspec`"),
    "no number": ("e.jsonl", message([0.5, []], -1), 1, "seq is -1, not the number of a batch"),
    "a number past all": (
        "e.jsonl",
        message([0.5, []], 1 << 63),
        1,
        "seq is 9223372036854775808, not the number of a batch",
    ),
    "no batch": ("e.jsonl", message([0.5]), 1, "a batch is [time, events, rank]"),
    "no events": ("e.jsonl", message([0.5, 3]), 1, "a batch is [time, events, rank]"),
    "an unknown event": ("e.jsonl", message([0.5, [["BlockMoved", 3]]]), 1, "unknown event ['BlockMoved']"),
    "an unknown type": ("e.jsonl", message([0.5, [{"type": "Moved"}]]), 1, "Invalid value 'Moved' - at `$.type`"),
    "no hashes": (
        "e.jsonl",
        message([0.5, [{"type": "BlockRemoved"}]]),
        1,
        "Object missing required field `block_hashes`",
    ),
    "a hash that is none": (
        "e.jsonl",
        message([0.5, [removed(1.5)]]),
        1,
        "a block hash is a number or a string, not 1.5",
    ),
    "no size": ("e.jsonl", message([0.5, [stored(1, block_size=0)]]), 1, "block_size is 0, less than 1"),
    "another binary file": ("e.msgpack", FRAMES + b"x", 2, "no array of three frames: topic, number and payload"),
    "no frames": ("e.msgpack", b"\x93\x01\x02\x03", 1, "a frame that is no byte string"),
    "frames cut off": ("e.msgpack", FRAMES[:-1], 1, "truncated last message: the file ends in the middle of it"),
    "a frame past all": ("e.msgpack", b"\x93\xc6\xff\xff\xff\xff", 1, "the message is longer than 67108864 bytes"),
    "no payload": (
        "e.msgpack",
        msgspec.msgpack.encode([b"", bytes(8), b"\xc1"]),
        1,
        "not msgpack: MessagePack data is malformed: invalid opcode '\\xc1' (byte 0)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, content, line, reason = BAD[name]
    (tmp_path / file).write_bytes(content)
    assert run_command(["check", "--kv-events", str(tmp_path / file)]) == 2
    assert capsys.readouterr().err == f"kvspec: {tmp_path / file}:{line}: {reason}\n"


def test_the_command_ends_with_its_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = written(tmp_path / "good.msgpack", STREAMS["nothing wrong"][0])
    bad = written(tmp_path / "bad.jsonl", STREAMS["an orphan"][0])
    assert run_command(["check", "--kv-events", str(good)]) == 0
    assert run_command(["check", "--kv-events", str(good), str(bad), "--jobs", "2"]) == 1
    assert f"MEM-ANNOUNCE is broken at {bad}:3, announce" in capsys.readouterr().out
    assert run_command(["check", "--kv-events", "--merge", str(good)]) == 2
