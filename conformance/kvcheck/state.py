"""The state of the checker: pools, block tables, operations in flight, findings and their causes.

A free page without uses is forgotten, so the state grows with the pages in use and not with the pool.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from kvcheck.announced import Host
from kvcheck.clocks import Clocks
from kvcheck.decisions import Decisions
from kvcheck.finding import CONTENT, FINDINGS, OWNERS, Finding, Malformed
from kvcheck.labels import Labels
from kvcheck.pages import FEW, NOTHING, Content, PageState
from kvcheck.pools import PoolState
from kvspec.memory.events import Label, OpId, Page, Pool
from kvspec.rules import rule_of

MARKS = 10_000
"""The most places of findings that can be the cause of later findings. The oldest are forgotten first."""

VIEWS = 64
"""The most streams whose checked positions of a table are remembered. A further stream displaces the oldest."""

ABOUT = dict.fromkeys(("MEM-TAKE", "MEM-SHARE", "MEM-RELEASE", "MEM-USE", "MEM-LEAK", "MEM-COUNT"), OWNERS)
ABOUT |= dict.fromkeys(("MEM-WRITTEN", "MEM-CONTENT", "MEM-NAME", "MEM-OVERWRITE"), CONTENT)
ABOUT |= dict.fromkeys(("MEM-NAME/free", "MEM-NAME/unnamed"), OWNERS)
"""Rules, or codes of a rule, that are about owners or content."""

Mark = tuple[str, str | None, Page | None, str | None]
"""The mark of a finding: its subject, the pool and the page, or the holder and for contents the pool."""


class View:
    """The positions of a table that a stream has checked: `low` to `high`, without the pages that changed since."""

    __slots__ = ("changed", "high", "low")

    def __init__(self, position: int) -> None:
        """Nothing is checked yet; the view begins at `position`."""
        self.low = self.high = position
        self.changed: list[int] = []
        """In order."""

    def change(self, start: int, stop: int) -> None:
        """Note a page index that has to be checked again."""
        if start < stop:
            first, last = bisect_left(self.changed, start), bisect_left(self.changed, stop)
            self.changed[first:last] = range(start, stop)


class Tail(msgspec.Struct, frozen=True):
    """The end of a table that is being filled: while no other event touches its last page, appends need no check."""

    stream: str
    view: View
    """The stream's view, which reaches up to its last write."""
    page: PageState
    content: Content
    """The last content of the page, which grows."""
    base: int
    """The position of the page's slot 0."""
    end: int
    """The position at which the page ends."""


class Table:
    """A block table or a row: the pages of a holder's positions, and their labels."""

    __slots__ = ("holder", "labels", "name", "pages", "pool", "tail", "views")

    def __init__(self, name: str, holder: str, pool: PoolState) -> None:
        """An empty table."""
        self.name, self.holder, self.pool = name, holder, pool
        self.pages: list[Page] = []
        self.labels: list[Label | None] = []
        """The label of each unit, up to the last reported one."""
        self.views: dict[str, View] = {}
        """Stream -> its view."""
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
        """Begin a stream's view of the table. If there are more than `VIEWS`, the oldest is forgotten."""
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
        """The groups in which a decision was made since everything was idle."""
        self.announced: dict[str | None, Host] = {}
        """Host -> what it has announced to routers."""
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
        """Mark -> the event of the first finding that left it."""
        self.tainted: dict[OpId, dict[str | None, int | None]] = {}
        """Operation -> the holders whose results are tainted, with the event of the finding, if there was one."""
        self.event = 0
        self.at: str | None = None
        self.findings: list[Finding] = []
        """The findings of the current event."""
        self.by_code: dict[str, list[Finding]] = {}
        """The findings of the current event, by code."""
        self.checked = defaultdict[str, int](int)
        """Rule -> how often it was checked."""

    def pool(self, name: str) -> PoolState:
        """The pool, or `Malformed`."""
        pool = self.pools.get(name)
        if pool is None:
            raise Malformed(f"there is no pool {name}")
        return pool

    def held(self, holder: str, pool: PoolState) -> dict[Page, None]:
        """The pages of a pool to which a holder refers; the caller may add to them."""
        self.gone.discard(holder)
        return self.holdings.setdefault(holder, {}).setdefault(pool.name, {})

    def give(self, table: Table, holder: str) -> None:
        """Give a table to another holder."""
        self.take_from_holder(table)
        table.holder = holder
        self.tables_of.setdefault(holder, {})[table.name] = None

    def take_from_holder(self, table: Table) -> None:
        """Remove a table from its holder."""
        tables = self.tables_of[table.holder]
        del tables[table.name]
        if not tables:
            del self.tables_of[table.holder]

    def find(
        self, code: str, pool: PoolState | None = None, number: Page | None = None, holder: str | None = None
    ) -> Finding:
        """Note a finding, and mark its page and holder: a later finding there may be a consequence of it.

        A finding about content may follow from one about owners, but not the other way round. Of two findings about
        content for the same holder, one follows from the other only within a pool. A race marks nothing and follows
        from nothing, so that it hides no other finding.
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
        """Mark a page or holder with a finding. Returns the event of the first finding from which it may follow."""
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

        The exception is the table through which a stream changed it, for that stream.
        """
        names = page.tables if page.looked is None else page.looked
        if holder is not None and len(names) > len(own := self.tables_of.get(holder, NOTHING)):
            names = own
        for name in names:
            table, link = self.tables.get(name), page.tables.get(name)
            if table is not None and link is not None and holder in (None, table.holder):
                table.changed(link.index, stream if table is by else None)
        if holder is None and (page.looked is not None or len(page.tables) > FEW):
            page.looked = {} if by is None else {by.name: None}

    def forget_if_free(self, pool: PoolState, number: Page, page: PageState) -> None:
        """Forget a free page, unless a table names it, or named it while an operation in flight read it."""
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
        """Forget unused labels, each time that there are as many new labels as other live ones."""
        if len(self.labels) < self._labels_kept:
            return
        live = {label for table in self.tables.values() for label in table.labels}
        for pool in self.pools.values():
            for one in {*pool.groups.values()}:
                live.update(one.whole.values(), one.units)
            for page in pool.individual.values():
                live.update(content.label for content in page.content)
                live.update(content.label for promise in page.keys.values() for content in promise.meant)
        for tier in (tier for host in self.announced.values() for tier in host.tiers.values()):
            live.update(label for block in tier.blocks.values() for label in block.labels or ())
        self.labels.keep({label for label in live if label is not None})
        self._labels_kept = len(self.labels) + max(1024, len(live))
