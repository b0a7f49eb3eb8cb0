"""Each rule of the law on the fewest events that break it, beside the same events done right."""

import re
from collections import Counter
from itertools import product

import pytest

from kvlaw import Law
from kvlaw.races import used
from kvlaw.state import Content
from kvspec.memory import Finding, Malformed, Pool
from kvspec.memory.events import (
    Begin,
    Count,
    Deliver,
    Drop,
    End,
    Event,
    Failed,
    Idle,
    Learn,
    Leave,
    Map,
    Pages,
    PassOn,
    Publish,
    Release,
    Reserve,
    Share,
    Take,
    Unmap,
    Use,
    Wait,
)
from kvspec.memory.finding import LONGEST
from kvspec.memory_rules import MEMORY_RULES

POOLS = {
    "kv": Pool(page_size=4, num_pages=8, sinks=[8]),
    "rows": Pool(page_size=16, label_size=4),
    "disk": Pool(keyed=True),
}


def found(*events: Event) -> list[tuple[str, int]]:
    """Rule and event number of each finding."""
    law = Law(POOLS)
    return [(finding.rule, finding.event) for event in events for finding in law.step(event)]


def take(holder: str, *pages: int | tuple[int, int]) -> Take:
    return Take(holder, "kv", list(pages))


def of(holder: str | None, *pages: int, label: str | None = None, start: int = 0, stop: int = 0) -> Use:
    return Use(
        pool="kv", pages=list(pages), holder=holder, labels=None if label is None else [label], start=start, stop=stop
    )


def write(id: int, holder: str, page: int, label: str | None = None, stream: str | None = "s") -> Begin:
    return Begin(id, stream, writes=[of(holder, page, label=label)])


def read(id: int, holder: str, page: int, label: str | None = None, stream: str | None = "s") -> Begin:
    return Begin(id, stream, reads=[of(holder, page, label=label)])


def table(name: str, holder: str, *pages: int, labels: list[str] | None = None) -> Map:
    return Map(name, holder, "kv", 0, list(pages), labels)


def mapped(holder: str, *pages: int) -> list[Event]:
    """Pages that a table t names, all written."""
    return [take(holder, *pages), table("t", holder, *pages), Begin(1, "s", writes=[Use("t")])]


def copy(id: int, source: Use, target: Use) -> Begin:
    return Begin(id, "s", copies=[(source, target)])


def plan(writer: str) -> Publish:
    return Publish("kv", [1], ["k"], ["x"], planned=True, writer=writer)


PAIRS = [(of("a", 1), of("a", 2)), (of("a", 2), of("a", 1))]
"""Pages 1 and 2 change places, told as two copies."""

