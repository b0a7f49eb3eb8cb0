"""The indices that the checker keeps beside its pages are those that a pass over all pages would compute."""

from collections import Counter
from random import Random

import pytest

import kvspec.memory.checker
from kvcheck import Checker
from kvcheck.clocks import Clocks
from kvcheck.counting import LISTED
from kvcheck.pages import HOLE, NOTHING
from kvcheck.pools import PoolState
from kvcheck.state import State
from kvspec.memory.events import Begin, Count, Drop, End, Event, Map, Publish, Release, Unify, Unmap, Use
from tests.kvcheck.walks import Decoding, Together, Walk, pools
from tests.spec.memory.scenarios import POOLS, RIGHT, of, read, table, take, write


def check(state: State) -> None:
    """Hold every figure and every index against the pages and the operations."""
    assert not NOTHING
    holdings: dict[str, dict[str, set[object]]] = {}
    for name, pool in state.pools.items():
        check_pool(pool)
        for number, page in pool.pages.items():
            for holder in [*page.holders, *page.pins]:
                holdings.setdefault(holder, {}).setdefault(name, set()).add(number)
    assert {who: {name: {*pages} for name, pages in held.items()} for who, held in state.holdings.items()} == holdings
    check_tables(state)
    check_clocks(state.clocks)


def check_forgotten(state: State) -> None:
    """A page that is free and not in use is not remembered."""
    for pool in state.pools.values():
        for number, page in pool.pages.items() if not pool.keyed else ():
            in_flight = bool(page.left) and page.left[-1][-1] >= state.clocks.oldest
            assert page.kind != "free" or page.tables or in_flight, number


def check_pool(pool: PoolState) -> None:
    """Kinds, names, and the content of each page."""
    kinds = Counter(page.kind for page in pool.pages.values() if page.kind != "free")
    assert (pool.held, pool.cached) == (kinds["held"], kinds["cached"])
    for kind in ("held", "cached"):
        assert pool.of_kind(kind) == sorted(number for number, page in pool.pages.items() if page.kind == kind)
    names = {(key, number) for number, page in pool.pages.items() for key in page.keys}
    assert {(key, number) for key in pool.names for number in pool.found(key)} == names
    assert {} not in pool.names.values() and all(all(reported.values()) for reported in pool.reported.values())
    assert pool.promised == sum(pool.reserved.values())
    assert all(len(reported) <= LISTED for figure, reported in pool.reported.items() if figure != "references")
    for page in pool.pages.values():
        assert min([*page.holders.values(), *page.pins.values()], default=1) > 0
        plans = page.plans or {}
        planned = {key: promise.plan for key, promise in page.keys.items() if promise.plan is not None}
        assert planned == {key: plan for plan in plans.values() for key in plan.keys}
        assert all(plan.keys and plan.writer == writer for writer, plan in plans.items())
        at = 0
        for content in page.content:
            assert at <= content.start < content.stop <= pool.size
            at = content.stop


