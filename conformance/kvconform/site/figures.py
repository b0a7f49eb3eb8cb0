"""The drawings of the chapters, as inline SVG: coloured by the site's style sheet, readable in light and dark."""

from collections.abc import Callable
from html import escape

from kvspec.pages import slot_index

CELL = 34
"""The width of one position in pixels."""


class Canvas:
    """Collects the elements of one drawing."""

    def __init__(self, width: int, height: int, title: str) -> None:
        """An empty drawing; `title` describes it in words."""
        self._head = (
            f'<svg class="kv" viewBox="0 0 {width} {height}" width="{width}" role="img" '
            f'xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>'
            '<defs><marker id="kv-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" class="kv-head"/></marker></defs>'
        )
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str, text: str = "", round: int = 3) -> None:
        """A rectangle of a kind, with text in its middle."""
        self._parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{round}" class="kv-{kind}"/>')
        lines = text.split("\n")
        for place, line in enumerate(lines):
            if line:
                self.text(x + width / 2, y + height / 2 + 4 + 15 * (place - (len(lines) - 1) / 2), line)

    def text(self, x: float, y: float, text: str, kind: str = "text", anchor: str = "middle") -> None:
        """One line of text."""
        self._parts.append(f'<text x="{x}" y="{y}" class="kv-{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> None:
        """A straight line."""
        self._parts.append(f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="kv-{kind}"/>')

    def arrow(self, path: str) -> None:
        """A curve with a head at its end."""
        self._parts.append(f'<path d="{path}" class="kv-arrow" marker-end="url(#kv-head)"/>')

    def brace(self, x1: float, x2: float, y: float, text: str, *, below: bool = False) -> None:
        """A span with its name."""
        tick = -6 if below else 6
        self.line(x1 + 1, y, x2 - 1, y)
        self.line(x1 + 1, y, x1 + 1, y + tick)
        self.line(x2 - 1, y, x2 - 1, y + tick)
        self.text((x1 + x2) / 2, y + (16 if below else -6), text, "small")

    def svg(self) -> str:
        """The drawing, on one line, so that Markdown leaves it alone."""
        return f"{self._head}{''.join(self._parts)}</svg>"


def row() -> str:
    """A row of a session that is about to be resumed: its pages, and the four lengths on one axis."""
    page_size, protected, prefix_len, committed, allocated = 4, 4, 10, 12, 18
    table, left, top = (7, 3, 12, 5, 9), 20, 80
    canvas = Canvas(740, 300, "A row with its pages and the four lengths on one axis")
    for index, page in enumerate(table):
        x = left + index * page_size * CELL
        kind = "store" if index * page_size < protected else "free" if index * page_size >= 12 else "mine"
        canvas.box(x + 2, 30, page_size * CELL - 4, 26, kind, f"page {page}")
        canvas.text(x + page_size * CELL / 2, 20, f"table[{index}]", "small")
    for position in range(page_size * len(table)):
        kind = "store" if position < protected else "mine" if position < committed else "room"
        if position >= allocated:
            kind = "none"
        page = table[position // page_size]
        slot = slot_index(page, position, page_size)
        canvas.box(left + position * CELL + 1, top, CELL - 2, 30, kind, str(slot) if position < allocated else "")
        canvas.text(left + position * CELL + CELL / 2, top + 46, str(position), "small")
    names = (("protected", protected), ("prefix_len", prefix_len), ("committed", committed), ("allocated", allocated))
    for place, (name, value) in enumerate(names):
        x, y = left + value * CELL, top + 74 + 20 * (place % 2)
        canvas.line(x, top - 6, x, y - 12, "mark")
        canvas.text(x, y, f"{name} {value}", "strong")
    canvas.brace(left, left + protected * CELL, 206, "the store's, locked", below=True)
    canvas.brace(left + protected * CELL, left + 12 * CELL, 206, "private, stays: prefix_len cuts page 12", below=True)
    canvas.brace(left + 12 * CELL, left + 20 * CELL, 206, "the tail: freed by the resume", below=True)
    legend = (("store", "prefix store's"), ("mine", "committed"), ("room", "allocated only"), ("none", "no slot index"))
    for place, (kind, name) in enumerate(legend):
        canvas.box(left + place * 170, 256, 18, 18, kind)
        canvas.text(left + place * 170 + 26, 270, name, "small", "start")
    return canvas.svg()


def life_of_a_row() -> str:
    """The states of ROW-1, and the operations between them."""
    canvas = Canvas(760, 350, "The life of a row: free, held, in a slot, lent, withheld")
    canvas.box(10, 140, 110, 50, "none", "free", 12)
    canvas.box(240, 20, 130, 50, "mine", "held by a\nrequest", 12)
    canvas.box(520, 20, 140, 50, "store", "held by an idle\nsession slot", 12)
    canvas.box(520, 200, 140, 50, "other", "lent by the slot\nto one request", 12)
    canvas.box(240, 270, 130, 50, "room", "withheld until a\nlaunch completes", 12)
    canvas.arrow("M65 140 C 70 80 140 45 236 45")
    canvas.text(96, 62, "extend", "label")
    canvas.arrow("M290 70 C 270 125 200 152 124 158")
    canvas.text(292, 98, "abort; plain:", "label", "start")
    canvas.text(288, 113, "finish, retract", "label", "start")
    canvas.arrow("M370 45 L 516 45")
    canvas.text(443, 23, "turn:", "label")
    canvas.text(443, 37, "finish, retract", "label")
    canvas.arrow("M630 70 L 630 196")
    canvas.text(638, 138, "match_prefix", "label", "start")
    canvas.arrow("M560 200 L 560 74")
    canvas.text(552, 118, "finish, retract;", "label", "end")
    canvas.text(552, 133, "abort before it ran", "label", "end")
    canvas.arrow("M520 60 C 440 90 440 168 124 168")
    canvas.text(330, 184, "close_session, preempt, a match that keeps nothing", "label")
    canvas.arrow("M520 215 C 420 215 240 215 124 180")
    canvas.text(312, 228, "abort of a turn that ran; end of a closing session's turn", "label")
    canvas.arrow("M520 240 C 470 280 430 292 374 294")
    canvas.text(468, 298, "let go while a launch reads it", "label", "start")
    canvas.arrow("M240 294 C 130 290 75 250 65 194")
    canvas.text(120, 298, "complete", "label")
    canvas.text(380, 342, "Every arrow to 'free' leads to 'withheld' while a launch in flight reads the row.", "small")
    return canvas.svg()


def lend() -> str:
    """A slot, its turn, and the slot again."""
    canvas = Canvas(760, 270, "The lend: the record moves from the slot to the turn and back, and is counted once")
    steps = ("submit", "match_prefix", "match_prefix", "extend", "launch ... decode", "finish", "next turn")
    xs = [130 + 96 * place for place in range(len(steps))]
    for x, step in zip(xs, steps, strict=True):
        canvas.text(x, 24, step, "label")
        canvas.line(x, 32, x, 196, "faint")
    canvas.text(12, 70, "slot", "strong", "start")
    canvas.text(12, 118, "turn", "strong", "start")
    canvas.text(12, 176, "counted as", "strong", "start")
    canvas.box(94, 52, xs[1] - 94, 28, "store", "holds the record")
    canvas.box(xs[1], 52, xs[5] - xs[1], 28, "none", "lent: holds nothing")
    canvas.box(xs[5], 52, 740 - xs[5], 28, "store", "holds")
    canvas.box(xs[0], 100, xs[1] - xs[0], 28, "none", "waits")
    canvas.box(xs[1], 100, xs[3] - xs[1], 28, "other", "matched: has the record")
    canvas.box(xs[3], 100, xs[5] - xs[3], 28, "mine", "runs")
    canvas.box(94, 158, xs[1] - 94, 28, "store", "session_held")
    canvas.box(xs[1], 158, xs[5] - xs[1], 28, "mine", "uncached")
    canvas.box(xs[5], 158, 740 - xs[5], 28, "store", "session_held")
    canvas.text(xs[1], 214, "the tail is freed", "small")
    canvas.text(xs[2], 232, "same answer, nothing freed", "small")
    canvas.text(xs[5], 214, "or retract: the record", "small")
    canvas.text(xs[5], 230, "goes back, the turn waits", "small")
    canvas.text(xs[2] + 40, 256, "abort here ends the lend: the record goes back to the slot", "small")
    return canvas.svg()


def launches() -> str:
    """Two launches that overlap, and a row that is withheld."""
    canvas = Canvas(
        760, 300, "Launches in flight, and a row that is withheld until the last one that reads it completes"
    )
    tracks = (("host", 40), ("device", 100), ("row 0", 160), ("row 1", 210))
    for name, y in tracks:
        canvas.text(12, y + 19, name, "strong", "start")
    acts = (
        (80, "decode A\nlaunch 1"),
        (190, "decode A\nlaunch 2"),
        (330, "complete 1\nfinish A"),
        (450, "extend B\nlaunch 3"),
    )
    for x, text in acts:
        canvas.box(x, 30, 92, 38, "none", text)
    canvas.box(600, 30, 92, 38, "none", "complete 2")
    canvas.box(172, 100, 150, 28, "mine", "launch 1 reads row 0")
    canvas.box(326, 100, 266, 28, "mine", "launch 2 reads row 0")
    canvas.box(596, 100, 149, 28, "other", "launch 3 reads row 1")
    canvas.box(80, 160, 342, 28, "mine", "held by A")
    canvas.box(422, 160, 224, 28, "room", "withheld: launch 2 reads it")
    canvas.box(646, 160, 99, 28, "none", "free")
    canvas.box(80, 210, 370, 28, "none", "free")
    canvas.box(450, 210, 295, 28, "other", "held by B")
    for x in (422, 646):
        canvas.line(x, 68, x, 98, "mark")
        canvas.line(x, 130, x, 188, "mark")
    canvas.text(380, 272, "A's pages are free at once: launch 3 writes them after launch 2 has read them.", "small")
    canvas.text(380, 290, "Its row is not: the host writes rows at once, whatever the device is reading.", "small")
    return canvas.svg()


def window() -> str:
    """A row with its window sides: tombstones and locked sides of the store, the cursor, the next reads."""
    page_size, protected, cursor, first, following = 4, 12, 16, 17, 22
    pages, sides = (7, 3, 12, 5, 9, 8), (0, 4, 2, 0, 6, 1)
    left, width = 110, 104
    canvas = Canvas(
        760, 275, "A row whose pages have window sides from the cursor on, behind locked pages of the store"
    )
    canvas.text(12, 70, "pages", "strong", "start")
    canvas.text(12, 112, "window sides", "strong", "start")
    for index, (page, side) in enumerate(zip(pages, sides, strict=True)):
        x, shared = left + index * width, index * page_size < protected
        canvas.text(x + width / 2, 42, f"table[{index}]", "small")
        canvas.box(x + 2, 52, width - 4, 28, "store" if shared else "mine", f"page {page}")
        kind = "none" if not side else "locked" if shared else "mine"
        canvas.box(x + 2, 94, width - 4, 28, kind, f"side {side}" if side else "tombstone" if shared else "given back")
    marks = (("protected", protected), ("cursor", cursor), ("first read", first), ("next", following))
    for place, (name, value) in enumerate(marks):
        x, y = left + value * width // page_size, 150 + 20 * (place % 2)
        canvas.line(x, 46, x, y - 12, "mark")
        canvas.text(x, y, f"{name} {value}", "strong")
    canvas.brace(left, left + width, 196, "no lock: evicted", below=True)
    canvas.brace(left + width, left + 3 * width, 196, "locked: the window reaches 2 pages", below=True)
    canvas.brace(left + 3 * width, left + 4 * width, 196, "left behind", below=True)
    canvas.brace(left + 4 * width, left + 6 * width, 196, "private, still read", below=True)
    rule = "A match must find the window sides of its last two pages: it may end after table[2], and not before."
    canvas.text(left, 246, "Pages of 4 tokens, a window of 5.", "small", "start")
    canvas.text(left, 262, rule, "small", "start")
    return canvas.svg()


FIGURES: dict[str, Callable[[], str]] = {
    "row": row,
    "life-of-a-row": life_of_a_row,
    "lend": lend,
    "launches": launches,
    "window": window,
}
"""Name in the chapters -> the drawing."""
