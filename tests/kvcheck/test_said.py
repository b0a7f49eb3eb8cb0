"""The checker's sentences, word by word: each finding of `scenarios.BROKEN`, others, and malformed events."""

import re

import msgspec
import pytest

from kvcheck import Checker, Finding, Malformed
from kvcheck.words import LONGEST, describe
from kvspec.memory import Pool
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
    Pages,
    Publish,
    Release,
    Share,
    Take,
    Transfer,
    Unmap,
    Use,
    Wait,
)
from tests.spec.memory.scenarios import BROKEN, MALFORMED, POOLS, copy, of, read, table, take, write

SAID = {
    "an assertion of the engine": "assertion: n > 0",
    "no memory is left": "exhausted: no page",
    "a copy of nothing over a shared slot": "operation 2 overwrites page 1 from slot 0 on with what was never written",
    "a block is announced that no name finds": "block m is announced in gpu, but no name finds it",
    "a name is withdrawn and its block stays announced": "block l is announced in gpu, but no name finds it",
    "a name finds a block that was not announced": "a name finds block l, which is not announced in gpu",
    "a block is removed of which a copy is left": "block k is announced to be removed in gpu, but a name finds it",
    "a block is announced behind one that is not": "block m is announced behind block l, which is not announced",
    "a block is announced with another content than its name promises": (
        "block l is announced in gpu with other content than it has: z, and not y"
    ),
    "a block is announced with two contents": (
        "block k is announced in gpu with other content than it has: x, and not y"
    ),
    "a block is announced with contents that do not fit": "block k is announced in gpu with other content than it has",
    "a block is announced twice": "block k is announced in gpu once more",
    "a block is removed after all were cleared": (
        "block k is announced to be removed in gpu, but is not announced there"
    ),
    "a batch of announcements is missing": "the announcements before batch 2 are missing, from batch 1 on",
    "a batch of announcements comes twice": "batch 1 of the announcements comes again",
    "a batch of announcements comes after the next one": "batch 2 of the announcements comes after batch 3",
    "ranks differ by a page": "host d of group tp decides load 1, but host p decided load 2 there",
    "one of three ranks differs": "host d of group tp decides z, but host p decided y there",
    "a rank that comes later differs from the beginning": "host e of group tp decides y, but host p decided x there",
    "a rank does not decide all that another one did": (
        "host d of group tp has not decided y, but host p has, and all is idle"
    ),
    "delivered by another host before it is begun": (
        "what operation p/2 computed for a is delivered before it is begun"
    ),
    "taken twice": "page 1 is handed out, but a holds it",
    "taken twice at once": "page 1 is handed out, but a holds it",
    "taken while published": "page 1 is handed out, but key k finds it",
    "out of range": "page 9 is handed out, but does not exist",
    "padding taken": "page 8 is handed out, but is padding",
    "free page shared": "page 1 is shared, but it is free",
    "shared under another key": "page 1 is shared, but key other does not find it",
    "freed twice": "page 1 is released by a, but it has no holder",
    "passed on by a stranger": "page 1 is passed on by b, but a holds it",
    "used by a stranger": "operation 1 uses page 1 for b, but a holds it",
    "read by a stranger": "operation 2 uses page 1 for b, but a holds it",
    "used by no known holder, free": "operation 1 uses page 1, but it has no holder",
    "used through a stale table": "operation 1 uses page 1 for a, but it has no holder",
    "a hole": "position 4 of t has no page",
    "no table": "table t is used, but it names no page",
    "padding read": "operation 1 reads padding page 8",
    "padding in a table, read twice and found once": "operation 2 reads padding page 8",
    "left with a page": "a has left and still holds 1 page(s) of kv: 1",
    "no keeper at idle": "a is no keeper at idle and still holds 1 page(s) of kv: 1",
    "a free page missing": "5 pages of kv are counted as free, but there are 6",
    "a free page missing in the list": "1 page(s) of kv are missing in the list of free pages: 3",
    "copied back what was copied there": "operation 4 means to read y in page 1 and finds x",
    "read one slot further on": "operation 3 means to read slot 1 of x in page 2 and finds slot 0 of x",
    "padding read that a table names": "operation 2 reads padding page 8",
    "delivered, and looked at later": "what operation 1 computed for a is delivered before it is seen complete",
    "delivered before it is begun": "what operation 1 computed for a is delivered before it is begun",
    "two parallel writes with two contents": "operation 1 writes x and y to slots of page 1: nothing orders them",
    "a page twice in one use": "operation 1 writes x and y to slots of page 1: nothing orders them",
    "a page twice in a table": "operation 1 writes x and y to slots of page 1: nothing orders them",
    "a write beside the one of the table": "operation 2 writes x and y to slots of page 1: nothing orders them",
    "held and in the free list": "page 1 is in the list of free pages, but a holds it",
    "held and at the beginning of a run of free pages": "page 3 is in the list of free pages, but a holds it",
    "a cached page missing in the list": "1 page(s) of kv are missing in the list of cached pages: 2",
    "held pages missing in the list": "2 page(s) of kv are missing in the list of held pages: 2, 5",
    "twice in the free list": "page 3 is twice in the list of free pages",
    "a reference too many": "page 1 is counted with 2 references, but a holds it",
    "read before written": "operation 1 reads slot 0 of page 1, never written since it was handed out",
    "read after handed out again": "operation 2 reads slot 0 of page 1, never written since it was handed out",
    "a state read before it is written": "operation 1 reads slot 0 of page 1, never written since it was handed out",
    "delivered before it is complete": "what operation 2 computed for a is delivered before it is seen complete",
    "a hole before what the stream has looked at": "position 3 of t has no page",
    "before the first slot": "position -3 of the pages has no page",
    "before the first position": "position -1 of t has no page",
    "before the first position, with labels": "position -4 of t has no page",
    "two contents over what was there": "operation 2 writes x and y to slots of page 1: nothing orders them",
    "half a page means something else": "operation 3 means to read y in page 1 and finds x",
    "looked at in part since it changed, and then the rest, twice": "operation 4 means to read x in page 1 and finds y",
    "a load fails of what its stream has looked at": "operation 2 reads slot 0 of page 1, never written since it was "
    "handed out",
    "positions in a hole": "position 3 of t has no page",
    "what a copy had nothing for": "operation 4 reads slot 3 of page 2, never written since it was handed out",
    "a plan whose writer has let go": "key k finds page 1, but slot 0 was never written",
    "a plan whose writer has let go, of whom it had it": "key k finds page 1, but slot 0 was never written",
    "a plan of one of two writers": "key l finds page 1, but slot 0 was never written",
    "a plan of another holder": "key k finds page 1, but slot 0 was never written",
    "other content": "operation 2 means to read y in page 1 and finds x",
    "other content through a table": "operation 2 means to read y in page 1 and finds x",
    "other content after a copy": "operation 3 means to read y in page 2 and finds x",
    "published unwritten": "key k finds page 1, but slot 0 was never written",
    "published with other content": "key k finds page 1, but that holds x from slot 0 on",
    "one key, two contents": "key k names two contents, in pages 1 and 2",
    "a plan without a writer": "key k finds page 1, but slot 0 was never written",
    "a failed load keeps its name": "key k finds page 1, but slot 0 was never written",
    "a load fails of what its name alone finds": "key k finds page 1, but slot 0 was never written",
    "a plan that is written with something else": "key k finds page 1, but that holds y from slot 0 on",
    "a plan for a page without a holder": "key l finds page 1, but that holds x from slot 0 on",
    "withdrawn twice": "page 1 is not published as key k, but the name is withdrawn",
    "published overwritten": "operation 2 overwrites page 1 from slot 0 on, but key k finds it",
    "shared overwritten": "operation 2 overwrites page 1 from slot 0 on, but a, b hold it",
    "an object read that was withdrawn": "operation 2 reads slot 0 of key k, never written since it was handed out",
    "an object of a table read that was withdrawn": "operation 2 reads slot 0 of key k, never written since it was "
    "handed out",
    "an object overwritten": "operation 2 overwrites key k from slot 0 on, but it has no holder",
    "read on another stream": "operation 2 reads page 1, which stream s writes: nothing orders them",
    "written under a read": "operation 3 writes page 1, which stream s reads: nothing orders them",
    "handed on under a read through a table": "operation 3 writes page 1, which stream s reads: nothing orders them",
    "only its reads are done": "operation 2 writes page 1, which stream s writes: nothing orders them",
    "rewritten under a read": "operation 3 writes page 1, which stream s reads: nothing orders them",
    "read back after another stream has written on": "operation 4 reads page 1, which stream u writes: nothing orders "
    "them",
    "ended twice": "operation 1 is taken for complete, but is not in flight",
    "ended twice after a later one": "operation 1 is taken for complete, but is not in flight",
    "begun twice": "operation 1 is begun again while it is in flight",
    "promised twice": "7 pages of kv are promised, 6 are left",
    "a promise of what is shared": "7 pages of kv are promised, 6 are left",
    "a promise taken by another": "7 pages of kv are promised, 6 are left",
    "delivered without what it was computed from": "what operation 2 computed for a is delivered, but what it "
    "read was not there",
    "gave up": "stuck: no progress",
    "seen complete by another host": "operation 2 reads page 1, which stream push writes: nothing orders them",
    "a message that was sent too early": "operation 2 reads page 1, which stream push writes: nothing orders them",
    "a message that another host received": "operation 2 reads page 1, which stream push writes: nothing orders them",
    "a message that goes out with another transfer": "operation 3 reads page 1, which stream push writes: nothing "
    "orders them",
    "handed on to another host's transfer": "operation 2 writes page 1, which stream s writes: nothing orders them",
    "done at once on another host": "operation 2 reads page 1, which stream host of p writes: nothing orders them",
    "delivered by a host that has not seen it": "what operation 1 computed for a is delivered before it is seen "
    "complete",
    "ended twice for one host": "operation 1 is taken for complete, but is not in flight",
}


