"""Places in the arena: never two for one, and joined again when they come back."""

import random

from kvcuda.arena import Arena, Run, split


def test_places_are_handed_out_once_and_come_back() -> None:
    draw = random.Random(1)
    arena = Arena(50)
    held: list[list[Run]] = []
    for _ in range(400):
        in_use = [place for runs in held for first, count in runs for place in range(first, first + count)]
        assert len(in_use) == len(set(in_use))
        assert all(0 <= place < 50 for place in in_use)
        if draw.random() < 0.5 and len(in_use) < 50:
            count = draw.randint(1, 50 - len(in_use))
            runs = arena.take(count)
            assert sum(run.size for run in runs) == count
            held.append(runs)
        elif held:
            arena.give_back(held.pop(draw.randrange(len(held))))
    for runs in held:
        arena.give_back(runs)
    assert arena.take(50) == [Run(0, 50)]


def test_split_keeps_the_order() -> None:
    runs = [Run(5, 3), Run(0, 2), Run(20, 1)]
    places = [place for first, count in runs for place in range(first, first + count)]
    for at in range(7):
        head, tail = split(runs, at)
        assert [place for first, count in (*head, *tail) for place in range(first, first + count)] == places
        assert sum(run.size for run in head) == at
