"""A trace as an HTML table: one line an event, with the holder of each part of each pool after it."""

import json
from collections.abc import Iterable, Iterator
from html import escape

import msgspec

from kvconform.findings.finding import FREE, KINDS, Cell, Moment, Trace, by_number, spans
from kvconform.findings.folding import Fold, folded
from kvconform.findings.wording import counted

SIZE = 22
"""Pixels of one page, row or slot."""
MOST_STEPS = 60
"""The most events that are drawn: the last ones."""
FIRST_SEEN = 40
"""The drawn events that are visible at first, if earlier ones can be hidden."""
HUES = 6
"""The number of colours for holders."""
_STYLES = {"free": "none", "store": "store", "locked": "locked", "withheld": "room"}
"""The style of a part without a holder."""


def drawn(trace: Trace, most: int = MOST_STEPS, *, fold: bool = False) -> str:
    """The table of the last `most` events, as HTML. With `fold` a line opens each repeated part, which is hidden."""
    shown = trace.moments[-most:]
    columns = {pool: _column(shown, pool) for pool in dict.fromkeys(pool for one in shown for pool in one.cells)}
    columns = {pool: numbers for pool, numbers in columns.items() if numbers}
    hues: dict[str, int] = {}
    body: list[str] = []
    earlier = len(shown) - FIRST_SEEN if fold else 0
    if earlier > 0:
        body += _hidden(f"... {counted(earlier, 'earlier event')} ...", shown[:earlier], columns, hues)
    for one in folded(shown[max(earlier, 0) :]) if fold else shown:
        if isinstance(one, Fold):
            body += _hidden(str(one), one.moments, columns, hues)
        else:
            body.append(_line(one, columns, hues))
    heads = [
        f"<th>{escape(pool)}{' after it' * (not place)} {_numbers(numbers)}</th>"
        for place, (pool, numbers) in enumerate(columns.items())
    ]
    parts = [
        '<div class="kv-trace"><table><thead><tr><th>line</th><th>what happens</th>',
        *heads,
        f"</tr></thead><tbody>{''.join(body)}</tbody></table></div>",
        f'<p class="kv-legend">{"".join(_legend(hues, shown, trace.level))}</p>',
    ]
    return "".join(parts)


def _column(shown: list[Moment], pool: str) -> list[str]:
    """The drawn parts of a pool: those that are ever in use or named."""
    used = {number for one in shown for number, cell in one.cells.get(pool, {}).items() if cell != FREE}
    return sorted(used, key=by_number)


def _hidden(words: str, moments: list[Moment], columns: dict[str, list[str]], hues: dict[str, int]) -> Iterator[str]:
    """Events that are hidden until the line above them is clicked."""
    yield f'<tr class="kv-fold"><td></td><td>{escape(words)}</td></tr>'
    yield from (_line(moment, columns, hues, "kv-folded") for moment in moments)


def _line(moment: Moment, columns: dict[str, list[str]], hues: dict[str, int], kind: str = "") -> str:
    kind = "kv-breaks" if moment.breaks else "kv-refused" if moment.refused is not None else kind
    kind = f' class="{kind}"' if kind else ""
    says = escape(moment.says) + (f" <b>{escape(moment.breaks)}</b>" if moment.breaks else "")
    cells = [f"<td>{moment.number}</td><td>{says}</td>"]
    for pool, numbers in columns.items():
        strip = [moment.cells.get(pool, {}).get(one, FREE) for one in numbers]
        label = escape(f"{pool} {_listed(numbers)}")
        cells.append(f'<td data-pool="{label}">{_strip(numbers, strip, hues)}</td>')
    return f'<tr{kind} data-about="{_names(moment.about)}">{"".join(cells)}</tr>'


def _listed(numbers: list[str]) -> str:
    """The parts of a strip, for a strip without its head."""
    return spans(map(int, numbers)) if all(number.isdecimal() for number in numbers) else ", ".join(numbers)