MALFORMED_SAID = {
    "no such pool": "there is no pool xv",
    "a wait for nothing": "a wait names neither an operation nor a stream",
    "a key where pages have numbers": "pool kv: pages are named by numbers",
    "a key among numbers": "pool kv: pages are named by numbers",
    "a storage has no allocator": "pool disk is a storage: its pages are not taken",
    "keys that do not fit": "2 keys for 1 pages",
    "labels that do not fit": "2 labels for 1 pages with 1 each",
    "slots backwards": "a use of slots 3 to 2",
    "a use of nothing": "a use names neither a table nor a pool",
    "a use of a table and of pages": "a use of table t names a pool, pages or a holder besides",
    "a use of a table in a pool": "a use of table t names a pool, pages or a holder besides",
    "a use of a table for a holder": "a use of table t names a pool, pages or a holder besides",
    "a copy to fewer slots": "a copy of 4 slots to 2",
    "a table with a gap": "table t has 0 pages: the next page index is not 2",
    "less than nothing reserved": "-1 pages are reserved",
}


ROWS: list[Event] = [
    Take("a", "rows", [1]),
    Begin(1, "s", writes=[Use(None, "rows", [1], stop=8, labels=["1", "2"], holder="a")]),
]


CACHED: list[Event] = [
    take("a", 1),
    write(1, "a", 1, "x"),
    Publish("kv", [1], ["k"], ["x"]),
    Release("a", "kv", [1]),
]


