"""A written event is read back: every type of event, every compression."""

import gzip
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvconform.protocol import ANSWERS
from kvconform.traces.codec import TraceReader, TraceWriter
from kvspec import events
from kvspec.events import Answer, Config, MatchAnswer, MatchPrefix, Operation, Refused
from kvspec.pages import expand
from kvtrace.header import encode
from kvtrace.operations import Header, compressed
from tests.conformance.helpers import HEADER, RECORDED, lines

WINDOWED = Config(page_size=4, num_pages=50, num_rows=8, max_context_len=100, sliding_window=9, num_window_pages=50)
WITH_STATES = Config(page_size=4, num_pages=50, num_rows=8, max_context_len=100, num_states=50)
NAMES = st.text(max_size=5)
NUMBERS = st.integers(0, 1000)
PAGES = st.lists(st.integers(1, 50), max_size=8)
SLOTS = st.lists(st.integers(4, 203), max_size=8)
ROWS = st.integers(0, 7)
TOKENS = st.lists(st.integers() | st.text(max_size=3), max_size=6)


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


SLOT = st.integers(1, 50)


def answers(config: Config) -> dict[type[Answer], st.SearchStrategy[Answer]]:
    """Answers of every type, with the parts that a manager of these sizes can have."""
    lists = {name: st.dictionaries(NAMES, PAGES) for name in ("pages", "window", "states")}
    side: dict[str, st.SearchStrategy[Any]] = {"pages": optional(PAGES), "cursor": st.none(), "sides": st.none()}
    side |= {"window": st.none(), "states": st.none(), "slot": st.none()}
    if config.sliding_window:
        del lists["states"]
        sides = st.dictionaries(SLOT, SLOT, max_size=2)
        side |= {"window": optional(PAGES), "cursor": optional(NUMBERS), "sides": optional(sides)}
    else:
        del lists["window"]
        side |= {"states": optional(PAGES), "slot": optional(SLOT)}
    given = {name: optional(lists[name]) if name in lists else st.none() for name in ("pages", "window", "states")}
    view = st.builds(events.HolderView, optional(ROWS), *[optional(NUMBERS)] * 3, side["cursor"], side["states"])
    holders = optional(st.dictionaries(NAMES, view, max_size=2))
    freed = (side["pages"], side["window"], side["states"])
    return {
        events.Done: st.builds(events.Done),
        events.CompleteAnswer: st.builds(events.CompleteAnswer, optional(st.dictionaries(NAMES, NUMBERS, max_size=2))),
        events.MatchAnswer: st.builds(events.MatchAnswer, *[optional(NUMBERS)] * 2, *freed),
        events.ExtendAnswer: st.builds(
            events.ExtendAnswer,
            optional(st.dictionaries(NAMES, ROWS)),
            given["pages"],
            given["window"],
            given["states"],
        ),
        events.DecodeAnswer: st.builds(events.DecodeAnswer, given["pages"], given["window"]),
        events.PublishAnswer: st.builds(
            events.PublishAnswer, optional(NUMBERS), *freed[:2], side["slot"], side["slot"], side["cursor"]
        ),
        events.ReleaseAnswer: st.builds(events.ReleaseAnswer, *freed, side["slot"]),
        events.SwaEvictAnswer: st.builds(events.SwaEvictAnswer, optional(NUMBERS), side["window"]),
        events.StateAnswer: st.builds(events.StateAnswer, side["slot"]),
        events.EvictAnswer: st.builds(events.EvictAnswer, PAGES, *freed[1:]),
        events.Figures: st.builds(events.Figures, *[optional(st.integers())] * len(events.Figures.__struct_fields__)),
        events.SnapshotAnswer: st.builds(
            events.SnapshotAnswer,
            optional(st.dictionaries(ROWS, SLOTS)),
            optional(PAGES),
            optional(PAGES),
            holders,
            holders,
            side["sides"],
            side["states"],
            side["states"],
        ),
    }


BATCH = st.lists(NAMES, max_size=3)
OPERATIONS: dict[type[Operation[Any]], tuple[st.SearchStrategy[Any], ...]] = {
    events.OpenSession: (NAMES,),
    events.Submit: (NAMES, TOKENS, optional(NAMES)),
    events.MatchPrefix: (NAMES,),
    events.Extend: (st.lists(st.tuples(NAMES, NUMBERS), max_size=3),),
    events.Decode: (BATCH, NUMBERS),
    events.Verify: (NAMES, NUMBERS, st.lists(st.integers())),
    events.Launch: (st.integers(), BATCH),
    events.Complete: (st.integers(), st.dictionaries(NAMES, st.integers())),
    events.CacheUnfinished: (NAMES, st.booleans()),
    events.Finish: (NAMES,),
    events.Retract: (NAMES,),
    events.Abort: (NAMES,),
    events.CloseSession: (NAMES,),
    events.Preempt: (NAMES,),
    events.SwaEvict: (NAMES,),
    events.TakeState: (NAMES,),
    events.FreeState: (NAMES,),
    events.Evict: (NUMBERS, NUMBERS, NUMBERS),
    events.Report: (st.sampled_from(("idle", "busy")),),
    events.Snapshot: (),
}
REFUSED = st.builds(Refused, NAMES, optional(st.sampled_from(("CAP-1", "OP-1"))), *[NUMBERS] * 4)


