"""The device that is not there keeps CUDA's order."""

import random

import pytest
import torch

from kvlab.device import Event, Priorities, Stream, advance, stood_in


@pytest.fixture(autouse=True)
def fresh() -> None:
    Stream.all.clear()
    Stream.current, Stream.order = Stream(), None


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


def late(order: Priorities | None, turns: int) -> bool:
    """Whether a copy is still to come after so many turns of the host, in which another stream gets on to its end."""
    Stream.all.clear()
    Stream.current, copies, other = Stream(), Stream(), Stream()
    Stream.order = order
    copies.queue()
    rng = random.Random(turns)
    for _ in range(turns):
        other.queue()
        advance(rng, 6)
    return not copies.query() and other.query()


def test_by_priorities_a_stream_waits_while_others_get_on() -> None:
    """As long a wait does not come about by even dice. Two streams are in use, and the host."""
    assert not any(late(None, 20 + seed % 3) for seed in range(300))
    found = sum(late(Priorities(seed), 20) for seed in range(300))
    assert found >= 300 / (3 * Priorities.SPAN**Priorities.CHANGES)


def test_a_change_of_priorities_lets_a_stream_stop_on_its_way() -> None:
    stopped = set()
    for seed in range(2000):
        Stream.all.clear()
        Stream.current, stream = Stream(), Stream()
        Stream.order = Priorities(seed)
        for _ in range(4):
            stream.queue()
        advance(random.Random(0), 6)
        advance(random.Random(0), 6)
        stopped.add(stream.done)
    assert stopped == {0, 1, 2, 3, 4}


def test_by_priorities_no_stream_waits_for_ever() -> None:
    for seed in range(400):
        Stream.all.clear()
        Stream.current, stream = Stream(), Stream()
        Stream.order = Priorities(seed)
        stream.queue()
        for _ in range(3 * Priorities.SPAN):
            advance(random.Random(0), 6)
        assert stream.query()


def test_waits_hold_back_by_priorities_too() -> None:
    for seed in range(50):
        Stream.all.clear()
        Stream.current, one, other = Stream(), Stream(), Stream()
        Stream.order = Priorities(seed)
        one.queue()
        other.wait_stream(one)
        advance(random.Random(0), 5)
        assert other.done <= one.done


def test_a_seed_says_how_streams_get_on() -> None:
    for seed, by_priorities in ((0, False), (99, False), (100, True), (199, True), (200, False)):
        with stood_in(torch, seed):
            assert (Stream.order is not None) == by_priorities