FAILED: list[Event] = [take("a", 1, 2), write(1, "a", 1), read(2, "a", 1), End(1, unwritten=[of("a", 1)])]


MORE: list[tuple[list[Event], list[str]]] = [
    (
        [Publish("kv", [1], ["k"], ["x"])],
        ["page 1 is published as key k, but it is free", "key k finds page 1, but slot 0 was never written"],
    ),
    ([*CACHED, Drop("kv", [2])], ["page 2 is not published, but the name is withdrawn"]),
    (
        [*ROWS, Publish("rows", [1], ["k"], ["1", "3"], slots=8)],
        ["key k finds page 1, but that holds 2 from slot 4 on"],
    ),
    ([*ROWS, Publish("rows", [1], ["k"])], ["key k finds page 1, but slot 8 was never written"]),
    (
        [*CACHED, Count("kv", free=5, cached=2, held=1)],
        [
            "5 pages of kv are counted as free, but there are 6",
            "2 pages of kv are counted as cached, but there are 1",
            "1 pages of kv are counted as held, but there are 0",
        ],
    ),
    (
        [*CACHED, Count("kv", held=[1], cached=[(1, 2)])],
        [
            "2 pages of kv are counted as cached, but there are 1",
            "page 1 is in the list of held pages, but key k finds it",
        ],
    ),
    ([*CACHED, Count("kv", references={2: 1, 1: 0})], ["page 2 is counted with 1 references, but it has no holder"]),
    (
        [take("a", 1), Share("b", "kv", [1], pin=True), Count("kv", references={1: 1})],
        ["page 1 is counted with 1 references, but a, b hold it"],
    ),
    (
        [Take("a", "rows", [(1, 9)]), EndHolder("a")],
        ["a has left and still holds 9 page(s) of rows: 1, 2, 3, 4, 5, 6, 7, 8, ..."],
    ),
    (
        [Take("a", "rows", [(1, 8)]), Idle()],
        ["a is no keeper at idle and still holds 8 page(s) of rows: 1, 2, 3, 4, 5, 6, 7, 8"],
    ),
    ([take("a", 1), Begin(1, "s", writes=[of("a", 1, start=3, stop=5)])], ["position 4 of the pages has no page"]),
    (
        [take("a", 1, 2), *CACHED[1:3], Release("a", "kv", [1]), copy(2, of("a", 2), of(None, 1))],
        ["operation 2 overwrites page 1 from slot 0 on with what was never written"],
    ),
    (
        [take("a", 1), Begin(1, "s", writes=[of("a", 1, stop=3)]), read(2, "a", 1)],
        ["operation 2 reads slot 3 of page 1, never written since it was handed out"],
    ),
    (
        [take("a", 1), write(1, "a", 1, stream=None), write(2, "a", 1, stream=None)],
        ["operation 2 writes page 1, which stream (alone 1) writes: nothing orders them"],
    ),
    (
        [*FAILED, Deliver(2, "a")],
        [
            "what operation 2 computed for a is delivered before it is seen complete",
            "what operation 2 computed for a is delivered, but what it read was not there",
        ],
    ),
    (
        [Decide("tp", "x"), Decide("tp", "y", host="d")],
        ["host d of group tp decides y, but a host without a name decided x there"],
    ),
    ([take("a", 1), Transfer("b", "c", "kv", [1])], ["page 1 is passed on by b, but a holds it"]),
]
"""Events of which only the last breaks something, and what is said of it."""


