"""Bad input ends with one line that names file, line and reason, and with exit status 2."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvcli.main import run_command
from kvconform.errors import InputError
from kvconform.traces.codec import TraceReader, read_vector
from kvconform.traces.lines import Lines
from tests.conformance.helpers import HEADER, LIFE, RECORDED, VECTOR, lines, write


def header(**changes: Any) -> dict[str, Any]:
    return HEADER | changes


def sizes(**changes: Any) -> dict[str, Any]:
    return HEADER | {"config": HEADER["config"] | changes}


BAD_TRACES: dict[str, tuple[bytes, int, str]] = {
    "empty file": (b"", 1, "the file is empty"),
    "header only": (lines(HEADER), 1, "no operation follows the header"),
    "not JSON": (lines(HEADER) + b"submit r\n", 2, "not JSON: invalid character (byte 0)"),
    "cut off within a line": (lines(HEADER) + b'{"op":"evict"\n', 2, "not JSON: Input data was truncated"),
    "two values on a line": (lines(HEADER) + b"{} {}\n", 2, "Object missing required field `op`"),
    "binary junk": (b"\x00\x93\xff\xfe\n", 1, "not JSON: invalid character (byte 0)"),
    "text that is not UTF-8": (
        lines(HEADER) + b'{"op":"finish","req":"\xff"}\n',
        2,
        "not JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    "nested without end": (
        b'{"kvspec":2,"x":' + b"[" * 100_000 + b"\n",
        1,
        "not JSON: maximum recursion depth exceeded while deserializing an object",
    ),
    "an empty line": (lines(HEADER, RECORDED[0]) + b"\n" + lines(RECORDED[1]), 3, "an empty line"),
    "no header": (lines(RECORDED[0]), 1, "Object missing required field `kvspec`"),
    "another version": (lines(header(kvspec=3, new=3)), 1, "format version 3, but only versions 1 to 2 are known"),
    "unknown field in the header": (lines(header(vers=3)), 1, "Object contains unknown field `vers`"),
    "unknown rule in the header": (lines(header(rules=["ROW-99"])), 1, "unknown rule 'ROW-99'"),
    "no pages": (lines(sizes(num_pages=0)), 1, "num_pages is 0, not in 1..2147483647"),
    "negative page size": (lines(sizes(page_size=-4)), 1, "page_size is -4, not in 1..2147483647"),
    "less than no rows": (lines(sizes(num_rows=-1)), 1, "num_rows is -1, not in 0..2147483647"),
    "no context": (lines(sizes(max_context_len=0)), 1, "max_context_len is 0, not in 1..2147483647"),
    "absurd size": (lines(sizes(num_pages=10**12)), 1, "num_pages is 1000000000000, not in 1..2147483647"),
    "unknown operation": (lines(HEADER, {"op": "steal", "obs": {}}), 2, "unknown operation 'steal'"),
    "missing field": (lines(HEADER, {"op": "finish", "obs": {}}), 2, "Object missing required field `req`"),
    "wrong type": (
        lines(HEADER, {"op": "evict", "n": "3", "obs": {"evicted": []}}),
        2,
        "Expected `int`, got `str` - at `$.n`",
    ),
    "unknown field": (
        lines(HEADER, {"op": "finish", "req": "r", "obs": {"free": []}}),
        2,
        "Object contains unknown field `free` - at `$.obs`",
    ),
    "no answer": (
        lines(HEADER, LIFE[0]),
        2,
        "the operation has no answer (obs) and no refusal (refused), as in a vector: see 'kvspec run'",
    ),
    "answer and refusal": (
        lines(HEADER, RECORDED[0] | {"refused": {}}),
        2,
        "the operation has both obs and refused",
    ),
    "expect line": (
        lines(HEADER, RECORDED[0], {"op": "expect", "refused": "OP-1"}),
        3,
        "an expect line belongs in a vector, not in a trace",
    ),
    "padding page": (lines(HEADER, LIFE[5] | {"obs": {"freed": [0]}}), 2, "page 0 is not in 1..16"),
    "page past the pool": (lines(HEADER, LIFE[5] | {"obs": {"freed": [17]}}), 2, "page 17 is not in 1..16"),
    "run past the pool": (lines(HEADER, LIFE[5] | {"obs": {"freed": [[16, 2]]}}), 2, "page 17 is not in 1..16"),
    "endless run": (
        lines(HEADER, LIFE[5] | {"obs": {"freed": [[1, 10**15]]}}),
        2,
        "page 1000000000000000 is not in 1..16",
    ),
    "empty run": (lines(HEADER, LIFE[5] | {"obs": {"freed": [[3, 0]]}}), 2, "a run of 0 pages"),
    "more pages than there are": (
        lines(HEADER, LIFE[5] | {"obs": {"freed": [[1, 16], 1]}}),
        2,
        "17 pages are listed, but there are only 16",
    ),
    "page of an extend": (lines(HEADER, LIFE[2] | {"obs": {"pages": {"r": [99]}}}), 2, "page 99 is not in 1..16"),
    "page of a decode": (
        lines(HEADER, {"op": "decode", "reqs": ["r"], "obs": {"pages": {"r": [99]}}}),
        2,
        "page 99 is not in 1..16",
    ),
    "page of a match": (lines(HEADER, LIFE[1] | {"obs": {"freed": [99]}}), 2, "page 99 is not in 1..16"),
    "page of a publish": (
        lines(HEADER, {"op": "cache_unfinished", "req": "r", "obs": {"freed": [99]}}),
        2,
        "page 99 is not in 1..16",
    ),
    "evicted page": (lines(HEADER, {"op": "evict", "n": 1, "obs": {"evicted": [99]}}), 2, "page 99 is not in 1..16"),
    "row": (lines(HEADER, LIFE[2] | {"obs": {"rows": {"r": 2}}}), 2, "row 2 is not in 0..1"),
    "row of a snapshot": (lines(HEADER, {"op": "snapshot", "obs": {"rows": {"2": []}}}), 2, "row 2 is not in 0..1"),
    "slot of a snapshot": (
        lines(HEADER, {"op": "snapshot", "obs": {"rows": {"0": [3]}}}),
        2,
        "slot 3 is not in 4..67",
    ),
    "free page of a snapshot": (
        lines(HEADER, {"op": "snapshot", "obs": {"free_pages": [99]}}),
        2,
        "page 99 is not in 1..16",
    ),
    "row of a holder": (
        lines(
            HEADER,
            {
                "op": "snapshot",
                "obs": {"sessions": {"s": {"row": -1, "protected_len": 0, "committed_len": 0, "allocated_len": 0}}},
            },
        ),
        2,
        "row -1 is not in 0..1",
    ),
    "length of a holder": (
        lines(
            HEADER,
            {
                "op": "snapshot",
                "obs": {"requests": {"r": {"row": 0, "protected_len": 0, "committed_len": -1, "allocated_len": 0}}},
            },
        ),
        2,
        "committed_len of r is -1, less than 0",
    ),
    "negative length": (lines(HEADER, LIFE[1] | {"obs": {"prefix_len": -1}}), 2, "prefix_len is -1, less than 0"),
    "a cursor without a window": (
        lines(HEADER, {"op": "cache_unfinished", "req": "r", "obs": {"evicted_len": 4}}),
        2,
        "evicted_len is given, but these sizes have no sliding window",
    ),
    "negative seq_len": (
        lines(HEADER, {"op": "extend", "reqs": [["r", -6]], "obs": {}}),
        2,
        "seq_len of r is -6, less than 0",
    ),
    "negative count": (lines(HEADER, {"op": "evict", "n": -1, "obs": {"evicted": []}}), 2, "n is -1, less than 0"),
    "negative accepted": (
        lines(HEADER, {"op": "verify", "req": "r", "accepted": -1, "tokens": [], "obs": {}}),
        2,
        "accepted is -1, less than 0",
    ),
    "negative shortage": (
        lines(HEADER, LIFE[2] | {"refused": {"pages_short": -1}}),
        2,
        "pages_short is -1, less than 0",
    ),
    "unknown rule of a refusal": (lines(HEADER, LIFE[2] | {"refused": {"rule": "X"}}), 2, "unknown rule 'X'"),
    "truncated header": (
        json.dumps(HEADER).encode()[:-1],
        1,
        "truncated last line: the file ends in the middle of it",
    ),
    "truncated last line": (
        lines(HEADER, *RECORDED)[:-5],
        7,
        "truncated last line: the file ends in the middle of it",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("content", "line", "reason"), BAD_TRACES.values(), ids=BAD_TRACES.keys())
def test_a_bad_trace_is_refused_with_one_line(
    content: bytes, line: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(content)
    assert run_command(["check", str(path)]) == 2
    assert capsys.readouterr() == ("", f"kvspec: {path}:{line}: {reason}\n")


BAD_VECTORS: dict[str, tuple[list[dict[str, Any]], int, str]] = {
    "an expectation of a recorded trace": (
        [HEADER, RECORDED[0], {"op": "expect", "refused": "OP-1"}],
        3,
        "an expect line needs a description and rules in the header",
    ),
    "no rules": (
        [HEADER | {"description": "x"}, *LIFE],
        1,
        "the header of a vector has a description and names rules",
    ),
    "header only": ([VECTOR], 1, "no operation follows the header"),
    "an answer": ([VECTOR, RECORDED[0]], 2, "an operation of a vector has no answer: the implementation gives it"),
    "a refusal": (
        [VECTOR, LIFE[0] | {"refused": {}}],
        2,
        "an operation of a vector has no answer: the implementation gives it",
    ),
    "expect first": (
        [VECTOR, {"op": "expect", "refused": "OP-1"}],
        2,
        "an expect line follows an operation, not the header",
    ),
    "expect twice": (
        [VECTOR, LIFE[0], {"op": "expect", "refused": "OP-1"}, {"op": "expect", "refused": "OP-1"}],
        4,
        "a second expect line for the same operation",
    ),
    "expects nothing": ([VECTOR, LIFE[0], {"op": "expect"}], 3, "the expect line expects nothing"),
    "expects an unknown rule": (
        [VECTOR, LIFE[0], {"op": "expect", "refused": "ROW-9"}],
        3,
        "unknown rule 'ROW-9'",
    ),
    "expects both": (
        [VECTOR, LIFE[1], {"op": "expect", "refused": "OP-1", "answer": {"prefix_len": 0}}],
        3,
        "an operation that is refused has no answer to expect",
    ),
    "expects what is not answered": (
        [VECTOR, LIFE[5], {"op": "expect", "answer": {"prefix_len": 0}}],
        3,
        "the answer of finish has no prefix_len",
    ),
    "shortage without a capacity miss": (
        [VECTOR, LIFE[2], {"op": "expect", "refused": "OP-1", "pages_short": 2}],
        3,
        "pages_short, rows_short, window_short, states_short belong to a refusal by CAP-1",
    ),
    "rows after a finish": (
        [VECTOR, LIFE[5], {"op": "expect", "same_row": {"r": "r"}}],
        3,
        "rows can only be compared after an extend",
    ),
    "page out of range": ([VECTOR, LIFE[0], {"op": "evict", "n": -2}], 3, "n is -2, less than 0"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("content", "line", "reason"), BAD_VECTORS.values(), ids=BAD_VECTORS.keys())
def test_a_bad_vector_is_refused_with_one_line(
    content: list[dict[str, Any]], line: int, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "vector.jsonl", *content)
    assert run_command(["run", str(path)]) == 2
    assert capsys.readouterr() == ("", f"kvspec: {path}:{line}: {reason}\n")


def test_all_before_a_truncated_last_line_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.jsonl"
    leaked = RECORDED[5] | {"obs": {"freed": []}}
    path.write_bytes(lines(HEADER, *RECORDED[:5], leaked) + b'{"op":"sub')
    assert run_command(["check", str(path)]) == 1
    assert f"PAGE-1 is broken at {path}:7, finish" in capsys.readouterr().out


def test_a_last_line_without_line_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines(HEADER, *RECORDED)[:-1])
    assert run_command(["check", str(path)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_an_endless_line_is_not_read_whole(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"trace.jsonl{suffix}"
    content = lines(HEADER) + b'{"op":"finish","req":"' + b"r" * 50_000_000
    pack: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
    path.write_bytes(pack[suffix](content))
    with Lines(path, max_line=1000) as opened:
        with pytest.raises(InputError, match=r"trace\.jsonl.*:2: the line is longer than 1000 bytes$"):
            list(opened)
        if not suffix:
            assert opened.bytes_read() < 100_000
    with pytest.raises(InputError, match=":2: the line is longer"), TraceReader(path, max_line=1000) as trace:
        list(trace)
    with pytest.raises(InputError, match=":1: the line is longer than 10 bytes"):
        read_vector(path, max_line=10)


def test_a_line_as_long_as_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"x" * 999 + b"\n")
    with Lines(path, max_line=1000) as opened:
        assert [number for number, _ in opened] == [1]


@pytest.mark.parametrize(
    ("suffix", "content", "reason"),
    [
        (".gz", b"no gzip", "damaged .gz data: Not a gzipped file (b'no')"),
        (
            ".gz",
            gzip.compress(lines(HEADER, *RECORDED))[:-12],
            "damaged .gz data: Compressed file ended before the end-of-stream marker was reached",
        ),
        (".zst", b"no zstandard", "damaged .zst data: zstd decompressor error: Unknown frame descriptor"),
        (
            ".zst",
            zstandard.compress(lines(HEADER, *RECORDED))[:-1],
            "damaged .zst data: the file ends in the middle of a frame",
        ),
    ],
)
def test_damaged_compression_is_reported(
    suffix: str, content: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"trace.jsonl{suffix}"
    path.write_bytes(content)
    assert run_command(["check", str(path)]) == 2
    reported = capsys.readouterr().err
    assert reported.startswith(f"kvspec: {path}:")
    assert reported.endswith(f": {reason}\n")


def test_a_zstandard_frame_cut_off_at_a_line_end_is_noticed(tmp_path: Path) -> None:
    recorder = zstandard.ZstdCompressor().compressobj()
    written = recorder.compress(lines(HEADER, *RECORDED)) + recorder.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    path = tmp_path / "crashed.zst"
    path.write_bytes(written)
    with pytest.raises(InputError, match="ends in the middle of a frame"), TraceReader(path) as trace:
        list(trace)


@pytest.mark.parametrize(
    ("command", "name", "reason"),
    [
        ("run", "none.jsonl", "No such file or directory"),
        ("check", "none.jsonl", "No such file or directory"),
        ("run", ".", "there are no vectors in this folder"),
        ("check", ".", "Is a directory"),
    ],
)
def test_a_path_that_is_no_file_is_reported(
    command: str, name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([command, str(tmp_path / name)]) == 2
    assert capsys.readouterr() == ("", f"kvspec: {tmp_path / name}: {reason}\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "trace.jsonl", HEADER, *RECORDED)
    path.chmod(0)
    assert run_command(["check", str(path)]) == 2
    assert capsys.readouterr().err == f"kvspec: {path}: Permission denied\n"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["steal"], "No such command 'steal'."),
        (["run", "--zzz"], "No such option: --zzz"),
        (["check"], "Missing argument 'TRACE'."),
        (["rules", "ROW-99"], "Invalid value: no rule 'ROW-99'; 'kvspec rules' lists them; did you mean 'ROW-4'?"),
        (["run", "--impl", "mine"], "no implementation 'mine': give reference, cuda, module:Class or exec:COMMAND"),
        (
            ["run", "--impl", "no_such_engine:Adapter"],
            "implementation 'no_such_engine:Adapter' cannot be imported: "
            "ModuleNotFoundError: No module named 'no_such_engine'",
        ),
        (
            ["run", "--impl", "json:nothing"],
            "implementation 'json:nothing' cannot be imported: "
            "AttributeError: module 'json' has no attribute 'nothing'",
        ),
        (
            ["run", "--impl", "json:__name__"],
            "implementation 'json:__name__' is no class: it cannot be called with a Config",
        ),
    ],
)
def test_a_wrong_call_is_reported(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(arguments) == 2
    assert capsys.readouterr() == ("", f"kvspec: {reason}\n")


def test_a_class_that_lacks_operations_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--impl", "json:JSONDecoder"]) == 2
    assert "lacks open_session, submit, match_prefix, extend" in capsys.readouterr().err


class Plain:
    lacks = frozenset({"sessions", "speculative"})

    def submit(self) -> None: ...
    def match_prefix(self) -> None: ...


def test_what_a_class_says_it_lacks_it_need_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", "--impl", f"{__name__}:Plain"]) == 2
    said = capsys.readouterr().err
    assert f"'{__name__}:Plain' lacks extend, decode, launch, complete, " in said
    assert not {"open_session", "close_session,", "preempt,", "verify,"} & set(said.split())


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = write(tmp_path / "v.jsonl", VECTOR, *LIFE)
    assert run_command(["run", str(vector), "--record", str(vector)]) == 2
    assert capsys.readouterr() == ("", f"kvspec: {vector}: File exists\n")


def test_no_control_character_of_a_file_reaches_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "v.jsonl", HEADER, {"op": "\x1b[31m"})
    assert run_command(["check", str(path)]) == 2
    assert "\x1b" not in capsys.readouterr().err
    path = write(tmp_path / "v.jsonl", HEADER, LIFE[1] | {"req": "\x1b[31m", "obs": {}})
    assert run_command(["check", str(path)]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_one_bad_trace_does_not_keep_the_others_from_being_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = write(tmp_path / "empty.jsonl")
    broken = write(tmp_path / "broken.jsonl", HEADER, *RECORDED[:5], RECORDED[5] | {"obs": {"freed": []}})
    good = write(tmp_path / "good.jsonl", HEADER, *RECORDED)
    assert run_command(["check", str(empty), str(good)]) == 2
    assert f"{good}: conforms, 6 operations checked." in capsys.readouterr().out
    assert run_command(["check", str(empty), str(broken), str(good)]) == 1
