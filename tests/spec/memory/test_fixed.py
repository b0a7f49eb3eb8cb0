"""After a finding a checker goes on from the right state, and reports new findings once; for both checkers."""

import pytest

from kvconform.oracle.meaning import MakeChecker
from kvspec.memory import Pool
from kvspec.memory.events import (
    Begin,
    Count,
    Deliver,
    Drop,
    End,
    EndHolder,
    Event,
    Idle,
    Publish,
    Release,
    Reserve,
    Share,
    Transfer,
    Unmap,
    Use,
)
from tests.spec.memory.scenarios import Found, of, plan, read, table, take, write

CACHED = [take("a", 1), write(1, "a", 1, "x"), Publish("kv", [1], ["k"], ["x"]), Release("a", "kv", [1])]


@pytest.mark.parametrize("before", [CACHED, CACHED[:3], CACHED[:2], [*CACHED, Share("a", "kv", [1], ["k"])]])
def test_a_page_that_is_handed_out_in_use_is_new_all_the_same(found: Found, before: list[Event]) -> None:
    """Nothing of what it held is there, and no name finds it any more."""
    taken, at = [*before, take("b", 1)], len(before) + 1
    assert found(*taken) == [("MEM-TAKE", at)]
    assert found(*taken, read(2, "b", 1, "x")) == [("MEM-TAKE", at), ("MEM-WRITTEN", at + 1)]
    assert found(*taken, Share("c", "kv", [1], ["k"])) == [("MEM-TAKE", at), ("MEM-SHARE", at + 1)]
    assert found(*taken, Drop("kv", [1], ["k"])) == [("MEM-TAKE", at), ("MEM-NAME", at + 1)]
    again = [write(2, "b", 1, "y"), read(3, "b", 1, "y"), Count("kv", free=6, cached=0, held=1)]
    assert found(*taken, *again) == [("MEM-TAKE", at)]


def test_what_a_stranger_lets_go_of_stays_its_holder_s(found: Found) -> None:
    stays = [
        take("a", 1),
        Release("b", "kv", [1]),
        Transfer("b", "c", "kv", [1]),
        Count("kv", free=6, references={1: 1}),
    ]
    assert found(*stays, Release("a", "kv", [1]), Count("kv", free=7)) == [("MEM-RELEASE", 2), ("MEM-RELEASE", 3)]


def test_a_pin_that_is_passed_on_is_a_pin(found: Found) -> None:
    """So its new holder may not use the page as its own, and the page is written with a pin on it."""
    passed = [take("a", 1), write(1, "a", 1, "x"), Share("p", "kv", [1], pin=True), Transfer("p", "q", "kv", [1])]
    assert found(*passed, write(2, "a", 1, "y"), Release("a", "kv", [1]), Release("q", "kv", [1]), EndHolder("p")) == []


def test_a_difference_is_reported_when_it_appears_and_whenever_it_changes(found: Found) -> None:
    figures = [7, 5, 5, 4, 4, 7, 4, 7]
    reported = found(*[Count("kv", free=free) for free in figures])
    assert reported == [("MEM-COUNT", number) for number in (2, 4, 7)]
    fixed = [Count("kv", free=6), take("a", 1), Count("kv", free=5), Count("kv", free=4)]
    assert found(*fixed) == [("MEM-COUNT", 1), ("MEM-COUNT", 4)]


def test_a_holder_that_left_with_a_page_is_reported_once_until_it_holds_another(found: Found) -> None:
    left = [take("a", 1), EndHolder("a"), Idle()]
    assert found(*left) == [("MEM-LEAK", 2)]
    assert found(*left, take("a", 2), Idle()) == [("MEM-LEAK", 2), ("MEM-LEAK", 5)]


@pytest.mark.parametrize("reported", [True, False])
def test_unwritten_pages_may_be_published_where_writes_are_not_reported(checker: MakeChecker, reported: bool) -> None:
    watching = checker({"kv": Pool(writes_reported=reported)})
    events = [take("a", 1), Publish("kv", [1], ["k"], ["x"]), read(1, "a", 1)]
    findings = [finding.rule for event in events for finding in watching.step(event)]
    assert findings == (["MEM-NAME", "MEM-WRITTEN"] if reported else [])


def test_a_result_that_was_delivered_too_early_is_reported_once(found: Found) -> None:
    delivered = [take("a", 1), write(1, "a", 1), Deliver(1, "a"), End(1, "reads"), End(1)]
    assert found(*delivered) == [("MEM-DELIVER", 4)]


def test_a_promise_is_taken_up_page_by_page(found: Found) -> None:
    assert found(Reserve("a", "kv", 3), take("a", 1), take("b", 2, 3, 4, 5)) == []
    assert found(Reserve("a", "kv", 3), take("a", 1), take("b", 2, 3, 4, 5, 6)) == [("MEM-RESERVE", 3)]
    assert found(Reserve("a", "kv", 3), take("a", 1, 2), EndHolder("b"), take("b", 3, 4, 5, 6, 7)) == [
        ("MEM-RESERVE", 4)
    ]


