"""The goals of drivers: each is reached by a few events, and not by those that come close."""

from collections.abc import Sequence

import pytest

from kvlab.goals import Goal, drafted, ended_in_flight, from_storage, hit, kept_apart, pictures_apart, withdrawn
from kvspec.memory.events import Begin, Drop, End, EndHolder, Map, MemoryEvent, Pages, Publish, Share, Use

PAGES: tuple[str, Pages] = ("kv", [1])
TABLE = Map("t", "a", "kv", 0, [1])
LAUNCH = Begin(1, "compute", writes=[Use("t", stop=4)])
NEXT = Begin(2, "compute", reads=[Use(None, "kv", [2], holder="b")])
PUBLISHED = Publish(*PAGES, ["key"])
CAT, DOG = Publish(*PAGES, ["cat"], ["2a~5~7"]), Publish("kv", [2], ["dog"], ["2a~5~8"])
MINE, YOURS = Publish(*PAGES, ["mine"], ["2a~5"]), Publish("kv", [2], ["yours"], ["2a~6"])
HELD, FILE = Use(None, "host", [1]), Use(None, "storage", ["file"])
SAVED, LOADED = Begin("out", copies=[(HELD, FILE)]), Begin("in", copies=[(FILE, HELD)])

REACHED: list[tuple[Goal, list[MemoryEvent]]] = [
    (hit, [PUBLISHED, Share("b", *PAGES)]),
    (withdrawn, [PUBLISHED, Drop(*PAGES)]),
    (kept_apart, [MINE, YOURS]),
    (pictures_apart, [CAT, DOG]),
    (pictures_apart, [CAT, Publish("kv", [2], ["none"], ["2a~5"])]),
    (kept_apart, [MINE, Publish("kv", [2], ["unknown"], ["2a"])]),
    (drafted, [Begin(1, "compute", writes=[Use("t", stop=4, at_most=True)])]),
    (from_storage, [SAVED, LOADED]),
    (ended_in_flight, [TABLE, LAUNCH, EndHolder("a")]),
    (ended_in_flight, [NEXT, TABLE, LAUNCH, End(2), Begin(3, "compute", writes=[Use("t", stop=5)]), EndHolder("a")]),
]
MISSED: list[tuple[Goal, list[MemoryEvent]]] = [
    (hit, [Share("b", *PAGES)]),
    (hit, [PUBLISHED, Share("b", *PAGES, pin=True)]),
    (hit, [PUBLISHED, Drop(*PAGES), Share("b", *PAGES)]),
    (withdrawn, [PUBLISHED]),
    (kept_apart, [MINE, Publish("kv", [2], ["mine"], ["2a~5"])]),
    (kept_apart, [MINE, Publish("kv", [2], ["yours"], ["2b~6"])]),
    (kept_apart, [MINE, Drop(*PAGES), YOURS]),
    (kept_apart, [CAT, DOG]),
    (pictures_apart, [CAT, Publish("kv", [2], ["dog"], ["2a~6~8"])]),
    (pictures_apart, [CAT, Publish("kv", [2], ["cat"], ["2a~5~7"])]),
    (drafted, [LAUNCH]),
    (from_storage, [LOADED, SAVED]),
    (ended_in_flight, [TABLE, LAUNCH, End(1), EndHolder("a")]),
    (ended_in_flight, [TABLE, LAUNCH, EndHolder("b")]),
    (ended_in_flight, [TABLE, LAUNCH, NEXT, End(2), EndHolder("a")]),
]


@pytest.mark.parametrize(("goal", "events"), REACHED)
def test_events_reach_a_goal(goal: Goal, events: Sequence[MemoryEvent]) -> None:
    assert goal(events)


@pytest.mark.parametrize(("goal", "events"), MISSED)
def test_events_that_come_close_do_not(goal: Goal, events: Sequence[MemoryEvent]) -> None:
    assert not goal(events)