BAD: list[tuple[list[Event], str]] = [
    ([Transfer("a", "b", pages=[1])], "pass_on names pages, but no pool"),
    ([table("t", "a", 1), Map("t", "a", "rows", 1, [1])], "table t names pages of pool kv, not of rows"),
    ([table("t", "a", 1), Map("t", "a", "kv", -1, [1])], "table t has 1 pages: the next page index is not -1"),
    ([Map("t", "a", "kv", 0, [1], ["x", "y", "z"])], "3 labels for 1 pages of 1 labels each"),
    ([Map("t", "a", "rows", 0, [1], ["x"] * 5)], "5 labels for 1 pages of 4 labels each"),
    ([table("t", "a", 1, 2), Unmap("t", 2, 1)], "page indices 2 to 1 of table t are gone"),
    ([Begin(1, "s", writes=[Use(None, "rows", [1], 3, 9, ["x", "y"])])], "2 labels for slots 3 to 9, 4 each"),
    ([Take("a", "disk", ["k"])], "pool disk is a storage: its pages are not taken"),
    ([Begin(1, "s", writes=[Use(None, "disk", [1])])], "pool disk: pages are named by keys"),
    ([Count("disk", held=[1])], "pool disk: pages are named by keys"),
    ([Count("kv", held=["k"])], "pool kv: pages are named by numbers"),
    ([Publish("rows", [1, 2], ["k", "l"], ["x"] * 3, slots=5)], "3 labels for 2 pages with 2 each"),
    ([Share("a", "kv", [1, 2], ["k"])], "1 keys for 2 pages"),
    ([Decide("tp", "x", host=f"{n}") for n in range(257)], "a group of more than 256 hosts"),
    ([Decide(f"{n}", "x") for n in range(257)], "a trace of more than 256 groups of hosts"),
    ([Announce(cleared=True, host=f"{n}") for n in range(257)], "announcements of more than 256 hosts"),
    ([Announce(f"{n}") for n in range(257)], "a host of more than 256 tiers"),
    ([Announce(stored=["k"])], "an announcement of blocks names no tier"),
]
"""Events of which the last cannot be meant, and what is said of it."""


