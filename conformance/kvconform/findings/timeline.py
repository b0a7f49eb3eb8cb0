"""A trace drawn as a table: one line an operation, and beside it who owns each part of each pool after it."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import msgspec

from kvconform.findings.story import sentence
from kvspec.events import Config, Operation, Refusal, SnapshotAnswer
from kvspec.model import Model
from kvspec.model.judging import owner_name, record_name, state_owner_name
from kvspec.model.state import WITHHELD, State
from kvspec.pages import expand
from kvspec.rules import Violation

SIZE = 22
"""Pixels of one page, row or slot."""
MOST_CELLS = 40
"""Parts of a pool that are drawn: of those that the trace ever uses, the first."""
MOST_STEPS = 60
"""Operations that are drawn: the last."""
HUES = 6
"""Colours for holders."""


POOLS = ("pages", "window pages", "state slots", "rows")
TOLD = {
    "pages": ("pages", "freed", "evicted"),
    "window pages": ("window_pages", "window_freed", "window_evicted"),
    "state slots": ("states", "states_freed", "states_evicted", "state", "state_cached", "state_taken"),
    "rows": ("rows",),
}
"""The parts of answers that name something of a pool."""
BLAMED = {"SWA": "window pages", "MAMBA": "state slots"}
"""Which pool the numbers are of that a rule of this name disputes; of any other it is the pages."""


class Cell(NamedTuple):
    """What one part of a pool is after an operation."""

    kind: str
    """`free`, `store`, `locked`, `withheld`, or `held`."""
    holder: str = ""
    named: bool = False
    """The answer to the operation names it."""


class Moment(NamedTuple):
    """One operation, and everything after it."""

    op: Operation[Any]
    cells: dict[str, dict[int, Cell]]
    """For each of `POOLS` all that is in use or named."""
    breaks: bool
    """The specification forbids this answer; the cells are as before it."""


def moments(config: Config, operations: Sequence[Operation[Any]]) -> list[Moment]:
    """What the model knows after each operation. One without an answer is answered by the model itself."""
    model, found = Model(config), []
    for given in operations:
        op, breaks, disputed = msgspec.structs.replace(given), False, dict[str, set[int]]()
        try:
            model.step(op)  # type: ignore[arg-type]
        except Refusal as refusal:
            op.refused = refusal.refused
        except Violation as violation:
            breaks = True
            if isinstance(violation.expected, list) and isinstance(violation.observed, list):
                pool = BLAMED.get(violation.rule.id.partition("-")[0], "pages")
                disputed[pool] = set(violation.expected) ^ set(violation.observed)
        cells = {pool: _cells(model.state, pool, _named(op, pool) | disputed.get(pool, set())) for pool in POOLS}
        found.append(Moment(op, cells, breaks))
    return found


def _cells(state: State, pool: str, named: set[int]) -> dict[int, Cell]:
    """What is in use of a pool, or named."""
    used = {
        "pages": {page: _page(state, page) for page in state.owner},
        "window pages": {side: _window_page(state, side) for side in state.window_owner},
        "state slots": {slot: _state_slot(state, slot) for slot in state.state_owner},
        "rows": {row: _row(state, row) for row in range(state.config.num_rows)},
    }[pool]
    return {number: used.get(number, Cell("free"))._replace(named=number in named) for number in used.keys() | named}


def _page(state: State, page: int) -> Cell:
    owner = state.owner[page]
    if isinstance(owner, bytes):
        return Cell("locked" if owner in state.store.pins else "store", "the store")
    return Cell("held", owner_name(state, page))


def _window_page(state: State, side: int) -> Cell:
    owner = state.owner[state.window_owner[side]]
    if isinstance(owner, bytes):
        return Cell("locked" if owner in state.store.window_pins else "store", "the store")
    return Cell("held", owner_name(state, state.window_owner[side]))


def _state_slot(state: State, slot: int) -> Cell:
    owner = state.state_owner[slot]
    if isinstance(owner, bytes):
        return Cell("locked" if owner in state.store.state_pins else "store", "the store")
    return Cell("held", state_owner_name(state, slot))


def _row(state: State, row: int) -> Cell:
    record = state.rows.get(row)
    if record is None:
        return Cell("free")
    return Cell("withheld") if record == WITHHELD else Cell("held", record_name(state, record))


def _named(op: Operation[Any], pool: str) -> set[int]:
    """What the answer names of a pool; a look at everything names nothing."""
    named = set[int]()
    if isinstance(op.obs, SnapshotAnswer):
        return named
    for part in TOLD[pool]:
        told = getattr(op.obs, part, None)
        if isinstance(told, int):
            named.add(told)
        elif isinstance(told, dict):
            for runs in told.values():
                named |= {runs} if isinstance(runs, int) else set(expand(runs))
        elif told is not None:
            named |= set(expand(told))
    return named


def drawn(config: Config, operations: Sequence[Operation[Any]], lines: Sequence[int] = ()) -> str:
    """The table, as HTML. The operations go by their `lines` in a file, or are counted from 1."""
    seen = moments(config, operations)
    first = max(0, len(seen) - MOST_STEPS)
    shown = seen[first:]
    columns = {pool: _column(shown, pool) for pool in POOLS}
    columns = {pool: numbers for pool, numbers in columns.items() if numbers}
    hues: dict[str, int] = {}
    body = [
        _line((lines or range(1, len(seen) + 1))[first + place], one, columns, hues) for place, one in enumerate(shown)
    ]
    heads = [
        f"<th>{pool}{' after it' * (not place)} {_numbers(numbers)}</th>"
        for place, (pool, numbers) in enumerate(columns.items())
    ]
    parts = [
        f'<div class="kv-trace"><table><thead><tr><th>{"line" if lines else "step"}</th><th>what happens</th>',
        *heads,
        f"</tr></thead><tbody>{''.join(body)}</tbody></table></div>",
        f'<p class="kv-legend">{"".join(_legend(hues, shown))}</p>',
    ]
    return "".join(parts)


def _column(shown: list[Moment], pool: str) -> list[int]:
    """What is drawn of a pool: what is ever in use or named."""
    used = {
        number
        for moment in shown
        for number, cell in moment.cells[pool].items()
        if (cell.kind != "free" or cell.named) and (number > 0 or pool == "rows")
    }
    return sorted(used)[:MOST_CELLS]


def _line(number: int, moment: Moment, columns: dict[str, list[int]], hues: dict[str, int]) -> str:
    kind = ' class="kv-breaks"' if moment.breaks else ' class="kv-refused"' if moment.op.refused is not None else ""
    cells = [f"<td>{number}</td><td>{escape(sentence(moment.op))}</td>"]
    for pool, numbers in columns.items():
        strip = [moment.cells[pool].get(one, Cell("free")) for one in numbers]
        cells.append(f"<td>{_strip(strip, hues, moment.breaks)}</td>")
    return f"<tr{kind}>{''.join(cells)}</tr>"


def _numbers(numbers: list[int]) -> str:
    texts = "".join(
        f'<text x="{place * SIZE + SIZE / 2}" y="12" text-anchor="middle" class="kv-small">{number}</text>'
        for place, number in enumerate(numbers)
    )
    return f'<svg class="kv-strip" width="{len(numbers) * SIZE}" height="16">{texts}</svg>'


def _strip(cells: list[Cell], hues: dict[str, int], breaks: bool) -> str:
    parts = []
    for place, cell in enumerate(cells):
        x = place * SIZE
        parts.append(
            f'<rect x="{x + 2}" y="2" width="{SIZE - 4}" height="{SIZE - 4}" rx="2" class="kv-{_kind(cell, hues)}">'
            f"<title>{escape(cell.holder or cell.kind)}</title></rect>"
        )
        if cell.named:
            mark = "kv-wrong" if breaks else "kv-named"
            parts.append(f'<rect x="{x + 1}" y="1" width="{SIZE - 2}" height="{SIZE - 2}" rx="3" class="{mark}"/>')
    return f'<svg class="kv-strip" width="{len(cells) * SIZE}" height="{SIZE}">{"".join(parts)}</svg>'


def _kind(cell: Cell, hues: dict[str, int]) -> str:
    if cell.kind != "held":
        return {"free": "none", "store": "store", "locked": "locked", "withheld": "room"}[cell.kind]
    return f"holder{hues.setdefault(cell.holder, len(hues) % HUES)}"


def _names_some(moment: Moment) -> bool:
    return any(cell.named for cells in moment.cells.values() for cell in cells.values())


def _legend(hues: dict[str, int], shown: list[Moment]) -> Iterator[str]:
    kinds = {cell.kind for moment in shown for cells in moment.cells.values() for cell in cells.values()}
    entries = [("none", "free"), *((f"holder{hue}", holder) for holder, hue in hues.items())]
    entries += [("store", "the prefix store's")] if "store" in kinds else []
    entries += [("locked", "the prefix store's, locked")] if "locked" in kinds else []
    entries += [("room", "withheld")] if "withheld" in kinds else []
    if any(map(_names_some, shown)):
        entries.append(("named", "named by the answer"))
    if shown[-1].breaks and _names_some(shown[-1]):
        entries.append(("wrong", "what the answer is wrong about"))
    for kind, name in entries:
        rect = f'<rect x="2" y="2" width="12" height="12" rx="2" class="kv-{kind}"/>'
        yield f'<span><svg class="kv-strip" width="16" height="16">{rect}</svg> {escape(name)}</span> '
