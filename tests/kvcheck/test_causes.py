"""The parts of a finding besides its place: its possible cause, the other use, and how many more there are."""

import pytest

from kvcheck import Checker
from kvspec.memory import Pool
from kvspec.memory.events import (
    Begin,
    Count,
    Deliver,
    Drop,
    End,
    EndHolder,
    Event,
    Publish,
    Release,
    Share,
    Take,
    Unmap,
    Use,
)
from tests.spec.memory.scenarios import POOLS, copy, of, read, table, take, write


def test_a_delivery_after_other_content_is_its_consequence() -> None:
    checker = Checker(POOLS)
    events = [take("a", 1), write(1, "a", 1, "x"), read(2, "a", 1, "y"), Deliver(2, "a")]
    findings = [finding for event in events for finding in checker.step(event)]
    assert [(finding.rule, finding.cause) for finding in findings] == [("MEM-CONTENT", None), ("MEM-DELIVER", 3)]


def test_what_was_computed_from_other_content_is_its_consequence_in_another_page() -> None:
    checker = Checker(POOLS)
    wrong = Begin(2, "s", [of("a", 1, label="y")], [of("a", 2)])
    events = [take("a", 1, 2), write(1, "a", 1, "x"), wrong, read(3, "a", 2), Deliver(3, "a")]
    findings = [(finding.rule, finding.cause) for event in events for finding in checker.step(event)]
    assert findings == [("MEM-CONTENT", None), ("MEM-DELIVER", 3)]


def test_what_was_copied_from_where_something_was_found_is_its_consequence() -> None:
    """The copy brings one slot too few to another holder's page, which is read, and what was computed leaves."""
    checker = Checker(POOLS)
    copy = Begin(2, "s", copies=[(of("a", 1, label="x"), of("b", 2))])
    events = [
        take("a", 1),
        take("b", 2),
        Begin(1, "s", writes=[of("a", 1, label="x", stop=3)]),
        copy,
        read(3, "b", 2),
        Deliver(3, "b"),
    ]
    findings = [(finding.rule, finding.cause) for event in events for finding in checker.step(event)]
    assert findings == [("MEM-WRITTEN", None), ("MEM-WRITTEN", 4), ("MEM-DELIVER", 4)]


def test_what_a_holder_does_wrong_next_is_a_consequence() -> None:
    checker = Checker(POOLS)
    for holder, page, cause in (("a", 1, None), ("a", 2, 1), ("b", 3, None), ("b", 4, 3), ("a", 4, 1)):
        (finding,) = checker.step(Release(holder, "kv", [page]))
        assert finding.cause == cause


def test_what_follows_from_a_finding_says_so_and_a_race_does_not() -> None:
    checker = Checker(POOLS)
    events = [
        take("a", 1),
        take("b", 1),
        write(1, "a", 1),
        write(2, "b", 1, stream="t"),
        Release("a", "kv", [1]),
        Release("a", "kv", [1]),
    ]
    findings = [(finding.rule, finding.cause) for event in events for finding in checker.step(event)]
    assert findings == [("MEM-TAKE", None), ("MEM-RACE", None), ("MEM-RELEASE", 2)]


def test_of_one_event_only_so_many_findings_are_reported_one_by_one() -> None:
    checker = Checker({"kv": Pool(num_pages=3000)})
    read, again = Use(pool="kv", pages=[(1, 2500)]), Use(pool="kv", pages=[(1, 2500)], holder="b")
    reported = checker.step(Begin(1, "s", reads=[read, again]))
    for rule, number in (("MEM-USE", 5000), ("MEM-WRITTEN", 5000)):
        of_rule = [finding for finding in reported if finding.rule == rule]
        assert len(of_rule) == 1000
        assert [finding.more for finding in of_rule] == [number - 1000] + [0] * 999
    assert [finding.more for finding in checker.step(Begin(2, "s", reads=[of("c", 9)]))] == [0, 0]


@pytest.mark.parametrize("label", ["x", "y"])
def test_what_nothing_orders_says_where_the_earlier_use_was(label: str) -> None:
    for later in (read(2, "a", 1, "x", "t"), write(2, "a", 1, label, "t")):
        checker = Checker(POOLS)
        first = write(1, "a", 1, "x")
        first.at = "the first"
        assert [*checker.step(take("a", 1)), *checker.step(first)] == []
        assert [finding.earlier for finding in checker.step(later)] == ["the first"]


