"""A recording leaves out references that are taken and given back again, while nothing else happens."""

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import msgspec
import pytest

import kvcheck
from kvspec.memory import Finding, Pool, checker, events
from kvspec.memory.events import Count, Event, MemoryEvent, Page, Release, Share, Take
from kvtrace import repeats
from kvtrace.repeats import Repeats
from kvtrace.writer import TraceWriter
from tests.kvcheck.walks import Walk, pools

_event = msgspec.json.Decoder(MemoryEvent)
Said = tuple[str, str | None, Page | None, str | None, int | None]
"""A finding: its code, pool, page, holder and slot."""
LOCKED, UNLOCKED = Share("lock 1", "kv", [1, 2], ["a", "b"]), Release("lock 1", "kv", [1, 2])
ROUND: list[MemoryEvent] = [LOCKED, UNLOCKED]
OTHER = [Share("lock 1", "kv", [3]), Release("lock 1", "kv", [3])]
NEWS = events.Publish("kv", [7], ["c"])
FIGURES = Count("kv", free=3)


def lines(found: Iterable[Event]) -> list[bytes]:
    return [msgspec.json.encode(event) for event in found]


def written(found: Iterable[Event]) -> list[Event]:
    """The events that are written, those included that are held back until the end."""
    seen = Repeats()
    kept = [line for one in lines(found) for line in seen.news(one)]
    return [_event.decode(line) for line in [*kept, *seen.changed()]]


def test_a_lock_and_its_release_are_written_once_while_nothing_else_happens() -> None:
    assert written(ROUND * 1000) == ROUND


@pytest.mark.parametrize(
    "news",
    [NEWS, Release("r", "kv", [1, 2]), Share("r", "kv", [1], pin=True), events.Failed("stuck", "no launch")],
    ids=["name", "release of another", "pin", "failure"],
)
def test_any_other_event_makes_it_news_again(news: Event) -> None:
    assert written([*ROUND * 3, news, *ROUND * 3, news]) == [*ROUND, news, *ROUND, news]


def test_an_event_within_a_round_is_written_in_its_place() -> None:
    assert written([*ROUND * 2, LOCKED, NEWS, UNLOCKED, *ROUND * 2]) == [*ROUND, LOCKED, NEWS, UNLOCKED, *ROUND]


def test_a_lock_that_is_kept_is_written() -> None:
    assert written([*ROUND * 3, LOCKED]) == [*ROUND, LOCKED]
    assert written([*ROUND * 3, LOCKED, LOCKED, UNLOCKED]) == [*ROUND, LOCKED, LOCKED, UNLOCKED]


def test_a_release_of_an_earlier_reference_is_written_each_time() -> None:
    assert written([UNLOCKED] * 3) == [UNLOCKED] * 3
    assert written([*ROUND * 2, UNLOCKED]) == [*ROUND, UNLOCKED]


@pytest.mark.parametrize(
    "other",
    [
        Release("lock 2", "kv", [1, 2]),
        Release("lock 1", "rows", [1, 2]),
        Release("lock 1", "kv", [1]),
        Release("lock 1", "kv", [1, 2], at="unlock"),
    ],
    ids=["holder", "pool", "pages", "place"],
)
def test_another_release_is_no_repetition(other: Release) -> None:
    assert written([*ROUND * 2, LOCKED, other]) == [*ROUND, LOCKED, other]


def test_rounds_in_turns_and_one_within_another_are_written_once() -> None:
    nested = [LOCKED, *OTHER, UNLOCKED]
    crossed = [LOCKED, OTHER[0], UNLOCKED, OTHER[1]]
    assert written([*ROUND, *OTHER] * 5) == [*ROUND, *OTHER]
    assert written([*nested, *ROUND] * 5) == [*nested, *ROUND]
    assert written([*crossed, *nested] * 5) == [*crossed, *nested]


def test_the_same_figures_are_written_once_too() -> None:
    assert written([*ROUND, FIGURES, *ROUND] * 5) == [*ROUND, FIGURES]
    changed = Count("kv", free=4)
    assert written([*ROUND, FIGURES, *ROUND, changed, FIGURES] * 2) == [*ROUND, FIGURES, changed]
    assert written([LOCKED, FIGURES, UNLOCKED] * 3) == [LOCKED, FIGURES, UNLOCKED]


def test_what_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST", 4 * repeats.ENTRY + 400)
    third = [Share("lock 1", "kv", [4]), Release("lock 1", "kv", [4])]
    assert written([*ROUND, *OTHER] * 3) == [*ROUND, *OTHER]
    assert written([*ROUND, *OTHER, *third] * 3) == [*ROUND, *OTHER, *third] * 3


TRIED = [event for page in range(5) for event in (Take("r", "kv", [page]), Release("r", "kv", [page]))]


def test_pages_that_are_taken_in_turns_and_given_back_are_written_once_unless_some_are_reserved() -> None:
    reserved = events.Reserve("r", "kv", 1)
    assert written(TRIED * 3) == TRIED
    assert written([reserved, *TRIED * 3]) == [reserved, *TRIED * 3]
    assert written([*ROUND, NEWS, reserved, *ROUND * 3, *TRIED * 3]) == [*ROUND, NEWS, reserved, *ROUND, *TRIED * 3]
    nested = [TRIED[0], TRIED[2], TRIED[1], TRIED[3]]
    assert written(nested * 3) == nested