def test_a_copy_brings_what_was_there_whatever_a_table_means(found: Found) -> None:
    """Only labels that the copy itself reports say what it brings."""
    copied = [take("a", 1, 2), write(1, "a", 1, "x"), table("t", "a", 2, labels=["y"])]
    by_table = [*copied, Begin(2, "s", copies=[(of("a", 1), Use(table="t"))])]
    assert found(*by_table, read(3, "a", 2, "x")) == []
    assert found(*by_table, Begin(3, "s", [Use(table="t")])) == [("MEM-CONTENT", 5)]
    reported = Begin(2, "s", copies=[(of("a", 1), Use(table="t", labels=["y"]))])
    assert found(*copied, reported, Begin(3, "s", [Use(table="t")])) == []


@pytest.mark.parametrize("reader", ["a", None])
def test_a_result_computed_from_missing_content_is_tainted_wherever_it_is_written(
    found: Found, reader: str | None
) -> None:
    """If it is not reported for whom something was read, all that the operation writes is tainted."""
    failed: list[Event] = [
        take("a", 1, 2),
        take("b", 3),
        Begin(1, "t", writes=[of("a", 1)]),
        Begin(2, "s", [of(reader, 1)], [of("a", 2), of("b", 3)], after=[1]),
        End(1, unwritten=[of("a", 1)]),
    ]
    assert found(*failed, read(3, "a", 2), Deliver(3, "a")) == [("MEM-DELIVER", 7)]
    for_b = [] if reader else [("MEM-DELIVER", 7)]
    assert found(*failed, read(3, "b", 3), Deliver(3, "b")) == for_b


def test_each_table_through_which_a_page_was_read_counts_until_its_reader_has_ended(found: Found) -> None:
    """The page goes from one table to another, and on: the last reader still reads it, the first one is done."""
    read_twice: list[Event] = [
        take("a", 1),
        table("t", "a", 1),
        Begin(1, "s", writes=[Use(table="t")]),
        End(1),
        Begin(2, "s", [Use(table="t")]),
        Unmap("t"),
        table("u", "a", 1),
        Begin(3, "v", [Use(table="u")]),
        Unmap("u"),
        Release("a", "kv", [1]),
        take("b", 1),
    ]
    assert found(*read_twice, End(2), write(4, "b", 1, stream="w")) == [("MEM-RACE", 13)]
    assert found(*read_twice, End(3), write(4, "b", 1, stream="w")) == [("MEM-RACE", 13)]
    assert found(*read_twice, End(2), End(3), write(4, "b", 1, stream="w")) == []


def test_what_is_added_to_a_page_is_seen_through_each_table_that_names_it(found: Found) -> None:
    """Slot 2 is read through another table before and after it is written: it was missing, and then is another's."""
    added: list[Event] = [
        take("a", 1),
        table("t", "a", 1, labels=["x"]),
        *[Begin(slot, "s", writes=[Use(table="t", start=slot, stop=slot + 1)]) for slot in range(2)],
        Share("b", "kv", [1]),
        table("u", "b", 1, labels=["y"]),
        Begin(2, "s", [Use(table="u", start=2, stop=3)]),
        Begin(3, "s", writes=[Use(table="t", start=2, stop=3)]),
        Begin(4, "s", [Use(table="u", start=2, stop=3)]),
    ]
    assert found(*added) == [("MEM-WRITTEN", 7), ("MEM-CONTENT", 9)]


def test_a_shared_object_of_a_storage_is_rewritten_with_the_same_alone(checker: MakeChecker) -> None:
    pools = {"disk": Pool(keyed=True)}
    put = [Begin(id, "s", writes=[Use(pool="disk", pages=["k"], labels=[label])]) for id, label in enumerate("xxy")]
    watching = checker(pools)
    assert [finding.rule for event in put for finding in watching.step(event)] == ["MEM-OVERWRITE"]


def test_a_name_finds_the_page_that_has_had_it_last(checker: MakeChecker) -> None:
    watching = checker({"kv": Pool()})
    reported = [take("a", 1, 2), write(1, "a", 1, "x"), write(2, "a", 2, "x"), Publish("kv", [1], ["k"], ["x"])]
    assert [finding for event in reported for finding in watching.step(event)] == []
    assert watching.names("kv") == {"k": 1}
    assert watching.step(Publish("kv", [2], ["k"], ["x"])) == []
    assert watching.names("kv") == {"k": 2}
    assert watching.step(Drop("kv", [2], ["k"])) == []
    assert watching.names("kv") == {"k": 1}


def test_a_plan_whose_writer_has_let_go_is_reported_once_though_the_writer_has_a_pin_left(found: Found) -> None:
    planned = [take("a", 1), Share("tree", "kv", [1]), plan("a"), Share("a", "kv", [1], pin=True)]
    assert found(*planned, Release("a", "kv", [1]), Release("a", "kv", [1])) == [("MEM-NAME", 5)]
