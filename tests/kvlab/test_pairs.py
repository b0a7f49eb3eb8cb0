"""An event on a page and the next one on it are a pair, with their holders and streams, and whether it is in flight."""

from collections.abc import Sequence

import pytest

from kvlab.pairs import Pair, Pairs
from kvspec.memory.events import (
    Begin,
    Drop,
    End,
    Map,
    MemoryEvent,
    Pages,
    Pool,
    Publish,
    Release,
    Share,
    Take,
    Transfer,
    Unmap,
    Use,
)

PAGES: tuple[str, Pages] = ("kv", [1])
BOTH: tuple[str, Pages] = ("kv", [(1, 2)])
TABLE = Map("t", "a", "kv", 0, [(1, 2)])
LAUNCH = Begin(1, "compute", writes=[Use("t", stop=4)], at="launch")


def pairs(events: Sequence[MemoryEvent]) -> set[Pair]:
    counted = Pairs()
    counted.header({"kv": Pool(4, 8)})
    for event in events:
        counted.step(event)
    return counted.reached


@pytest.mark.parametrize(
    ("events", "pair"),
    [
        ([Take("a", *BOTH), Share("b", *PAGES)], Pair("kv", "Take", False, "Share", False, True)),
        ([Take("a", *PAGES), Share("a", *BOTH, pin=True)], Pair("kv", "Take", False, "pin", True, True)),
        ([Publish(*PAGES, ["key"]), Drop(*PAGES)], Pair("kv", "Publish", False, "Drop", True, True)),
        ([TABLE, Unmap("t", 1)], Pair("kv", "Map", False, "Unmap", True, True)),
        ([TABLE, Unmap("t", 0, 1)], Pair("kv", "Map", False, "Unmap", True, True)),
        ([Take("a", *PAGES), Transfer("a", "b", *PAGES)], Pair("kv", "Take", False, "Transfer", False, True)),
    ],
)
def test_two_events_on_one_page_are_a_pair(events: Sequence[MemoryEvent], pair: Pair) -> None:
    assert pairs(events) == {pair}


def test_what_is_not_on_one_page_is_none() -> None:
    assert not pairs([Take("a", *PAGES), Take("b", "kv", [2]), Unmap("t", 0)])
    assert not pairs([Unmap("t", 0), Begin(1, "compute", reads=[Use("t")]), Take("a", *PAGES)])


def test_an_operation_uses_the_pages_of_its_positions() -> None:
    """Positions 0 to 3 are on page 1, and page 2 is mapped and no more."""
    mapped = Pair("kv", "Map", False, "launch writes", True, False)
    assert pairs([TABLE, LAUNCH]) == {mapped}
    assert pairs([TABLE, LAUNCH, Release("a", "kv", [2])]) == {mapped, Pair("kv", "Map", False, "Release", True, True)}


def test_an_operation_is_in_flight_until_the_host_has_seen_it_complete() -> None:
    freed, later = Release("a", *PAGES), Begin(2, "compute", at="launch")
    flies, done = (Pair("kv", "launch writes", flies, "Release", True, False) for flies in (True, False))
    assert flies in pairs([TABLE, LAUNCH, freed])
    assert done in pairs([TABLE, LAUNCH, End(1), freed])
    assert done in pairs([TABLE, LAUNCH, later, End(2), freed])
    assert flies in pairs([TABLE, LAUNCH, Begin(2, "load"), End(2), freed])
    assert flies in pairs([TABLE, LAUNCH, End(1, "reads"), freed])


def test_copies_have_two_ends_and_need_no_stream() -> None:
    copy = Begin("c", copies=[(Use(None, *PAGES, holder="a"), Use(None, "kv", [2], holder="b"))], at="copy")
    read = Begin("d", reads=[Use(None, *PAGES, holder="b")], at="read")
    assert pairs([Take("a", *PAGES), Take("b", "kv", [2]), copy, End("c"), read]) == {
        Pair("kv", "Take", False, "copy copies", True, False),
        Pair("kv", "Take", False, "copy fills", True, False),
        Pair("kv", "copy copies", False, "read reads", False, False),
    }


def test_a_table_goes_along_with_its_holder() -> None:
    assert pairs([TABLE, Transfer("a", "b"), LAUNCH]) == {Pair("kv", "Map", False, "launch writes", False, False)}


def test_another_memory_begins_anew_and_pairs_stay() -> None:
    counted = Pairs()
    for _ in range(2):
        counted.header({"kv": Pool(4, 8)})
        counted.step(Take("a", *PAGES))
    assert not counted.reached
    counted.step(Release("a", *PAGES))
    counted.header({"kv": Pool(4, 8)})
    assert len(counted.reached) == 1
