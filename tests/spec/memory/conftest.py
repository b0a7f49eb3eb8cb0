"""Every law there is: what is to be found of events, each must find."""

import pytest

from kvcheck import Checker
from kvspec.memory.events import Event
from kvspec.model.meaning import MakeLaw
from tests.spec.memory.once import Once
from tests.spec.memory.stories import POOLS, Found

LAWS: dict[str, MakeLaw] = {"plain": Once, "fast": Checker}


@pytest.fixture(params=[*LAWS.values()], ids=[*LAWS])
def checker(request: pytest.FixtureRequest) -> MakeLaw:
    made: MakeLaw = request.param
    return made


@pytest.fixture
def found(checker: MakeLaw) -> Found:
    def finds(*events: Event) -> list[tuple[str, int]]:
        watching = checker(POOLS)
        return [(finding.rule, finding.event) for event in events for finding in watching.step(event)]

    return finds
