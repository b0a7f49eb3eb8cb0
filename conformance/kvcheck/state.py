"""The state of the checker: for each page in use its holders, names and content, and the uses by operations in flight.

A free page without uses is forgotten, so the state grows with the pages in use and not with the pool.
"""

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, cast

import msgspec

from kvcheck.clocks import Clocks
from kvcheck.decisions import Decisions
from kvcheck.finding import CONTENT, FINDINGS, OWNERS, PAGES_AN_EVENT, Finding, Malformed, Writer
from kvcheck.labels import Labels
from kvspec.contracts import ensure
from kvspec.memory.events import Label, OpId, Page, Pages, Pool
from kvspec.rules import rule_of

MARKS = 10_000
"""Places of findings that can be the cause of later ones; the oldest are forgotten first."""

VIEWS = 64
"""Streams whose checked positions of a table are remembered; a further stream displaces the oldest."""

ABOUT = dict.fromkeys(("MEM-TAKE", "MEM-SHARE", "MEM-RELEASE", "MEM-USE", "MEM-LEAK", "MEM-COUNT"), OWNERS)
ABOUT |= dict.fromkeys(("MEM-WRITTEN", "MEM-CONTENT", "MEM-NAME", "MEM-OVERWRITE"), CONTENT)
ABOUT |= dict.fromkeys(("MEM-NAME/free", "MEM-NAME/unnamed"), OWNERS)
"""Rules, or codes of a rule, that are about owners or content."""


@ensure(lambda start, first, result: result[0] >= start and result[0] >= first and result[0] in (start, first))
@ensure(lambda stop, last, result: result[1] <= stop and result[1] <= last and result[1] in (stop, last))
@ensure(lambda start, offset, result: result[2] - result[0] == offset - start)
def clip(start: int, stop: int, offset: int, first: int, last: int) -> tuple[int, int, int]:
    """The part of slots `start` to `stop` within `first` to `last`, none if it ends before it starts, and its offset.

    A slot keeps the offset that it has in its label.
    """
    begin = max(start, first)
    return begin, min(stop, last), offset + begin - start


class Content(msgspec.Struct, order=True, gc=False):
    """The content of slots `start` to `stop` of a page: a label's slots from `offset` on. A page's own can grow."""

    start: int
    stop: int
    label: Label | None
    """`None`: not reported."""
    offset: int = 0
    failed: bool = False
    """It was computed from slots that were left unwritten."""

    def cut(self, start: int, stop: int) -> "Content":
        """The part within `start` to `stop`."""
        first, last, offset = clip(self.start, self.stop, self.offset, start, stop)
        return Content(first, last, self.label, offset, self.failed)

    def shifted(self, by: int) -> "Content":
        """The same in slots that lie `by` further."""
        return Content(self.start + by, self.stop + by, self.label, self.offset, self.failed)


class Plan(msgspec.Struct, gc=False):
    """Names that promise content which `writer` has still to write; `None`: any holder of the page."""

    writer: str | None
    keys: dict[str, None] = {}


class Promise(msgspec.Struct, gc=False):
    """The content that a name promises of a page's first slots, and its plan if it is still to be written."""

    meant: tuple[Content, ...]
    plan: Plan | None = None


Mark = tuple[str, str | None, Page | None, str | None]
"""The mark of a finding: its subject, the pool and the page, or the holder and for contents the pool."""


HOLE: Page = "\0hole"
"""Stands in a table where it names no page, before pages that it names."""

NOTHING: dict[Any, Any] = {}
"""No holder, no name, no table. It stays empty."""


class Link(msgspec.Struct, frozen=True, gc=False):
    """That a table names a page: the page index there, and how many operations had begun when it came to."""

    index: int
    since: int


_START = attrgetter("start")
_FEW = 4
"""Pieces of a page's content, or tables that name it, that are looked at one by one."""


