"""The device that is not there keeps CUDA's order."""

import random

import pytest

from kvlab.device import Event, Stream, advance


@pytest.fixture(autouse=True)
def fresh() -> None:
    Stream.all.clear()
    Stream.current = Stream()


def test_nothing_is_complete_before_its_stream_got_there() -> None:
    stream, event = Stream(), Event()
    stream.queue()
    event.record(stream)
    stream.queue()
    assert not event.query()
    assert stream.step()
    assert event.query()
    assert not stream.query()


def test_a_wait_holds_back_what_is_queued_behind_it() -> None:
    one, other = Stream(), Stream()
    one.queue()
    other.wait_stream(one)
    other.queue()
    assert not other.step()
    one.step()
    assert other.step()
    assert other.step()
    assert other.query()


def test_an_event_stands_for_what_was_there_when_it_was_recorded() -> None:
    one, other, event = Stream(), Stream(), Event()
    one.queue()
    event.record(one)
    one.queue()
    other.wait_event(event)
    one.step()
    assert other.step()
    assert not one.query()


def test_synchronize_finishes_what_is_waited_for() -> None:
    one, other = Stream(), Stream()
    one.queue()
    other.wait_stream(one)
    other.queue()
    other.synchronize()
    assert one.query()
    assert other.query()


def test_streams_get_on_in_any_order_that_their_waits_allow() -> None:
    for seed in range(50):
        Stream.all.clear()
        one, other = Stream(), Stream()
        one.queue()
        other.wait_stream(one)
        advance(random.Random(seed), 5)
        assert other.done <= one.done


def test_a_copy_has_its_effect_when_its_stream_gets_there_and_reads_its_source_then() -> None:
    source, read = [1], list[int]()
    stream, other = Stream(), Stream()
    other.queue()
    stream.wait_stream(other)
    stream.queue(lambda: read.extend(source))
    source[0] = 2
    assert not stream.step()
    assert read == []
    stream.synchronize()
    assert read == [2]
