"""After a finding the law goes on from what must be, and tells what is new: once, and with its first cause."""

import pytest

from kvlaw import Law
from kvspec.memory import Pool
from kvspec.memory.events import (
    Begin,
    Count,
    Deliver,
    Drop,
    End,
    Event,
    Idle,
    Leave,
    PassOn,
    Publish,
    Release,
    Reserve,
    Share,
    Take,
    Unmap,
    Use,
)
from tests.spec.memory.test_law import POOLS, copy, found, of, read, table, take, write

CACHED = [take("a", 1), write(1, "a", 1, "x"), Publish("kv", [1], ["k"], ["x"]), Release("a", "kv", [1])]


@pytest.mark.parametrize("before", [CACHED, CACHED[:3], CACHED[:2], [*CACHED, Share("a", "kv", [1], ["k"])]])
def test_a_page_that_is_handed_out_in_use_is_new_all_the_same(before: list[Event]) -> None:
    """Nothing of what it held is there, and no name finds it any more."""
    taken, at = [*before, take("b", 1)], len(before) + 1
    assert found(*taken) == [("MEM-TAKE", at)]
    assert found(*taken, read(2, "b", 1, "x")) == [("MEM-TAKE", at), ("MEM-WRITTEN", at + 1)]
    assert found(*taken, Share("c", "kv", [1], ["k"])) == [("MEM-TAKE", at), ("MEM-SHARE", at + 1)]
    assert found(*taken, Drop("kv", [1], ["k"])) == [("MEM-TAKE", at), ("MEM-NAME", at + 1)]
    again = [write(2, "b", 1, "y"), read(3, "b", 1, "y"), Count("kv", free=6, cached=0, held=1)]
    assert found(*taken, *again) == [("MEM-TAKE", at)]


def test_what_a_stranger_lets_go_of_stays_its_holder_s() -> None:
    stays = [take("a", 1), Release("b", "kv", [1]), PassOn("b", "c", "kv", [1]), Count("kv", free=6, references={1: 1})]
    assert found(*stays, Release("a", "kv", [1]), Count("kv", free=7)) == [("MEM-RELEASE", 2), ("MEM-RELEASE", 3)]


def test_a_pin_that_is_passed_on_is_a_pin() -> None:
    """So its new holder may not use the page as its own, and the page is written with a pin on it."""
    passed = [take("a", 1), write(1, "a", 1, "x"), Share("p", "kv", [1], pin=True), PassOn("p", "q", "kv", [1])]
    assert found(*passed, write(2, "a", 1, "y"), Release("a", "kv", [1]), Release("q", "kv", [1]), Leave("p")) == []


def test_a_difference_is_told_when_it_appears_and_whenever_it_changes() -> None:
    figures = [7, 5, 5, 4, 4, 7, 4, 7]
    told = found(*[Count("kv", free=free) for free in figures])
    assert told == [("MEM-COUNT", number) for number in (2, 4, 7)]
    mended = [Count("kv", free=6), take("a", 1), Count("kv", free=5), Count("kv", free=4)]
    assert found(*mended) == [("MEM-COUNT", 1), ("MEM-COUNT", 4)]


def test_whatever_follows_says_what_was_first() -> None:
    law = Law(POOLS)
    events: list[Event] = [take("a", 1), take("b", 1), read(1, "b", 1), Drop("kv", [1], ["k"]), take("c", 1)]
    findings = [(finding.rule, finding.cause) for event in events for finding in law.step(event)]
    assert findings == [("MEM-TAKE", None), ("MEM-WRITTEN", 2), ("MEM-NAME", 2), ("MEM-TAKE", 2)]


def test_who_has_left_with_a_page_is_told_once_until_it_holds_another() -> None:
    left = [take("a", 1), Leave("a"), Idle()]
    assert found(*left) == [("MEM-LEAK", 2)]
    assert found(*left, take("a", 2), Idle()) == [("MEM-LEAK", 2), ("MEM-LEAK", 5)]


@pytest.mark.parametrize("wrong", [Release("b", "kv", [1]), read(1, "a", 1)])
def test_what_is_found_on_a_page_that_is_handed_out_anew_is_nobodys_consequence(wrong: Event) -> None:
    """A table names it all the while, so it is remembered while it is free."""
    law = Law(POOLS)
    events = [*[take("a", 1), table("t", "a", 1), wrong, Release("a", "kv", [1]), take("c", 1)], read(2, "c", 1)]
    assert [finding.cause for event in events for finding in law.step(event)] == [None, None]


def test_of_the_places_of_findings_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlaw.state.MARKS", 4)
    law = Law(POOLS)
    for page in range(1, 8):
        assert [finding.cause for finding in law.step(Release(f"r{page}", "kv", [page]))] == [None]
    assert len(law.state.causes) <= 4
    assert [one.cause for holder in ("r1", "r7") for one in law.step(Release(holder, "kv", [1]))] == [None, 7]


def test_what_comes_to_a_page_from_where_something_was_found_leaves_its_first_cause() -> None:
    law = Law(POOLS)
    wrong = Begin(3, "s", [of("a", 1, label="y")], [of("a", 2, label="w")])
    events = [take("a", 1, 2), write(1, "a", 1, "x"), Share("c", "kv", [2]), read(2, "c", 2), wrong]
    findings = [
        (finding.rule, finding.cause) for event in (*events, read(4, "a", 2, "z")) for finding in law.step(event)
    ]
    assert findings == [("MEM-WRITTEN", None), ("MEM-CONTENT", None), ("MEM-CONTENT", 4)]


