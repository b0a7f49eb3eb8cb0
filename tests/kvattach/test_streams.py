"""The observed waits of streams and events order operations."""

import threading
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import pytest

from kvattach.hooks import Hooks
from kvattach.streams import Streams
from kvattach.tape import Tape
from kvcheck import Checker
from kvlab.device import Event, Stream
from kvspec.memory import Pool
from kvspec.memory.events import Begin, End, MemoryEvent, Take, Use, Wait


class Recorded:
    """Keeps the events, and checks them."""

    def __init__(self) -> None:
        self.events: list[MemoryEvent] = []
        self.rules: list[str] = []
        self._checker = Checker({"kv": Pool(page_size=1, num_pages=4)})

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None: ...

    def emit(self, *events: MemoryEvent) -> None:
        self.events += events
        self.rules += [finding.rule for event in events for finding in self._checker.step(event)]


@pytest.fixture
def trace() -> Recorded:
    return Recorded()


@pytest.fixture
def streams(trace: Recorded) -> Iterator[Streams]:
    Stream.current = Stream()
    hooks = Hooks(trace)
    observed = Streams(hooks, Stream, Event)
    observed.clear(SimpleNamespace(current_stream=lambda: Stream.current))
    trace.emit(Take("a", "kv", [1]))
    yield observed
    hooks.detach()
    assert hooks.problem is None


def written(streams: Streams, stream: Stream) -> int:
    return streams.begin("write", [], [Use(pool="kv", pages=[1], holder="a")], stream=stream)


def test_two_streams_race(trace: Recorded, streams: Streams) -> None:
    written(streams, Stream())
    written(streams, Stream())
    assert trace.rules == ["MEM-RACE"]


def test_a_stream_that_waits_does_not_race(trace: Recorded, streams: Streams) -> None:
    one, other = Stream(), Stream()
    written(streams, one)
    other.wait_stream(one)
    written(streams, other)
    assert trace.rules == []


def test_an_event_stands_for_an_operation_that_is_reported_elsewhere_until_that_has_ended(
    trace: Recorded, streams: Streams
) -> None:
    one, other, event, recorded = Stream(), Stream(), Event(), (Event(), Event())
    one.cuda_stream = "gpu"
    trace.emit(Begin("step 1", "gpu", [], [Use(pool="kv", pages=[1], holder="a")]))
    streams.queued("step 1", "gpu")
    event.record(one)
    other.wait_event(event)
    written(streams, other)
    for step, behind in zip(("step 2", "step 3"), recorded, strict=True):
        trace.emit(Begin(step, "gpu"))
        streams.queued(step, "gpu")
        behind.record(one)
    trace.emit(End("step 2"))
    streams.ended("step 2")
    for earlier in (event, *recorded):
        other.wait_event(earlier)
    assert trace.rules == []
    assert [wait.id for wait in trace.events if isinstance(wait, Wait)] == ["step 1", "step 3"]


def test_the_end_of_an_operation_that_the_host_has_waited_for_is_not_new(trace: Recorded, streams: Streams) -> None:
    stream = Stream()
    stream.cuda_stream = "gpu"
    for step in ("step 1", "step 1 states", "step 2", "step 2 states", "step 3"):
        trace.emit(Begin(step, "gpu"))
        streams.queued(step, "gpu")
        if step == "step 2":
            stream.synchronize()
    assert [streams.ended(step) for step in ("step 1", "step 2", "step 3")] == [False, False, True]
    assert [end.id for end in trace.events if isinstance(end, End)] == ["step 2"]
    assert streams._over == {}


def test_an_event_orders_only_what_came_before_it(trace: Recorded, streams: Streams) -> None:
    one, other, event = Stream(), Stream(), Event()
    event.record(one)
    written(streams, one)
    other.wait_event(event)
    written(streams, other)
    assert trace.rules == ["MEM-RACE"]


def test_an_event_after_a_wait_stands_for_what_was_waited_for(trace: Recorded, streams: Streams) -> None:
    one, middle, last, event = Stream(), Stream(), Stream(), Event()
    written(streams, one)
    middle.wait_stream(one)
    event.record(middle)
    event.wait(last)
    written(streams, last)
    assert trace.rules == []
    assert [begun.at for begun in trace.events if isinstance(begun, Begin)] == ["write", "record", "write"]


def test_what_the_host_has_seen_is_over(trace: Recorded, streams: Streams) -> None:
    one, event = Stream(), Event()
    written(streams, one)
    one.queue()
    event.record(one)
    assert not event.query()
    event.synchronize()
    written(streams, Stream())
    assert trace.rules == []
    assert [type(event) for event in trace.events[1:]] == [Begin, End, Begin]


def test_an_event_that_was_never_recorded_says_nothing(trace: Recorded, streams: Streams) -> None:
    event = Event()
    assert event.query()
    Stream().wait_event(event)
    assert not any(isinstance(event, (Wait, End)) for event in trace.events)


def test_unknown_streams_order_nothing(trace: Recorded, streams: Streams) -> None:
    one, other, event = Stream(), Stream(), Event()
    streams.clear(None)
    before = len(trace.events)
    one.queue()
    other.wait_stream(one)
    event.record(one)
    other.wait_event(event)
    event.record()
    event.wait()
    event.synchronize()
    assert len(trace.events) == before


def test_operations_that_are_never_seen_complete_leave_nothing_behind(streams: Streams) -> None:
    one, other, event = Stream(), Stream(), Event()
    for _ in range(100):
        streams.begin("write", [], [], stream=one)
        event.record(one)
        other.wait_event(event)
    assert sum(len(kept) for kept in vars(streams).values() if isinstance(kept, dict)) < 10


def test_an_operation_is_queued_while_a_late_resolution_is_under_way(trace: Recorded, streams: Streams) -> None:
    hooks, begun, queued, over = streams._hooks, threading.Event(), threading.Event(), list[bool]()

    def resolve() -> None:
        begun.set()
        over.append(queued.wait(2))

    hooks.tape = Tape()
    hooks.later(resolve)
    hooks.tape.start()
    assert begun.wait(2)
    written(streams, Stream())
    queued.set()
    hooks.tape.drain()
    assert over == [True], "it waited for the resolution"
    assert [type(event) for event in trace.events] == [Take, Begin]


def test_on_a_cpu_an_operation_is_done_at_once(trace: Recorded) -> None:
    hooks = Hooks(trace)
    streams = Streams(hooks)
    streams.clear(None)
    trace.emit(Take("a", "kv", [1]))
    written(streams, Stream())
    written(streams, Stream())
    streams.synchronized()
    assert [event.stream for event in trace.events if isinstance(event, Begin)] == ["host", "host"]
    assert not any(isinstance(event, End | Wait) for event in trace.events)
    assert not trace.rules
