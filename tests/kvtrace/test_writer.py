"""`TraceWriter`: every memory event, whatever containers an engine has, and no exception into the engine."""

import inspect
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from kvspec.memory import events
from kvspec.memory.events import MemoryEvent, Pool, Use
from kvtrace.header import MemoryHeader
from kvtrace.writer import TraceWriter

POOLS = {"kv": Pool(page_size=16, num_pages=64)}

_event = msgspec.json.Decoder(MemoryEvent)


def written(path: Path) -> list[Any]:
    header, *lines = path.read_bytes().splitlines()
    assert msgspec.json.decode(header, type=MemoryHeader) == MemoryHeader(2, "memory", "test", POOLS)
    return [_event.decode(line) for line in lines]


def test_each_event_has_a_method_with_its_fields_but_the_host_which_the_header_names() -> None:
    for event in get_args(MemoryEvent):
        method = getattr(TraceWriter, event.__struct_config__.tag)
        assert [*list(inspect.signature(method).parameters)[1:], "host"] == list(event.__struct_fields__)


def test_emitted_events_are_those_that_the_memory_checker_reads(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.header("test", POOLS)
    writer.take("r", "kv", [1, 2, (5, 3)], at="alloc")
    writer.share("s", "kv", (1, 2), ["a", "b"], pin=True)
    writer.publish("kv", range(1, 3), ["a", "b"], ["x", "y"], 16, planned=True)
    writer.begin(1, "compute", [Use(table="r", stop=5)], [], [(Use(pool="kv", pages=[1]), Use(pool="kv", pages=[2]))])
    writer.end(1, "reads")
    writer.count("kv", free=[(3, 2)], references={1: 2})
    writer.failed("stuck", "nothing runs")
    writer.close()
    assert writer.problem is None
    assert written(writer.files[0]) == [
        events.Take("r", "kv", [1, 2, (5, 3)], at="alloc"),
        events.Share("s", "kv", [1, 2], ["a", "b"], True),
        events.Publish("kv", [(1, 2)], ["a", "b"], ["x", "y"], 16, True),
        events.Begin(
            1, "compute", [Use(table="r", stop=5)], [], [(Use(pool="kv", pages=[1]), Use(pool="kv", pages=[2]))]
        ),
        events.End(1, "reads"),
        events.Count("kv", free=[(3, 2)], references={1: 2}),
        events.Failed("stuck", "nothing runs"),
    ]


def test_events_of_one_call_are_a_line_each_and_a_call_without_events_is_none(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.header("test", POOLS)
    several: list[MemoryEvent] = [events.Take("r", "kv", [1]), events.EndHolder("r"), events.Idle()]
    writer.emit(*several)
    writer.emit()
    writer.emit(several[0])
    writer.close()
    assert written(writer.files[0]) == [*several, several[0]]


@pytest.mark.parametrize("pages", [[1, 2], (1, 2), {1: 0, 2: 0}.keys(), iter([1, 2]), range(1, 3)])
def test_pages_come_in_any_container(tmp_path: Path, pages: Any) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.header("test", POOLS)
    writer.take("r", "kv", pages)
    writer.close()
    assert written(writer.files[0])[0].pages in ([1, 2], [(1, 2)])


def test_pages_come_as_an_array(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.header("test", POOLS)
    writer.take("r", "kv", numpy.array([3]))
    writer.take("r", "kv", [numpy.int64(4)])
    writer.close()
    assert [event.pages for event in written(writer.files[0])] == [[3], [4]]


def test_the_engine_may_change_its_list_afterwards(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.header("test", POOLS)
    pages: list[Any] = [1, 2]
    writer.take("r", "kv", pages)
    pages.clear()
    writer.close()
    assert written(writer.files[0])[0].pages == [1, 2]


def test_an_event_that_cannot_be_written_ends_the_recording_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.header("test", POOLS)
    writer.end_holder("a")
    writer.take("r", "kv", object())  # type: ignore[arg-type]
    writer.end_holder("b")
    assert "an event could not be recorded" in (writer.problem or "")
    assert "the recording ends: an event could not be recorded" in caplog.text
    writer.header("test", POOLS)
    assert writer.problem is None
    writer.end_holder("c")
    writer.close()
    assert [written(path) for path in writer.files] == [[events.EndHolder("a")], [events.EndHolder("c")]]


def test_nothing_is_written_before_the_header_and_after_the_end(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.end_holder("a")
    writer.header("test", POOLS)
    writer.end_holder("b")
    writer.stop("the cache was flushed")
    assert writer.problem == "the cache was flushed"
    writer.end_holder("c")
    writer.close()
    assert written(writer.files[0]) == [events.EndHolder("b")]


def test_a_full_buffer_ends_the_recording_and_says_why(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl", max_waiting=10)
    writer.header("test", POOLS)
    for number in range(50):
        writer.end_holder(str(number))
    assert "wait to be written" in (writer.problem or "")
    writer.close()
    assert written(writer.files[0]) == [events.EndHolder(str(number)) for number in range(10)]


def test_a_closed_recording_is_not_waited_for(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.close()
    writer.header("test", POOLS)
    assert not writer.flush(timeout=float("inf"))


def test_a_full_disk_is_no_exception(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "missing" / "t.jsonl")
    writer.header("test", POOLS)
    writer.end_holder("a")
    writer.close()
    assert "No such file" in (writer.problem or "")


def test_a_header_that_cannot_be_made_is_no_exception(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    writer.header("test", {"kv": object()})  # type: ignore[dict-item]
    writer.end_holder("a")
    writer.close()
    assert "header" in (writer.problem or "")
    assert writer.files == []
