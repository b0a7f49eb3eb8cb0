"""The checker's parts, each against a slower form: a graph for the order, single slots for intervals and labels."""

from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcheck import Checker, moments
from kvcheck.clocks import Clocks
from kvcheck.flights import Stream
from kvcheck.labels import Labels
from kvcheck.pages import Content, PageState
from kvspec.memory import Pool
from kvspec.memory.events import Begin, Done, End, Map, Receive, Send, Take, Unify, Use, Wait
from kvspec.memory.order import Order
from tests.kvcheck.graph import Graph

STREAMS = ("s", "t", "u", "host", None)
PARTS: tuple[Done, ...] = ("all", "reads")
HOSTS = (None, "p", "d")
KINDS = ("begin", "begin", "begin", "wait", "wait on", "end", "send", "receive")
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.sampled_from(STREAMS),
        st.integers(1, 8),
        st.sampled_from(PARTS),
        st.sampled_from(HOSTS),
    ),
    max_size=25,
)


KNOWN_TO_P: list[tuple[str, str | None, int, Done, str | None]] = [
    ("receive", None, 1, "all", "p"),
    ("receive", None, 1, "all", "d"),
    ("begin", "t", 8, "all", "p"),
    ("end", None, 1, "all", "p"),
]
"""An operation that of two hosts one has seen complete."""


@pytest.mark.parametrize("apart", [False, True], ids=["one host", "three hosts"])
@given(steps=OPERATIONS)
@example(steps=[*KNOWN_TO_P, ("begin", "s", 8, "all", "p"), ("begin", "s", 8, "all", "d")])
@example(steps=[*KNOWN_TO_P, ("begin", "u", 8, "all", "p"), ("end", "", 2, "all", "d"), ("begin", "s", 8, "all", "d")])
def test_the_clocks_are_the_closure_of_what_happens_before_what(
    steps: list[tuple[str, str | None, int, Done, str | None]], *, apart: bool
) -> None:
    """Of each operation that begins, and each before it: whether it is read, and done, by then."""
    clocks, plain, order = Clocks(), Order(), Graph()
    begun: dict[int, tuple[Stream, int]] = {}
    for kind, stream, number, part, name in steps:
        host = name if apart else None
        if kind == "begin":
            event = Begin(len(begun) + 1, stream, after=[number] if number <= len(begun) else [], host=host)
            flight, plainly, start = clocks.begin(event), plain.begin(event), order.begin(event)
            rivals = set[int]()
            for id, (queue, moment) in begun.items():
                seen = flight.known(queue)
                done, read = order.before(order.done[id], start), order.before(order.read[id], start)
                assert (seen >= moment, seen >= moment - 1) == (done, read)
                assert ((id - 1, "all") in plain.before[plainly], (id - 1, "reads") in plain.before[plainly]) == (
                    done,
                    read,
                )
                rivals |= {id} if not done else set()
            assert flight.rivals == bool(rivals)
            begun[len(begun) + 1] = flight.queue, flight.moment
        elif kind == "wait on" or (kind == "wait" and number in begun):
            on = STREAMS[number % 4] if kind == "wait on" else None
            for one in (clocks, order, plain):
                one.wait(Wait(stream or "s", number if kind == "wait" else None, on, part, host=host))
        elif kind == "end" and number in begun:
            flies = plain.flies(number - 1, host)
            assert flies == (not order.has_seen(number, host))
            assert (clocks.in_flight(number, host) is not None) == flies
            if flies:
                assert clocks.end(End(number, part, host=host)) is not None
                plain.end(number - 1, End(number, part, host=host))
                order.end(End(number, part, host=host))
        elif kind == "send":
            for one in (clocks, plain, order):
                one.send(Send(f"m{number % 3}", [number] if number in begun else [], host=host))
        elif kind == "receive":
            for one in (clocks, plain, order):
                one.receive(Receive(f"m{number % 3}", host=host))


NUMBERS = (0, 1, 15, 16, 17, 255, 256, 4096, 70_000)
CLOCK = st.dictionaries(st.sampled_from(NUMBERS), st.integers(0, 5))


def clock_of(reported: dict[int, int]) -> moments.Clock:
    clock = moments.START
    for stream, last in reported.items():
        clock = moments.after(clock, stream, last)
    return clock


@given(one=CLOCK, other=CLOCK)
def test_a_clock_is_the_last_moment_of_each_stream(one: dict[int, int], other: dict[int, int]) -> None:
    first, second = clock_of(one), clock_of(other)
    both, common = moments.join(first, second), moments.meet(first, second)
    for stream in NUMBERS:
        assert moments.moment(common, stream) == min(one.get(stream, 0), other.get(stream, 0))
        assert moments.moment(first, stream) == one.get(stream, 0)
        assert moments.moment(both, stream) == max(one.get(stream, 0), other.get(stream, 0))
    news = {stream for stream, last in other.items() if last > one.get(stream, 0)}
    assert {*moments.later(first, both)} == news
    assert [*moments.later(both, both)] == []


@given(one=CLOCK, other=CLOCK)
def test_a_clock_that_comes_after_another_is_the_one_that_they_join_to(
    one: dict[int, int], other: dict[int, int]
) -> None:
    both = moments.join(clock_of(one), clock_of(other))
    assert moments.join(both, clock_of(one))[1] is both[1]
    assert moments.join(both, moments.START)[1] is both[1]