class PageState(msgspec.Struct, gc=False):
    """One page that is in use, or was and may still be touched.

    There may be many. So empty fields take no room, the garbage collector visits none of them, and pages that were
    taken together share the dictionary with their one holder. A dictionary with a single entry is replaced; only a
    larger one is changed in place.
    """

    holders: dict[str, int] = {}
    """Holder -> how many references."""
    pins: dict[str, int] = {}
    keys: dict[str, Promise] = {}
    plans: dict[str | None, Plan] | None = None
    """By writer; `None`: nothing was ever planned."""
    tables: dict[str, Link] = {}
    """Tables that name it."""
    looked: dict[str, None] | None = None
    """Tables through which it may have been checked since its last change; `None`: any."""
    left: tuple[tuple[str, int, int, int], ...] = ()
    """Tables that named it: the page index, and how many operations had begun when that began and ended."""
    content: tuple[Content, ...] | list[Content] = ()
    """In order of slots; missing slots were not written since the page was taken. A tuple if all was written at once,
    else a list."""
    writer: Writer | None = None
    """The operation that wrote in it last; `None`: unknown."""

    @property
    def kind(self) -> str:
        """Whether it counts as held, as cached (a name finds it) or as free."""
        return "held" if self.holders or self.pins else "cached" if self.keys else "free"

    def plan(self, writer: str | None, keys: Iterable[str]) -> None:
        """The promised content of names is still to be written."""
        self.plans = self.plans or {}
        for key in keys:
            plan = self.keys[key].plan = self.plans.setdefault(writer, Plan(writer))
            plan.keys[key] = None

    def unplan(self, key: str) -> None:
        """End the plan of a name."""
        plan, self.keys[key].plan = self.keys[key].plan, None
        if plan is not None and self.plans is not None:
            del plan.keys[key]
            if not plan.keys:
                del self.plans[plan.writer]

    def hand_on(self, old: str, new: str) -> None:
        """Move one holder's plans to another: the fewer names join the more."""
        if self.plans and old in self.plans:
            plans = self.plans.pop(old), self.plans.pop(new, Plan(new))
            fewer, self.plans[new] = sorted(plans, key=lambda plan: len(plan.keys))
            self.plans[new].writer = new
            self.plan(new, fewer.keys)

    def pieces(self, start: int, stop: int) -> Iterator[Content | int]:
        """The content of slots `start` to `stop`, in order; a number is the first of slots that were never written."""
        contents = self.content
        for content in contents if len(contents) <= _FEW else contents[_overlap(contents, start, stop)]:
            if content.stop <= start:
                continue
            if content.start >= stop:
                break
            if content.start > start:
                yield start
            yield content if start <= content.start and content.stop <= stop else content.cut(start, stop)
            start = content.stop
        if start < stop:
            yield start

    def erase(self, start: int, stop: int) -> None:
        """Slots were not written after all."""
        self.content = content = self.content if isinstance(self.content, list) else [*self.content]
        near = _overlap(content, start, stop)
        parts = [part for old in content[near] for part in (old.cut(0, start), old.cut(stop, old.stop))]
        content[near] = [part for part in parts if part.start < part.stop]

    def put(self, new: Sequence[Content]) -> None:
        """Write slots, in order; content that continues the last label joins it."""
        content = self.content
        if not (content and new):
            self.content = content or (*new,)
            return
        last, first = content[-1], new[0]
        if last.stop > first.start:
            for one in new:
                self.erase(one.start, one.stop)
            for one in new:
                insort(cast("list[Content]", self.content), one, key=_START)
            return
        if (last.stop, last.label, last.failed) == (first.start, first.label, first.failed) and (
            first.offset - last.offset == last.stop - last.start
        ):
            last.stop, new = first.stop, new[1:]
        if isinstance(content, list):
            content.extend(new)
        elif new:
            self.content = [*content, *new]


def _overlap(content: Sequence[Content], start: int, stop: int) -> slice:
    """The pieces that overlap slots `start` to `stop`, and perhaps the one before."""
    first = max(bisect_right(content, start, key=_START) - 1, 0)
    return slice(first, max(first, bisect_left(content, stop, key=_START)))


_ANEW = 8
"""Pages of a kind are put in order anew, if more than one in so many may have moved."""
_FREE = PageState()
"""A page without a state."""


class Stretch(msgspec.Struct, eq=False, gc=False):
    """Successive entries of a table."""

    index: int
    """The page index of the first."""
    since: int
    """How many operations had begun when it came to."""
    pages: list[Page]
    indices: dict[Page, int] | None = None
    """The page index of each, computed at the first call of `index_of`."""

    def index_of(self, number: Page) -> int:
        """The page index of one of them."""
        if self.indices is None:
            self.indices = dict(zip(self.pages, count(self.index), strict=False))
        return self.indices[number]