def test_the_writer_of_a_wrong_page_is_known_until_another_write_there() -> None:
    """One slot after the other is written through a table, then read as something else, and overwritten."""
    checker = Checker(POOLS)
    events = [
        take("a", 1),
        table("t", "a", 1, labels=["x"]),
        *[Begin(slot, "s", writes=[Use("t", start=slot, stop=slot + 1)]) for slot in range(4)],
        read(4, "a", 1, "y"),
        Publish("kv", [1], ["k"], ["y"]),
        Drop("kv", [1]),
        Publish("kv", [1], ["k"], ["x"]),
        write(5, "a", 1, "y"),
        write(6, "a", 1, "y", stream="t"),
    ]
    found = [finding for event in events for finding in checker.step(event)]
    assert [(one.rule, one.other) for one in found] == [
        ("MEM-CONTENT", (3, 6)),
        ("MEM-NAME", (3, 6)),
        ("MEM-OVERWRITE", (3, 6)),
        ("MEM-REWRITE", (4, 7)),
    ]


def test_a_write_of_the_same_without_an_order_is_nobodys_cause() -> None:
    checker = Checker(POOLS)
    events = [take("a", 1), write(1, "a", 1, "x", stream="s"), write(2, "a", 1, "x", stream="t"), take("b", 1)]
    assert [(finding.rule, finding.cause) for event in events for finding in checker.step(event)] == [
        ("MEM-REWRITE", None),
        ("MEM-TAKE", None),
    ]


@pytest.mark.parametrize("reported", [True, False])
def test_content_behind_unwritten_slots_is_checked_too(reported: bool) -> None:
    checker = Checker({"kv": Pool(4, 8, writes_reported=reported)})
    one = Begin(1, "s", writes=[of("a", 1, label="x", start=1, stop=2), of("a", 1, label="x", start=3)])
    findings = [
        (one.rule, one.cause) for event in (take("a", 1), one, read(2, "a", 1, "y")) for one in checker.step(event)
    ]
    assert findings == ([("MEM-WRITTEN", None), ("MEM-CONTENT", 3)] if reported else [("MEM-CONTENT", None)])


def test_whatever_follows_says_what_was_first() -> None:
    checker = Checker(POOLS)
    events: list[Event] = [take("a", 1), take("b", 1), read(1, "b", 1), Drop("kv", [1], ["k"]), take("c", 1)]
    findings = [(finding.rule, finding.cause) for event in events for finding in checker.step(event)]
    assert findings == [("MEM-TAKE", None), ("MEM-WRITTEN", 2), ("MEM-NAME", 2), ("MEM-TAKE", 2)]


@pytest.mark.parametrize("wrong", [Release("b", "kv", [1]), read(1, "a", 1)])
def test_what_is_found_on_a_page_that_is_handed_out_anew_follows_from_no_other_finding(wrong: Event) -> None:
    """A table names it all the while, so it is remembered while it is free."""
    checker = Checker(POOLS)
    events = [*[take("a", 1), table("t", "a", 1), wrong, Release("a", "kv", [1]), take("c", 1)], read(2, "c", 1)]
    assert [finding.cause for event in events for finding in checker.step(event)] == [None, None]


@pytest.mark.parametrize("again", [[Share("b", "kv", [1])], [take("b", 1, 2), EndHolder("b")]])
@pytest.mark.parametrize("ended", [True, False])
def test_what_is_found_on_pages_that_were_free_together_follows_from_no_other_finding(
    again: list[Event], ended: bool
) -> None:
    """One of them was kept by a holder that left. A page that an open operation remembers is handed out first."""
    checker = Checker(POOLS)
    events = [take("a", 1, 2), table("t", "a", 1, 2), Begin(1, "s"), EndHolder("a"), *[End(1)] * ended, Unmap("t")]
    events += [Release("a", "kv", [1, 2]), *[take("c", 1, 2), Release("c", "kv", [1, 2])] * (not ended), *again]
    found = [(found.rule, found.page, found.cause) for event in events for found in checker.step(event)]
    assert found == [("MEM-LEAK", 1, None), (found[-1][0], 1, None)]


