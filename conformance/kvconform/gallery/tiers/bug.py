"""One mutant of the tiered engine, and the table of all of them."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from kvref.tiers.engine import TieredEngine
from kvref.tiers.transfers import Transfers


class TierBug(NamedTuple):
    """One defect of the memory level."""

    name: str
    title: str
    """The fault of the code, in one line."""
    rules: tuple[str, ...]
    """The rules; one of them must be named when it is found."""
    engine: type[TieredEngine]


TIER_BUGS: dict[str, TierBug] = {}
"""The mutants by name."""

_T = TypeVar("_T", bound=type[TieredEngine] | type[Transfers])


def defect(name: str, title: str, *rules: str) -> Callable[[_T], _T]:
    """Enter an engine, or an engine with other transfers, into the gallery."""

    def enter(change: _T) -> _T:
        engine: type[TieredEngine] = change if issubclass(change, TieredEngine) else _with_transfers(change)
        TIER_BUGS[name] = TierBug(name, title, rules, engine)
        return change

    return enter


def _with_transfers(change: type[Any]) -> type[TieredEngine]:
    return type(f"With{change.__name__}", (TieredEngine,), {"transfers_type": change})