SIZE = 6
PIECES = st.lists(
    st.tuples(
        st.integers(0, SIZE), st.integers(0, SIZE), st.sampled_from(("x", "y", None)), st.integers(0, 2), st.booleans()
    ),
    max_size=12,
)


@given(writes=PIECES, start=st.integers(0, SIZE - 1), length=st.integers(1, SIZE))
def test_intervals_are_slots(writes: list[tuple[int, int, str | None, int, bool]], start: int, length: int) -> None:
    """Writes and erasures, slot by slot; the pieces of any part are that part."""
    page, stop = PageState(), min(start + length, SIZE)
    slots: list[tuple[str | None, int, bool] | None] = [None] * SIZE
    for first, last, label, offset, failed in writes:
        if first >= last:
            continue
        if label == "x" and offset == 2:
            page.erase(first, last)
            slots[first:last] = [None] * (last - first)
        else:
            page.put([Content(first, last, label, offset, failed)])
            slots[first:last] = [(label, offset + slot - first, failed) for slot in range(first, last)]
        assert all(one.stop <= other.start for one, other in zip(page.content, page.content[1:], strict=False))
    reported: list[tuple[str | None, int, bool] | None] = [None] * SIZE
    gaps = []
    for piece in page.pieces(start, stop):
        if isinstance(piece, Content):
            assert start <= piece.start < piece.stop <= stop
            for slot in range(piece.start, piece.stop):
                assert reported[slot] is None
                reported[slot] = piece.label, piece.offset + slot - piece.start, piece.failed
        else:
            gaps.append(piece)
    inside = range(start, stop)
    due = [found if slot in inside else None for slot, found in enumerate(slots)]
    assert [found and (found[0], found[1] * (found[0] is not None), found[2]) for found in reported] == [
        found and (found[0], found[1] * (found[0] is not None), found[2]) for found in due
    ]
    assert gaps == [slot for slot in inside if slots[slot] is None and (slot == start or slots[slot - 1] is not None)]


def test_what_continues_a_label_joins_it_and_nothing_else_does() -> None:
    for first, then, label in product(range(4), range(6), "xy"):
        page = PageState()
        page.put([Content(0, 2, "x", first)])
        page.put([Content(2, 4, label, then)])
        there = [(piece.label, piece.offset + at) for piece in page.content for at in range(piece.stop - piece.start)]
        assert there == [("x", first), ("x", first + 1), (label, then), (label, then + 1)]
        assert (len(page.content) == 1) == (label == "x" and then == first + 2)


LABELS = ("w", "x", "y", "z")
LEARNED = st.lists(st.tuples(st.sampled_from(LABELS), st.sampled_from(LABELS), st.integers(0, 4)), max_size=12)


@pytest.mark.slow
@settings(max_examples=1000)
@given(
    learned=LEARNED,
    one=st.sampled_from(LABELS),
    other=st.sampled_from(LABELS),
    start=st.integers(0, 6),
    length=st.integers(1, 4),
    kept=st.sets(st.sampled_from(LABELS)),
)
def test_labels_are_the_same_slot_by_slot(
    learned: list[tuple[str, str, int]], one: str, other: str, start: int, length: int, kept: set[str]
) -> None:
    labels, groups = Labels(), {(label, slot): {label} for label in LABELS for slot in range(10)}
    for label, same, slots in learned:
        labels.unify(label, same, slots)
        for slot in range(slots or 10):
            together = groups[label, slot] | groups[same, slot]
            groups.update({(member, slot): together for member in together})
    stop = start + length
    first = next((slot for slot in range(start, stop) if other not in groups[one, slot]), stop)
    assert labels.same_up_to(one, other, start, stop) == first
    assert not any(other in groups[one, slot] for slot in range(first, stop))
    labels.keep(kept | {one, other})
    assert labels.same_up_to(one, other, start, stop) == first


def test_a_label_may_be_unified_before_anything_bears_it() -> None:
    checker = Checker({"kv": Pool(num_pages=4)})
    checker.step(Take("a", "kv", [1]))
    for number in range(3000):
        promise, content = f"row#{number}", f"content {number}"
        events = (
            Unify(promise, content),
            Map("row", "a", "kv", 0, [1], [promise]),
            Begin(number, "s", writes=[Use("row", stop=1)], reads=[Use("row", stop=1, labels=[content])]),
            End(number),
        )
        assert not [finding for event in events for finding in checker.step(event)], number


def test_the_cost_of_a_table_follows_its_events() -> None:
    """A row has room for a thousand million pages, and means something up to the last that was written to it."""
    checker = Checker({"rows": Pool(page_size=1 << 34, label_size=16)})
    events = (
        Take("a", "rows", [1]),
        Map("row", "a", "rows", 0, [1]),
        Begin(1, "s", writes=[Use("row", start=0, stop=32, labels=["x", "y"])]),
        Begin(2, "s", writes=[Use("row", start=64, stop=80, labels=["z"])]),
        Begin(3, "s", reads=[Use("row", stop=32), Use("row", start=64, stop=80)]),
    )
    assert [finding for event in events for finding in checker.step(event)] == []
    assert checker.state.tables["row"].labels == ["x", "y", None, None, "z"]
    assert [finding.rule for finding in checker.step(Begin(4, "s", reads=[Use("row", stop=48)]))] == ["MEM-WRITTEN"]