def test_a_page_that_is_missing_in_a_list_and_handed_out_with_another_is_found_anew() -> None:
    checker = Checker(POOLS)
    counted = Count("kv", free=[(3, 5)])
    found = [found for event in (counted, take("a", 1, 2), EndHolder("a")) for found in checker.step(event)]
    assert [(one.rule, one.page, one.cause) for one in found] == [("MEM-COUNT", 1, None), ("MEM-LEAK", 1, None)]


def test_of_the_places_of_findings_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcheck.state.MARKS", 4)
    checker = Checker(POOLS)
    for page in range(1, 8):
        assert [finding.cause for finding in checker.step(Release(f"r{page}", "kv", [page]))] == [None]
    assert len(checker.state.causes) <= 4
    assert [one.cause for holder in ("r1", "r7") for one in checker.step(Release(holder, "kv", [1]))] == [None, 7]


def test_what_comes_to_a_page_from_where_something_was_found_leaves_its_first_cause() -> None:
    checker = Checker(POOLS)
    wrong = Begin(3, "s", [of("a", 1, label="y")], [of("a", 2, label="w")])
    events = [take("a", 1, 2), write(1, "a", 1, "x"), Share("c", "kv", [2]), read(2, "c", 2), wrong]
    findings = [
        (finding.rule, finding.cause) for event in (*events, read(4, "a", 2, "z")) for finding in checker.step(event)
    ]
    assert findings == [("MEM-WRITTEN", None), ("MEM-CONTENT", None), ("MEM-CONTENT", 4)]


def test_the_first_of_two_causes_counts() -> None:
    """Another's content is read, and then tainted content of a failed load: the delivery follows from the first."""
    checker = Checker(POOLS)
    events: list[Event] = [
        *[take("a", 1, 2, 3), write(1, "a", 1, "x"), Begin(2, "t", writes=[of("a", 2)])],
        *[Begin(3, "s", [of("a", 2)], [of("a", 3)], after=[2]), End(2, unwritten=[of("a", 2)])],
        Begin(4, "s", [of("a", 1, label="y"), of("a", 3)]),
        Deliver(4, "a"),
    ]
    findings = [(finding.rule, finding.cause) for event in events for finding in checker.step(event)]
    assert findings == [("MEM-CONTENT", None), ("MEM-DELIVER", 6)]


@pytest.mark.parametrize("page", [2, 3])
def test_a_load_that_failed_is_no_finding_and_nobodys_cause(page: int) -> None:
    """Nor where what was computed of it is copied to."""
    checker = Checker(POOLS)
    events: list[Event] = [
        *[take("a", 1, 2, 3), Begin(1, "t", writes=[of("a", 1)])],
        *[Begin(2, "s", [of("a", 1)], [of("a", 2, label="w")], after=[1]), End(1, unwritten=[of("a", 1)])],
        *[copy(3, of("a", 2), of("a", 3)), Release("b", "kv", [page]), read(4, "a", page, "z")],
    ]
    findings = [(finding.rule, finding.cause) for event in events for finding in checker.step(event)]
    assert findings == [("MEM-RELEASE", None), ("MEM-CONTENT", 6)]


@pytest.mark.parametrize(("pool", "cause"), [("kv", 3), ("rows", None)])
def test_of_contents_one_thing_follows_from_another_within_a_pool(pool: str, cause: int | None) -> None:
    checker = Checker(POOLS)
    events = [take("a", 1, 2), Take("a", "rows", [2]), read(1, "a", 1)]
    assert [finding.rule for event in events for finding in checker.step(event)] == ["MEM-WRITTEN"]
    (finding,) = checker.step(Begin(2, "s", [Use(None, pool, [2], stop=1, holder="a")]))
    assert (finding.rule, finding.cause) == ("MEM-WRITTEN", cause)


def test_what_is_found_of_owners_is_a_cause_in_every_pool() -> None:
    checker = Checker(POOLS)
    assert [finding.cause for pool in ("kv", "rows") for finding in checker.step(Release("a", pool, [1]))] == [None, 1]
