"""A pool: its sizes, its pages in use, and its reservations."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from kvcheck.finding import PAGES_AN_EVENT, Malformed
from kvcheck.pages import NOTHING, Content, PageGroup, PageState
from kvspec.memory.events import Label, Page, Pages, Pool

_ANEW = 8
"""The pages of a kind are sorted anew if more than one in so many may have moved."""
_FREE = PageState()
"""A page without a state."""


class PoolState:
    """One pool: its sizes, its pages in use, and its reservations."""

    def __init__(self, name: str, pool: Pool) -> None:
        """Make a pool whose pages are all free.

        Raises:
            Malformed: the sizes make no sense.
        """
        self.name, self.keyed, self.writes_reported, self.reads_own_writes = (
            name,
            pool.keyed,
            pool.writes_reported,
            pool.reads_own_writes,
        )
        self.size, self.unit = pool.page_size, pool.label_size or pool.page_size
        if self.size < 1 or self.unit < 1 or self.size % self.unit or (pool.num_pages or 0) < 0:
            raise Malformed(f"pool {name}: sizes must be whole and positive, and label_size divide page_size")
        self.padding = frozenset[Page](pool.padding)
        count = (1 << 62) if pool.num_pages is None else pool.num_pages
        self.numbers = range(pool.first_page, pool.first_page + count)
        self.skipped = sorted(sink for sink in self.padding if sink in self.numbers)
        """The padding pages, in order."""
        self.total = None if pool.num_pages is None else count - len(self.skipped)
        """The number of pages that can be taken; `None`: unknown."""
        self.individual: dict[Page, PageState] = {}
        """Pages that have a state of their own."""
        self.groups: dict[Page, PageGroup] = {}
        """The other pages in use, each with its group."""
        self.held = self.cached = 0
        """Pages of these kinds."""
        self._of_kind: dict[str, list[Any]] = {"held": [], "cached": []}
        """The pages of each kind in order, except for those in `_moved`."""
        self._moved: dict[Page, None] | None = None
        """Pages whose kind may have changed since the last call of `of_kind`; `None`: it was never called."""
        self.names: dict[str, Page | dict[Page, None]] = {}
        """Key -> the page or pages that it finds."""
        self.renamed: list[dict[str, None]] = []
        """Each of these collects the keys that find other pages from now on."""
        self.reserved: dict[str, int] = {}
        self.promised = 0
        """The sum of these."""
        self.reported = defaultdict[str, dict[Page | None, int]](dict)
        """Figure -> page, if each has one -> the difference that was reported last."""
        self.unchecked = defaultdict[str, int](int)
        """Rule -> how often it could not be checked, because labels were not reported."""

    def expand(self, pages: Pages) -> list[Page]:
        """Pages one by one.

        Raises:
            Malformed: they are more than one event may name, or keys in a pool of numbered pages.
        """
        kinds = {*map(type, pages)}
        out = cast("list[Page]", [*pages])
        if tuple in kinds:
            out = []
            for run in pages:
                if isinstance(run, tuple):
                    if not 0 <= run[1] <= PAGES_AN_EVENT - len(out):
                        raise Malformed(f"a run of {run[1]:,} pages: an event names 0 to {PAGES_AN_EVENT:,}")
                    out.extend(range(run[0], run[0] + run[1]))
                else:
                    out.append(run)
            kinds = {*map(type, out)}
        self.expect(kinds)
        return out

    def expect(self, kinds: set[type]) -> None:
        """Refuse keys where pages have numbers, and numbers where they have keys."""
        if kinds - {str if self.keyed else int}:
            raise Malformed(f"pool {self.name}: pages are named by {'keys' if self.keyed else 'numbers'}")

    def named(self, page: Page) -> str:
        """A page in words; a page of a storage is a key."""
        return f"{'key' if self.keyed else 'page'} {page}"

    def page(self, page: Page) -> PageState:
        """The state of a page, for writing: from now on the page has a state of its own."""
        state = self.individual.get(page)
        if state is None:
            state = self.individual[page] = self.seen(page)
            self.groups.pop(page, None)
        return state

    def found(self, key: str) -> dict[Page, None]:
        """The pages that a key finds, in order."""
        pages = self.names.get(key, NOTHING)
        return pages if isinstance(pages, dict) else {pages: None}

    def rename(self, keys: Iterable[str]) -> None:
        """Note that keys find other pages than before."""
        for renamed in self.renamed:
            renamed.update(dict.fromkeys(keys))

    def seen(self, page: Page) -> PageState:
        """The state of a page, for reading only."""
        state, group = self.individual.get(page), self.groups.get(page)
        if group is not None:
            return group.split(page, self.unit)
        return PageState() if state is None else state

    @property
    def pages(self) -> dict[Page, PageState]:
        """The states of all pages in use, for reading only."""
        return {number: self.seen(number) for number in (*self.individual, *self.groups)}

    def count(self, numbers: list[Page], *, held: int = 0, cached: int = 0) -> None:
        """Count pages that become held or cached, or are no longer."""
        self.held += held * len(numbers)
        self.cached += cached * len(numbers)
        if self._moved is not None:
            self._moved.update(dict.fromkeys(numbers))

    def reserve(self, holder: str, pages: int) -> None:
        """Promise so many pages to a holder."""
        self.promised += pages - self.reserved.get(holder, 0)
        self.reserved[holder] = pages

    def of_kind(self, kind: str) -> list[Any]:
        """The pages that are held or cached, in order. The cost follows the changes since the last call."""
        if self._moved is None or _ANEW * len(self._moved) > self.held + self.cached:
            ordered = sorted(self.kinds())
            self._of_kind = {kind: [number for number, one in ordered if one == kind] for kind in self._of_kind}
        else:
            for number in self._moved:
                now = self.kind_of(number)
                for one, numbers in self._of_kind.items():
                    place = bisect_left(numbers, number)
                    numbers[place : place + (numbers[place : place + 1] == [number])] = [number] * (one == now)
        self._moved = {}
        return self._of_kind[kind]

    def kind_of(self, number: Page) -> str:
        """Whether a page counts as held, as cached or as free."""
        return (self.groups.get(number) or self.individual.get(number, _FREE)).kind

    def kinds(self) -> Iterator[tuple[Page, str]]:
        """The pages in use, each with its kind: held, cached or free."""
        for states in (self.individual, self.groups):
            yield from ((number, one.kind) for number, one in states.items())

    def fresh(self, numbers: list[Page]) -> bool:
        """Whether all pages exist, and none has a state of its own, as is usual for pages to take."""
        exist = min(numbers) in self.numbers and max(numbers) in self.numbers
        return exist and self.individual.keys().isdisjoint(numbers) and self.padding.isdisjoint(numbers)

    def meant(
        self, labels: Sequence[Label | None] | None, start: int, stop: int, position: int = 0, first: int = 0
    ) -> list[Content]:
        """The labelled content of slots `start` to `stop` of a page.

        The page's slot 0 is at `position` of the table or use, and the first label is that of its unit `first`.
        """
        if labels is None:
            return [Content(start, stop, None)]
        if self.unit == self.size:
            return [Content(start, stop, labels[position // self.unit - first], start)]
        begin = start - start % self.unit
        index = (position + begin) // self.unit - first
        units = range(begin, stop, self.unit)
        named = zip(units, labels[index : index + len(units)], strict=True)
        meant = [Content(at, at + self.unit, label) for at, label in named]
        meant[0].start, meant[0].offset, meant[-1].stop = start, start - begin, stop
        return meant
