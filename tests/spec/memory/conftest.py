"""Both memory checkers: each must have every expected finding. And the proofs' text, about plain numbers."""

from collections.abc import Callable
from typing import Any

import pytest

from kvcheck import Checker
from kvconform.oracle.meaning import MakeChecker
from kvspec.memory.events import Event
from kvspec.memory.proofs import books, moves, page, terms
from tests.spec.memory.once import Once
from tests.spec.memory.scenarios import POOLS, Found

CHECKERS: dict[str, MakeChecker] = {"plain": Once, "fast": Checker}


@pytest.fixture(params=[*CHECKERS.values()], ids=[*CHECKERS])
def checker(request: pytest.FixtureRequest) -> MakeChecker:
    made: MakeChecker = request.param
    return made


@pytest.fixture
def found(checker: MakeChecker) -> Found:
    def finds(*events: Event) -> list[tuple[str, int]]:
        watching = checker(POOLS)
        return [(finding.rule, finding.event) for event in events for finding in watching.step(event)]

    return finds


PLAIN: dict[str, Callable[..., Any]] = {
    "And": lambda *parts: all(parts),
    "Or": lambda *parts: any(parts),
    "Not": lambda part: not part,
    "Implies": lambda condition, consequence: not condition or consequence,
    "If": lambda condition, then, otherwise: then if condition else otherwise,
    "choose": lambda condition, then, otherwise: then if condition else otherwise,
}
"""Z3's connectives, of truth values."""


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proofs' text is about plain numbers; a test sets those that there are."""
    for module in (books, moves, page, terms):
        for name in PLAIN.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, PLAIN[name])
    monkeypatch.setattr(terms.every, "domain", range(0))
