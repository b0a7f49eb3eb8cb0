"""Page groups, in cases that walks seldom meet: the findings on each are those of the plain checker."""

import pytest

import kvcheck
from kvspec.memory import Pool
from kvspec.memory.checker import Checker
from kvspec.memory.events import (
    Begin,
    Count,
    Drop,
    End,
    Event,
    Map,
    Publish,
    Release,
    Share,
    Take,
    Transfer,
    Unmap,
    Use,
)

POOLS = {"kv": Pool(4, 8), "rows": Pool(8, 2, label_size=4)}
LABELS, OTHERS, KEYS = ["x", "y"], ["z", "w"], ["k", "l"]
TAKEN: list[Event] = [Take("a", "kv", [1, 2]), Map("t", "a", "kv", 0, [1, 2], LABELS)]
WRITE = Begin(1, "s", [], [Use("t", stop=8)])
FILLED: list[Event] = [*TAKEN, WRITE]
FREE: list[Event] = [*FILLED, Unmap("t"), Release("a", "kv", [1, 2])]
"""A page that was written in flight is remembered."""
NAMED: list[Event] = [*FILLED, Publish("kv", [1, 2], KEYS, LABELS)]
CACHED: list[Event] = [*NAMED, Unmap("t"), Release("a", "kv", [1, 2])]
TWO_MORE: list[Event] = [
    Take("a", "kv", [3, 4]),
    Map("u", "a", "kv", 0, [3, 4], OTHERS),
    Begin(2, "s", [], [Use("u", stop=8)]),
]
ROW: list[Event] = [Take("a", "rows", [1]), Map("row", "a", "rows", 0, [1])]
READ_BY_ANOTHER: list[Event] = [Begin(1, "r", [Use("t", stop=8)]), End(1)]

