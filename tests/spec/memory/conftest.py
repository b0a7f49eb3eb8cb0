"""Every law there is: what is to be found of events, each must find."""

import pytest

from kvlaw import Law
from kvspec.memory.events import Event
from kvspec.model.meaning import MakeLaw
from tests.spec.memory.once import Once
from tests.spec.memory.stories import POOLS, Found

LAWS: dict[str, MakeLaw] = {"plain": Once, "fast": Law}


@pytest.fixture(params=[*LAWS.values()], ids=[*LAWS])
def law(request: pytest.FixtureRequest) -> MakeLaw:
    made: MakeLaw = request.param
    return made


@pytest.fixture
def found(law: MakeLaw) -> Found:
    def finds(*events: Event) -> list[tuple[str, int]]:
        watching = law(POOLS)
        return [(finding.rule, finding.event) for event in events for finding in watching.step(event)]

    return finds
