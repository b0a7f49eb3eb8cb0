"""What the law remembers: pools, pages, what each slot holds, and tables."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kvspec.memory.events import Label, Page, Pages, Pool
from kvspec.memory.finding import PAGES_AN_EVENT, Malformed
from kvspec.memory.order import Moment

HOLE: Page = "\0hole"
"""Stands in a table for a page that it names no longer."""
Meant = tuple[Label | None, int]
"""The content of a slot: so many slots into what a label names; `None`: untold."""
UNTOLD: Meant = (None, 0)
By = tuple[int, str | None]
"""Who wrote it: the number of an operation, and for which holder."""


class Slot(NamedTuple):
    """What a slot holds."""

    meant: Meant
    by: By
    worthless: bool = False
    """It was worthless already where a copy took it from."""


class Promise(NamedTuple):
    """What a name promises of a page: what its first slots hold, whether that is still to be written, and by whom."""

    meant: list[Meant]
    planned: bool
    writer: str | None = None


class Used(NamedTuple):
    """That an operation reads or writes slots of a page, and when it has."""

    when: Moment
    slots: frozenset[int]
    writes: bool


class PageState:
    """One page."""

    def __init__(self) -> None:
        """It is free."""
        self.holders: Counter[str] = Counter()
        """Holder -> how many references."""
        self.pins: Counter[str] = Counter()
        self.keys: dict[str, Promise] = {}
        self.content: dict[int, Slot] = {}
        """What is missing was never written since the page was handed out."""
        self.writers: dict[int, int] = {}
        """Slot -> the number of the last operation that wrote it since then, if only to leave nothing there."""
        self.uses: list[Used] = []

    @property
    def kind(self) -> str:
        """Whether it counts as held, as cached (a name finds it) or as free."""
        return "held" if +self.holders or +self.pins else "cached" if self.keys else "free"

    def holds(self, holder: str | None) -> bool:
        """Whether somebody may use it; `None`: it is not told who."""
        return self.kind != "free" if holder is None else self.holders[holder] + self.pins[holder] > 0

    @property
    def shared(self) -> bool:
        """Whether two holders refer to it, pins apart."""
        return len(+self.holders) > 1


class PoolState:
    """One pool."""

    def __init__(self, name: str, pool: Pool) -> None:
        """All is free."""
        self.name, self.told = name, pool
        self.size, self.unit = pool.page_size, pool.label_size or pool.page_size
        if self.size < 1 or self.unit < 1 or self.size % self.unit or (pool.num_pages or 0) < 0:
            raise Malformed(f"pool {name}: sizes must be whole and positive, and label_size divide page_size")
        self.numbers = range(pool.first_page, pool.first_page + (1 << 62 if pool.num_pages is None else pool.num_pages))
        self.pages: dict[Page, PageState] = {}
        self.names: dict[tuple[str, Page], None] = {}
        """Which key finds which page, in the order in which they were published."""
        self.reserved: dict[str, int] = {}
        self.wrong: dict[str, int] = {}
        """Figure -> by how much it was last told to be wrong."""

    def page(self, number: Page) -> PageState:
        """The state of a page."""
        return self.pages.setdefault(number, PageState())

    def of(self, kind: str) -> Iterator[Page]:
        """The pages of a kind; padding is never free."""
        if kind != "free":
            yield from (number for number, page in self.pages.items() if page.kind == kind)
        else:
            used = {*self.told.sinks, *self.of("held"), *self.of("cached")}
            yield from (number for number in self.numbers if number not in used)

    def expand(self, pages: Pages, most: int = PAGES_AN_EVENT) -> list[Page]:
        """Pages one by one."""
        out: list[Page] = []
        for page in pages:
            if isinstance(page, tuple) and not 0 <= page[1] <= most - len(out):
                raise Malformed(f"a run of {page[1]:,} pages: an event names 0 to {most:,}")
            out += range(page[0], page[0] + page[1]) if isinstance(page, tuple) else [page]
        if any(isinstance(page, str) != self.told.keyed for page in out):
            raise Malformed(f"pool {self.name}: pages are named by {'keys' if self.told.keyed else 'numbers'}")
        return out

    def meant(self, labels: Sequence[Label | None] | None, slots: int, first: int = 0) -> list[Meant]:
        """What slots mean, from slot `first` on: each label is for `unit` of them, and the first one begins before."""
        at = range(first % self.unit, first % self.unit + slots)
        if labels is None:
            return [UNTOLD] * slots
        if len(labels) != (at[-1] // self.unit + 1 if at else 0):
            raise Malformed(f"{len(labels)} labels for {slots} slots, {self.unit} each")
        return [UNTOLD if labels[i // self.unit] is None else (labels[i // self.unit], i % self.unit) for i in at]


class Table:
    """A block table or a row: the page of each page index, and what each of its positions means."""

    def __init__(self, holder: str, pool: PoolState) -> None:
        """It names nothing yet."""
        self.holder, self.pool = holder, pool
        self.pages: list[Page] = []
        self.labels: dict[int, Label | None] = {}
        """Unit -> what it means."""

    def told(self, start: int, stop: int) -> list[Label | None]:
        """The labels of the units that positions `start` to `stop` touch."""
        units = range(start // self.pool.unit, -(-stop // self.pool.unit)) if start < stop else ()
        return [self.labels.get(unit) for unit in units]

    def tell(self, start: int, labels: Sequence[Label | None]) -> None:
        """What units mean, from that of position `start` on."""
        self.labels.update(enumerate(labels, start // self.pool.unit))
