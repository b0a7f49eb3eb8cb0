"""The state that the checker keeps of a trace, and the state that it forgets."""

from itertools import product
from random import Random

import pytest

from kvcheck import Checker
from kvcheck.pages import Content
from kvcheck.races import used
from kvcheck.words import describe
from kvspec.memory import Pool
from kvspec.memory.events import (
    Begin,
    End,
    EndHolder,
    Event,
    Map,
    Release,
    Take,
    Unify,
    Unmap,
    Use,
)
from tests.spec.memory.scenarios import POOLS, copy, mapped, of, table, take, write


def test_a_finding_on_a_page_is_reported_again_where_something_changed() -> None:
    checker = Checker(POOLS)
    steps = [Begin(id, "s", [Use(table="t")]) for id in (2, 3)]
    events: list[Event] = [take("a", 1), write(1, "a", 1, "x"), table("t", "a", 1, labels=["y"]), *steps]
    events += [write(9, "a", 1, "z"), Begin(10, "s", [Use(table="t")])]
    assert [finding.event for event in events for finding in checker.step(event)] == [4, 7]


def test_labels_that_nothing_bears_are_forgotten() -> None:
    checker = Checker(POOLS)
    checker.step(take("a", 1))
    for step in range(5000):
        checker.step(write(step, "a", 1, f"a/{step}"))
        checker.step(Unify(f"a/{step}", f"k{step}"))
        checker.step(End(step))
    assert len(checker.state.labels) < 2100


def test_what_is_over_is_forgotten() -> None:
    checker = Checker(POOLS)
    for step in range(0, 1000, 2):
        for event in (
            take("a", 1),
            write(step, "a", 1),
            write(step + 1, "a", 1),
            End(step + 1),
            Release("a", "kv", [1]),
        ):
            assert checker.step(event) == []
    assert not checker.state.clocks.flights
    assert not checker.state.pool("kv").pages
    assert not checker.state.holdings


def test_operations_without_a_stream_take_turns_on_few() -> None:
    checker = Checker(POOLS)
    checker.step(take("a", 1))
    for step in range(100):
        assert checker.step(write(step, "a", 1, stream=None)) == checker.step(End(step)) == []
    assert len(checker.state.clocks.streams) == 1


def test_only_rivals_that_use_the_same_slots_are_looked_at() -> None:
    """Else what an operation costs would grow with all that is in flight."""
    checker = Checker({"kv": Pool(num_pages=300)})
    for number in range(1, 101):
        checker.step(Take("a", "kv", [number]))
        checker.step(Begin(number, f"s{number}", writes=[Use(pool="kv", pages=[number], holder="a")]))
    last = checker.state.clocks.flights[100]
    assert last.rivals
    near = [
        [*checker.state.clocks.rivals_at(last, ("kv", page), 0, 1, writing=writing)]
        for page in (7, 200)
        for writing in (False, True)
    ]
    assert [[rival.number for rival in rivals] for rivals in near] == [[7], [7], [], []]
    for number in range(1, 101):
        checker.step(End(number))
    assert (checker.state.clocks.users, checker.state.clocks.writers) == ({}, {})


def test_of_many_rivals_on_one_page_those_that_use_the_same_slots_are_looked_at() -> None:
    """Each writes a span of its own; half of them are complete then, and their spans are forgotten."""
    checker, random = Checker({"kv": Pool(page_size=1000, num_pages=2)}), Random(1)
    checker.step(Take("a", "kv", [1]))
    spans = dict[int, tuple[int, int]]()
    for number in range(1, 101):
        start = random.randrange(1000)
        spans[number] = start, min(1000, start + random.choice([1, 3, 30]))
        use = Use(pool="kv", pages=[1], start=spans[number][0], stop=spans[number][1], holder="a")
        checker.step(Begin(number, f"s{number}", writes=[use]))
    clocks = checker.state.clocks
    clocks.begin(Begin(0, "s"))
    for flight in clocks.flying:
        clocks.sort(flight)
    for ended in (0, 50):
        for number in range(1, ended + 1):
            checker.step(End(number))
        for at in range(1000):
            rivals = clocks.rivals_at(clocks.flights[0], ("kv", 1), at, at + 1, writing=True)
            due = [number for number, (start, stop) in spans.items() if number > ended and start <= at < stop]
            assert [rival.number for rival in rivals] == due