def check_tables(state: State) -> None:
    """A page knows the tables that name it, and where; no stream has looked past the end of a table."""
    links = {
        (name, pool.name, number, link.index)
        for pool in state.pools.values()
        for number, page in pool.pages.items()
        for name, link in page.tables.items()
    }
    named = {
        (table.name, table.pool.name, number, index)
        for table in state.tables.values()
        for index, number in enumerate(table.pages)
        if number != HOLE and number not in table.pool.padding
    }
    assert links == named
    assert sum(map(len, state.tables_of.values())) == len(state.tables) and all(state.tables_of.values())
    for name, one in state.tables.items():
        assert one.name == name
        assert name in state.tables_of[one.holder]
        assert len(one.labels) <= len(one.pages) * (one.pool.size // one.pool.unit)
        assert one.pages
        for view in one.views.values():
            assert 0 <= view.low <= view.high <= len(one.pages) * one.pool.size
            assert {*view.changed} <= {*range(len(one.pages))}


def check_clocks(clocks: Clocks) -> None:
    """Streams, rivals and users are of operations in flight."""
    queues = [stream.flights for stream in clocks.streams.values()]
    flying = {flight for queue in queues for flight in queue}
    assert {flight for flight in flying if clocks.flights.get(flight.event.id) is flight} == {*clocks.flights.values()}
    assert clocks.oldest == min((flight.number for flight in flying), default=clocks.begun + 1)
    for queue in queues:
        assert [flight.number for flight in queue] == sorted(flight.number for flight in queue)
    for index, writing in ((clocks.users, False), (clocks.writers, True)):
        spans = {
            (place, flight)
            for flight in flying
            for place, uses in flight.spans.items()
            if not writing or any(writes for _, _, writes in uses)
        }
        listed = [(place, flight) for place, at in index.items() for queue in at.by_stream.values() for flight in queue]
        assert sorted(listed, key=repr) == sorted(spans, key=repr)
        assert all(at.by_stream and all(at.by_stream.values()) for at in index.values())
        for place, at in index.items():
            assert all(queue == sorted(queue, key=lambda flight: flight.number) for queue in at.by_stream.values())
            for here, flight in spans:
                for first, last, writes in flight.spans[place] if here == place else ():
                    near = [one for queue in at.near(first, first + 1) for one in queue]
                    assert flight in near or first == last or (writing and not writes)


@pytest.mark.slow
@pytest.mark.parametrize("walks", [Walk, Decoding, Together])
def test_what_is_kept_is_what_going_over_all_finds(walks: type[Walk], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcheck.pools._ANEW", 0)
    monkeypatch.setattr("kvcheck.flights._MANY", 2)
    for seed in range(90):
        random = Random(seed)
        sizes = pools(random, walks.pages)
        checker, plain = Checker(sizes), kvspec.memory.checker.Checker(sizes)
        walk = walks(random, plain)
        for _ in range(40):
            event = walk.event()
            plain.step(event)
            checker.step(event)
            check(checker.state)


@pytest.mark.parametrize("name", RIGHT)
def test_it_is_after_each_event_of_what_is_right(name: str) -> None:
    events: list[Event] = RIGHT[name]
    checker = Checker(POOLS)
    for event in events:
        checker.step(event)
        check(checker.state)
    for name in [*checker.state.tables]:
        checker.step(Unmap(name))
    check_forgotten(checker.state)


def test_a_page_that_a_table_names_twice_is_named_until_it_is_named_no_more() -> None:
    checker = Checker(POOLS)
    for event in (take("a", 1, 2), table("t", "a", 1), Map("t", "a", "kv", 1, [1]), Map("t", "a", "kv", 0, [2])):
        assert checker.step(event) == []
    check(checker.state)
    gone: list[Event] = [Map("t", "a", "kv", 0, [1]), Map("t", "a", "kv", 1, [1]), Unmap("t", 1), Unmap("t")]
    assert [finding for event in gone for finding in checker.step(event)] == []
    check(checker.state)


def test_a_free_page_is_forgotten_once_no_table_names_it() -> None:
    checker = Checker(POOLS)
    for event in (take("a", 1), table("t", "a", 1), Release("a", "kv", [1])):
        assert checker.step(event) == [] and checker.state.pools["kv"].pages.keys() == {1}
    assert checker.step(Unmap("t")) == [] and not checker.state.pools["kv"].pages


def test_a_page_is_forgotten_with_its_last_name_and_a_free_one_that_is_counted_at_once() -> None:
    checker = Checker(POOLS)
    for event in (
        *[take("a", 1), write(1, "a", 1, "x"), Publish("kv", [1], ["k"], ["x"]), Release("a", "kv", [1]), End(1)],
        *[Drop("kv", [1]), Count("kv", references={5: 0})],
    ):
        assert checker.step(event) == []
    assert not checker.state.pools["kv"].pages


def test_a_table_whose_pages_are_all_gone_is_forgotten() -> None:
    checker = Checker(POOLS)
    for event in (take("a", 1, 2), table("t", "a", 1, 2), Unmap("t", 1, 2), Unmap("t", 0, 1)):
        assert checker.step(event) == []
    assert not checker.state.tables


def test_what_was_read_through_tables_is_forgotten_with_the_operations_that_read_it() -> None:
    """A page that many runs in turn read through tables of their own, while a launch is always in flight."""
    checker = Checker(POOLS)
    events: list[Event] = [take("a", 1), write(0, "a", 1)]
    for step in range(1, 100):
        events += [table("t", "a", 1), Begin(step, "s", [Use("t")]), End(step - 1), Unmap("t")]
    assert [finding for event in events for finding in checker.step(event)] == []
    assert len(checker.state.pools["kv"].pages[1].left) <= 2


def test_of_complete_operations_whose_end_was_never_reported_the_last_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvcheck.clocks._REMEMBERED", 5)
    checker = Checker(POOLS)
    for event in (take("a", 1), *[write(step, "a", 1) for step in range(20)], End(19), End(18)):
        assert checker.step(event) == []
    assert [finding.rule for finding in checker.step(End(2))] == ["MEM-ORDER"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([write(1, "a", 1, "a/0")], [read(2, "a", 1, "k0")]),
        ([Publish("kv", [1], ["n"], ["a/0"], planned=True)], [write(1, "a", 1, "k0"), Release("a", "kv", [1])]),
        ([table("t", "a", 1, labels=["a/0"])], [write(1, "a", 1, "k0"), Begin(2, "s", [Use("t")])]),
    ],
    ids=["content", "promise", "table"],
)
def test_labels_that_something_bears_are_kept(before: list[Event], after: list[Event]) -> None:
    learned = [Unify(f"a/{step}", f"k{step}") for step in range(3000)]
    checker = Checker(POOLS)
    assert [finding for event in (take("a", 1), *before, *learned, *after) for finding in checker.step(event)] == []


def test_of_tainted_results_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcheck.ending._REMEMBERED", 5)
    checker = Checker(POOLS)
    checker.step(take("a", 1))
    for step in range(20):
        assert [one.rule for one in checker.step(Begin(step, "s", [of("a", 1)]))] == ["MEM-WRITTEN"]
        assert checker.step(End(step)) == []
    assert [*checker.state.tainted] == [15, 16, 17, 18, 19]