BROKEN: dict[str, tuple[list[Event], set[tuple[str, int]]]] = {
    "free ones are shared": ([*FREE, Share("b", "kv", [1, 2])], {("MEM-SHARE", 1), ("MEM-SHARE", 2)}),
    "one has another name": ([*NAMED, Share("b", "kv", [1, 2], ["k", "m"])], {("MEM-SHARE", 2)}),
    "free ones are published": ([*FREE, Publish("kv", [1, 2], KEYS, LABELS)], {("MEM-NAME", 1), ("MEM-NAME", 2)}),
    "empty ones are published": (
        [*FREE, Take("b", "kv", [1, 2]), Publish("kv", [1, 2], KEYS, LABELS)],
        {("MEM-NAME", 1), ("MEM-NAME", 2)},
    ),
    "two are published with the same key": ([*FILLED, Publish("kv", [1, 2], ["k", "k"], LABELS)], {("MEM-NAME", 2)}),
    "others have the names": (
        [*NAMED, *TWO_MORE, Publish("kv", [3, 4], KEYS, OTHERS)],
        {("MEM-NAME", 3), ("MEM-NAME", 4)},
    ),
    "named ones are written again": (
        [*NAMED, Map("t", "a", "kv", 0, [1, 2], OTHERS), Begin(2, "s", [], [Use("t", stop=8)])],
        {("MEM-OVERWRITE", 1), ("MEM-OVERWRITE", 2)},
    ),
    "they are another holder's": (
        [*FILLED, Map("u", "b", "kv", 0, [1, 2], LABELS), Begin(2, "s", [Use("u", stop=8)])],
        {("MEM-USE", 1), ("MEM-USE", 2)},
    ),
    "the first is written in part": (
        [*TAKEN, Begin(1, "s", [], [Use("t", start=2, stop=8)]), Begin(2, "s", [Use("t", stop=8)])],
        {("MEM-WRITTEN", 1)},
    ),
    "another table means something else": (
        [*TAKEN, Map("u", "a", "kv", 0, [1, 2], OTHERS), Begin(2, "s", [Use("u")]), WRITE, Begin(3, "s", [Use("u")])],
        {("MEM-CONTENT", 1), ("MEM-CONTENT", 2)},
    ),
    "another stream has read them before": (
        [*TAKEN, *READ_BY_ANOTHER, Begin(2, "s", [], [Use("t", stop=8)]), Begin(3, "r", [Use("t", stop=8)])],
        {("MEM-RACE", 1), ("MEM-RACE", 2)},
    ),
    "another stream has read the row before": (
        [
            *[*ROW, Begin(1, "r", [Use("row", stop=4)]), End(1)],
            *[Begin(2, "s", [], [Use("row", stop=4, labels=["1"])]), Begin(3, "r", [Use("row", stop=4)])],
        ],
        {("MEM-RACE", 1)},
    ),
    "a row ends within an entry": (
        [
            *[*ROW, Begin(1, "s", [], [Use("row", stop=6, labels=["1", "2"])])],
            Begin(2, "s", [Use("row", stop=8, labels=["1", "2"])]),
        ],
        {("MEM-WRITTEN", 1)},
    ),
    "a second name keeps the first": (
        [*NAMED, Publish("kv", [1, 2], ["m", "n"], LABELS), Drop("kv", [1, 2], KEYS)],
        set(),
    ),
    "cached ones are shared and counted": (
        [*CACHED, Share("b", "kv", [1, 2], KEYS), Count("kv", cached=0, held=2)],
        set(),
    ),
    "cached ones are withdrawn and counted": (
        [*CACHED, Drop("kv", [1, 2], KEYS), Count("kv", cached=0, held=0)],
        set(),
    ),
    "one is shared twice": ([*CACHED, Share("b", "kv", [1, 1]), Count("kv", references={1: 2})], set()),
    "a holder shares its own": ([*NAMED, Share("a", "kv", [1, 2], KEYS), Count("kv", references={1: 2, 2: 2})], set()),
    "they are passed on": ([*FILLED, Transfer("a", "b"), Count("kv", references={1: 1, 2: 1})], set()),
    "they are passed on to who has them": (
        [*FILLED, Share("b", "kv", [1, 2]), Transfer("a", "b"), Count("kv", references={1: 2, 2: 2})],
        set(),
    ),
    "they are passed on, and their table is not": (
        [*FILLED, Transfer("a", "b", "kv"), Begin(2, "s", [Use("t", stop=8)])],
        {("MEM-USE", 1), ("MEM-USE", 2)},
    ),
    "unnamed ones are found": ([*FILLED, Share("b", "kv", [1, 2], KEYS)], {("MEM-SHARE", 1), ("MEM-SHARE", 2)}),
    "one is handed out twice": ([*FREE, Take("b", "kv", [1, 1])], {("MEM-TAKE", 1)}),
    "one is let go twice": ([*FILLED, Unmap("t"), Release("a", "kv", [1, 1])], {("MEM-RELEASE", 1)}),
    "one gets two names": (
        [*FILLED, Publish("kv", [1, 1], ["k", "m"], ["x", "x"]), Drop("kv", [1], ["k"]), Share("b", "kv", [1], ["m"])],
        set(),
    ),
    "one loses its name twice": ([*NAMED, Drop("kv", [1, 1], ["k", "k"])], {("MEM-NAME", 1)}),
    "one loses a name that it has not": ([*NAMED, Drop("kv", [1, 2], ["k", "m"])], {("MEM-NAME", 2)}),
    "other labels are promised": ([*FILLED, Publish("kv", [1, 2], KEYS, OTHERS)], {("MEM-NAME", 1), ("MEM-NAME", 2)}),
    "what was written in flight is written by another": (
        [*FREE, Take("b", "kv", [1, 2]), Map("u", "b", "kv", 0, [1, 2], OTHERS), Begin(2, "r", [], [Use("u", stop=8)])],
        {("MEM-RACE", 1), ("MEM-RACE", 2)},
    ),
    "a table means something else by them": (
        [*FILLED, Map("t", "a", "kv", 0, [1, 2], OTHERS), Begin(2, "s", [Use("t", stop=8)])],
        {("MEM-CONTENT", 1), ("MEM-CONTENT", 2)},
    ),
    "a table of another request names one twice": (
        [Take("a", "kv", [1, 2]), Map("t", "b", "kv", 0, [1, 1]), Release("a", "kv", [1, 2]), Unmap("t")],
        set(),
    ),
    "a table of another request names one again": (
        [
            *[Take("a", "kv", [1, 2]), Map("t", "b", "kv", 0, [1, 2]), Map("t", "b", "kv", 2, [1])],
            *[Release("a", "kv", [1, 2]), Unmap("t")],
        ],
        set(),
    ),
    "a row is written over the end of a page": (
        [
            *[Take("a", "rows", [1, 2]), Map("row", "a", "rows", 0, [1, 2])],
            *[
                Begin(1, "s", [], [Use("row", stop=12, labels=["1", "2", "3"])]),
                End(1),
                Begin(2, "r", [Use("row", stop=12)]),
            ],
        ],
        set(),
    ),
    "a row is written on after a gap": (
        [
            *[*ROW, Begin(1, "s", [], [Use("row", start=4, stop=8, labels=["2"])])],
            Begin(2, "s", [Use("row", stop=8)]),
        ],
        {("MEM-WRITTEN", 1)},
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_grouped_pages_are_checked_as_each_would_be(name: str) -> None:
    events, due = BROKEN[name]
    fast, plain = kvcheck.Checker(POOLS), Checker(POOLS)
    found = [[{(one.rule, one.page) for one in checker.step(event)} for event in events] for checker in (fast, plain)]
    assert found[0] == found[1]
    assert found[0][-1] == due


@pytest.mark.parametrize(
    "events",
    [
        [*TAKEN, Share("b", "kv", [1, 2])],
        [*FILLED, Transfer("a", "b")],
        [*NAMED, Drop("kv", [1, 2], KEYS)],
        [*CACHED, Share("b", "kv", [1, 2], KEYS)],
    ],
    ids=lambda events: type(events[-1]).__name__,
)
def test_pages_that_are_handled_together_stay_grouped(events: list[Event]) -> None:
    checker = kvcheck.Checker(POOLS)
    for event in events:
        assert checker.step(event) == []
    assert not checker.state.pools["kv"].individual
    assert checker.state.pools["kv"].groups.keys() == {1, 2}


@pytest.mark.parametrize(("late", "most"), [(False, 0), (True, 1)])
def test_tables_that_named_pages_are_forgotten_once_nothing_reads_through_them(late: bool, most: int) -> None:
    """An operation may end after a table is gone; it is remembered up to the next such table."""
    checker = kvcheck.Checker(POOLS)
    pool = checker.state.pools["kv"]
    checker.step(Take("a", "kv", [1, 2]))
    for number in range(9):
        ends: list[Event] = [Unmap("t"), End(number)]
        for event in (Map("t", "a", "kv", 0, [1, 2], LABELS), Begin(number, "s"), *(ends if late else ends[::-1])):
            assert checker.step(event) == []
        assert len(pool.groups[1].left) == most
    checker.step(Release("a", "kv", [1, 2]))
    assert not pool.pages


def test_pages_in_the_table_of_another_request_are_handed_out_and_stay_in_it() -> None:
    checker = kvcheck.Checker(POOLS)
    for event in (Take("a", "kv", [1, 2]), Map("t", "b", "kv", 0, [1, 2], LABELS), Release("a", "kv", [1, 2])):
        assert checker.step(event) == []
    assert checker.state.pools["kv"].groups.keys() == {1, 2}
    assert checker.step(Take("c", "kv", [1, 2])) == []
    assert {found.rule for found in checker.step(Begin(1, "s", [Use("t", stop=8)]))} >= {"MEM-USE"}
    assert checker.step(Unmap("t")) == []