def test_a_take_that_is_written_makes_locks_and_figures_news_again() -> None:
    once = [*ROUND, FIGURES, *TRIED[:2]]
    assert written([*ROUND, FIGURES, *TRIED[:2]] * 5) == [*once, *ROUND, FIGURES]
    assert written([*ROUND * 2, TRIED[0], FIGURES, TRIED[1], *ROUND * 2]) == [
        *ROUND,
        TRIED[0],
        FIGURES,
        TRIED[1],
        *ROUND,
    ]
    compared = [TRIED[0], FIGURES, TRIED[1]]
    assert written(compared * 2) == compared * 2
    kept = [*ROUND, TRIED[0], *ROUND]
    assert written([*kept, TRIED[1], *ROUND * 2]) == [*kept, TRIED[1], *ROUND]


def test_lines_of_one_call_are_taken_one_by_one() -> None:
    seen = Repeats()
    both = b"\n".join(lines(ROUND))
    assert seen.news(both) == lines(ROUND)
    assert seen.news(both) == []
    assert seen.news(b"\n".join(lines([*ROUND, LOCKED]))) == []
    assert seen.news(b"\n".join(lines([UNLOCKED, NEWS]))) == lines([NEWS])
    assert seen.news(b"\n".join(lines([NEWS, LOCKED]))) == [b"\n".join(lines([NEWS, LOCKED]))]
    assert seen.news(lines([UNLOCKED])[0]) == lines([UNLOCKED]), "the lock was written in the call before"


@pytest.mark.parametrize("before", [[NEWS], ROUND], ids=["after a change", "after a round"])
def test_pages_that_are_reserved_among_the_lines_of_a_call_are_seen(before: list[MemoryEvent]) -> None:
    seen = Repeats()
    reserved = b"\n".join(lines([*before, events.Reserve("r", "kv", 1)]))
    assert b"\n".join(seen.news(reserved)) == reserved
    taken = b"\n".join(lines(TRIED[:2]))
    assert [seen.news(taken), seen.news(taken)] == [lines(TRIED[:2])] * 2


POOLS = {"kv": Pool(num_pages=64)}


def recorded(path: Path) -> list[Event]:
    return [_event.decode(line) for line in path.read_bytes().splitlines()[1:]]


def test_what_is_held_back_is_written_when_the_recording_ends(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    ends: list[Callable[[], object]] = [writer.stop, lambda: writer.header("next", POOLS), writer.close]
    for end in ends:
        writer.header("test", POOLS)
        for event in [*ROUND * 9, LOCKED]:
            writer.emit(event)
        assert writer.flush()
        file = writer.files[-1]
        assert recorded(file) == ROUND
        end()
        assert writer.flush()
        assert recorded(file) == [*ROUND, LOCKED]
        assert writer.problem is None


def test_a_new_recording_has_its_own_first_time(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t.jsonl")
    for _ in range(2):
        writer.header("test", POOLS)
        writer.emit(*ROUND, *ROUND)
    writer.close()
    assert [recorded(file) for file in writer.files] == [ROUND, ROUND]


DIFFERENCES = ("MEM-COUNT", "MEM-RESERVE")


class Rounds(Walk):
    """Draws events, and now and then some rounds three times. They may break rules."""

    reserves = False

    def further(self) -> list[Event]:
        if self.random.random() < 0.7:
            event = self.event()
            return [event] if self.reserves or not isinstance(event, events.Reserve) else []
        return [event for one in (self.round(), self.round()) * 3 for event in one]

    def round(self) -> list[Event]:
        made: list[Event] = []
        for _ in range(self.random.choice((0, 1, 1, 2))):
            pool, holder = self.pool(), self.holder()
            pages = self.real(pool)
            keys = self.keys(pages) if self.random.random() < 0.5 else None
            takes = pool != "disk" and self.random.random() < 0.3
            taken = Take(holder, pool, pages) if takes else Share(holder, pool, pages, keys)
            figures = [self.count()] if self.random.random() < 0.3 else []
            inside = [taken, *figures, *made, Release(holder, pool, pages)]
            made = inside if self.random.random() < 0.5 else [*made, *inside]
        return made


def said(found: Iterable[kvcheck.Finding | Finding]) -> set[Said]:
    """The findings of an event, but for its number."""
    return {
        (one.rule, one.pool, None, None, None)
        if one.rule in DIFFERENCES
        else (one.code, one.pool, one.page, one.holder, one.slot)
        for one in found
    }


def exact(found: set[Said]) -> set[Said]:
    """The findings that are not differences, of which each is found when it appears and when it changes."""
    return {one for one in found if one[0] not in DIFFERENCES}


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("make", [kvcheck.Checker, checker.Checker], ids=["fast", "plain"])
def test_what_is_left_out_breaks_no_rule_that_is_not_found_without_it(
    make: type[kvcheck.Checker | checker.Checker], seed: int
) -> None:
    random = Random(seed)
    config = pools(random, Walk.pages)
    whole, kept, seen = make(config), make(config), Repeats()
    walk = Rounds(random, checker.Checker(config))
    walk.reserves = seed % 2 == 0
    found, since = set[Said](), set[Said]()
    """The findings without what is left out: all, and those since the memory has changed."""
    waiting: list[set[Said]] = []
    left = 0
    while walk.begun < 60:
        for event in walk.further():
            walk.checker.step(event)
            waiting.append(said(whole.step(event)))
            news = seen.news(msgspec.json.encode(event))
            if not news:
                continue
            out, waiting = waiting[: -len(news)], waiting[-len(news) :]
            left += len(out)
            assert exact(set().union(*out)) <= since
            assert set().union(*out) <= found
            if not isinstance(event, Take | Share | Release | Count):
                since.clear()
            for line, due in zip(news, waiting, strict=True):
                now = said(kept.step(_event.decode(line)))
                found |= now
                since |= now
                assert exact(now) == exact(due)
                assert due <= found
            waiting.clear()
    assert left > 100
