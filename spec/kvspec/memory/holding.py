"""References to pages, their names, and the tables that name them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import repeat

from kvspec.memory import Finding, events
from kvspec.memory.agreement import Agreement
from kvspec.memory.announced import Announced
from kvspec.memory.events import Event, Page, Pool
from kvspec.memory.pages import Meant, PageState, PoolState, Promise, Table

FIGURES = dict.fromkeys(("MEM-COUNT/missing", "MEM-COUNT/total"), "total")
"""Codes that are about the same figure."""


class Holding:
    """The part of the checker that needs no operations."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """Pools in which everything is free."""
        self.pools = {name: PoolState(name, pool) for name, pool in pools.items()}
        self.tables: dict[str, Table] = {}
        self.agreement = Agreement()
        self.announced = Announced(self.pools, self.differ)
        self.same: dict[Meant, set[Meant]] = {}
        """Content -> all that it was learnt to be, itself among it."""
        self.gone: set[str] = set()
        """Holders whose leak was reported."""
        self.wrong: dict[tuple[str, str, PageState], int] = {}
        """Figure -> the difference that was reported last."""
        self.event: Event = events.Idle()
        """The event at hand; its number, and what it breaks."""
        self.number, self.findings = 0, list[Finding]()

    def names(self, pool: str) -> dict[str, Page]:
        """Each name under which a page of a pool is published, and the page."""
        return {key: page.number for key, page in self.pools[pool].names if page.number is not None}

    def find(self, code: str, page: PageState | None = None, holder: str | None = None) -> None:
        """The event at hand breaks a rule; a page without a number stands for its pool."""
        pool, number = (None, None) if page is None else (page.pool.name, page.number)
        self.findings.append(Finding(code, self.number, self.event.at, pool, number, holder))

    def agree(self, one: Meant, other: Meant) -> bool | None:
        """Whether two contents are the same; `None`: unknown."""
        return None if None in (one[0], other[0]) else other in self.same.get(one, {one})

    def differ(self, one: Meant, other: Meant) -> bool:
        """Whether two contents are known, and are not the same."""
        return self.agree(one, other) is False

    def unify(self, event: events.Unify) -> None:
        """Two labels are the same, in their first slots or wholly."""
        for offset in range(event.slots or max(pool.unit for pool in self.pools.values())):
            one, other = (event.label, offset), (event.same, offset)
            both = self.same.get(one, {one}) | self.same.get(other, {other})
            self.same |= dict.fromkeys(both, both)

    # References

    def take(self, event: events.Take) -> None:
        """The allocator hands out free pages. Their old content no longer counts."""
        pool = self.pools[event.pool]
        for page in pool.expand(event.pages):
            padding = page.number in pool.config.padding
            exists = page.number in pool.numbers and not padding
            wrong = page.kind if exists else "padding" if padding else "unknown"
            if wrong != "free":
                self.find(f"MEM-TAKE/{wrong}", page, event.holder)
            if exists:
                for key in page.keys:
                    del pool.names[key, page]
                page.content, page.writers = {}, {}
                self._refer(page, event.holder)
            if event.holder in pool.reserved:
                pool.reserved[event.holder] = max(0, pool.reserved[event.holder] - 1)
        self._check_reserved(pool)

    def share(self, event: events.Share) -> None:
        """One more reference to pages that are in use or published."""
        pool = self.pools[event.pool]
        for page, key in zip(pool.expand(event.pages), event.keys or repeat(None), strict=False):
            if not page.holds(None):
                self.find("MEM-SHARE/free", page, event.holder)
            elif key is not None and key not in page.keys:
                self.find("MEM-SHARE/unnamed", page, event.holder)
            self._refer(page, event.holder, pin=event.pin)
        self._check_reserved(pool)

    def release(self, event: events.Release) -> None:
        """One reference less to each page. With the last reference its planned names must be written."""
        for page in self.pools[event.pool].expand(event.pages):
            pin = self._let_go(page, event.holder)
            if pin is not None and not page.references[event.holder, False]:
                self.check_plans(page, None if pin else event.holder)

    def transfer(self, event: events.Transfer) -> None:
        """References pass to another holder. If all of them do, the tables go with them."""
        for pool in self.pools.values() if event.pool is None else [self.pools[event.pool]]:
            had = [page for page in pool.pages.values() for one, _ in page.references.elements() if one == event.old]
            for page in had if event.pages is None else pool.expand(event.pages):
                pin = self._let_go(page, event.old, "MEM-RELEASE/transfer")
                if pin is not None:
                    self._refer(page, event.new, pin=pin)
                for key, promise in page.keys.items():
                    if promise.writer == event.old and not page.references[event.old, False]:
                        pool.names[key, page] = promise._replace(writer=event.new)
        for table in self.tables.values() if event.pool is None else ():
            table.holder = event.new if table.holder == event.old else table.holder

    def _refer(self, page: PageState, holder: str, *, pin: bool = False) -> None:
        page.references[holder, pin] += 1
        self.gone.discard(holder)

    def _let_go(self, page: PageState, holder: str, code: str = "MEM-RELEASE/not-held") -> bool | None:
        """Take one reference back, and say whether it was a pin; a finding if there is none."""
        pin = next((pin for pin in (False, True) if page.references[holder, pin]), None)
        if pin is None:
            self.find(code, page, holder)
        else:
            page.references -= Counter([(holder, pin)])
        return pin

    def reserve(self, event: events.Reserve) -> None:
        """So many further pages are promised to a holder."""
        self.pools[event.pool].reserved[event.holder] = event.pages
        self._check_reserved(self.pools[event.pool])

    def _check_reserved(self, pool: PoolState) -> None:
        """Check that the pages reserved for holders are free or cached."""
        if pool.reserved and pool.config.num_pages is not None:
            missing = sum(pool.reserved.values()) - pool.total("free") - pool.total("cached")
            self._compare("MEM-RESERVE/exceeded", "reserved", pool.page(None), max(0, missing))

    def end_holder(self, event: events.EndHolder) -> None:
        """A holder is gone: nothing of it may be left."""
        self._check_left({event.holder}, "MEM-LEAK/ended", self.pools.values())
        for pool in self.pools.values():
            pool.reserved.pop(event.holder, None)

    def idle(self, event: events.Idle) -> None:
        """Only keepers may hold anything; if all is idle, no decision of a group is left to make."""
        pools = [self.pools[name] for name in (self.pools if event.pools is None else event.pools)]
        pages = [page for pool in pools for page in pool.pages.values()]
        holders = {holder for page in pages for holder, _ in page.references}
        self._check_left(holders - self.gone - {*event.keepers}, "MEM-LEAK/idle", pools)
        for _ in self.agreement.behind() if event.pools is None else ():
            self.find("MEM-AGREE/missing")

    def _check_left(self, holders: set[str], code: str, pools: Iterable[PoolState]) -> None:
        for pool in pools:
            first = {one: page for page in reversed(pool.pages.values()) for one in sorted(holders) if page.holds(one)}
            for holder, page in first.items():
                self.find(code, page, holder)
                self.gone.add(holder)

    def count(self, event: events.Count) -> None:
        """The engine's own figures, or its lists, against what its events add up to."""
        pool = self.pools[event.pool]
        for kind, counted in (("free", event.free), ("cached", event.cached), ("held", event.held)):
            listed = Counter(pool.expand(counted) if isinstance(counted, list) else ())
            others = {page for page in listed if page.holds(None) and page.kind != kind}
            for page in pool.pages.values() if isinstance(counted, list) else ():
                self._compare("MEM-COUNT/twice", kind, page, max(0, listed[page] - 1))
                self._compare("MEM-COUNT/listed", kind, page, page in others)
            if counted is not None and (kind != "free" or pool.config.num_pages is not None):
                right = len(listed.keys() - others) if isinstance(counted, list) else counted
                difference = right - pool.total(kind)
                case = "missing" if isinstance(counted, list) and difference < 0 else "total"
                self._compare(f"MEM-COUNT/{case}", kind, pool.page(None), difference)
        for number, times in (event.references or {}).items():
            page = pool.page(number)
            self._compare("MEM-COUNT/references", "references", page, times - page.references.total())

    def _compare(self, code: str, figure: str, page: PageState, difference: int) -> None:
        """A difference is a finding when it appears and when it changes."""
        place = FIGURES.get(code, code), figure, page
        if difference and self.wrong.get(place) != difference:
            self.find(code, page)
        self.wrong[place] = difference

    def failed(self, event: events.Failed) -> None:
        """The engine gave up, which is a finding by itself."""
        self.find(f"MEM-FAILED/{event.kind}")

    def decide(self, event: events.Decide) -> None:
        """A host decides something that its whole group decides."""
        if not self.agreement.decide(event):
            self.find("MEM-AGREE/differs")

    # Names

    def publish(self, event: events.Publish) -> None:
        """Pages can be found by a name from now on: what it promises has to be there, or planned."""
        pool = self.pools[event.pool]
        pages, slots = pool.expand(event.pages), event.slots or pool.size
        each = -(-slots // pool.unit)
        for index, (page, key) in enumerate(zip(pages, event.keys, strict=True)):
            meant = pool.meant(event.labels and event.labels[index * each : (index + 1) * each], slots)
            if not (pool.config.keyed or page.holds(None)):
                self.find("MEM-NAME/free", page)
            old = next((promise for (name, _), promise in pool.names.items() if name == key), Promise([], True))
            if not old.planned and any(map(self.differ, old.meant, meant)):
                self.find("MEM-NAME/ambiguous", page)
            pool.names[key, page] = Promise(meant, event.planned, event.writer)
            left = page.kind == "held" if event.writer is None else page.references[event.writer, False] > 0
            if not (event.planned and (pool.config.keyed or left)):
                self._check_promise(page, pool.names[key, page])

    def drop(self, event: events.Drop) -> None:
        """Names are withdrawn; from a storage, what they name."""
        pool = self.pools[event.pool]
        for page, key in zip(pool.expand(event.pages), event.keys or repeat(None), strict=False):
            named = [name for name in page.keys if key in (None, name)]
            if not (named or (pool.config.keyed and page.content)):
                self.find("MEM-NAME/unnamed", page)
            for name in named:
                del pool.names[name, page]
            if pool.config.keyed:
                page.content.clear()

    def _check_promise(self, page: PageState, promise: Promise) -> None:
        """Check that the content that a name promises is written, or queued to be."""
        for at, meant in enumerate(promise.meant):
            if at not in page.content and page.pool.config.writes_reported:
                return self.find("MEM-NAME/unwritten", page)
            if at in page.content and self.differ(page.content[at].meant, meant):
                return self.find("MEM-NAME/content", page)
        return None

    def check_plans(self, page: PageState, gone: str | None = None) -> None:
        """Check planned names without a writer left: it is `gone`, or the page has no holder."""
        for promise in page.keys.values():
            if promise.planned and (page.kind != "held" if promise.writer is None else promise.writer == gone):
                self._check_promise(page, promise)

    def announce(self, event: events.Announce) -> None:
        """A host announces to routers which blocks a tier holds."""
        for code, block in self.announced.announce(event):
            self.findings.append(Finding(f"MEM-ANNOUNCE/{code}", self.number, event.at, page=block))

    def map(self, event: events.Map) -> None:
        """A holder's table names pages from page index `index` on."""
        pool, pages = self.pools[event.pool], self.pools[event.pool].expand(event.pages)
        table = self.tables.setdefault(event.table, Table(pool, event.holder))
        table.holder = event.holder
        table.pages[event.index : event.index + len(pages)] = pages
        units = len(pages) * pool.size // pool.unit
        table.set_labels(event.index * pool.size, [*(event.labels or []), *[None] * units][:units])

    def unmap(self, event: events.Unmap) -> None:
        """A table ends before page index `index`, or has a hole from there on; without pages it is forgotten."""
        table = self.tables.get(event.table)
        if table is not None and 0 < event.stop < len(table.pages):
            table.pages[event.index : event.stop] = [table.pool.page(None)] * (event.stop - event.index)
        elif table is not None:
            del table.pages[event.index :]
            if not table.pages:
                del self.tables[event.table]
