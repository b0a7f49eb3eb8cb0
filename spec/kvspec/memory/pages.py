"""The state of the checker: pools, pages, the content of each slot, and tables."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvspec.memory.events import Label, Page, Pages, Pool
from kvspec.memory.order import Moment

Meant = tuple[Label | None, int]
"""The content of a slot: a label, and the slot's offset in it; `None`: unknown."""
UNLABELLED: Meant = (None, 0)
By = tuple[int, str | None]
"""The number of an operation, and for which holder it read, wrote or computed something."""


class Slot(NamedTuple):
    """The content of a slot, and its writer."""

    meant: Meant
    by: By


class Promise(NamedTuple):
    """A name's promise about a page: the content of its first slots, whether that is yet to be written, its writer."""

    meant: list[Meant]
    planned: bool
    writer: str | None = None


@dataclass(eq=False)
class PageState:
    """One page, free at first; without a number it stands for what is no page: a hole."""

    pool: "PoolState"
    number: Page | None
    references: Counter[tuple[str, bool]] = field(default_factory=Counter)
    """Holder, and whether it only pins the page -> how many."""
    content: dict[int, Slot] = field(default_factory=dict)
    """Missing slots were never written since the page was taken."""
    writers: dict[int, By] = field(default_factory=dict)
    """Slot -> the last operation that wrote it since then, if only to leave nothing there, and for which holder."""
    uses: list[tuple[Moment, Collection[int], bool]] = field(default_factory=list)
    """When operations have used which slots, and whether they write them."""

    @property
    def keys(self) -> dict[str, Promise]:
        """The names that find it."""
        return {key: promise for (key, page), promise in self.pool.names.items() if page is self}

    @property
    def kind(self) -> str:
        """Whether it is held, cached (a name finds it) or free; or a hole."""
        if self.number is None:
            return "hole"
        return "held" if self.references else "cached" if self.keys else "free"

    def holds(self, holder: str | None) -> bool:
        """Whether a holder may use it; without a holder, whether any may."""
        if holder is None:
            return self.kind in ("held", "cached")
        return (holder, False) in self.references or (holder, True) in self.references


class PoolState:
    """One pool: all of it is free at first."""

    def __init__(self, name: str, pool: Pool) -> None:
        """The pool of that name."""
        self.name, self.config = name, pool
        self.size, self.unit = pool.page_size, pool.label_size or pool.page_size
        self.numbers = range(pool.first_page, pool.first_page + (1 << 62 if pool.num_pages is None else pool.num_pages))
        self.pages: dict[Page | None, PageState] = {}
        self.names: dict[tuple[str, PageState], Promise] = {}
        """Which key finds which page, in the order in which they were published."""
        self.reserved: dict[str, int] = {}
        """Holder -> how many pages are promised to it."""

    def page(self, number: Page | None) -> PageState:
        """The state of a page."""
        return self.pages.setdefault(number, PageState(self, number))

    def expand(self, pages: Pages) -> list[PageState]:
        """Pages one by one."""
        runs = [range(page[0], page[0] + page[1]) if isinstance(page, tuple) else [page] for page in pages]
        return [self.page(number) for run in runs for number in run]

    def total(self, kind: str) -> int:
        """How many pages are held, cached or free."""
        totals = Counter(page.kind for page in self.pages.values())
        padding = sum(sink in self.numbers for sink in self.config.padding)
        totals["free"] = self.numbers.stop - self.numbers.start - padding - totals["held"] - totals["cached"]
        return totals[kind]

    def meant(self, labels: Sequence[Label | None] | None, slots: int, first: int = 0) -> list[Meant]:
        """The content of slots from `first` on: each label is for `unit` of them, and the first may begin before."""
        at = range(first % self.unit, first % self.unit + slots)
        return [(None if labels is None else labels[i // self.unit], i % self.unit) for i in at]


@dataclass(eq=False)
class Table:
    """A block table or a row: the page of each page index, and what its positions mean."""

    pool: PoolState
    holder: str | None
    pages: list[PageState] = field(default_factory=list)
    meant: dict[int, Meant] = field(default_factory=dict)

    def set_labels(self, start: int, labels: Sequence[Label | None]) -> None:
        """Set the labels of positions, from the beginning of the label at `start` on."""
        unit = self.pool.unit
        self.meant.update(enumerate(self.pool.meant(labels, len(labels) * unit), start // unit * unit))
