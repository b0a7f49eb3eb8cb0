"""A trace drawn as a table: one line an operation, and beside it who owns each page and each row after it."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import msgspec

from kvconform.gallery_story import sentence
from kvspec.events import Config, DecodeAnswer, EvictAnswer, ExtendAnswer, Operation, Refusal
from kvspec.model import Model
from kvspec.model.judging import owner_name, record_name
from kvspec.model.state import WITHHELD
from kvspec.pages import expand
from kvspec.rules import Violation

SIZE = 22
"""Pixels of one page or row."""
MOST_PAGES = 40
"""Pages that are drawn: of those that the trace ever uses, the first."""
MOST_STEPS = 60
"""Operations that are drawn: the last."""
HUES = 6
"""Colours for holders."""


class Cell(NamedTuple):
    """What one page or row is after an operation."""

    kind: str
    """`free`, `store`, `locked`, `withheld`, or `held`."""
    holder: str = ""
    named: bool = False
    """The answer to the operation names it."""


class Moment(NamedTuple):
    """One operation, and everything after it."""

    op: Operation[Any]
    pages: dict[int, Cell]
    rows: dict[int, Cell]
    breaks: bool
    """The specification forbids this answer; the cells are as before it."""


def moments(config: Config, operations: Sequence[Operation[Any]]) -> list[Moment]:
    """What the model knows after each operation. One without an answer is answered by the model itself."""
    model, found = Model(config), []
    for given in operations:
        op, breaks, disputed = msgspec.structs.replace(given), False, set[int]()
        try:
            model.step(op)  # type: ignore[arg-type]
        except Refusal as refusal:
            op.refused = refusal.refused
        except Violation as violation:
            breaks = True
            if isinstance(violation.expected, list) and isinstance(violation.observed, list):
                disputed = set(violation.expected) ^ set(violation.observed)
        found.append(Moment(op, _pages(model, {*_named_pages(op), *disputed}), _rows(model, op), breaks))
    return found


def _pages(model: Model, named: set[int]) -> dict[int, Cell]:
    state = model.state
    cells = {page: Cell("free", "", named=True) for page in named}
    for page, owner in state.owner.items():
        if isinstance(owner, bytes):
            cells[page] = Cell("locked" if owner in state.store.pins else "store", "the store", page in named)
        else:
            cells[page] = Cell("held", owner_name(state, page), page in named)
    return cells


def _rows(model: Model, op: Operation[Any]) -> dict[int, Cell]:
    state = model.state
    named = set(op.obs.rows.values()) if isinstance(op.obs, ExtendAnswer) and op.obs.rows else set()
    cells = {row: Cell("free", "", row in named) for row in range(state.config.num_rows)}
    for row, record in state.rows.items():
        cell = Cell("withheld") if record == WITHHELD else Cell("held", record_name(state, record))
        cells[row] = cell._replace(named=row in named)
    return cells


def _named_pages(op: Operation[Any]) -> list[int]:
    match op.obs:
        case ExtendAnswer(pages=pages) | DecodeAnswer(pages=pages):
            return [page for runs in (pages or {}).values() for page in expand(runs)]
        case EvictAnswer(evicted=runs):
            return expand(runs)
    return expand(getattr(op.obs, "freed", None) or ())


def drawn(config: Config, operations: Sequence[Operation[Any]], lines: Sequence[int] = ()) -> str:
    """The table, as HTML. The operations go by their `lines` in a file, or are counted from 1."""
    seen = moments(config, operations)
    first = max(0, len(seen) - MOST_STEPS)
    shown = seen[first:]
    pages = sorted({page for moment in shown for page in moment.pages if page > 0})[:MOST_PAGES]
    rows = sorted({row for moment in shown for row, cell in moment.rows.items() if cell.kind != "free" or cell.named})
    hues: dict[str, int] = {}
    body = [
        _line((lines or range(1, len(seen) + 1))[first + place], one, pages, rows, hues)
        for place, one in enumerate(shown)
    ]
    parts = [
        f'<div class="kv-trace"><table><thead><tr><th>{"line" if lines else "step"}</th><th>what happens</th>',
        f"<th>pages after it {_numbers(pages)}</th>" if pages else "",
        f"<th>rows {_numbers(rows)}</th>" if rows else "",
        f"</tr></thead><tbody>{''.join(body)}</tbody></table></div>",
        f'<p class="kv-legend">{"".join(_legend(hues, shown))}</p>',
    ]
    return "".join(parts)


def _line(number: int, moment: Moment, pages: list[int], rows: list[int], hues: dict[str, int]) -> str:
    kind = ' class="kv-breaks"' if moment.breaks else ' class="kv-refused"' if moment.op.refused is not None else ""
    cells = [f"<td>{number}</td><td>{escape(sentence(moment.op))}</td>"]
    if pages:
        cells.append(
            f"<td>{_strip([moment.pages.get(page, Cell('free')) for page in pages], hues, moment.breaks)}</td>"
        )
    if rows:
        cells.append(f"<td>{_strip([moment.rows.get(row, Cell('free')) for row in rows], hues, moment.breaks)}</td>")
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
    return any(cell.named for cell in (*moment.pages.values(), *moment.rows.values()))


def _legend(hues: dict[str, int], shown: list[Moment]) -> Iterator[str]:
    kinds = {cell.kind for moment in shown for cell in (*moment.pages.values(), *moment.rows.values())}
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