def _names(names: Iterable[str]) -> str:
    """Names as an attribute: a list in JSON."""
    return escape(json.dumps(list(names), ensure_ascii=False))


def _width(number: str) -> int:
    return max(SIZE, 7 * len(number) + 4)


def _places(numbers: list[str]) -> Iterator[tuple[int, int, str]]:
    """The beginning, width and number of each part."""
    x = 0
    for number in numbers:
        yield x, _width(number), number
        x += _width(number)


def _numbers(numbers: list[str]) -> str:
    texts = "".join(
        f'<text x="{x + width / 2}" y="12" text-anchor="middle" class="kv-small">{escape(number)}</text>'
        for x, width, number in _places(numbers)
    )
    return f'<svg class="kv-strip" width="{sum(map(_width, numbers))}" height="16">{texts}</svg>'


def _strip(numbers: list[str], cells: list[Cell], hues: dict[str, int]) -> str:
    """Parts with one holder and use are one path, so that pages with many parts stay small; marks are above them."""
    outlines: dict[Cell, str] = {}
    marks: list[str] = []
    for (x, width, _), cell in zip(_places(numbers), cells, strict=True):
        kind = msgspec.structs.replace(cell, named=False, wrong=False)
        outlines[kind] = f"{outlines.get(kind, '')}M{x + 2} 2h{width - 4}v{SIZE - 4}h{4 - width}z"
        if cell.used:
            marks.append(f'<circle cx="{x + width / 2}" cy="{SIZE / 2}" r="3" class="kv-used"/>')
        if cell.named or cell.wrong:
            mark = "kv-wrong" if cell.wrong else "kv-named"
            marks.append(f'<rect x="{x + 1}" y="1" width="{width - 2}" height="{SIZE - 2}" rx="3" class="{mark}"/>')
    paths = [
        f'<path d="{outline}" class="kv-{_kind(cell, hues)}"{_whose(cell)}>'
        f"<title>{escape(', '.join(filter(None, (cell.holder or cell.kind, cell.used))))}</title></path>"
        for cell, outline in outlines.items()
    ]
    drawing = "".join([*paths, *marks])
    return f'<svg class="kv-strip" width="{sum(map(_width, numbers))}" height="{SIZE}">{drawing}</svg>'


def _whose(cell: Cell) -> str:
    """The owner of a part, to follow one holder: `request r` is also `r`."""
    if cell.kind == "free":
        return ""
    names = cell.holder.split(", ") if cell.holder else []
    return f' data-holder="{_names([*names, *(name.rpartition(" ")[2] for name in names if " " in name)])}"'


def _kind(cell: Cell, hues: dict[str, int]) -> str:
    if cell.kind != "held":
        return _STYLES[cell.kind]
    return f"holder{hues.setdefault(cell.holder, len(hues) % HUES)}"


def _legend(hues: dict[str, int], shown: list[Moment], level: str) -> Iterator[str]:
    cells = [cell for moment in shown for pool in moment.cells.values() for cell in pool.values()]
    kinds = {cell.kind for cell in cells}
    entries = [("none", "free"), *((f"holder{hue}", holder) for holder, hue in hues.items())]
    entries += [(_STYLES[kind], words) for kind, words in KINDS[level].items() if kind in kinds and kind != "free"]
    entries += [("named", "touched by this event")] if any(cell.named and not cell.wrong for cell in cells) else []
    entries += [("used", "used by an operation in flight")] if any(cell.used for cell in cells) else []
    entries += [("wrong", "what the answer is wrong about")] if any(cell.wrong for cell in cells) else []
    for kind, name in entries:
        rect = f'<rect x="2" y="2" width="12" height="12" rx="2" class="kv-{kind}"/>'
        rect = '<circle cx="8" cy="8" r="3" class="kv-used"/>' if kind == "used" else rect
        yield f'<span><svg class="kv-strip" width="16" height="16">{rect}</svg> {escape(name)}</span> '