@pytest.mark.parametrize("told", [True, False])
def test_what_was_never_written_may_be_published_where_writes_are_not_told(told: bool) -> None:
    law = Law({"kv": Pool(writes_told=told)})
    events = [take("a", 1), Publish("kv", [1], ["k"], ["x"]), read(1, "a", 1)]
    findings = [finding.rule for event in events for finding in law.step(event)]
    assert findings == (["MEM-NAME", "MEM-WRITTEN"] if told else [])


@pytest.mark.parametrize(("missing", "shown"), [(8, ", 10"), (9, ", ...")])
def test_of_the_pages_that_a_list_lacks_eight_are_shown(missing: int, shown: str) -> None:
    (finding,) = Law({"kv": Pool(num_pages=2 + missing)}).step(Count("kv", free=[(1, 2)]))
    assert finding.what.startswith(f"{missing} page(s) of kv are missing") and finding.what.endswith(shown)


def test_what_was_delivered_too_early_is_told_once() -> None:
    delivered = [take("a", 1), write(1, "a", 1), Deliver(1, "a"), End(1, "reads"), End(1)]
    assert found(*delivered) == [("MEM-DELIVER", 4)]


def test_the_first_of_two_causes_counts() -> None:
    """Another's content is read, and then what a failed load has spoilt: what leaves is the first one's consequence."""
    law = Law(POOLS)
    events: list[Event] = [
        *[take("a", 1, 2, 3), write(1, "a", 1, "x"), Begin(2, "t", writes=[of("a", 2)])],
        *[Begin(3, "s", [of("a", 2)], [of("a", 3)], after=[2]), End(2, unwritten=[of("a", 2)])],
        Begin(4, "s", [of("a", 1, label="y"), of("a", 3)]),
        Deliver(4, "a"),
    ]
    findings = [(finding.rule, finding.cause) for event in events for finding in law.step(event)]
    assert findings == [("MEM-CONTENT", None), ("MEM-DELIVER", 6)]


@pytest.mark.parametrize("page", [2, 3])
def test_a_load_that_failed_is_no_finding_and_nobodys_cause(page: int) -> None:
    """Nor where what was computed of it is copied to."""
    law = Law(POOLS)
    events: list[Event] = [
        *[take("a", 1, 2, 3), Begin(1, "t", writes=[of("a", 1)])],
        *[Begin(2, "s", [of("a", 1)], [of("a", 2, label="w")], after=[1]), End(1, unwritten=[of("a", 1)])],
        *[copy(3, of("a", 2), of("a", 3)), Release("b", "kv", [page]), read(4, "a", page, "z")],
    ]
    findings = [(finding.rule, finding.cause) for event in events for finding in law.step(event)]
    assert findings == [("MEM-RELEASE", None), ("MEM-CONTENT", 6)]


@pytest.mark.parametrize(("pool", "cause"), [("kv", 3), ("rows", None)])
def test_of_contents_one_thing_follows_from_another_within_a_pool(pool: str, cause: int | None) -> None:
    law = Law(POOLS)
    events = [take("a", 1, 2), Take("a", "rows", [2]), read(1, "a", 1)]
    assert [finding.rule for event in events for finding in law.step(event)] == ["MEM-WRITTEN"]
    (finding,) = law.step(Begin(2, "s", [Use(None, pool, [2], stop=1, holder="a")]))
    assert (finding.rule, finding.cause) == ("MEM-WRITTEN", cause)


def test_what_is_found_of_owners_is_a_cause_in_every_pool() -> None:
    law = Law(POOLS)
    assert [finding.cause for pool in ("kv", "rows") for finding in law.step(Release("a", pool, [1]))] == [None, 1]


def test_a_promise_is_taken_up_page_by_page() -> None:
    assert found(Reserve("a", "kv", 3), take("a", 1), take("b", 2, 3, 4, 5)) == []
    assert found(Reserve("a", "kv", 3), take("a", 1), take("b", 2, 3, 4, 5, 6)) == [("MEM-RESERVE", 3)]
    assert found(Reserve("a", "kv", 3), take("a", 1, 2), Leave("b"), take("b", 3, 4, 5, 6, 7)) == [("MEM-RESERVE", 4)]


def test_a_copy_brings_what_was_there_whatever_a_table_means() -> None:
    """Only labels that the copy itself tells say what it brings."""
    copied = [take("a", 1, 2), write(1, "a", 1, "x"), table("t", "a", 2, labels=["y"])]
    by_table = [*copied, Begin(2, "s", copies=[(of("a", 1), Use(table="t"))])]
    assert found(*by_table, read(3, "a", 2, "x")) == []
    assert found(*by_table, Begin(3, "s", [Use(table="t")])) == [("MEM-CONTENT", 5)]
    told = Begin(2, "s", copies=[(of("a", 1), Use(table="t", labels=["y"]))])
    assert found(*copied, told, Begin(3, "s", [Use(table="t")])) == []


@pytest.mark.parametrize("reader", ["a", None])
def test_what_is_computed_from_what_is_missing_is_worthless_wherever_it_is_written(reader: str | None) -> None:
    """If it is not told for whom something was read, all that the operation writes is worthless."""
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


def test_each_table_through_which_a_page_was_read_counts_until_its_reader_has_ended() -> None:
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


def test_what_is_added_to_a_page_is_seen_through_each_table_that_names_it() -> None:
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


def test_a_shared_object_of_a_storage_is_rewritten_with_the_same_alone() -> None:
    pools = {"disk": Pool(keyed=True)}
    put = [Begin(id, "s", writes=[Use(pool="disk", pages=["k"], labels=[label])]) for id, label in enumerate("xxy")]
    law = Law(pools)
    assert [finding.rule for event in put for finding in law.step(event)] == ["MEM-OVERWRITE"]