ANSWER = {config: answers(config) for config in (WINDOWED, WITH_STATES)}


@st.composite
def operations(draw: st.DrawFn, config: Config) -> Operation[Any]:
    kind = draw(st.sampled_from(list(OPERATIONS)))
    answered: dict[str, Any] = (
        {"obs": draw(ANSWER[config][ANSWERS[kind]])} if draw(st.booleans()) else {"refused": draw(REFUSED)}
    )
    op: Operation[Any] = kind(*(draw(argument) for argument in OPERATIONS[kind]), **answered)
    return op


TRACES = st.sampled_from((WINDOWED, WITH_STATES)).flatmap(
    lambda config: st.tuples(st.just(config), st.lists(operations(config), min_size=1, max_size=5))
)


def test_every_operation_is_drawn() -> None:
    assert set(OPERATIONS) == set(ANSWERS)
    assert all(set(drawn) == set(ANSWERS.values()) for drawn in ANSWER.values())


@given(TRACES, st.sampled_from(("", ".gz", ".zst")))
def test_what_is_written_is_read_back(trace_of: tuple[Config, list[Operation[Any]]], suffix: str) -> None:
    config, ops = trace_of
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"trace.jsonl{suffix}"
        header = Header(1, "test", config)
        with TraceWriter(path, header) as writer:
            for op in ops:
                writer.write(op)
        with TraceReader(path) as trace:
            assert trace.header == header
            read = list(trace)
    assert [number for number, _ in read] == list(range(2, 2 + len(ops)))
    assert [op for _, op in read] == [compressed(op) for op in ops]


@given(PAGES)
def test_pages_are_written_as_runs_and_mean_the_same(pages: list[int]) -> None:
    op = MatchPrefix("r", obs=MatchAnswer(freed=pages))
    written = compressed(op)
    assert written.obs is not None
    assert expand(written.obs.freed) == pages
    assert op.obs == MatchAnswer(freed=pages), "the answer itself stays as it was"


def test_a_list_of_pages_takes_no_more_room_than_its_runs() -> None:
    answers: list[tuple[Operation[Any], str]] = [
        (events.Finish("r", obs=events.ReleaseAnswer(range(1, 1001))), '"freed":[[1,1000]]'),
        (events.MatchPrefix("r", obs=events.MatchAnswer(freed=[1, 2, 3])), '"freed":[[1,3]]'),
        (events.CacheUnfinished("r", obs=events.PublishAnswer(freed=[1, 2, 3])), '"freed":[[1,3]]'),
        (events.Evict(3, obs=events.EvictAnswer([1, 2, 3])), '"evicted":[[1,3]]'),
        (events.Extend([], obs=events.ExtendAnswer(pages={"r": [1, 2, 3]})), '"pages":{"r":[[1,3]]}'),
        (events.Decode([], obs=events.DecodeAnswer({"r": [1, 2, 3]})), '"pages":{"r":[[1,3]]}'),
        (
            events.Snapshot(obs=events.SnapshotAnswer({0: [4, 5, 6]}, [1, 2], [3, 4])),
            '"rows":{"0":[[4,3]]},"free_pages":[[1,2]],"store_pages":[[3,2]]',
        ),
    ]
    for op, text in answers:
        assert text.encode() in encode(compressed(op))


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_compressed_files_may_have_several_parts(pack: Any, tmp_path: Path) -> None:
    path = tmp_path / f"trace.{'gz' if pack is gzip.compress else 'zst'}"
    path.write_bytes(pack(lines(HEADER, *RECORDED[:2])) + pack(lines(*RECORDED[2:])))
    with TraceReader(path) as trace:
        assert len(list(trace)) == len(RECORDED)


def test_a_trace_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """The reader is a stream: the first operation is there although the last line is broken."""
    path = tmp_path / "trace.jsonl"
    path.write_bytes(lines(HEADER, RECORDED[0]) + b"{")
    with TraceReader(path) as trace:
        assert next(iter(trace))[0] == 2
