"""Random walks through the specified system, for tests of the model and of implementations."""

import os
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from kvconform.fuzzing import generate
from kvconform.fuzzing.style import USUAL, Draw
from kvconform.fuzzing.swarm import Swarm
from kvspec.events import Operation
from kvspec.model.state import State

T = TypeVar("T")

SEEDS = range(int(os.environ.get("KVSPEC_TEST_SEEDS", "40")))
"""The walks that a test takes. `make mutation` takes fewer, because it runs the tests thousands of times."""

BAG = [generator for generator, weight in generate.GENERATORS.items() for _ in range(weight)]


class RandomDraw:
    """Choices from a seeded random number generator."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def choice(self, options: Sequence[T]) -> T:
        return options[self._random.randrange(len(options))]


def proposals(state: State, draw: Draw, count: int, drawn: Swarm | None = None) -> Iterator[Operation[Any]]:
    """`count` draws from the bag of generators, each made when the one before it has been carried out.

    `drawn` has a bag and a style of its own.
    """
    bag, style = (BAG, USUAL) if drawn is None else (drawn.bag, drawn.style)
    for _ in range(count):
        op = draw.choice(bag)(state, draw, style)
        if op is not None:
            yield op
