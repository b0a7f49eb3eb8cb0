"""The recorder: what it writes, and what it makes of a loop over SGLang's own classes."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvattach.recorder import NotRecordable, record
from kvattach.recorder.ledger import Ledger, Prefill
from kvattach.recorder.slots import NoRoom, Ring
from kvattach.recorder.tokens import Hidden, as_they_are
from kvconform.proxy import RuleBroken
from kvconform.traces.codec import TraceReader
from kvconform.vectors.runner import Outcome
from kvlab import releases as engines
from kvspec.events import EVENTS, Config, Evict, EvictAnswer, OpenSession
from kvspec.tokens import Tokens
from kvtrace.header import encode
from kvtrace.operations import Header
from kvtrace.sink import Line, Sink
from tests.conformance.helpers import check_trace

LOOP = Path(__file__).parents[2] / "conformance" / "examples" / "sglang_loop.py"
HEADER = Header(1, "test", Config(4, 16, 4, 64))


def sink(path: Path, **sizes: int) -> Sink:
    return Sink(path, **{"part_bytes": 1 << 20, "max_bytes": 1 << 30, "keep": 2, "max_waiting": 1000} | sizes)


def lines(path: Path) -> list[Any]:
    with TraceReader(path) as trace:
        return [op for _, op in trace]


def opened(name: str) -> Line:
    return lambda: encode(OpenSession(name))


def outcome(path: Path) -> Outcome:
    with TraceReader(path) as trace:
        return check_trace(trace)


# Files


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.zst", "t.jsonl.gz"])
def test_what_is_put_is_written(tmp_path: Path, name: str) -> None:
    out = sink(tmp_path / name)
    out.begin(HEADER)
    for number in range(100):
        out.put(partial(encode, Evict(1, obs=EvictAnswer([number % 16 + 1]))))
    out.close()
    (path,) = out.files
    assert path.name == name.replace("t.", "t.001.")
    assert [op.obs.evicted for op in lines(path)] == [[number % 16 + 1] for number in range(100)]


@pytest.mark.slow
def test_a_recording_goes_on_in_parts_that_are_one_trace_together(tmp_path: Path) -> None:
    out = sink(tmp_path / "t.jsonl.zst", part_bytes=200)
    out.begin(HEADER)
    for number in range(30):
        out.put(partial(encode, Evict(number + 1, obs=EvictAnswer([]))))
        if number % 5 == 4:
            assert out.drain()
    out.close()
    assert len(out.files) > 2
    assert sorted(out.files) == out.files
    whole = tmp_path / "whole.jsonl.zst"
    whole.write_bytes(b"".join(path.read_bytes() for path in out.files))
    assert [op.n for op in lines(whole)] == list(range(1, 31))


def test_a_full_buffer_ends_the_recording_and_leaves_no_gap(tmp_path: Path) -> None:
    out = sink(tmp_path / "t.jsonl", max_waiting=10)
    out.begin(HEADER)
    for number in range(50):
        out.put(partial(encode, Evict(number + 1, obs=EvictAnswer([]))))
    assert out.problem is not None
    out.close()
    assert [op.n for op in lines(out.files[0])] == list(range(1, 11))


def test_the_last_recordings_are_kept(tmp_path: Path) -> None:
    out = sink(tmp_path / "t.jsonl")
    for _ in range(4):
        out.begin(HEADER)
        out.put(partial(encode, Evict(1, obs=EvictAnswer([]))))
        out.end()
    out.close()
    assert [path.name for path in out.files] == ["t.003.jsonl", "t.004.jsonl"]
    assert sorted(tmp_path.iterdir()) == out.files


def test_a_full_disk_is_a_problem_and_no_exception(tmp_path: Path) -> None:
    out = sink(tmp_path / "missing" / "t.jsonl")
    out.begin(HEADER)
    out.put(opened("s"))
    out.close()
    assert "No such file" in (out.problem or "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.zst"])
def test_a_killed_process_leaves_whole_lines(tmp_path: Path, name: str) -> None:
    code = (
        "import itertools, sys; from pathlib import Path\n"
        "from tests.kvattach.test_recorder import HEADER, sink\n"
        "from kvspec.events import Evict, EvictAnswer\n"
        "from kvtrace.header import encode\n"
        "out = sink(Path(sys.argv[1]), max_waiting=10**9); out.begin(HEADER)\n"
        "for number in itertools.count(1):\n"
        "    out.put(lambda number=number: encode(Evict(number, obs=EvictAnswer([]))))\n"
        "    if number % 1000 == 0: out.drain()\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / name)], cwd=root)
    written = tmp_path / name.replace("t.", "t.001.")
    deadline = time.monotonic() + 60
    while not (written.exists() and written.stat().st_size > 20_000) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    if name == "t.jsonl":  # the system may have ended the last write between two of its pages
        os.truncate(written, written.read_bytes().rindex(b"\n") + 1)
    numbers = [op.n for op in lines(written)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 500


# Tokens and slots


def test_hidden_tokens_are_equal_where_the_tokens_are() -> None:
    hide = Hidden(12345)
    one, other = [7] * 200, [7] * 150 + [8] * 50
    assert hide(one, 0, None)[:150] == hide(other, 0, None)[:150]
    assert not set(hide(one, 0, None)[150:]) & set(hide(other, 0, None)[150:])
    assert hide(one, 0, None)[100:] == hide(one[100:], 100, None), "the same by another way of counting"
    assert [hide([token], place, None)[0] for place, token in enumerate(other)] == hide(other, 0, None)
    assert len(set(hide(one, 0, None))) == 200
    assert hide(one, 0, "salt") != hide(one, 0, None)
    assert Hidden(1)(one, 0, None) != Hidden(2)(one, 0, None)
    assert all(0 <= name < 2**32 for name in hide(other, 0, None))


def test_plain_tokens_cannot_be_kept_apart() -> None:
    assert as_they_are([3, 4], 7, None) == [3, 4]
    with pytest.raises(ValueError, match="extra key"):
        as_they_are([3], 0, "lora")


def taken_from(ring: Ring, count: int) -> slice | None:
    try:
        return ring.take(count)
    except NoRoom:
        return None


def test_places_in_the_ring_never_overlap() -> None:
    ring, taken = Ring(10), list[slice]()
    for count in (4, 3, 3, 5, 2, 6, 1, 4, 0, 10, 3) * 20:
        while (place := taken_from(ring, count)) is None:
            assert taken, "an empty ring has room for anything that fits"
            taken.pop(0)
            ring.give_back()
        assert place.stop - place.start == count
        assert place.stop <= 10
        assert not {*range(10)[place]} & {at for other in taken for at in range(10)[other]}
        taken.append(place)
    with pytest.raises(NoRoom):
        Ring(4).take(5)


# The ledger


decode = msgspec.json.Decoder(EVENTS).decode


class Put:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def put(self, line: Callable[[], Any], weight: int = 1) -> None:
        self.lines.append(decode(line()))

    @property
    def emitted(self) -> list[str]:
        return [str(op.__struct_config__.tag) for op in self.lines]


def request(name: str, tokens: list[int], session: str | None = None) -> Any:
    class Req:
        rid, origin_input_ids, extra_key = name, tokens, None

        def __init__(self) -> None:
            self.output_ids: list[int] = []
            self.session = None if session is None else SimpleNamespace(session_id=session, streaming=True)

    return Req()


def ledger() -> tuple[Ledger, Put]:
    put = Put()
    return Ledger(put, 2, as_they_are), put  # type: ignore[arg-type]


def test_lines_wait_for_the_token_of_an_overlapped_step() -> None:
    book, put = ledger()
    req = request("r", [1, 2, 3])
    book.match(req, 0, 0, [])
    book.extend([Prefill(req, 0, 3, 0)], lambda: [2, 3, 4])
    assert put.emitted == ["submit", "match_prefix", "extend"]
    book.decode([req], [3], None)
    assert put.emitted[3:] == [], "the step before has not sampled yet"
    req.output_ids.append(9)
    book.finish(req, [])
    assert put.emitted[3:] == ["launch", "complete", "decode", "launch", "finish", "complete"]
    assert [op.tokens for op in put.lines if hasattr(op, "tokens")] == [[1, 2, 3], {"r": 9}, {}]


def test_a_retracted_requests_late_token_is_nobodys() -> None:
    book, put = ledger()
    req = request("r", [1, 2, 3])
    book.match(req, 0, 0, [])
    book.extend([Prefill(req, 0, 3, 0)], lambda: [2, 3, 4])
    book.retract(req, [lambda: [2, 3, 4]])
    assert put.emitted[-3:] == ["launch", "retract", "complete"]
    book.match(req, 0, 0, [])
    book.extend([Prefill(req, 0, 3, 0)], lambda: [2, 3, 4])
    req.output_ids.append(8)
    book.cache_unfinished(req, False, 2, [])
    assert [op.tokens for op in put.lines if op.__struct_config__.tag == "complete"] == [{}, {"r": 8}]


def test_a_waiting_request_that_vanishes_is_aborted() -> None:
    book, put = ledger()
    first = request("r1", [1, 2], "s")
    book.match(first, 0, 0, [])
    second = request("r2", [1, 2], "s")
    book.match(second, 0, 0, [])
    assert put.emitted == ["open_session", "submit", "match_prefix", "abort", "submit", "match_prefix"]
    del second
    book.match(request("r3", [5]), 0, 0, [])
    assert put.emitted[-3:] == ["abort", "submit", "match_prefix"]


def test_at_the_end_nothing_is_held_back() -> None:
    book, put = ledger()
    req = request("r", [1])
    book.match(req, 0, 0, [])
    book.extend([Prefill(req, 0, 1, 0)], lambda: [2])
    book.decode([req], [1], None)
    assert put.emitted[-1] == "extend"
    book.end()
    assert put.emitted[-2:] == ["launch", "decode"]


# SGLang's own classes


def loop(tmp_path: Path, version: str, *options: str) -> tuple[Path, str]:
    """Run the example over one release; the trace, and what was printed."""
    for needed in ("torch", "triton", "numpy", "orjson"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    named = os.environ.get(f"KVSPEC_SGLANG_{version.replace('.', '_')}")
    try:
        folder = Path(named) if named else engines.fetch(version)
    except engines.NotFetched as error:
        pytest.skip(str(error))
    path = tmp_path / "loop.jsonl"
    command = [sys.executable, str(LOOP), str(path), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"KVSPEC_SGLANG": str(folder)}
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / "loop.001.jsonl", done.stdout


@pytest.mark.slow
def test_a_loop_over_0_5_12_conforms(tmp_path: Path) -> None:
    path, printed = loop(tmp_path, "0.5.12")
    found = outcome(path)
    assert found.finding is None, found.finding
    assert "0 pages lost" in printed
    assert found.evidence.reached["turn retracted"]
    for rule in ("PAGE-1", "PAGE-2", "TAIL-1", "SESS-2", "STORE-3", "STORE-4", "STORE-5", "ACC-1", "DATA-1", "ROW-2"):
        assert found.evidence.checked[rule], rule
    first = json.loads(path.read_text().splitlines()[0])
    assert first["producer"] == "sglang 0.5.12, recorded by kvspec"


@pytest.mark.slow
def test_a_loop_over_0_5_10_loses_pages_and_the_trace_says_where(tmp_path: Path) -> None:
    path, printed = loop(tmp_path, "0.5.10")
    assert re.search(r"[1-9]\d* pages lost", printed)
    finding = outcome(path).finding
    assert isinstance(finding, RuleBroken)
    assert (finding.rule.id, type(finding.op).__name__) == ("SESS-2", "MatchPrefix"), "resumes one position too low"
    # The same trace, of an engine that does not report how far it resumed: then it is the page that shows.
    unsaid = tmp_path / "unsaid.jsonl"
    unsaid.write_text(re.sub(r'"obs":\{"prefix_len":\d+,', '"obs":{', path.read_text()))
    finding = outcome(unsaid).finding
    assert isinstance(finding, RuleBroken)
    assert (finding.rule.id, finding.rule.origin) == ("TAIL-1", "22862")
    assert "were not freed and have no holder" in str(finding)


def test_tokens_are_named_as_prefixes_only() -> None:
    """The requirement of a trace on token ids: pages are equal exactly where their prefixes are."""
    hide = Hidden()
    one = Tokens(2, hide([1, 2, 3, 4], 0, None))
    other = Tokens(2, [*hide([1, 2], 0, None), *hide([3, 4], 2, None)])
    assert one.key(1) == other.key(1)
    assert one.key(0) != Tokens(2, hide([1, 3], 0, None)).key(0)


def test_a_cache_of_another_kind_is_refused(tmp_path: Path) -> None:
    class HybridReqToTokenPool:
        pass

    class RadixCache:
        req_to_token_pool = HybridReqToTokenPool()
        token_to_kv_pool_allocator = None

    with pytest.raises(NotRecordable, match="HybridReqToTokenPool is none of ReqToTokenPool"):
        record(RadixCache(), tmp_path / "t.jsonl")
    assert not list(tmp_path.iterdir())