def test_what_an_operation_in_flight_uses_of_a_page_is_known_by_number_and_by_table() -> None:
    checker = Checker(POOLS)
    for event in (
        take("a", 1),
        take("a", 2),
        Map("t", "a", "kv", 0, [2, 1]),
        Begin(1, "s", writes=[Use(pool="kv", pages=[1], stop=3, holder="a")]),
        Begin(2, "s", writes=[Use("t", start=0, stop=5)], reads=[Use(pool="kv", pages=[1], stop=2, holder="a")]),
    ):
        assert checker.step(event) == []
    pool, flights = checker.state.pool("kv"), checker.state.clocks.flights
    for flight in flights.values():
        checker.state.clocks.sort(flight)
    uses = {
        (id, number): sorted({(max(i, 0), min(j, 4), w) for i, j, w in used(flight, pool, number, pool.page(number))})
        for id, flight in flights.items()
        for number in (1, 2)
    }
    assert uses == {(1, 1): [(0, 3, True)], (1, 2): [], (2, 1): [(0, 1, True), (0, 2, False)], (2, 2): [(0, 4, True)]}


def test_two_contents_are_the_same_no_further_than_they_overlap() -> None:
    state = Checker(POOLS).state
    state.labels.unify("x", "y", 0)
    assert state.same_up_to(Content(4, 8, "x", 4), Content(4, 6, "y")) == 4
    assert state.same_up_to(Content(4, 8, "x", 0), Content(4, 6, "y", 0)) == 6


def test_the_same_label_agrees_where_its_slots_are_the_same() -> None:
    state = Checker(POOLS).state
    for start, offset, other_start, other_offset in product(range(3), repeat=4):
        agree = state.agree(Content(start, 4, "x", offset), Content(other_start, 4, "x", other_offset))
        assert agree == (start - offset == other_start - other_offset)


@pytest.mark.parametrize("labels", ["x", "xy", "xyz"])
def test_each_page_of_a_copy_is_what_it_is_a_copy_of(labels: str) -> None:
    checker = Checker(POOLS)
    own, copies = range(1, 1 + len(labels)), range(4, 4 + len(labels))
    for event in (
        take("a", *own, *copies),
        Begin(1, "s", writes=[Use(None, "kv", [*own], labels=[*labels], holder="a")]),
        Begin(2, "s", copies=[(of("a", *own), of("a", *copies))]),
    ):
        assert checker.step(event) == []
    pages = checker.state.pools["kv"].pages
    assert [[*pages[number].content] for number in copies] == [[Content(0, 4, label)] for label in labels]


def test_a_window_that_has_moved_on_leaves_nothing_to_be_checked() -> None:
    """Else each step would go over all that was ever left behind."""
    checker = Checker(POOLS)
    for event in (*mapped("a", 1, 2, 3), Unmap("t", 0, 1), Unmap("t", 0, 2)):
        checker.step(event)
    view = checker.state.tables["t"].views["s"]
    assert (view.low, view.high, view.changed) == (8, 12, [])
    assert checker.step(Begin(2, "s", [Use("t", start=8, stop=12)])) == []
    assert [describe(finding) for finding in checker.step(Begin(3, "s", [Use("t", start=7, stop=12)]))] == [
        "position 7 of t has no page"
    ]


def test_nothing_is_copied_to_padding() -> None:
    checker = Checker(POOLS)
    for event in (take("a", 1), copy(1, of("a", 1), of("a", 8))):
        assert checker.step(event) == []
    assert 8 not in checker.state.pools["kv"].pages


@pytest.mark.parametrize("gone", [Unmap("t"), Unmap("t", 1), Unmap("t", 0, 1)])
def test_a_run_that_has_left_is_not_checked_when_a_load_fails(gone: Unmap) -> None:
    """Nor what of its table is left, and it is not remembered."""
    checker = Checker(POOLS)
    load = Begin(1, "t", writes=[of("a", 1, 2)])
    step = Begin(2, "s", [Use(table="t", stop=8)], after=[1])
    left = [gone, Release("a", "kv", [1, 2]), EndHolder("a"), End(1, unwritten=[of(None, 1, 2, 5)])]
    for event in (take("a", 1, 2), table("t", "a", 1, 2), load, step, *left):
        assert checker.step(event) == []
    assert 5 not in checker.state.pools["kv"].pages
