"""The events of a trace of either level, with the drawn parts of its pools."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from kvconform.findings.finding import FREE, Cell, Moment, Trace, by_number, ranks

KEPT = 200
"""The most events of a long trace that are shown: the last before the finding."""
DRAWN = 64
"""The most parts of a pool that are drawn."""


class Seen(NamedTuple):
    """A moment, with all parts of each pool that are in use or named."""

    moment: Moment
    cells: dict[str, dict[str, Cell]]


def drawn(
    level: Any,
    sizes: dict[str, Any],
    memory: str,
    total: int,
    moments: Sequence[Seen],
) -> Trace:
    """A trace, with as many parts of its pools as can be drawn. Parts that events name and change come first."""
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
    """A record in JSON's types."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=repr))