def said(events: list[Event]) -> list[Finding]:
    """The findings on events, each of which has a place of its own."""
    checker = Checker(POOLS)
    placed = [msgspec.structs.replace(event, at=f"line {number}") for number, event in enumerate(events, 1)]
    return [finding for event in placed for finding in checker.step(event)]


@pytest.mark.parametrize("name", BROKEN)
def test_a_finding_says(name: str) -> None:
    events, (_, number) = BROKEN[name]
    assert [(describe(finding), finding.event) for finding in said(events)] == [(SAID[name], number)]


@pytest.mark.parametrize(("events", "words"), MORE)
def test_these_findings_say(events: list[Event], words: list[str]) -> None:
    findings = said(events)
    assert [describe(finding) for finding in findings] == words
    assert {finding.event for finding in findings} == {len(events)}
    for finding in findings:
        check_sentence(finding, getattr(events[0], "pool", "kv"))


@pytest.mark.parametrize("name", BROKEN)
def test_a_finding_has_its_place_and_no_cause_and_a_race_the_earlier_place_too(name: str) -> None:
    for finding in said(BROKEN[name][0]):
        assert (finding.at, finding.cause, finding.more) == (f"line {finding.event}", None, 0)
        if finding.rule in ("MEM-RACE", "MEM-REWRITE") and "stream" in describe(finding):
            assert finding.earlier in {f"line {number}" for number in range(1, finding.event)}
        else:
            assert finding.earlier is None


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_says(name: str) -> None:
    with pytest.raises(Malformed, match=f"^{re.escape(MALFORMED_SAID[name])}$"):
        said([MALFORMED[name]])


@pytest.mark.parametrize(("events", "words"), BAD)
def test_these_say_what_cannot_be_meant(events: list[Event], words: str) -> None:
    assert said(events[:-1]) == []
    with pytest.raises(Malformed, match=f"^{re.escape(words)}$"):
        said(events)


@pytest.mark.parametrize(
    "pool",
    [
        Pool(0),
        Pool(-4),
        Pool(-4, label_size=1),
        Pool(4, label_size=-1),
        Pool(4, label_size=3),
        Pool(4, label_size=8),
        Pool(4, -1),
    ],
)
def test_the_sizes_of_a_pool_make_sense(pool: Pool) -> None:
    with pytest.raises(
        Malformed, match=r"^pool kv: sizes must be whole and positive, and label_size divide page_size$"
    ):
        Checker({"kv": pool})


def test_there_are_pools_and_the_smallest_is_one() -> None:
    with pytest.raises(Malformed, match=r"^there are no pools$"):
        Checker({})
    assert Checker({"kv": Pool(1, 0, label_size=1)}).step(Idle()) == []


def check_sentence(finding: Finding, pool: str = "kv") -> None:
    """The sentence of a finding begins with a small letter, and names its page and its pool."""
    assert re.match(r"[a-z0-9]", describe(finding)) and not re.search(r"[A-Z]{2}", describe(finding))
    keys = r"(?:slot \d+ of|overwrites) key (\w+)"
    lists = r"(?:still holds \d+ page|are missing in the list of).*?: (\w+)"
    pages = re.findall(rf"\bpage (\w+)|\bpages \w+ and (\w+)|{lists}|{keys}", describe(finding))
    assert [str(finding.page)] * len(pages) == ["".join(page) for page in pages]
    if finding.rule == "MEM-ANNOUNCE":  # blocks are of a tier, and not of a pool
        assert re.findall(r"\bblock (\w+)", describe(finding))[:1] == [finding.page] * (finding.page is not None)
        return
    assert finding.page is None if not pages else finding.pool == ("disk" if finding.page == "k" else pool)


