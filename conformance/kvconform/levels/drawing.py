"""The events of a trace of either level, with the parts of its pools that are drawn beside them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from kvconform.findings.finding import FREE, Cell, Moment, Trace, by_number, ranks

KEPT = 200
"""Events of a long trace that are shown: the last before the finding."""
DRAWN = 64
"""Parts of a pool that are drawn at most."""


class Seen(NamedTuple):
    """A moment, with all that is in use or named: the parts of each pool."""

    moment: Moment
    cells: dict[str, dict[str, Cell]]


def drawn(
    level: Any,
    sizes: dict[str, Any],
    memory: str,
    total: int,
    moments: Sequence[Seen],
) -> Trace:
    """A trace, with as many parts of its pools as can be drawn: what the events name and change comes first."""
    undrawn = {}
    for pool in dict.fromkeys(pool for _, cells in moments for pool in cells):
        ranked = ranks([cells.get(pool, {}) for _, cells in moments])
        wanted = sorted(ranked, key=lambda number: (ranked[number], by_number(number)))[:DRAWN]
        if len(ranked) > len(wanted):
            undrawn[pool] = len(ranked) - len(wanted)
        for moment, cells in moments:
            if wanted:
                now = cells.get(pool, {})
                moment.cells[pool] = {number: now.get(number, FREE) for number in sorted(wanted, key=by_number)}
    return Trace(level, sizes, memory, total, [moment for moment, _ in moments], undrawn)


def builtins(value: object) -> Any:
    """A record as JSON would have it."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=repr))
