"""How often the checker has checked each rule, and how often too little was reported for it."""

from collections import Counter

import pytest

from kvcheck import Checker
from kvspec.memory.events import (
    Announce,
    Begin,
    Count,
    Decide,
    Deliver,
    Drop,
    End,
    EndHolder,
    Event,
    Idle,
    Map,
    Publish,
    Release,
    Reserve,
    Share,
    Take,
    Transfer,
    Use,
    Wait,
)
from kvspec.rules import MEMORY_RULES
from tests.spec.memory.scenarios import POOLS, of, read, table, take, write

SCENARIO: list[tuple[Event, str]] = [
    (take("e", 3, 4), "TAKE 2"),
    (Transfer("e", "f"), "RELEASE 2"),
    (Release("f", "kv", [3, 4]), "RELEASE 2"),
    (take("a", 1, 2), "TAKE 2"),
    (table("t", "a", 1, 2, labels=["x", "y"]), ""),
    (Begin(1, "s", writes=[Use("t", stop=1)]), "CONTENT 1 ORDER 1 USE 1"),
    (Begin(2, "s", [Use("t", stop=2)], [Use("t", start=1, stop=2)]), "ORDER 1 RACE 2 REWRITE 1 USE 2 WRITTEN 1"),
    (Begin(3, "s", writes=[Use("t", start=2, stop=4, labels=["x"])]), "CONTENT 1 ORDER 1 RACE 1 REWRITE 1 USE 1"),
    (Begin(4, "s", [Use("t", stop=4)]), "ORDER 1 RACE 1 USE 1 WRITTEN 1"),
    (Begin(5, "s", copies=[(of("a", 1), of("a", 2))]), "ORDER 1 RACE 2 REWRITE 1 USE 2 WRITTEN 1 not CONTENT 1"),
    (End(5), "ORDER 1"),
    (read(6, "a", 2, "x"), "CONTENT 1 ORDER 1 RACE 1 USE 1 WRITTEN 1"),
    (End(6), "ORDER 1"),
    (Deliver(6, "a"), "DELIVER 1"),
    (Publish("kv", [1], ["k"], ["x"]), "NAME 1"),
    (Publish("kv", [2], ["l"]), "NAME 1 not NAME 1"),
    (Share("b", "kv", [1], ["k"]), "SHARE 1"),
    (Share("b", "kv", [2], pin=True), "SHARE 1"),
    (Release("a", "kv", [1, 2]), "RELEASE 2"),
    (Transfer("b", "c"), "RELEASE 2"),
    (Drop("kv", [1], ["k"]), "NAME 1"),
    (Release("c", "kv", [1]), "RELEASE 1"),
    (Count("kv", free=6, held=1), "COUNT 2"),
    (Reserve("d", "kv", 2), "RESERVE 1"),
    (EndHolder("a"), "LEAK 1"),
    (Idle(["c"]), "LEAK 1"),
    (Begin(7, "s", writes=[Use(pool="disk", pages=["k"])]), "ORDER 1 OVERWRITE 1 RACE 1 REWRITE 1 USE 1"),
    (Wait("u", on="s"), ""),
    (Decide("tp", "x"), "AGREE 1"),
    (Idle(["c"]), "AGREE 1 LEAK 1"),
    (Announce("GPU", ["l"], pool="kv"), "ANNOUNCE 1"),
]
"""Events that break nothing, each with how often it checks which rule, and how often it could not."""


def test_how_often_each_rule_is_checked_is_counted() -> None:
    """Everything has been counted a few times already: what is counted is added."""
    checker, before = Checker(POOLS), Counter(dict.fromkeys(MEMORY_RULES, 5))
    for event, due in SCENARIO:
        checker.state.checked.update(before)
        checker.state.pools["kv"].unchecked.update(before)
        assert checker.step(event) == []
        reported = [
            f"{words}{rule[4:]} {counted[rule] - before[rule]}"
            for words, counted in (("", checker.checked), ("not ", checker.unchecked["kv"]))
            for rule in sorted({*counted, *MEMORY_RULES})
            if counted[rule] != before[rule]
        ]
        assert " ".join(reported) == due, event


def test_the_writes_of_the_only_operation_are_checked_against_each_other() -> None:
    checker = Checker(POOLS)
    both = [Use(pool="kv", pages=[1], start=0, stop=1, holder="a", labels=[label]) for label in "xy"]
    assert checker.step(take("a", 1)) == []
    assert [finding.code for finding in checker.step(Begin(1, "s", writes=both))] == ["MEM-RACE/itself"]
    assert checker.checked["MEM-RACE"] == 1


@pytest.mark.parametrize(
    ("holds", "promised", "unchecked"), [(None, "x", 1), ("x", None, 1), (None, None, 1), ("x", "x", 0)]
)
def test_a_promise_is_checked_where_both_sides_are_reported(
    holds: str | None, promised: str | None, unchecked: int
) -> None:
    checker = Checker(POOLS)
    for event in (take("a", 1), write(1, "a", 1, holds), Publish("kv", [1], ["k"], [promised] if promised else None)):
        assert checker.step(event) == []
    assert checker.state.pools["kv"].unchecked["MEM-NAME"] == unchecked


@pytest.mark.parametrize("pool", ["kv", "rows"])
@pytest.mark.parametrize("labels", [["x"] * 12, None])
def test_the_content_of_each_written_page_is_checked_where_it_is_reported(pool: str, labels: list[str] | None) -> None:
    checker = Checker(POOLS)
    size = checker.state.pools[pool].size
    for event in (
        Take("a", pool, [1, 2, 3]),
        Map("t", "a", pool, 0, [1, 2, 3], labels and labels[: 3 * size // 4]),
        Begin(1, "s", writes=[Use("t", stop=3 * size)]),
    ):
        assert checker.step(event) == []
    counted, other = checker.state.checked, checker.state.pools[pool].unchecked
    if labels is None:
        counted, other = other, counted
    assert (counted["MEM-CONTENT"], other["MEM-CONTENT"]) == (3, 0)