@pytest.mark.parametrize("name", BROKEN)
def test_a_finding_is_a_sentence_and_has_the_page_and_the_pool_that_it_speaks_of(name: str) -> None:
    checker = Checker(POOLS)
    for finding in [finding for event in BROKEN[name][0] for finding in checker.step(event)]:
        check_sentence(finding)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Map("t", "a", "kv", 2, [1]), "table t has 0 pages: the next page index is not 2"),
        (Map("t", "a", "kv", 0, [1], ["x"] * 3), "3 labels for 1 pages of 1 labels each"),
        (Wait("t"), "a wait names neither an operation nor a stream"),
    ],
)
def test_a_malformed_event_is_quoted_as_it_was_reported(event: Event, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        said([event])


def test_each_figure_that_differs_is_reported_once_whatever_the_others_are() -> None:
    checker = Checker(POOLS)
    checker.step(take("a", 1))
    for reported in (["5 pages of kv are counted as free", "0 pages of kv are counted as held"], []):
        assert [
            describe(finding).partition(",")[0] for finding in checker.step(Count("kv", free=5, held=0))
        ] == reported


def test_each_page_that_a_list_has_twice_is_reported_once() -> None:
    checker = Checker(POOLS)
    for reported in ([f"page {page} is twice in the list of free pages" for page in (1, 2, 4)], []):
        count = Count("kv", free=[1, 1, 2, 2, 3, 4, 4])
        assert [describe(finding) for finding in checker.step(count) if "twice" in describe(finding)] == reported


def test_an_event_names_so_many_pages_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcheck.pools.PAGES_AN_EVENT", 5)
    assert said([Take("a", "kv", [(1, 3), (7, 0), (4, 2)])]) == []
    wrong: list[Pages] = [[(1, 3), (4, 3)], [(1, 6)], [(3, -1)]]
    for runs in wrong:
        with pytest.raises(Malformed, match="an event names 0 to 5"):
            said([Take("a", "kv", runs)])


def test_a_table_names_pages_of_one_pool() -> None:
    with pytest.raises(Malformed, match="table t names pages of pool kv, not of rows"):
        said([table("t", "a", 1), Map("t", "a", "rows", 1, [1])])


@pytest.mark.parametrize(
    ("holders", "words"), [(1, "a holds it"), (4, "a, b, c, d hold it"), (5, "a, b, c, d, ... hold it")]
)
def test_of_a_page_that_others_have_four_of_them_are_named(holders: int, words: str) -> None:
    checker = Checker(POOLS)
    for event in (take("a", 1), *(Share(holder, "kv", [1]) for holder in "bcdef"[: holders - 1])):
        assert checker.step(event) == []
    assert describe(checker.step(take("z", 1))[0]) == f"page 1 is handed out, but {words}"


def test_what_many_pages_and_long_names_make_of_a_finding() -> None:
    checker = Checker(POOLS)
    checker.step(take("a", 1, 2, 3))
    assert describe(checker.step(EndHolder("a"))[0]) == "a has left and still holds 3 page(s) of kv: 1, 2, 3"
    just = "b" * (LONGEST - len("page 5 is handed out, but  holds it"))
    checker.step(take(just, 5))
    assert describe(checker.step(take("c", 5))[0]) == f"page 5 is handed out, but {just} holds it"
    checker.step(take("b" * 5000, 4))
    what = describe(checker.step(take("c", 4))[0])
    assert len(what) == LONGEST and what.startswith("page 4 is handed out, but bbb") and what.endswith("b holds it")


def test_what_is_found_is_said_of_the_page_the_deed_and_the_pool() -> None:
    assert describe(Checker(POOLS).step(take("a", 8))[0]) == "page 8 is handed out, but is padding"
    assert describe(Checker(POOLS).step(take("a", 9))[0]) == "page 9 is handed out, but does not exist"
    assert describe(Checker(POOLS).step(Release("b", "kv", [1]))[0]) == "page 1 is released by b, but it has no holder"
    for name in ("before the first position", "positions in a hole"):
        checker = Checker(POOLS)
        assert {finding.pool for event in BROKEN[name][0] for finding in checker.step(event)} == {"kv"}


@pytest.mark.parametrize(("missing", "shown"), [(8, ", 10"), (9, ", ...")])
def test_of_the_pages_that_a_list_lacks_eight_are_shown(missing: int, shown: str) -> None:
    (finding,) = Checker({"kv": Pool(num_pages=2 + missing)}).step(Count("kv", free=[(1, 2)]))
    assert describe(finding).startswith(f"{missing} page(s) of kv are missing") and describe(finding).endswith(shown)
