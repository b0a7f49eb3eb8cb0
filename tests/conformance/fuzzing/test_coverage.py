"""A fuzzer that knows what others have reached looks elsewhere."""

from kvconform.fuzzing.coverage import Coverage, kind_of
from kvconform.fuzzing.style import Chance
from kvconform.fuzzing.swarm import swarm


def test_the_kind_of_which_the_most_is_missing_is_chosen() -> None:
    drawn = [swarm(Chance(number)) for number in range(9)]
    kinds = list(dict.fromkeys(map(kind_of, drawn)))
    assert len(kinds) > 3
    known = Coverage()
    assert known.choose(drawn) is drawn[0], "nothing is known"
    for kind in kinds[:-1]:
        known.note(kind, ["a", "b"])
    known.note(kinds[-1], ["a"])
    assert kind_of(known.choose(drawn)) == kinds[-1], "what others have reached is missing there"
    known.runs[kinds[-1]] += 9
    assert kind_of(known.choose(drawn)) != kinds[-1], "it was tried often enough"


def test_what_was_noted_since_is_put_together_with_what_was_known() -> None:
    known, kind, other = Coverage(), kind_of(swarm(Chance(1))), kind_of(swarm(Chance(2)))
    known.note(kind, ["a"])
    mine = known.copy()
    mine.note(kind, ["a", "b"])
    mine.note(other, [])
    news = mine.since(known)
    assert (news.runs, news.reached) == ({kind: 1, other: 1}, {kind: {"b"}, other: set()})
    known.add(news)
    assert (known.runs, known.reached) == (mine.runs, mine.reached)


def test_runs_spread_over_more_kinds_than_chance_gives_them() -> None:
    known, by_chance = Coverage(), set()
    for number in range(60):
        drawn = [swarm(Chance(4 * number + more)) for more in range(4)]
        by_chance.add(kind_of(drawn[0]))
        known.note(kind_of(known.choose(drawn)), ["a"])
    assert len(known.runs) > 1.2 * len(by_chance)
