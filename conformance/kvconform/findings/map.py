"""A trace as text: the events in order, and beside each the holders of pages, rows and slots after it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from kvconform.findings.finding import FREE, KINDS, Cell, Moment, Trace, by_number, ranks
from kvconform.findings.folding import Fold, folded
from kvconform.findings.wording import counted, filled, printable

MAP = 40
"""Columns that pages and rows may take beside the sentences."""
NARROWEST = 24
"""The least number of columns for a sentence."""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_UNLETTERED = "?"
_FIXED = "\xa0"
"""A blank at which no line is broken."""
_SIGNS = {"free": ".", "store": "*", "locked": "#", "withheld": "~"}
_COLOURS = ("cyan", "magenta", "yellow", "blue", "green", "bright_red")


class Part(NamedTuple):
    """A page, row or slot of a pool, as it is drawn."""

    pool: str
    number: str

    @property
    def width(self) -> int:
        """Characters that it takes: a letter between two marks, or its number."""
        return max(3, len(self.number) + 1)

    def of(self, moment: Moment) -> Cell:
        """The state of the part after a moment."""
        return moment.cells.get(self.pool, {}).get(self.number, FREE)


def show_trace(console: Console, trace: Trace, most: int) -> None:
    """Print the last `most` events of a trace, and the holder of each part after each."""
    shown = trace.moments[-most:]
    if not shown:
        return
    before = shown[0].step - 1
    if before:
        console.print(f"  ... {before:,} events before these ...", highlight=False)
    for line in _Map(trace, shown, console.width).lines():
        console.print(line, soft_wrap=True)
    console.print()


def _widths(parts: Sequence[Part]) -> dict[str, int]:
    """For each pool the columns of its parts, or of its name if that is longer, and two blanks."""
    pools = dict.fromkeys(part.pool for part in parts)
    return {pool: max(len(pool), sum(part.width for part in parts if part.pool == pool)) + 2 for pool in pools}


class _Map:
    """The choice of the parts that are drawn, their columns, and the letters of their holders."""

    def __init__(self, trace: Trace, shown: list[Moment], width: int) -> None:
        self._trace, self._shown, self._width = trace, shown, width
        self._names = list(dict.fromkeys(pool for moment in trace.moments for pool in moment.cells))
        self._used = {pool: ranks([moment.cells.get(pool, {}) for moment in shown]) for pool in self._names}
        parts = self._chosen()
        self._pools = {pool: [part for part in parts if part.pool == pool] for pool in self._names}
        self._pools = {pool: parts for pool, parts in self._pools.items() if parts}
        cells = [part.of(moment) for moment in shown for part in parts]
        holders = dict.fromkeys(cell.holder for cell in cells if cell.kind == "held")
        self._letters = dict(zip(holders, _LETTERS, strict=False))
        self._unlettered = len(holders) - len(self._letters)
        self._cells = cells
        self._margin = max(4, *(len(str(moment.number)) for moment in shown)) + 2

    def _chosen(self) -> list[Part]:
        """The most interesting parts, as many as fit, in the order of their numbers."""
        ranked = sorted(
            (rank, place, by_number(number), Part(pool, number))
            for place, pool in enumerate(self._names)
            for number, rank in self._used[pool].items()
        )
        chosen: list[Part] = []
        for _, _, _, part in ranked:
            if sum(_widths([*chosen, part]).values()) <= MAP:
                chosen.append(part)
        return sorted(chosen, key=lambda part: by_number(part.number))

    def lines(self) -> Iterator[Text]:
        """The head, the events, and the legend of the signs."""
        if self._pools:
            names = [f"{pool:<{self._room(pool)}}" for pool in self._pools]
            yield Text(self._row("", names, "").rstrip(), "dim")
        numbers = [
            "".join(f"{part.number:^{part.width}}" for part in parts).ljust(self._room(pool))
            for pool, parts in self._pools.items()
        ]
        yield Text(self._row("line", numbers, "what happens"), "dim")
        for one in folded(self._shown):
            yield from [Text(f"{'':>{self._margin}}  {one}", "dim")] if isinstance(one, Fold) else self._event(one)
        if self._pools:
            yield Text()
            whole = (entry.replace(" ", _FIXED) for entry in self._legend())
            yield Text(filled("   ".join(whole), self._width, "  ", "  ").replace(_FIXED, " "), "dim")

    def _room(self, pool: str) -> int:
        return max(len(pool), sum(part.width for part in self._pools[pool]))

    def _row(self, line: str, pools: Sequence[str], says: str) -> str:
        return f"{line:>{self._margin}}  {''.join(f'{pool}  ' for pool in pools)}{says}"

    def _event(self, moment: Moment) -> Iterator[Text]:
        style = "bold red" if moment.breaks else "yellow" if moment.refused is not None else ""
        indent = len(self._row("", [" " * self._room(pool) for pool in self._pools], ""))
        texts = [moment.says, *([f"!! {moment.breaks}"] if moment.breaks else [])]
        room = max(self._width - indent, NARROWEST)
        says = [line for text in texts for line in filled(printable(text), room).split("\n")]
        drawn = Text(self._row(str(moment.number), [], ""), style)
        for pool, parts in self._pools.items():
            for part in parts:
                drawn.append_text(self._cell(part.of(moment), part.width))
            drawn.append(" " * (2 + self._room(pool) - sum(part.width for part in parts)))
        yield drawn.append(says[0], style)
        yield from (Text(" " * indent + line, style) for line in says[1:])

    def _cell(self, cell: Cell, width: int) -> Text:
        sign = self._letters.get(cell.holder, _UNLETTERED) if cell.kind == "held" else _SIGNS[cell.kind]
        left = "!" if cell.wrong else "[" if cell.named else "(" if cell.used else " "
        right = "!" if cell.wrong else ")" if cell.used else "]" if cell.named else " "
        style = "bold red" if cell.wrong else "dim" if cell.kind == "free" else ""
        if not style and cell.holder in self._letters:
            style = _COLOURS[list(self._letters).index(cell.holder) % len(_COLOURS)]
        return Text(f"{left}{sign}{right}".center(width), style)

    def _legend(self) -> Iterator[str]:
        cells = self._cells
        kinds = {cell.kind for cell in cells}
        yield from (f"{sign} {KINDS[self._trace.level][kind]}" for kind, sign in _SIGNS.items() if kind in kinds)
        yield from (f"{letter} {printable(holder)}" for holder, letter in self._letters.items())
        if self._unlettered:
            yield f"{_UNLETTERED} one of {counted(self._unlettered, 'further holder')}"
        if any(cell.named and not cell.wrong for cell in cells):
            yield "[ ] touched by this event"
        if any(cell.used and not cell.wrong for cell in cells):
            yield "( ) or [ ) in use by an operation in flight"
        if any(cell.wrong for cell in cells):
            yield "! ! wrong"
        for pool, used in self._used.items():
            hidden = len(used) - len(self._pools.get(pool, [])) + self._trace.undrawn.get(pool, 0)
            if hidden > 0:
                yield f"{hidden:,} more {pool} are in use"
