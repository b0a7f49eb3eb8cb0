"""What the law remembers: for each page in use who holds it, its names, its content, and the uses not seen complete.

A free page that nothing uses is not remembered, so the state is as large as what is in use, never as the pool.
"""

from collections import Counter, deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from kvspec.memory.clocks import Clocks
from kvspec.memory.events import Begin, Label, OpId, Page, Pages, Pool
from kvspec.memory.labels import Labels

PAGES_AN_EVENT = 1 << 20
"""An event names at most so many pages: its cost follows what it names."""


class Malformed(ValueError):
    """An event that no engine can mean: the file is wrong."""


class Finding(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A rule of the law was broken."""

    rule: str
    what: str
    event: int
    """The number of the event, from 1."""
    at: str | None = None
    pool: str | None = None
    page: Page | None = None
    holder: str | None = None
    cause: int | None = None
    """The event of an earlier finding on the same page or holder, of which this may be a consequence."""
    earlier: str | None = None
    """The place of the earlier of two uses that race."""


class Span(NamedTuple):
    """Slots of a page that an operation uses."""

    start: int
    stop: int
    stream: str
    moment: int
    at: str | None


class Content(NamedTuple):
    """What slots `start` to `stop` of a page hold: a label's slots from `offset` on."""

    start: int
    stop: int
    label: Label | None
    """`None`: something untold."""
    offset: int = 0
    failed: bool = False
    """It was to be written and was not, or was computed from such slots."""

    def cut(self, start: int, stop: int) -> "Content":
        """The part within `start` to `stop`."""
        first, last = max(start, self.start), min(stop, self.stop)
        return Content(first, last, self.label, self.offset + first - self.start, self.failed)


class Promise(NamedTuple):
    """What a name promises of a page."""

    slots: int
    labels: tuple[Label, ...] | None
    planned: bool


class PageState:
    """One page that is in use, or was and may still be touched."""

    __slots__ = ("cause", "content", "holders", "keys", "pins", "reads", "tables", "writes")

    def __init__(self) -> None:
        """A free page."""
        self.holders: dict[str, int] = {}
        self.pins: dict[str, int] = {}
        self.keys: dict[str, Promise] = {}
        self.content: list[Content] = []
        """In order of slots; what is missing was never written since the page was handed out."""
        self.reads: list[Span] = []
        self.writes: list[Span] = []
        self.tables: dict[str, int] = {}
        """Tables that name it, and the page index there."""
        self.cause: int | None = None
        """The event of the first finding on it since it was handed out."""

    @property
    def free(self) -> bool:
        """Whether nobody holds it and no name finds it."""
        return not (self.holders or self.pins or self.keys)

    @property
    def kind(self) -> str:
        """Whether it counts as held, cached or free."""
        return "held" if self.holders or self.pins else "cached" if self.keys else "free"

    def held_by(self, holder: str | None) -> bool:
        """Whether a holder has it; for one that is not told, whether anybody or a name does."""
        return not self.free if holder is None else holder in self.holders or holder in self.pins

    def pieces(self, start: int, stop: int) -> Iterator[Content | tuple[int, int]]:
        """The content of slots `start` to `stop`, in order; a gap, as a pair, was never written."""
        for content in self.content:
            if content.stop <= start:
                continue
            if content.start >= stop:
                break
            if content.start > start:
                yield start, content.start
            yield content if start <= content.start and content.stop <= stop else content.cut(start, stop)
            start = content.stop
        if start < stop:
            yield start, stop

    def put(self, new: Content) -> None:
        """Slots are written."""
        old = self.content
        if old and old[-1].stop <= new.start:
            last = old[-1]
            follows = last.stop == new.start and last.label == new.label and last.failed == new.failed
            if follows and (new.label is None or last.offset + last.stop - last.start == new.offset):
                old[-1] = last._replace(stop=new.stop)
            else:
                old.append(new)
            return
        kept = [part for part in old if part.stop <= new.start]
        kept += [part.cut(0, new.start) for part in old if part.start < new.start < part.stop]
        kept.append(new)
        kept += [part.cut(new.stop, part.stop) for part in old if part.stop > new.stop]
        self.content = kept


class View:
    """What one stream has checked of a table: positions `low` to `high`, less the pages that changed since."""

    __slots__ = ("changed", "high", "low")

    def __init__(self, position: int) -> None:
        """Nothing, from `position` on."""
        self.low = self.high = position
        self.changed: set[int] = set()


class Table:
    """A block table or a row: the pages of a holder's positions, and what these mean."""

    __slots__ = ("holder", "labels", "name", "pages", "pool", "reads", "views")

    def __init__(self, name: str, holder: str, pool: "PoolState") -> None:
        """An empty table."""
        self.name, self.holder, self.pool = name, holder, pool
        self.pages: list[Page] = []
        self.labels: list[Label | None] = []
        self.views: dict[str, View] = {}
        self.reads: dict[str, list[Span]] = {}
        """Stream -> positions that its operations read and that the host has not seen read."""


class PoolState:
    """One pool: its sizes, its pages in use, and what is promised of it."""

    def __init__(self, name: str, pool: Pool) -> None:
        """All is free.

        Raises:
            Malformed: the sizes make no sense.
        """
        self.name, self.pool = name, pool
        self.size = pool.page_size
        self.unit = pool.label_size or pool.page_size
        if self.size < 1 or self.unit < 0 or self.size % self.unit or (pool.num_pages or 0) < 0:
            raise Malformed(f"pool {name}: page_size {self.size}, label_size {pool.label_size}: not whole and positive")
        self.sinks = frozenset[Page](pool.sinks)
        first, count = pool.first_page, pool.num_pages
        self.total = None if count is None else count - sum(first <= sink < first + count for sink in set(pool.sinks))
        """Pages that can be handed out; `None`: not told."""
        self.kinds = Counter[str]()
        """Pages that are held, and cached."""
        self.pages: dict[Page, PageState] = {}
        self.reserved: dict[str, int] = {}
        self.told: dict[str, object] = {}
        """Figure -> how it was last told to be wrong."""

    def expand(self, pages: Pages) -> list[Page]:
        """Pages one by one.

        Raises:
            Malformed: more than one event may name, or keys where pages have numbers.
        """
        out: list[Page] = []
        for run in pages:
            if isinstance(run, tuple):
                if run[1] < 0 or len(out) + run[1] > PAGES_AN_EVENT:
                    raise Malformed(f"a run of {run[1]:,} pages: an event names 0 to {PAGES_AN_EVENT:,}")
                out.extend(range(run[0], run[0] + run[1]))
            else:
                out.append(run)
        if self.pool.keyed != any(isinstance(page, str) for page in out) and out:
            raise Malformed(f"pool {self.name}: pages are named by {'keys' if self.pool.keyed else 'numbers'}")
        return out

    def recount(self, was: str, page: PageState) -> None:
        """A page that was free, held or cached may be something else now."""
        now = page.kind
        if now != was:
            self.kinds[was] -= 1
            self.kinds[now] += 1

    def exists(self, page: Page) -> bool:
        """Whether the pool has such a page, and it is not padding."""
        if isinstance(page, str) or page in self.sinks:
            return isinstance(page, str)
        first, count = self.pool.first_page, self.pool.num_pages
        return page >= first and (count is None or page < first + count)

    def page(self, page: Page) -> PageState:
        """The state of a page."""
        state = self.pages.get(page)
        if state is None:
            state = self.pages[page] = PageState()
        return state


class State:
    """The whole state of the law."""

    def __init__(self, pools: dict[str, Pool]) -> None:
        """Pools in which everything is free."""
        self.pools = {name: PoolState(name, pool) for name, pool in pools.items()}
        self.clocks = Clocks()
        self.labels = Labels()
        self.labels_swept = 1024
        self.tables: dict[str, Table] = {}
        self.holdings: dict[str, Counter[tuple[str, Page]]] = {}
        """Holder -> how often it refers to each page of each pool, pins included."""
        self.gone: set[str] = set()
        """Holders whose leak was told."""
        self.holder_cause: dict[str, int] = {}
        """Holder -> the event of the first finding on it."""
        self.flying: dict[OpId, Begin] = {}
        """Each operation in flight, oldest first, as it was told."""
        self.spoilt: dict[OpId, dict[str | None, int | None]] = {}
        """Operation -> the holders whose results are spoilt, with the event of the finding, if there was one."""
        self.ended: deque[OpId] = deque()
        """Spoilt operations that have ended, oldest first: only the last ones are remembered."""

        self.event = 0
        self.at: str | None = None
        self.findings: list[Finding] = []
        """Of the event at hand."""
        self.unjudged: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()

    def pool(self, name: str) -> PoolState:
        """The pool, or `Malformed`."""
        pool = self.pools.get(name)
        if pool is None:
            raise Malformed(f"there is no pool {name}")
        return pool

    def find(
        self,
        rule: str,
        what: str,
        pool: PoolState | None = None,
        page: Page | None = None,
        holder: str | None = None,
        earlier: Span | None = None,
    ) -> int:
        """Note a finding, and mark page and holder, so that what follows from it is told as a consequence.

        A race marks nothing: what hides behind it is a finding of its own.
        """
        state = None if pool is None or page is None else pool.page(page)
        race = rule in ("MEM-RACE", "MEM-REWRITE")
        cause = None if state is None else state.cause
        if cause is None and holder is not None:
            cause = self.holder_cause.get(holder)
        if not race:
            if state is not None and state.cause is None:
                state.cause = self.event
            if holder is not None:
                self.holder_cause.setdefault(holder, self.event)
        self.findings.append(
            Finding(
                rule,
                what,
                self.event,
                self.at,
                None if pool is None else pool.name,
                page,
                holder,
                None if race else cause,
                None if earlier is None else earlier.at,
            )
        )
        return self.event

    def changed(self, page: PageState, by: str | None = None, stream: str | None = None) -> None:
        """A page changed: every table that names it has to be checked there again, but for its writer's."""
        for name, index in page.tables.items():
            for viewer, view in self.tables[name].views.items():
                if name != by or viewer != stream:
                    view.changed.add(index)

    def live(self, spans: list[Span]) -> list[Span]:
        """Those of some uses that the host has not seen complete."""
        seen = self.clocks.host
        return [span for span in spans if seen.get(span.stream, 0) < span.moment]

    def forget_if_free(self, pool: PoolState, number: Page, page: PageState) -> None:
        """A free page that no table names and nothing in flight uses need not be remembered."""
        if page.free and not page.tables:
            page.reads, page.writes = self.live(page.reads), self.live(page.writes)
            if not (page.reads or page.writes):
                del pool.pages[number]

    def sweep_labels(self) -> None:
        """Forget labels that nothing bears any more, each time that their number has doubled."""
        if len(self.labels) < self.labels_swept:
            return
        live: set[Label] = set()
        for pool in self.pools.values():
            for page in pool.pages.values():
                live.update(content.label for content in page.content if content.label is not None)
                live.update(label for promise in page.keys.values() for label in promise.labels or ())
        for table in self.tables.values():
            live.update(label for label in table.labels if label is not None)
        self.labels.keep(live)
        self.labels_swept = max(1024, 2 * len(self.labels))