class PageGroup(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The common state of pages with the same history since they were taken.

    Per page only its label and its name are kept. These dictionaries may have entries of pages that left the group.
    """

    holders: dict[str, int]
    """Each has one reference."""
    tables: dict[str, Stretch] = {}
    left: tuple[tuple[str, Stretch, int], ...] = ()
    """Tables that named them: where, and how many operations had begun when that ended."""
    whole: dict[Page, Label | None] = {}
    """The label with which each was written, all of it, if a page has one."""
    units: list[Label | None] = []
    """Where it has several, and there is one page: the labels of its first units, which were written."""
    named: dict[Page, str] = {}
    """The one key that finds each: it promises all that is in the page."""
    writer: Writer | None = None

    @property
    def kind(self) -> str:
        """Whether they count as held, as cached or as free."""
        return "held" if self.holders else "cached" if self.named else "free"

    def split(self, number: Page, unit: int) -> PageState:
        """The individual state of one of them."""
        labels = [self.whole[number]] if self.whole else self.units
        content = tuple(Content(unit * index, unit * index + unit, label) for index, label in enumerate(labels))
        return PageState(
            {**self.holders},
            keys={self.named[number]: Promise(content)} if self.named else NOTHING,
            tables={name: Link(stretch.index_of(number), stretch.since) for name, stretch in self.tables.items()},
            left=tuple((name, run.index_of(number), run.since, until) for name, run, until in self.left),
            content=content,
            writer=self.writer,
        )


class View:
    """The positions of a table that a stream has checked: `low` to `high`, less the pages that changed since."""

    __slots__ = ("changed", "high", "low")

    def __init__(self, position: int) -> None:
        """Nothing, from `position` on."""
        self.low = self.high = position
        self.changed: list[int] = []
        """In order."""

    def change(self, start: int, stop: int) -> None:
        """Page indices have to be checked again."""
        if start < stop:
            first, last = bisect_left(self.changed, start), bisect_left(self.changed, stop)
            self.changed[first:last] = range(start, stop)


class PoolState:
    """One pool: its sizes, its pages in use, and its reservations."""

    def __init__(self, name: str, pool: Pool) -> None:
        """All is free.

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
        """Those of them that are padding, in order."""
        self.total = None if pool.num_pages is None else count - len(self.skipped)
        """Pages that can be taken; `None`: unknown."""
        self.individual: dict[Page, PageState] = {}
        """Pages that have a state of their own."""
        self.groups: dict[Page, PageGroup] = {}
        """The others in use, each with its group."""
        self.held = self.cached = 0
        """Pages of these kinds."""
        self._of_kind: dict[str, list[Any]] = {"held": [], "cached": []}
        """The same in order, except for the pages in `_moved`."""
        self._moved: dict[Page, None] | None = None
        """Pages whose kind may have changed since the last call of `of_kind`; `None`: it was never called."""
        self.names: dict[str, Page | dict[Page, None]] = {}
        """Key -> the page that it finds, or pages."""
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
            Malformed: more than one event may name, or keys where pages have numbers.
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
        """A page in words: that of a storage is a key."""
        return f"{'key' if self.keyed else 'page'} {page}"

    def page(self, page: Page) -> PageState:
        """The state of a page, to be changed: from now on it has one of its own."""
        state = self.individual.get(page)
        if state is None:
            state = self.individual[page] = self.seen(page)
            self.groups.pop(page, None)
        return state

    def found(self, key: str) -> dict[Page, None]:
        """The pages that a key finds, in order."""
        pages = self.names.get(key, NOTHING)
        return pages if isinstance(pages, dict) else {pages: None}

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
        """Pages become held or cached, or are so no longer."""
        self.held += held * len(numbers)
        self.cached += cached * len(numbers)
        if self._moved is not None:
            self._moved.update(dict.fromkeys(numbers))

    def reserve(self, holder: str, pages: int) -> None:
        """So many pages are promised to a holder from now on."""
        self.promised += pages - self.reserved.get(holder, 0)
        self.reserved[holder] = pages

    def of_kind(self, kind: str) -> list[Any]:
        """The pages that are held or cached, in order: at the cost of those that have become so since the last time."""
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
        """The pages in use, and what each counts as."""
        for states in (self.individual, self.groups):
            yield from ((number, one.kind) for number, one in states.items())

    def fresh(self, numbers: list[Page]) -> bool:
        """Whether pages all exist, and none has a state of its own: most often so when they are taken."""
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


class Tail(msgspec.Struct, frozen=True):
    """The end of a table that is being filled: while no other event touches its last page, appends need no check."""

    stream: str
    view: View
    """The positions that the stream has checked: all up to its last write."""
    page: PageState
    content: Content
    """The page's last, which grows."""
    base: int
    """The position of the page's slot 0."""
    end: int
    """The position at which the page ends."""


class Table:
    """A block table or a row: the pages of a holder's positions, and the labels of these."""

    __slots__ = ("holder", "labels", "name", "pages", "pool", "tail", "views")

    def __init__(self, name: str, holder: str, pool: PoolState) -> None:
        """An empty table."""
        self.name, self.holder, self.pool = name, holder, pool
        self.pages: list[Page] = []
        self.labels: list[Label | None] = []
        """The label of each unit, up to the last reported one."""
        self.views: dict[str, View] = {}
        """By stream."""
        self.tail: Tail | None = None

    def labels_of(self, first: int, stop: int) -> list[Label | None]:
        """The labels of units `first` to `stop`."""
        labels = self.labels[first:stop]
        return labels + [None] * (stop - first - len(labels))

    def set_labels(self, first: int, labels: Sequence[Label | None]) -> None:
        """Set the labels of units from `first` on."""
        self.labels += [None] * (first - len(self.labels))
        self.labels[first : first + len(labels)] = labels

    def look(self, stream: str, position: int) -> View:
        """Begin a stream's view of the table; beyond `VIEWS` the first one is forgotten."""
        self.tail = None
        view = self.views[stream] = View(position)
        if len(self.views) > VIEWS:
            del self.views[next(iter(self.views))]
        return view

    def changed(self, index: int, stream: str | None = None) -> None:
        """A page changed: every stream but `stream` has to check its index again."""
        self.tail = None
        for viewer, view in self.views.items():
            if viewer != stream and index * self.pool.size < view.high:
                view.change(index, index + 1)


class State:
    """The whole state of the checker."""

    def __init__(self, pools: dict[str, Pool]) -> None:
        """Pools in which everything is free."""
        if not pools:
            raise Malformed("there are no pools")
        self.pools = {name: PoolState(name, pool) for name, pool in pools.items()}
        self.writes_reported = any(pool.writes_reported for pool in pools.values())
        self.reads_own_writes = all(pool.reads_own_writes for pool in pools.values())
        self.clocks = Clocks()
        self.decisions: dict[str, Decisions] = {}
        """Group of hosts -> what they decide."""
        self.undecided: dict[str, Decisions] = {}
        """Those groups in which a decision was made since all was idle."""
        self.labels = Labels()
        self._labels_kept = 1024
        self.tables: dict[str, Table] = {}
        self.tables_of: dict[str, dict[str, None]] = {}
        """Holder -> the names of its tables."""
        self.holdings: dict[str, dict[str, dict[Page, None]]] = {}
        """Holder -> pool -> the pages to which it refers, pins included."""
        self.gone: set[str] = set()
        """Holders whose leak was reported."""
        self.causes: dict[Mark, int] = {}
        """The event of the first finding that left such a mark."""
        self.tainted: dict[OpId, dict[str | None, int | None]] = {}
        """Operation -> the holders whose results are tainted, with the event of the finding, if there was one."""
        self.event = 0
        self.at: str | None = None
        self.findings: list[Finding] = []
        """Of the event at hand."""
        self.by_code: dict[str, list[Finding]] = {}
        """The same by code."""
        self.checked = defaultdict[str, int](int)
        """Rule -> how often it was checked."""

    def pool(self, name: str) -> PoolState:
        """The pool, or `Malformed`."""
        pool = self.pools.get(name)
        if pool is None:
            raise Malformed(f"there is no pool {name}")
        return pool

    def held(self, holder: str, pool: PoolState) -> dict[Page, None]:
        """The pages of a pool to which a holder refers, to be added to."""
        self.gone.discard(holder)
        return self.holdings.setdefault(holder, {}).setdefault(pool.name, {})

    def give(self, table: Table, holder: str) -> None:
        """A table has another holder from now on."""
        self.take_from_holder(table)
        table.holder = holder
        self.tables_of.setdefault(holder, {})[table.name] = None

    def take_from_holder(self, table: Table) -> None:
        """A table is its holder's no longer."""
        tables = self.tables_of[table.holder]
        del tables[table.name]
        if not tables:
            del self.tables_of[table.holder]

    def find(
        self, code: str, pool: PoolState | None = None, number: Page | None = None, holder: str | None = None
    ) -> Finding:
        """Note a finding, and mark page and holder: a later finding there may be a consequence of it.

        A finding about content may follow from one about owners, and not the other way round. It follows from one
        about content for the same holder only within a pool. A race marks nothing and follows from nothing: a finding
        hidden behind it is one of its own.
        """
        about, name = ABOUT.get(code) or ABOUT.get(rule_of(code), ""), None if pool is None else pool.name
        found = Finding(code, self.event, self.at, name, number, holder, about=about)
        found.keyed = pool is not None and pool.keyed
        same = self.by_code.setdefault(code, [])
        if len(same) < FINDINGS:
            same.append(found)
            self.findings.append(found)
        else:
            same[0].more += 1
        if about and holder is not None:
            found.cause = self._mark(about, name if about == CONTENT else None, None, holder)
        if about and number is not None:
            found.cause = self._mark(about, name, number) or found.cause
        return found

    def _mark(self, about: str, pool: str | None, page: Page | None, holder: str | None = None) -> int | None:
        """A finding is on this page or holder; the event of the first from which it may follow, if any."""
        mark = (about, pool, page, holder)
        owners = OWNERS, None if page is None else pool, page, holder
        first = min((self.causes[one] for one in (mark, owners) if one in self.causes), default=None)
        self.causes.setdefault(mark, self.event)
        if len(self.causes) > MARKS:
            del self.causes[next(iter(self.causes))]
        return first

    def cause(self, pool: PoolState, number: Page) -> int | None:
        """The event of the first finding on a page since it was handed out."""
        marks = ((about, pool.name, number, None) for about in (OWNERS, CONTENT))
        return min((self.causes[mark] for mark in marks if mark in self.causes), default=None)

    def comes_from(self, cause: int, pool: PoolState, number: Page) -> None:
        """Mark a page as written from a place with a finding."""
        self.causes.setdefault((CONTENT, pool.name, number, None), cause)

    def renew(self, pool: PoolState, numbers: list[Page]) -> None:
        """Forget the marks of free pages: later findings there have other causes."""
        for number in numbers if self.causes else ():
            for about in (OWNERS, CONTENT):
                self.causes.pop((about, pool.name, number, None), None)

    def changed(
        self, page: PageState, by: Table | None = None, stream: str | None = None, holder: str | None = None
    ) -> None:
        """A page changed, for one holder or for all: tables that name it have to be checked there again.

        Not, though, the table through which a stream changed it, for that stream.
        """
        names = page.tables if page.looked is None else page.looked
        if holder is not None and len(names) > len(own := self.tables_of.get(holder, NOTHING)):
            names = own
        for name in names:
            table, link = self.tables.get(name), page.tables.get(name)
            if table is not None and link is not None and holder in (None, table.holder):
                table.changed(link.index, stream if table is by else None)
        if holder is None and (page.looked is not None or len(page.tables) > _FEW):
            page.looked = {} if by is None else {by.name: None}

    def forget_if_free(self, pool: PoolState, number: Page, page: PageState) -> None:
        """A free page that no table names, or named while an operation in flight read it, need not be remembered."""
        if page.holders or page.keys or page.pins or page.tables or pool.keyed:
            return
        if not (page.left and page.left[-1][-1] >= self.clocks.oldest):
            pool.individual.pop(number, None)
            self.renew(pool, [number])

    def agree(self, one: Content, other: Content) -> bool | None:
        """Whether two contents are the same where they overlap; `None`: unknown."""
        if one.label is None or other.label is None:
            return None
        if one.label == other.label and one.start - one.offset == other.start - other.offset:
            return True
        same = self.same_up_to(one, other)
        return same is not None and same >= min(one.stop, other.stop)

    def same_up_to(self, one: Content, other: Content) -> int | None:
        """The slot up to which two contents are the same where they overlap; `None`: unknown."""
        if one.label is None or other.label is None:
            return None
        start, stop = max(one.start, other.start), min(one.stop, other.stop)
        if start >= stop:
            return stop
        base = one.start - one.offset
        if base != other.start - other.offset:
            return start
        return base + self.labels.same_up_to(one.label, other.label, start - base, stop - base)

    def sweep_labels(self) -> None:
        """Forget labels that nothing bears any more, each time that their number has doubled."""
        if len(self.labels) < self._labels_kept:
            return
        live = {label for table in self.tables.values() for label in table.labels}
        for pool in self.pools.values():
            for one in {*pool.groups.values()}:
                live.update(one.whole.values(), one.units)
            for page in pool.individual.values():
                live.update(content.label for content in page.content)
                live.update(content.label for promise in page.keys.values() for content in promise.meant)
        self.labels.keep({label for label in live if label is not None})
        self._labels_kept = max(1024, 2 * len(self.labels))