BROKEN: dict[str, tuple[list[Event], tuple[str, int]]] = {
    "copied back what was copied there": (
        [
            take("a", 1, 2),
            write(1, "a", 1, "x"),
            write(2, "a", 2, "y"),
            Begin(3, "s", copies=PAIRS),
            read(4, "a", 1, "y"),
        ],
        ("MEM-CONTENT", 5),
    ),
    "read one slot further on": (
        [
            take("a", 1, 2),
            write(1, "a", 1, "x"),
            copy(2, of("a", 1, stop=3), of("a", 2, start=1)),
            Begin(3, "s", [of("a", 2, start=1, stop=4, label="x")]),
        ],
        ("MEM-CONTENT", 4),
    ),
    "padding read that a table names": (
        [take("a", 1), table("t", "a", 1, 8), Begin(1, "s", writes=[Use("t")]), Begin(2, "s", [Use("t", stop=8)])],
        ("MEM-USE", 4),
    ),
    "delivered, and looked at later": ([take("a", 1), write(1, "a", 1), Deliver(1, "a"), End(1)], ("MEM-DELIVER", 4)),
    "delivered before it is begun": ([take("a", 1), Deliver(1, "a"), write(1, "a", 1), End(1)], ("MEM-DELIVER", 2)),
    "taken twice": ([take("a", 1), take("b", 1)], ("MEM-TAKE", 2)),
    "taken twice at once": ([take("a", 1, 1)], ("MEM-TAKE", 1)),
    "taken while published": (
        [take("a", 1), write(1, "a", 1), Publish("kv", [1], ["k"]), Release("a", "kv", [1]), take("b", 1)],
        ("MEM-TAKE", 5),
    ),
    "out of range": ([take("a", 9)], ("MEM-TAKE", 1)),
    "padding taken": ([take("a", 8)], ("MEM-TAKE", 1)),
    "free page shared": ([Share("a", "kv", [1])], ("MEM-SHARE", 1)),
    "shared under another key": (
        [take("a", 1), write(1, "a", 1), Publish("kv", [1], ["k"]), Share("b", "kv", [1], ["other"])],
        ("MEM-SHARE", 4),
    ),
    "freed twice": ([take("a", 1), Release("a", "kv", [1]), Release("a", "kv", [1])], ("MEM-RELEASE", 3)),
    "passed on by a stranger": ([take("a", 1), PassOn("b", "c", "kv", [1])], ("MEM-RELEASE", 2)),
    "used by a stranger": ([take("a", 1), write(1, "b", 1)], ("MEM-USE", 2)),
    "read by a stranger": ([take("a", 1), write(1, "a", 1), read(2, "b", 1)], ("MEM-USE", 3)),
    "used by nobody known, free": ([Begin(1, "s", writes=[of(None, 1)])], ("MEM-USE", 1)),
    "used through a stale table": (
        [take("a", 1), table("t", "a", 1), Release("a", "kv", [1]), Begin(1, "s", writes=[Use(table="t")])],
        ("MEM-USE", 4),
    ),
    "a hole": ([take("a", 1), table("t", "a", 1), Begin(1, "s", writes=[Use(table="t", stop=5)])], ("MEM-USE", 3)),
    "no table": ([Begin(1, "s", writes=[Use(table="t", stop=5)])], ("MEM-USE", 1)),
    "padding read": ([Begin(1, "s", reads=[of("a", 8)])], ("MEM-USE", 1)),
    "padding in a table, read twice and told once": (
        [take("a", 1), table("t", "a", 8, 1), write(1, "a", 1), Begin(2, "s", [Use("t")]), Begin(3, "s", [Use("t")])],
        ("MEM-USE", 4),
    ),
    "left with a page": ([take("a", 1), Leave("a")], ("MEM-LEAK", 2)),
    "no keeper at idle": ([take("a", 1), Idle(["b"])], ("MEM-LEAK", 2)),
    "a free page missing": ([take("a", 1), Count("kv", free=5)], ("MEM-COUNT", 2)),
    "a free page missing in the list": ([take("a", 1), Count("kv", free=[2, (4, 4)])], ("MEM-COUNT", 2)),
    "held and in the free list": ([take("a", 1), Count("kv", free=[(1, 7)])], ("MEM-COUNT", 2)),
    "held and at the beginning of a run of free pages": (
        [take("a", 3), Count("kv", free=[(1, 2), (3, 5)])],
        ("MEM-COUNT", 2),
    ),
    "a cached page missing in the list": (
        [
            *[take("a", 1, 2, 3), write(1, "a", 2, "x"), Publish("kv", [2], ["k"], ["x"]), Release("a", "kv", [2, 3])],
            Count("kv", cached=[(5, 0)]),
        ],
        ("MEM-COUNT", 5),
    ),
    "held pages missing in the list": ([take("a", 5, (2, 2), 1), Count("kv", held=[1, 3])], ("MEM-COUNT", 2)),
    "twice in the free list": ([take("a", 1), Count("kv", free=[(2, 6), 3])], ("MEM-COUNT", 2)),
    "a reference too many": ([take("a", 1), Count("kv", references={1: 2})], ("MEM-COUNT", 2)),
    "read before written": ([take("a", 1), read(1, "a", 1)], ("MEM-WRITTEN", 2)),
    "read after handed out again": (
        [take("a", 1), write(1, "a", 1), Release("a", "kv", [1]), take("a", 1), read(2, "a", 1)],
        ("MEM-WRITTEN", 5),
    ),
    "a state read before it is written": (
        [take("a", 1), Begin(1, "s", [of("a", 1)], [of("a", 1)], sees_own=False)],
        ("MEM-WRITTEN", 2),
    ),
    "delivered before it is complete": (
        [take("a", 1), write(1, "a", 1), End(1), read(2, "a", 1), Deliver(2, "a")],
        ("MEM-DELIVER", 5),
    ),
    "a hole before what the stream has looked at": (
        [
            take("a", 1, 2),
            table("t", "a", 1, 2),
            Begin(1, "s", writes=[Use("t", start=4, stop=8)]),
            Unmap("t", 0, 1),
            Begin(2, "s", [Use("t", start=3, stop=8)]),
        ],
        ("MEM-USE", 5),
    ),
    "before the first slot": ([take("a", 1), Begin(1, "s", writes=[of("a", 1, start=-3, stop=2)])], ("MEM-USE", 2)),
    "before the first position": (
        [*mapped("a", 1, 2), Begin(2, "s", [Use("t", start=-1, stop=1)]), Begin(3, "s", [Use("t", stop=8)])],
        ("MEM-USE", 4),
    ),
    "before the first position, with labels": (
        [
            *mapped("a", 1, 2),
            Begin(2, "s", writes=[Use("t", start=-4, stop=4, labels=["w", "x"])]),
            Begin(3, "s", [Use("t", stop=4, labels=["x"])]),
            Begin(4, "s", [Use("t", stop=8)]),
        ],
        ("MEM-USE", 4),
    ),
    "two lanes with two contents": (
        [take("a", 1), Begin(1, "s", writes=[of("a", 1, label="x"), of("a", 1, label="y")])],
        ("MEM-RACE", 2),
    ),
    "a page twice in one use": (
        [take("a", 1), Begin(1, "s", writes=[Use(pool="kv", pages=[1, 1], labels=["x", "y"], holder="a")])],
        ("MEM-RACE", 2),
    ),
    "a page twice in a table": (
        [take("a", 1), table("t", "a", 1, 1, labels=["x", "y"]), Begin(1, "s", writes=[Use("t")])],
        ("MEM-RACE", 3),
    ),
    "a lane beside the one of the table": (
        [
            *[take("a", 1), table("t", "a", 1, labels=["x"]), Begin(1, "s", writes=[Use("t", stop=1)])],
            Begin(2, "s", writes=[Use("t", start=1, stop=2), of("a", 1, label="y", start=1, stop=2)]),
        ],
        ("MEM-RACE", 4),
    ),
    "two lanes with two contents over what was there": (
        [take("a", 1), write(1, "a", 1, "w"), Begin(2, "s", writes=[of("a", 1, label="x"), of("a", 1, label="y")])],
        ("MEM-RACE", 3),
    ),
    "half a page means something else": (
        [
            *[take("a", 1), table("t", "a", 1, labels=["x"]), Begin(1, "s", writes=[Use("t", stop=2)])],
            Begin(2, "s", writes=[Use("t", start=2, stop=4, labels=["y"])]),
            Begin(3, "s", [Use("t", stop=4)]),
        ],
        ("MEM-CONTENT", 5),
    ),
    "looked at in part since it changed, and then the rest, twice": (
        [
            *[take("a", 1), table("t", "a", 1, labels=["x"]), Begin(1, "s", writes=[Use("t")])],
            Begin(2, "s", writes=[of("a", 1, label="y", start=3)]),
            *[Begin(id, "s", [Use("t", stop=stop)]) for id, stop in ((3, 2), (4, 4), (5, 4))],
        ],
        ("MEM-CONTENT", 6),
    ),
    "a load fails of what its stream has looked at": (
        [*mapped("a", 1), End(1, unwritten=[Use("t")]), Begin(2, "s", [Use("t")])],
        ("MEM-WRITTEN", 5),
    ),
    "positions in a hole": (
        [*mapped("a", 1, 2), Unmap("t", 0, 1), Begin(2, "s", [Use("t", start=3, stop=8)])],
        ("MEM-USE", 5),
    ),
    "what a copy had nothing for": (
        [
            take("a", 1, 2),
            Begin(1, "s", writes=[of("a", 1, stop=3)]),
            write(2, "a", 2),
            copy(3, of("a", 1), of("a", 2)),
            read(4, "a", 2),
        ],
        ("MEM-WRITTEN", 5),
    ),
    "a plan whose writer has let go": (
        [take("a", 1), Share("tree", "kv", [1]), plan("a"), Release("a", "kv", [1])],
        ("MEM-NAME", 4),
    ),
    "a plan whose writer has let go, of whom it had it": (
        [take("a", 1), Share("tree", "kv", [1]), plan("a"), PassOn("a", "b"), Release("b", "kv", [1])],
        ("MEM-NAME", 5),
    ),
    "a plan of one of two writers": (
        [
            take("a", 1),
            Share("c", "kv", [1]),
            plan("a"),
            Publish("kv", [1], ["l"], ["x"], planned=True, writer="c"),
            PassOn("a", "b"),
            Release("c", "kv", [1]),
        ],
        ("MEM-NAME", 6),
    ),
    "a plan of somebody else": ([take("a", 1), plan("b")], ("MEM-NAME", 2)),
    "other content": ([take("a", 1), write(1, "a", 1, "x"), read(2, "a", 1, "y")], ("MEM-CONTENT", 3)),
    "other content through a table": (
        [take("a", 1), write(1, "a", 1, "x"), table("t", "a", 1, labels=["y"]), Begin(2, "s", [Use(table="t")])],
        ("MEM-CONTENT", 4),
    ),
    "other content after a copy": (
        [
            take("a", 1, 2),
            write(1, "a", 1, "x"),
            Begin(2, "s", copies=[(of("a", 1), of("a", 2))]),
            read(3, "a", 2, "y"),
        ],
        ("MEM-CONTENT", 4),
    ),
    "published unwritten": ([take("a", 1), Publish("kv", [1], ["k"])], ("MEM-NAME", 2)),
    "published with other content": (
        [take("a", 1), write(1, "a", 1, "x"), Publish("kv", [1], ["k"], ["y"])],
        ("MEM-NAME", 3),
    ),
    "one key, two contents": (
        [
            take("a", 1, 2),
            write(1, "a", 1, "x"),
            write(2, "a", 2, "y"),
            Publish("kv", [1], ["k"], ["x"]),
            Publish("kv", [2], ["k"], ["y"]),
        ],
        ("MEM-NAME", 5),
    ),
    "a plan that nobody is left to keep": (
        [take("a", 1), Publish("kv", [1], ["k"], planned=True), Release("a", "kv", [1])],
        ("MEM-NAME", 3),
    ),
    "a failed load keeps its name": (
        [
            take("a", 1),
            write(1, "a", 1),
            Publish("kv", [1], ["k"]),
            End(1, unwritten=[of("a", 1)]),
            Release("a", "kv", [1]),
        ],
        ("MEM-NAME", 5),
    ),
    "a load fails of what its name alone finds": (
        [
            take("a", 1),
            write(1, "a", 1, "x"),
            Publish("kv", [1], ["k"], ["x"]),
            Release("a", "kv", [1]),
            End(1, unwritten=[of(None, 1)]),
        ],
        ("MEM-NAME", 5),
    ),
    "a plan that is written with something else": (
        [
            take("a", 1),
            Publish("kv", [1], ["k"], ["x"], planned=True),
            write(1, "a", 1, "y"),
            Release("a", "kv", [1]),
        ],
        ("MEM-NAME", 4),
    ),
    "a plan for a page that nobody holds": (
        [
            take("a", 1),
            write(1, "a", 1, "x"),
            Publish("kv", [1], ["k"], ["x"]),
            Release("a", "kv", [1]),
            Publish("kv", [1], ["l"], ["y"], planned=True),
        ],
        ("MEM-NAME", 5),
    ),
    "withdrawn twice": ([take("a", 1), Drop("kv", [1], ["k"])], ("MEM-NAME", 2)),
    "published overwritten": (
        [take("a", 1), write(1, "a", 1, "x"), Publish("kv", [1], ["k"]), write(2, "a", 1, "y")],
        ("MEM-OVERWRITE", 4),
    ),
    "shared overwritten": (
        [take("a", 1), write(1, "a", 1, "x"), Share("b", "kv", [1]), write(2, "b", 1, "y")],
        ("MEM-OVERWRITE", 4),
    ),
    "an object read that was withdrawn": (
        [
            Begin(1, "s", writes=[Use(pool="disk", pages=["k"])]),
            Drop("disk", ["k"]),
            Begin(2, "s", [Use(pool="disk", pages=["k"])]),
        ],
        ("MEM-WRITTEN", 3),
    ),
    "an object of a table read that was withdrawn": (
        [
            *[Map("t", "a", "disk", 0, ["k"]), Begin(1, "s", writes=[Use("t")]), Drop("disk", ["k"])],
            Begin(2, "s", [Use("t")]),
        ],
        ("MEM-WRITTEN", 4),
    ),
    "an object overwritten": (
        [
            Begin(1, "s", writes=[Use(pool="disk", pages=["k"], labels=["x"])]),
            Begin(2, "s", writes=[Use(pool="disk", pages=["k"], labels=["y"])]),
        ],
        ("MEM-OVERWRITE", 2),
    ),
    "read on another stream": ([take("a", 1), write(1, "a", 1), read(2, "a", 1, stream="t")], ("MEM-RACE", 3)),
    "written under a read": (
        [take("a", 1), write(1, "a", 1), End(1), read(2, "a", 1), write(3, "a", 1, stream="t")],
        ("MEM-RACE", 5),
    ),
    "handed on under a read through a table": (
        [
            take("a", 1),
            table("t", "a", 1),
            Begin(1, "s", writes=[Use(table="t")]),
            End(1),
            Begin(2, "s", [Use(table="t")]),
            Unmap("t"),
            Release("a", "kv", [1]),
            take("b", 1),
            write(3, "b", 1, stream="t"),
        ],
        ("MEM-RACE", 9),
    ),
    "only its reads are done": (
        [take("a", 1), write(1, "a", 1), End(1, "reads"), write(2, "a", 1, stream="t")],
        ("MEM-RACE", 4),
    ),
    "rewritten under a read": (
        [take("a", 1), write(1, "a", 1, "x"), End(1), read(2, "a", 1), write(3, "a", 1, "x", "t")],
        ("MEM-REWRITE", 5),
    ),
    "read back after another stream has written on": (
        [
            take("a", 1),
            table("t", "a", 1),
            Begin(1, "s", writes=[Use("t", stop=1)]),
            Begin(2, "s", writes=[Use("t", start=1, stop=2)]),
            Begin(3, "u", writes=[Use("t", start=2, stop=3)], after=[2]),
            Begin(4, "s", [Use("t", stop=3)]),
        ],
        ("MEM-RACE", 6),
    ),
    "ended twice": ([take("a", 1), write(1, "a", 1), End(1), End(1)], ("MEM-ORDER", 4)),
    "ended twice after a later one": (
        [take("a", 1), write(1, "a", 1), write(2, "a", 1), End(2), End(1, "reads"), End(1), End(1)],
        ("MEM-ORDER", 7),
    ),
    "begun twice": ([take("a", 1), write(1, "a", 1), write(1, "a", 1)], ("MEM-ORDER", 3)),
    "promised twice": ([take("a", 1), Reserve("a", "kv", 4), Reserve("b", "kv", 3)], ("MEM-RESERVE", 3)),
    "a promise taken by another": ([Reserve("a", "kv", 7), take("b", 1)], ("MEM-RESERVE", 2)),
    "a promise of what is shared": (
        [
            *[take("a", 1), write(1, "a", 1), Publish("kv", [1], ["k"]), Release("a", "kv", [1])],
            *[Reserve("a", "kv", 7), Share("b", "kv", [1])],
        ],
        ("MEM-RESERVE", 6),
    ),
    "delivered without what it was computed from": (
        [
            take("a", 1, 2),
            Begin(1, "t", writes=[of("a", 1)]),
            Begin(2, "s", [of("a", 1)], [of("a", 2)], after=[1]),
            End(1, unwritten=[of("a", 1)]),
            Deliver(2, "a"),
        ],
        ("MEM-DELIVER", 5),
    ),
    "gave up": ([Failed("stuck", "no progress")], ("MEM-FAILED", 1)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken(name: str) -> None:
    events, due = BROKEN[name]
    assert found(*events) == [due]


def holder_of(law: Law, event: Event) -> str | None:
    """For whom an event is, or what it uses first."""
    if isinstance(event, Begin):
        use = [*event.reads, *event.writes][0]
        return law.state.tables[use.table].holder if use.table in law.state.tables else use.holder
    return "b" if isinstance(event, PassOn) else getattr(event, "holder", None)


OF_NOBODY = ("MEM-COUNT", "MEM-NAME", "MEM-OVERWRITE", "MEM-ORDER", "MEM-RESERVE", "MEM-FAILED")
"""Rules that are about a page, or an operation, whoever has it."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_finding_has_the_holder_that_it_speaks_of(name: str) -> None:
    law = Law(POOLS)
    for event in BROKEN[name][0]:
        for finding in law.step(event):
            due = "a" if isinstance(event, Idle | End) else holder_of(law, event)
            assert finding.holder == (None if finding.rule in OF_NOBODY else due)


@pytest.mark.parametrize("name", BROKEN)
def test_a_finding_is_a_sentence_and_has_the_page_and_the_pool_that_it_speaks_of(name: str) -> None:
    law = Law(POOLS)
    for finding in [finding for event in BROKEN[name][0] for finding in law.step(event)]:
        check_sentence(finding)


def check_sentence(finding: Finding, pool: str = "kv") -> None:
    """What a finding says begins small, and is of its page and its pool."""
    assert re.match(r"[a-z0-9]", finding.what) and not re.search(r"[A-Z]{2}", finding.what)
    keys = r"(?:slot \d+ of|overwrites) key (\w+)"
    lists = r"(?:still holds \d+ page|are missing in the list of).*?: (\w+)"
    pages = re.findall(rf"\bpage (\w+)|\bpages \w+ and (\w+)|{lists}|{keys}", finding.what)
    assert [str(finding.page)] * len(pages) == ["".join(page) for page in pages]
    assert finding.page is None if not pages else finding.pool == ("disk" if finding.page == "k" else pool)


def test_padding_is_not_copied_and_is_read_for_nobody_alone() -> None:
    assert found(take("a", 1), Begin(1, "s", copies=[(of(None, 8), of("a", 1))])) == [("MEM-USE", 2)]
    assert found(Begin(1, "s", [of(None, 8)])) == []
    assert found(Begin(1, "s", [of(None, 8, label="x")])) == [("MEM-USE", 1)], "who means to find something is somebody"


def test_a_copy_of_what_is_meant_to_be_there_finds_it() -> None:
    """From a page that says what it holds, and from a storage, which has whole pages or none."""
    filled_in_part: list[Event] = [take("a", 1, 2), Begin(1, "s", writes=[of("a", 1, label="x", stop=3)])]
    assert found(*filled_in_part, copy(2, of("a", 1, label="x"), of("a", 2))) == [("MEM-WRITTEN", 3)]
    assert found(take("a", 1), copy(1, Use(None, "disk", ["k"]), of("a", 1, stop=1))) == [("MEM-WRITTEN", 2)]


def test_worthless_results_are_delivered() -> None:
    load = Begin(1, "t", writes=[of("a", 1)])
    step = Begin(2, "s", [of("a", 1)], [of("a", 2)], after=[1])
    failed: list[Event] = [take("a", 1, 2), load, step, End(1, unwritten=[of("a", 1)])]
    assert found(*failed, Deliver(2, "a")) == [("MEM-DELIVER", 5)]
    assert found(*failed, Deliver(2, "b")) == []
    assert found(*failed, read(3, "a", 2), Deliver(3, "a")) == [("MEM-DELIVER", 6)]
    assert found(*failed[:3], read(3, "a", 2), failed[3], Deliver(3, "a")) == [("MEM-DELIVER", 6)]
    through = [Begin(3, "s", [Use("t")]), Deliver(3, "a"), Begin(4, "s", [Use("t")]), Deliver(4, "a")]
    assert found(*failed, table("t", "a", 2), *through) == [("MEM-DELIVER", 7), ("MEM-DELIVER", 9)]
    assert found(take("a", 1, 2), load, step, End(1), Deliver(2, "a")) == []


def test_padding_is_a_page_and_no_slot() -> None:
    """Page 0 is padding, and slot 0 of page 1 is none."""
    law = Law({"kv": Pool(4, 8, sinks=[0])})
    load = Begin(1, "t", writes=[of("a", 1)])
    step = Begin(2, "s", [of("a", 1), of(None, 1)], [of("a", 2), of(None, 0)], after=[1])
    events = (take("a", 1, 2), load, step, End(1, unwritten=[of("a", 1)]), read(3, "a", 2), Deliver(3, "a"))
    assert [finding.rule for event in events for finding in law.step(event)] == ["MEM-DELIVER"]


@pytest.mark.parametrize("over", [write(3, "b", 2), copy(3, of("b", 3), of("b", 2))])
def test_what_is_written_over_worthless_results_is_not_worthless(over: Begin) -> None:
    """The run that was to read the load is thrown out, and another one has its page, when it fails."""
    load = Begin(1, "t", writes=[of("a", 1)])
    step = Begin(2, "s", [of("a", 1)], [of("a", 2)], after=[1])
    again = [Release("a", "kv", [2]), take("b", 2, 3), write(7, "b", 3), over, read(4, "b", 2)]
    failed = [take("a", 1, 2), load, step, *again, End(1, unwritten=[of("a", 1)])]
    assert found(*failed, Deliver(4, "b"), read(5, "b", 2), Deliver(5, "b")) == []
    assert found(*failed, Deliver(2, "a")) == [("MEM-DELIVER", 10)]
    part = [*failed[:3], Begin(3, "s", writes=[of("a", 2, stop=1)]), failed[-1]]
    assert found(*part, Begin(4, "s", [of("a", 2, stop=1)]), Deliver(4, "a")) == []
    assert found(*part, Begin(4, "s", [of("a", 2, start=1)]), Deliver(4, "a")) == [("MEM-DELIVER", 7)]


def test_what_was_written_since_stays_when_an_earlier_write_turns_out_to_have_failed() -> None:
    """The page has gone to another run, which has written it in flight; or the same run has written a part again."""
    passed_on = [take("a", 1), write(1, "a", 1, "x"), Release("a", "kv", [1]), take("b", 1), write(2, "b", 1, "y")]
    named = [Publish("kv", [1], ["k"], ["y"]), End(1, unwritten=[of(None, 1)]), Release("b", "kv", [1])]
    assert found(*passed_on, *named, Share("b", "kv", [1], ["k"]), read(3, "b", 1, "y"), End(3), Deliver(3, "b")) == []
    part = Begin(2, "s", writes=[of("a", 1, stop=2)])
    again: list[Event] = [take("a", 1), write(1, "a", 1), part, End(1, unwritten=[of("a", 1)])]
    assert found(*again, Begin(3, "s", [of("a", 1, stop=2)]), End(3), Deliver(3, "a")) == []
    assert found(*again, Begin(3, "s", [of("a", 1, start=1)])) == [("MEM-WRITTEN", 5)]


@pytest.mark.parametrize("gone", [Unmap("t"), Unmap("t", 1), Unmap("t", 0, 1)])
def test_a_run_that_has_left_is_not_judged_when_a_load_fails(gone: Unmap) -> None:
    """Nor what of its table is left, and it is not remembered."""
    law = Law(POOLS)
    load = Begin(1, "t", writes=[of("a", 1, 2)])
    step = Begin(2, "s", [Use(table="t", stop=8)], after=[1])
    left = [gone, Release("a", "kv", [1, 2]), Leave("a"), End(1, unwritten=[of(None, 1, 2, 5)])]
    for event in (take("a", 1, 2), table("t", "a", 1, 2), load, step, *left):
        assert law.step(event) == []
    assert 5 not in law.state.pools["kv"].pages


def test_a_delivery_after_other_content_is_its_consequence() -> None:
    law = Law(POOLS)
    events = [take("a", 1), write(1, "a", 1, "x"), read(2, "a", 1, "y"), Deliver(2, "a")]
    findings = [finding for event in events for finding in law.step(event)]
    assert [(finding.rule, finding.cause) for finding in findings] == [("MEM-CONTENT", None), ("MEM-DELIVER", 3)]


def test_what_was_computed_from_other_content_is_its_consequence_in_another_page() -> None:
    law = Law(POOLS)
    wrong = Begin(2, "s", [of("a", 1, label="y")], [of("a", 2)])
    events = [take("a", 1, 2), write(1, "a", 1, "x"), wrong, read(3, "a", 2), Deliver(3, "a")]
    findings = [(finding.rule, finding.cause) for event in events for finding in law.step(event)]
    assert findings == [("MEM-CONTENT", None), ("MEM-DELIVER", 3)]


def test_what_was_copied_from_where_something_was_found_is_its_consequence() -> None:
    """The copy brings one slot too few to another holder's page, which is read, and what was computed leaves."""
    law = Law(POOLS)
    copy = Begin(2, "s", copies=[(of("a", 1, label="x"), of("b", 2))])
    events = [
        take("a", 1),
        take("b", 2),
        Begin(1, "s", writes=[of("a", 1, label="x", stop=3)]),
        copy,
        read(3, "b", 2),
        Deliver(3, "b"),
    ]
    findings = [(finding.rule, finding.cause) for event in events for finding in law.step(event)]
    assert findings == [("MEM-WRITTEN", None), ("MEM-WRITTEN", 4), ("MEM-DELIVER", 4)]


def test_a_slot_after_content_of_another_place_has_its_own() -> None:
    """A copy brought slot 1 of x to slot 0; slot 1 is then written through the table, and holds slot 1 of x."""
    events = [
        take("a", 1, 2),
        write(1, "a", 1, "x"),
        Begin(2, "s", copies=[(of("a", 1, start=1, stop=2), of("a", 2, stop=1))]),
        table("t", "a", 2, labels=["x"]),
        Begin(3, "s", writes=[Use("t", start=1, stop=2)]),
    ]
    assert found(*events, Begin(4, "u", [Use("t", start=1, stop=2)], after=[3])) == []
    assert found(*events, Begin(4, "u", [Use("t", stop=1)], after=[3])) == [("MEM-CONTENT", 6)]


def test_a_slot_after_worthless_content_is_none() -> None:
    events: list[Event] = [
        take("a", 1, 2),
        table("t", "a", 2),
        Begin(1, "t", writes=[of("a", 1)]),
        Begin(2, "s", [of("a", 1)], [Use("t", stop=1)], after=[1]),
        End(1, unwritten=[of("a", 1)]),
        Begin(3, "s", writes=[Use("t", start=1, stop=2)]),
    ]
    assert found(*events, Begin(4, "s", [Use("t", start=1, stop=2)]), Deliver(4, "a")) == []
    assert found(*events, Begin(4, "s", [Use("t", stop=1)]), Deliver(4, "a")) == [("MEM-DELIVER", 8)]


def test_what_a_holder_does_wrong_next_is_a_consequence() -> None:
    law = Law(POOLS)
    for holder, page, cause in (("a", 1, None), ("a", 2, 1), ("b", 3, None), ("b", 4, 3), ("a", 4, 1)):
        (finding,) = law.step(Release(holder, "kv", [page]))
        assert finding.cause == cause


def test_what_follows_from_a_finding_says_so_and_a_race_does_not() -> None:
    law = Law(POOLS)
    events = [
        take("a", 1),
        take("b", 1),
        write(1, "a", 1),
        write(2, "b", 1, stream="t"),
        Release("a", "kv", [1]),
        Release("a", "kv", [1]),
    ]
    findings = [(finding.rule, finding.cause) for event in events for finding in law.step(event)]
    assert findings == [("MEM-TAKE", None), ("MEM-RACE", None), ("MEM-RELEASE", 2)]


RIGHT: dict[str, list[Event]] = {
    "pages that change places": [
        take("a", 1, 2),
        write(1, "a", 1, "x"),
        write(2, "a", 2, "y"),
        Begin(3, "s", copies=PAIRS, sees_own=False),
        Begin(4, "s", [of("a", 1, label="y"), of("a", 2, label="x")]),
    ],
    "taken along before it is overwritten": [
        take("a", 1, 2),
        write(1, "a", 1, "x"),
        Begin(2, "s", writes=[of("a", 1, label="z")], copies=PAIRS[:1], sees_own=False),
        Begin(3, "s", [of("a", 1, label="z"), of("a", 2, label="x")]),
    ],
    "an empty entry of a batch reads padding": [
        *[take("a", 1), table("t", "a", 1), Begin(1, "s", writes=[Use("t")])],
        Begin(2, "s", [Use("t"), of(None, 8)], [of(None, 8)]),
        Deliver(2, "a"),
    ],
    "lists that are whole": [
        *[take("a", 1), write(1, "a", 1, "x"), Publish("kv", [1], ["k"], ["x"]), Share("b", "kv", [1], ["k"])],
        *[take("a", 4), Release("a", "kv", [1]), Release("b", "kv", [1])],
        Count("kv", free=[7, (5, 2), (2, 2)], cached=[1], held=[4]),
    ],
    "lanes of one operation that write the same, or what is not known": [
        take("a", 1),
        write(1, "a", 1, "y"),
        Begin(2, "s", writes=[of("a", 1, label="x"), of("a", 1, label="x"), of("a", 1)]),
        Begin(3, "s", writes=[of("a", 1, label="y"), Use(pool="kv", pages=[1], labels=["x"], holder="a", may=True)]),
        Begin(4, "s", writes=[of(None, 8, label="x"), of(None, 8, label="y")]),
    ],
    "a lane that may write there, and one that writes more": [
        *[take("a", 1), write(1, "a", 1, "w")],
        Begin(2, "s", writes=[Use(None, "kv", [1], 0, 2, ["x"], "a", may=True), of("a", 1, label="y")]),
    ],
    "lanes to two pages, one of which holds something else": [
        *[take("a", 1, 2), write(1, "a", 1, "w")],
        Begin(2, "s", writes=[of("a", 1, label="x", stop=2), of("a", 2, label="y"), of("a", 1, label="x", start=2)]),
    ],
    "lanes of one operation that write other slots anew": [
        take("a", 1),
        write(1, "a", 1, "y"),
        Begin(2, "s", writes=[of("a", 1, label="x", stop=2), of("a", 1, label="x", start=2)]),
    ],
    "a page goes round": [
        take("a", 1),
        write(1, "a", 1, "k"),
        Publish("kv", [1], ["k"], ["k"]),
        Release("a", "kv", [1]),
        Share("b", "kv", [1], ["k"]),
        read(2, "b", 1, "k"),
        Release("b", "kv", [1]),
        Drop("kv", [1], ["k"]),
        Count("kv", free=7, held=0, cached=0),
        take("c", 1),
        write(3, "c", 1, "z"),
        Release("c", "kv", [1]),
        Leave("c"),
        Idle(),
    ],
    "a plan that is kept": [
        take("a", 1),
        Publish("kv", [1], ["k"], ["x"], planned=True),
        write(1, "a", 1, "x"),
        Release("a", "kv", [1]),
    ],
    "a label that is learned": [take("a", 1), write(1, "a", 1, "a/0"), Learn("a/0", "k"), read(2, "a", 1, "k")],
    "the first slots of a label are learned": [
        take("a", 1),
        write(1, "a", 1, "a/0"),
        Learn("a/0", "k", 2),
        Begin(2, "s", reads=[of("a", 1, label="k", stop=2)]),
    ],
    "waits order": [take("a", 1), write(1, "a", 1), Wait("t", 1), write(2, "a", 1, stream="t")],
    "waits for a stream order": [take("a", 1), write(1, "a", 1), Wait("t", on="s"), write(2, "a", 1, stream="t")],
    "order goes on": [
        take("a", 1, 2),
        write(1, "a", 1),
        Begin(2, "t", writes=[of("a", 2)], after=[1]),
        Begin(3, "u", writes=[of("a", 1)], after=[2]),
    ],
    "the host has seen it": [take("a", 1), write(1, "a", 1), End(1), write(2, "a", 1, stream="t")],
    "the host has synchronized": [
        take("a", 1),
        write(1, "a", 1),
        Wait("host", on="s"),
        write(2, "a", 1, stream="t"),
        End(1),
    ],
    "its reads are done": [
        take("a", 1),
        write(1, "a", 1),
        End(1),
        read(2, "a", 1),
        Wait("t", 2, part="reads"),
        write(3, "a", 1, stream="t"),
    ],
    "attention sees what it writes": [take("a", 1), Begin(1, "s", [of("a", 1)], [of("a", 1)])],
    "padding is written": [Begin(1, "s", writes=[of(None, 8)]), Begin(2, "t", writes=[of(None, 8)])],
    "a pin does not share": [
        take("a", 1),
        write(1, "a", 1, "x"),
        Share("b", "kv", [1], pin=True),
        write(2, "a", 1, "y"),
        Release("a", "kv", [1]),
        Release("b", "kv", [1]),
    ],
    "a turn takes the slot's pages up": [
        take("a", 1),
        table("t", "a", 1, labels=["x"]),
        Begin(1, "s", writes=[Use(table="t")]),
        PassOn("a", "b"),
        Leave("a"),
        Begin(2, "s", [Use(table="t")]),
    ],
    "a plan is kept in two steps": [
        take("a", 1),
        Share("b", "kv", [1]),
        Publish("kv", [1], ["k"], ["x"], planned=True),
        write(1, "a", 1, "half"),
        write(2, "a", 1, "x"),
        Release("a", "kv", [1]),
        Release("b", "kv", [1]),
    ],
    "a plan is written over what was discarded": [
        take("a", 1),
        write(1, "a", 1, "draft"),
        Publish("kv", [1], ["k"], ["x"], planned=True),
        write(2, "a", 1, "x"),
    ],
    "a promise that is taken up": [Reserve("a", "kv", 2), take("a", 1, 2), take("b", 3, 4, 5, 6, 7)],
    "a row's entries are labels": [
        Take("a", "rows", [1]),
        Begin(1, "host", writes=[Use(pool="rows", pages=[1], holder="a", stop=6, labels=["17", "4"])]),
        Begin(2, "s", reads=[Use(pool="rows", pages=[1], holder="a", start=4, stop=6, labels=["4"])]),
    ],
    "delivered where no end is told": [take("a", 1), write(1, "a", 1), Deliver(1, "a")],
    "delivered whenever it was": [
        *[take("a", 1), write(2, "a", 1), End(2), write(3, "a", 1, stream="host"), write(1, "a", 1), End(1)],
        *[Begin("f", "s"), End("f"), *[Deliver(id, "a") for id in (1, 2, 3, "f", "g")]],
    ],
    "delivered from a stream of which no end is told": [
        take("a", 1),
        write(1, "a", 1),
        End(1),
        read(2, "a", 1, stream="t"),
        Deliver(2, "a"),
    ],
    "delivered once the host has waited": [
        take("a", 1),
        write(1, "a", 1),
        End(1),
        read(2, "a", 1),
        Wait("host", 2),
        Deliver(2, "a"),
    ],
    "what was promised to who has left": [Reserve("a", "kv", 7), Leave("a"), take("b", 1, 2)],
    "a table names padding": [take("a", 1), table("t", "a", 8, 1), Begin(1, "s", writes=[Use("t")])],
    "an object stays when a table names it no more": [
        *[Map("t", "a", "disk", 0, ["k"]), Begin(1, "s", writes=[Use("t")]), Unmap("t")],
        Begin(2, "s", [Use(pool="disk", pages=["k"])]),
    ],
    "the rest of a page means something else": [
        *[take("a", 1), Begin(1, "s", writes=[of("a", 1, label="x", stop=2)]), table("t", "a", 1, labels=["y"])],
        *[Begin(2, "s", writes=[Use("t", start=2, stop=4)]), Begin(3, "s", [of("a", 1, label="y", start=2)])],
    ],
    "padding was to be loaded": [
        *[take("a", 1), Begin(1, "t", writes=[of(None, 8)]), Begin(2, "s", [of(None, 8)], [of("a", 1)], after=[1])],
        *[End(1, unwritten=[of(None, 8)]), End(2), Deliver(2, "a")],
    ],
    "a page that three tables name": [
        *mapped("a", 1),
        *[table(name, "a", 1) for name in "uv"],
        *[Begin(id, "s", [Use(name)]) for id, name in enumerate("tuv", 2)],
    ],
    "an operation has the name of one whose results were worthless": [
        *[take("a", 1, 2), Begin(1, "t", writes=[of("a", 1)])],
        *[Begin(2, "s", [of("a", 1)], [of("a", 2)], after=[1]), End(1, unwritten=[of("a", 1)]), End(2)],
        *[write(1, "a", 1), End(1), read(2, "a", 1), End(2), Deliver(2, "a")],
    ],
    "another's table stays when one passes all on": [
        *[take("b", 2), table("u", "b", 2), *mapped("a", 1), PassOn("a", "c")],
        Begin(2, "s", [Use("t")], [Use("u")]),
    ],
    "how many pages are free of a pool whose size is not told": [Take("a", "rows", [1]), Count("rows", free=5, held=1)],
    "a plan of a writer that has let go of one of two references": [
        *[take("a", 1), Share("a", "kv", [1]), plan("a"), Release("a", "kv", [1]), write(1, "a", 1, "x")],
        Release("a", "kv", [1]),
    ],
    "a page that is filled in part is copied": [
        take("a", 1, 2),
        Begin(1, "s", writes=[of("a", 1, label="x", stop=3)]),
        copy(2, of("a", 1), of("a", 2)),
        Begin(3, "s", [of("a", 2, label="x", stop=3)]),
        Deliver(3, "a"),
    ],
    "positions behind a hole": [
        *mapped("a", 1, 2),
        Unmap("t", 0, 1),
        Release("a", "kv", [1]),
        Begin(2, "s", [Use("t", start=4, stop=8)]),
    ],
    "what is before a write in a table is none of it": [
        take("a", 1, 2, 3),
        table("t", "a", 1, 2, 3, labels=["x", "y", "z"]),
        Begin(1, "s", writes=[of("a", 3, label="w", stop=1)]),
        Release("a", "kv", [1]),
        Begin(2, "s", writes=[Use("t", start=4, stop=12)]),
    ],
    "one holder has two references, and two pins": [
        *[take("a", 1), Share("a", "kv", [1]), *[Share("p", "kv", [1], pin=True)] * 2],
        Count("kv", references={1: 4}),
        *[Release(holder, "kv", [1]) for holder in "apap"],
        Idle(),
    ],
    "what may be written at the end of a table may be anything": [
        *[take("a", 1), table("t", "a", 1, labels=["x"])],
        *[Begin(id, "s", writes=[Use("t", start=id, stop=id + 1)]) for id in range(2)],
        Begin(2, "s", writes=[Use("t", start=2, stop=3, may=True)]),
        Begin(3, "s", [of("a", 1, label="y", start=2, stop=3)]),
    ],
    "each of several has one reference": [
        take("a", 1),
        *[Share(holder, "kv", [1]) for holder in "bc"],
        *[Share(holder, "kv", [1], pin=True) for holder in "pqr"],
        Count("kv", references={1: 6}),
        *[Release(holder, "kv", [1]) for holder in "abcpqr"],
        Idle(),
    ],
    "a hole is filled": [
        *mapped("a", 1, 2),
        Unmap("t", 0, 1),
        Map("t", "a", "kv", 0, [1], ["x"]),
        Begin(2, "s", [Use("t", stop=8)]),
    ],
    "a plan is kept, and its writer leaves": [
        take("a", 1),
        Share("tree", "kv", [1]),
        plan("a"),
        write(1, "a", 1, "x"),
        Release("a", "kv", [1]),
    ],
    "the rest of a page is written later": [
        take("a", 1),
        Begin(1, "s", writes=[of("a", 1, label="x", stop=3)]),
        Begin(2, "s", [of("a", 1, label="x")], [of("a", 1, label="x", start=3)]),
    ],
}


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    assert found(*RIGHT[name]) == []


MALFORMED: dict[str, Event] = {
    "no such pool": Take("a", "xv", [1]),
    "a wait for nothing": Wait("t"),
    "a key where pages have numbers": Take("a", "kv", ["k"]),
    "a key among numbers": Take("a", "kv", [1, "k"]),
    "a storage has no allocator": Take("a", "disk", ["k"]),
    "more pages than an event may name": Take("a", "kv", [(1, 1 << 31)]),
    "keys that do not fit": Publish("kv", [1], ["k", "l"]),
    "labels that do not fit": Publish("kv", [1], ["k"], ["x", "y"]),
    "slots backwards": Begin(1, "s", writes=[of("a", 1, start=3, stop=2)]),
    "a use of nothing": Begin(1, "s", writes=[Use()]),
    "a use of a table and of pages": Begin(1, "s", reads=[Use(table="t", pages=[1])]),
    "a use of a table in a pool": Begin(1, "s", reads=[Use(table="t", pool="kv")]),
    "a use of a table for a holder": Begin(1, "s", reads=[Use(table="t", holder="a")]),
    "a copy to fewer slots": Begin(1, "s", copies=[(of("a", 1), of("a", 1, stop=2))]),
    "a table with a gap": Map("t", "a", "kv", 2, [1]),
    "less than nothing reserved": Reserve("a", "kv", -1),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed(name: str) -> None:
    with pytest.raises(Malformed, match=r"^-?[a-z0-9]"):
        found(MALFORMED[name])


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Map("t", "a", "kv", 2, [1]), "table t has 0 pages: the next page index is not 2"),
        (Map("t", "a", "kv", 0, [1], ["x"] * 3), "3 labels for 1 pages of 1 labels each"),
        (Wait("t"), "a wait names neither an operation nor a stream"),
    ],
)
def test_what_is_malformed_is_said_as_it_was_told(event: Event, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        found(event)


def test_a_finding_on_a_page_is_told_once() -> None:
    """A wrong read of a table is not told again at each step, only where something changed."""
    steps = [Begin(id, "s", [Use(table="t")]) for id in range(2, 6)]
    broken: list[Event] = [take("a", 1), write(1, "a", 1, "x"), table("t", "a", 1, labels=["y"]), *steps]
    assert found(*broken) == [("MEM-CONTENT", 4)]
    assert found(*broken, write(9, "a", 1, "z"), Begin(10, "s", [Use(table="t")])) == [
        ("MEM-CONTENT", 4),
        ("MEM-CONTENT", 9),
    ]


@pytest.mark.parametrize("parts", [[(0, 4), (4, 8)], [(4, 8), (0, 4)], [(0, 8), (4, 8)], [(4, 8), (0, 8)]])
def test_what_a_stream_has_looked_at_in_parts_it_does_not_look_at_again(parts: list[tuple[int, int]]) -> None:
    """Nor when a page behind is exchanged."""
    wrong = [take("a", 1, 2, 3), write(1, "a", 1, "x"), write(2, "a", 2, "x"), write(3, "a", 3, "z")]
    law = Law(POOLS)
    for event in (*wrong, table("t", "a", 1, 2, 3, labels=["y", "y", "z"])):
        assert law.step(event) == []
    pages = [
        finding.page
        for id, (start, stop) in enumerate(parts, 4)
        for finding in law.step(Begin(id, "s", [Use("t", start=start, stop=stop)]))
    ]
    assert sorted(map(str, pages)) == ["1", "2"]
    for event in (
        Begin(6, "s", [Use("t", stop=12)]),
        Map("t", "a", "kv", 2, [3], ["z"]),
        Begin(7, "s", [Use("t", stop=12)]),
    ):
        assert law.step(event) == []


def test_labels_that_nothing_bears_are_forgotten() -> None:
    law = Law(POOLS)
    law.step(take("a", 1))
    for step in range(5000):
        law.step(write(step, "a", 1, f"a/{step}"))
        law.step(Learn(f"a/{step}", f"k{step}"))
        law.step(End(step))
    assert len(law.state.labels) < 2100


def test_what_is_over_is_forgotten() -> None:
    law = Law(POOLS)
    for step in range(0, 1000, 2):
        for event in (
            take("a", 1),
            write(step, "a", 1),
            write(step + 1, "a", 1),
            End(step + 1),
            Release("a", "kv", [1]),
        ):
            assert law.step(event) == []
    assert not law.state.clocks.flights
    assert not law.state.pool("kv").pages
    assert not law.state.holdings


def test_operations_without_a_stream_take_turns_on_few() -> None:
    law = Law(POOLS)
    law.step(take("a", 1))
    for step in range(100):
        assert law.step(write(step, "a", 1, stream=None)) == law.step(End(step)) == []
    assert len(law.state.clocks.streams) == 2


def test_of_one_event_only_so_many_findings_are_told_one_by_one() -> None:
    law = Law({"kv": Pool(num_pages=3000)})
    read, again = Use(pool="kv", pages=[(1, 2500)]), Use(pool="kv", pages=[(1, 2500)], holder="b")
    told = law.step(Begin(1, "s", reads=[read, again]))
    for rule, number in (("MEM-USE", 5000), ("MEM-WRITTEN", 5000)):
        alike = [finding for finding in told if finding.rule == rule]
        assert len(alike) == 1000
        assert [finding.more for finding in alike] == [number - 1000] + [0] * 999
    assert [finding.more for finding in law.step(Begin(2, "s", reads=[of("c", 9)]))] == [0, 0]


def test_only_rivals_that_use_the_same_slots_are_looked_at() -> None:
    """Else what an operation costs would grow with all that is in flight."""
    law = Law({"kv": Pool(num_pages=300)})
    for number in range(1, 101):
        law.step(Take("a", "kv", [number]))
        law.step(Begin(number, f"s{number}", writes=[Use(pool="kv", pages=[number], holder="a")]))
    last = law.state.clocks.flights[100]
    assert len(last.rivals) == 99
    near = [
        [*law.state.clocks.rivals_at(last, ("kv", page), writing=writing)]
        for page in (7, 200)
        for writing in (False, True)
    ]
    assert [[rival.number for rival in rivals] for rivals in near] == [[7], [7], [], []]
    for number in range(1, 101):
        law.step(End(number))
    assert (law.state.clocks.users, law.state.clocks.writers) == ({}, {})


def test_what_an_operation_in_flight_uses_of_a_page_is_known_by_number_and_by_table() -> None:
    law = Law(POOLS)
    for event in (
        take("a", 1),
        take("a", 2),
        Map("t", "a", "kv", 0, [2, 1]),
        Begin(1, "s", writes=[Use(pool="kv", pages=[1], stop=3, holder="a")]),
        Begin(2, "s", writes=[Use("t", start=0, stop=5)], reads=[Use(pool="kv", pages=[1], stop=2, holder="a")]),
    ):
        assert law.step(event) == []
    pool, flights = law.state.pool("kv"), law.state.clocks.flights
    for flight in flights.values():
        law.state.clocks.sort(flight)
    uses = {
        (id, number): sorted({(max(i, 0), min(j, 4), w) for i, j, w in used(flight, pool, number, pool.page(number))})
        for id, flight in flights.items()
        for number in (1, 2)
    }
    assert uses == {(1, 1): [(0, 3, True)], (1, 2): [], (2, 1): [(0, 1, True), (0, 2, False)], (2, 2): [(0, 4, True)]}


STORY: list[tuple[Event, str]] = [
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
    (PassOn("b", "c"), "RELEASE 2"),
    (Drop("kv", [1], ["k"]), "NAME 1"),
    (Release("c", "kv", [1]), "RELEASE 1"),
    (Count("kv", free=6, held=1), "COUNT 2"),
    (Reserve("d", "kv", 2), "RESERVE 1"),
    (Leave("a"), "LEAK 1"),
    (Idle(["c"]), "LEAK 1"),
    (Begin(7, "s", writes=[Use(pool="disk", pages=["k"])]), "ORDER 1 OVERWRITE 1 RACE 1 REWRITE 1 USE 1"),
    (Wait("u", on="s"), ""),
]
"""Events that break nothing, each with how often it judges which rule, and how often it could not."""


@pytest.mark.parametrize(
    ("holds", "promised", "unjudged"), [(None, "x", 1), ("x", None, 1), (None, None, 1), ("x", "x", 0)]
)
def test_a_promise_is_judged_where_both_sides_are_told(holds: str | None, promised: str | None, unjudged: int) -> None:
    law = Law(POOLS)
    for event in (take("a", 1), write(1, "a", 1, holds), Publish("kv", [1], ["k"], [promised] if promised else None)):
        assert law.step(event) == []
    assert law.state.pools["kv"].unjudged["MEM-NAME"] == unjudged


def test_each_figure_that_differs_is_told_once_whatever_the_others_are() -> None:
    law = Law(POOLS)
    law.step(take("a", 1))
    for told in (["5 pages of kv are told to be free", "0 pages of kv are told to be held"], []):
        assert [finding.what.partition(",")[0] for finding in law.step(Count("kv", free=5, held=0))] == told


def test_each_page_that_a_list_has_twice_is_told_once() -> None:
    law = Law(POOLS)
    for told in ([f"page {page} is twice in the list of free pages" for page in (1, 2, 4)], []):
        count = Count("kv", free=[1, 1, 2, 2, 3, 4, 4])
        assert [finding.what for finding in law.step(count) if "twice" in finding.what] == told


def test_a_use_of_nothing_is_well_formed() -> None:
    for nothing in (Use("t", start=2, stop=2), Use("t", start=2, stop=2, labels=[])):
        assert found(take("a", 1), table("t", "a", 1), Begin(1, "s", [nothing], [nothing])) == []
    assert found(Reserve("a", "kv", 0)) == []


def test_an_event_names_so_many_pages_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlaw.state.PAGES_AN_EVENT", 5)
    assert found(Take("a", "kv", [(1, 3), (7, 0), (4, 2)])) == []
    wrong: list[Pages] = [[(1, 3), (4, 3)], [(1, 6)], [(3, -1)]]
    for runs in wrong:
        with pytest.raises(Malformed, match="an event names 0 to 5"):
            found(Take("a", "kv", runs))


@pytest.mark.parametrize("label", ["x", "y"])
def test_what_nothing_orders_says_where_the_earlier_use_was(label: str) -> None:
    for later in (read(2, "a", 1, "x", "t"), write(2, "a", 1, label, "t")):
        law = Law(POOLS)
        first = write(1, "a", 1, "x")
        first.at = "the first"
        assert [*law.step(take("a", 1)), *law.step(first)] == []
        assert [finding.earlier for finding in law.step(later)] == ["the first"]


def test_two_contents_are_alike_no_further_than_they_overlap() -> None:
    state = Law(POOLS).state
    state.labels.learn("x", "y", 0)
    assert state.alike(Content(4, 8, "x", 4), Content(4, 6, "y")) == 4
    assert state.alike(Content(4, 8, "x", 0), Content(4, 6, "y", 0)) == 6


def test_the_same_label_agrees_where_its_slots_are_the_same() -> None:
    state = Law(POOLS).state
    for start, offset, other_start, other_offset in product(range(3), repeat=4):
        agree = state.agree(Content(start, 4, "x", offset), Content(other_start, 4, "x", other_offset))
        assert agree == (start - offset == other_start - other_offset)


@pytest.mark.parametrize("labels", ["x", "xy", "xyz"])
def test_each_page_of_a_copy_is_what_it_is_a_copy_of(labels: str) -> None:
    law = Law(POOLS)
    own, copies = range(1, 1 + len(labels)), range(4, 4 + len(labels))
    for event in (
        take("a", *own, *copies),
        Begin(1, "s", writes=[Use(None, "kv", [*own], labels=[*labels], holder="a")]),
        Begin(2, "s", copies=[(of("a", *own), of("a", *copies))]),
    ):
        assert law.step(event) == []
    pages = law.state.pools["kv"].pages
    assert [[*pages[number].content] for number in copies] == [[Content(0, 4, label)] for label in labels]


def test_a_table_names_pages_of_one_pool() -> None:
    with pytest.raises(Malformed, match="table t names pages of pool kv, not of rows"):
        found(table("t", "a", 1), Map("t", "a", "rows", 1, [1]))


@pytest.mark.parametrize(
    ("holders", "words"), [(1, "a holds it"), (4, "a, b, c, d hold it"), (5, "a, b, c, d, ... hold it")]
)
def test_of_a_page_that_others_have_four_of_them_are_named(holders: int, words: str) -> None:
    law = Law(POOLS)
    for event in (take("a", 1), *(Share(holder, "kv", [1]) for holder in "bcdef"[: holders - 1])):
        assert law.step(event) == []
    assert law.step(take("z", 1))[0].what == f"page 1 is handed out, but {words}"


def test_what_many_pages_and_long_names_make_of_a_finding() -> None:
    law = Law(POOLS)
    law.step(take("a", 1, 2, 3))
    assert law.step(Leave("a"))[0].what == "a has left and still holds 3 page(s) of kv: 1, 2, 3"
    just = "b" * (LONGEST - len("page 5 is handed out, but  holds it"))
    law.step(take(just, 5))
    assert law.step(take("c", 5))[0].what == f"page 5 is handed out, but {just} holds it"
    law.step(take("b" * 5000, 4))
    what = law.step(take("c", 4))[0].what
    assert len(what) == LONGEST and what.startswith("page 4 is handed out, but bbb") and what.endswith("b holds it")


@pytest.mark.parametrize("pool", ["kv", "rows"])
@pytest.mark.parametrize("labels", [["x"] * 12, None])
def test_the_content_of_each_page_that_is_written_is_judged_where_it_is_told(
    pool: str, labels: list[str] | None
) -> None:
    law = Law(POOLS)
    size = law.state.pools[pool].size
    for event in (
        Take("a", pool, [1, 2, 3]),
        Map("t", "a", pool, 0, [1, 2, 3], labels and labels[: 3 * size // 4]),
        Begin(1, "s", writes=[Use("t", stop=3 * size)]),
    ):
        assert law.step(event) == []
    counted, other = law.state.judged, law.state.pools[pool].unjudged
    if labels is None:
        counted, other = other, counted
    assert (counted["MEM-CONTENT"], other["MEM-CONTENT"]) == (3, 0)


def test_how_often_each_rule_is_judged_is_counted() -> None:
    """Everything has been counted a few times already: what is counted is added."""
    law, before = Law(POOLS), Counter(dict.fromkeys(MEMORY_RULES, 5))
    for event, due in STORY:
        law.state.judged.update(before)
        law.state.pools["kv"].unjudged.update(before)
        assert law.step(event) == []
        told = [
            f"{words}{rule[4:]} {counted[rule] - before[rule]}"
            for words, counted in (("", law.judged), ("not ", law.unjudged["kv"]))
            for rule in sorted({*counted, *MEMORY_RULES})
            if counted[rule] != before[rule]
        ]
        assert " ".join(told) == due, event


def test_what_is_found_is_said_of_the_page_the_deed_and_the_pool() -> None:
    assert Law(POOLS).step(take("a", 8))[0].what == "page 8 is handed out, but is padding"
    assert Law(POOLS).step(take("a", 9))[0].what == "page 9 is handed out, but does not exist"
    assert Law(POOLS).step(Release("b", "kv", [1]))[0].what == "page 1 is released by b, but nobody holds it"
    for name in ("before the first position", "positions in a hole"):
        law = Law(POOLS)
        assert {finding.pool for event in BROKEN[name][0] for finding in law.step(event)} == {"kv"}


@pytest.mark.parametrize("sees_own", [True, False])
def test_one_pass_sees_its_own_writes_in_one_pool_and_not_in_the_other(sees_own: bool) -> None:
    """Attention and a recurrent state in one operation: what was never written in the state spoils what leaves."""
    law = Law({"kv": Pool(4), "states": Pool(sees_own=sees_own)})
    state = Use(pool="states", pages=[1], holder="a")
    both = Begin(1, "s", [of("a", 1), Use("t"), state], [of("a", 1), state])
    events = [take("a", 1), Take("a", "states", [1, 2]), Map("t", "a", "states", 0, [2]), both, Deliver(1, "a")]
    events.insert(3, Begin(0, "s", writes=[Use("t")]))
    found = [finding.rule for event in events for finding in law.step(event)]
    assert found == ([] if sees_own else ["MEM-WRITTEN", "MEM-DELIVER"])
    after = Begin(2, "s", [Use("t"), state], [Use("t", labels=["x"])])
    assert law.step(after) == []
    through = [Map("u", "a", "states", 0, [3]), Begin(3, "s", [Use("u")], [Use("u")])]
    events = [Take("a", "states", [3]), *through]
    assert [one.rule for event in events for one in law.step(event)] == ([] if sees_own else ["MEM-WRITTEN"])


def test_who_wrote_what_is_found_is_known_as_long_as_nobody_else_writes_there() -> None:
    """One slot after the other is written through a table, then read as something else, and overwritten."""
    law = Law(POOLS)
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
    found = [finding for event in events for finding in law.step(event)]
    assert [(one.rule, one.other) for one in found] == [
        ("MEM-CONTENT", (3, 6)),
        ("MEM-NAME", (3, 6)),
        ("MEM-OVERWRITE", (3, 6)),
        ("MEM-REWRITE", (4, 7)),
    ]


def test_a_write_of_the_same_without_an_order_is_nobodys_cause() -> None:
    law = Law(POOLS)
    events = [take("a", 1), write(1, "a", 1, "x", stream="s"), write(2, "a", 1, "x", stream="t"), take("b", 1)]
    assert [(finding.rule, finding.cause) for event in events for finding in law.step(event)] == [
        ("MEM-REWRITE", None),
        ("MEM-TAKE", None),
    ]


def test_worthless_content_is_worthless_where_it_is_copied_to_another_slot() -> None:
    failed: list[Event] = [
        take("a", 1, 2),
        Begin(1, "t", writes=[of("a", 1)]),
        Begin(2, "s", [of("a", 1)], [of("a", 2)], after=[1]),
        End(1, unwritten=[of("a", 1)]),
        take("b", 3),
        copy(3, of("a", 2, stop=2), of("b", 3, start=2)),
        Begin(4, "s", [of("b", 3, start=2)]),
        End(4),
    ]
    assert found(*failed, Deliver(4, "b")) == [("MEM-DELIVER", 9)]


def test_a_window_that_has_moved_on_leaves_nothing_to_be_checked() -> None:
    """Else each step would go over all that was ever left behind."""
    law = Law(POOLS)
    for event in (*mapped("a", 1, 2, 3), Unmap("t", 0, 1), Unmap("t", 0, 2)):
        law.step(event)
    view = law.state.tables["t"].views["s"]
    assert (view.low, view.high, view.changed) == (8, 12, set())
    assert law.step(Begin(2, "s", [Use("t", start=8, stop=12)])) == []
    assert [finding.what for finding in law.step(Begin(3, "s", [Use("t", start=7, stop=12)]))] == [
        "position 7 of t has no page"
    ]


def test_nothing_is_copied_to_padding() -> None:
    law = Law(POOLS)
    for event in (take("a", 1), copy(1, of("a", 1), of("a", 8))):
        assert law.step(event) == []
    assert 8 not in law.state.pools["kv"].pages


def test_a_copy_through_a_hole_is_a_finding_and_so_is_nothing_copied_over_what_a_name_finds() -> None:
    through = [*mapped("a", 1, 2), take("b", 3, 4), Unmap("t", 0, 1), copy(2, Use("t"), of("b", 3, 4))]
    assert found(*through) == [("MEM-USE", 6)]
    named: list[Event] = [take("a", 1, 2), write(1, "a", 2, "x"), Publish("kv", [2], ["k"], ["x"])]
    assert found(*named, copy(2, of("a", 1), of("a", 2))) == [("MEM-OVERWRITE", 4)]


def test_a_copy_of_nothing_is_no_write_of_the_same() -> None:
    unordered: list[Event] = [take("a", 1, 2), write(1, "a", 2, "x", stream="t"), copy(2, of("a", 1), of("a", 2))]
    assert found(*unordered) == [("MEM-RACE", 3)]
    part = Begin(3, "t", writes=[of("a", 1, label="x", stop=2)])
    assert found(*unordered[:2], part, End(3), Begin(1, "t", writes=[of("a", 2, label="x")]), unordered[2]) == [
        ("MEM-RACE", 6)
    ]


@pytest.mark.parametrize("told", [True, False])
def test_content_behind_what_was_never_written_is_judged_too(told: bool) -> None:
    law = Law({"kv": Pool(4, 8, writes_told=told)})
    one = Begin(1, "s", writes=[of("a", 1, label="x", start=1, stop=2), of("a", 1, label="x", start=3)])
    findings = [(one.rule, one.cause) for event in (take("a", 1), one, read(2, "a", 1, "y")) for one in law.step(event)]
    assert findings == ([("MEM-WRITTEN", None), ("MEM-CONTENT", 3)] if told else [("MEM-CONTENT", None)])
