"""Who refers to which pages, by which names they are found, and which tables name them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import repeat

from kvspec.memory import events
from kvspec.memory.events import Page, Pool
from kvspec.memory.finding import Finding, Malformed
from kvspec.memory.pages import HOLE, Meant, PageState, PoolState, Promise, Table


class Holding:
    """The part of the law that knows no operation."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """Pools in which everything is free.

        Raises:
            Malformed: a pool's sizes make no sense.
        """
        self.pools = {name: PoolState(name, pool) for name, pool in pools.items()}
        self.tables: dict[str, Table] = {}
        self.same: dict[Meant, Meant] = {}
        """Content -> other content, which it was learnt to be."""
        self.gone: set[str] = set()
        """Holders whose leak was told."""
        self.event = 0
        self.at: str | None = None
        self.findings: list[Finding] = []
        """What the event at hand breaks."""

    def names(self, pool: str) -> dict[str, Page]:
        """Each name under which a page of a pool is published, and the page."""
        return dict(self.pools[pool].names)

    def find(
        self, rule: str, what: str, pool: PoolState | None = None, page: Page | None = None, holder: str | None = None
    ) -> None:
        """A rule is broken."""
        name = None if pool is None else pool.name
        self.findings.append(Finding(rule, what, self.event, self.at, name, page, holder))

    def pool(self, name: str | None) -> PoolState:
        """The pool of that name."""
        if name not in self.pools:
            raise Malformed(f"there is no pool {name}")
        return self.pools[name]

    def agree(self, one: Meant, other: Meant) -> bool | None:
        """Whether two contents are the same; `None`: not told."""
        return None if None in (one[0], other[0]) else self._root(one) == self._root(other)

    def _root(self, meant: Meant) -> Meant:
        return self._root(self.same[meant]) if meant in self.same else meant

    # References

    def take(self, event: events.Take) -> None:
        """The allocator hands free pages out; what was in them counts no more."""
        pool = self.pool(event.pool)
        numbers = pool.expand(event.pages)
        if pool.told.keyed:
            raise Malformed(f"pool {event.pool} is a storage: nobody takes its pages")
        for number in numbers:
            page, exists = pool.page(number), number in pool.numbers and number not in pool.told.sinks
            if not exists or page.kind != "free":
                what = f"page {number} is handed out, but {f'is {page.kind}' if exists else 'nobody can have it'}"
                self.find("MEM-TAKE", what, pool, number, event.holder)
            if exists:
                self._unname(pool, number, [*page.keys])
                page.content, page.writers = {}, {}
                self._refer(page, event.holder)
        if event.holder in pool.reserved:
            pool.reserved[event.holder] = max(0, pool.reserved[event.holder] - len(numbers))
        self._check_reserved(pool)

    def share(self, event: events.Share) -> None:
        """One more reference to pages that are in use or published."""
        pool = self.pool(event.pool)
        for number, key in _pairs(pool.expand(event.pages), event.keys):
            page = pool.page(number)
            if page.kind == "free" or (key is not None and key not in page.keys):
                what = f"page {number} is shared, but is {page.kind}, or key {key} does not find it"
                self.find("MEM-SHARE", what, pool, number, event.holder)
            self._refer(page, event.holder, pin=event.pin)
        self._check_reserved(pool)

    def release(self, event: events.Release) -> None:
        """One reference less to each page. After the last one nobody is left to write what a name only plans."""
        pool = self.pool(event.pool)
        for number in pool.expand(event.pages):
            page = pool.page(number)
            references = self._let_go(pool, number, event.holder)
            if references is not None and not page.holders[event.holder]:
                self.check_plans(pool, number, event.holder if references is page.holders else None)

    def pass_on(self, event: events.PassOn) -> None:
        """References change hands; all of them take the tables along."""
        pools = [self.pool(event.pool)] if event.pool is not None or event.pages is not None else self.pools.values()
        for pool in pools:
            all_of_it = [number for number, page in pool.pages.items() if page.holds(event.old)]
            for number in all_of_it if event.pages is None else pool.expand(event.pages):
                page = pool.page(number)
                for _ in range(page.holders[event.old] + page.pins[event.old] if event.pages is None else 1):
                    references = self._let_go(pool, number, event.old)
                    if references is not None:
                        self._refer(page, event.new, pin=references is page.pins)
                written = {key: promise for key, promise in page.keys.items() if promise.writer == event.old}
                if not page.holders[event.old]:
                    page.keys |= {key: promise._replace(writer=event.new) for key, promise in written.items()}
        for table in self.tables.values() if event.pool is None else ():
            table.holder = event.new if table.holder == event.old else table.holder

    def _refer(self, page: PageState, holder: str, *, pin: bool = False) -> None:
        (page.pins if pin else page.holders)[holder] += 1
        self.gone.discard(holder)

    def _let_go(self, pool: PoolState, number: Page, holder: str) -> Counter[str] | None:
        """Take one reference back, and say of which kind it was; a finding if there is none."""
        page = pool.page(number)
        for references in (page.holders, page.pins):
            if references[holder]:
                references[holder] -= 1
                return references
        self.find("MEM-RELEASE", f"page {number} is released by {holder}, who has none", pool, number, holder)
        return None

    def reserve(self, event: events.Reserve) -> None:
        """So many further pages are promised to a holder."""
        if event.pages < 0:
            raise Malformed(f"{event.pages} pages are reserved")
        self.pool(event.pool).reserved[event.holder] = event.pages
        self._check_reserved(self.pool(event.pool))

    def _check_reserved(self, pool: PoolState) -> None:
        """What is promised to holders is free or cached."""
        if pool.reserved and pool.told.num_pages is not None:
            promised, held = sum(pool.reserved.values()), len([*pool.of("held")])
            left = len(pool.numbers) - sum(sink in pool.numbers for sink in pool.told.sinks) - held
            what = f"{promised} pages are promised, {left} are left"
            self._compare("MEM-RESERVE", pool, "reserved", max(0, promised - left), what)

    def leave(self, event: events.Leave) -> None:
        """A holder is gone: nothing of it may be left."""
        self._check_left(event.holder)
        for pool in self.pools.values():
            pool.reserved.pop(event.holder, None)

    def idle(self, event: events.Idle) -> None:
        """The engine is idle: only keepers may hold anything."""
        pages = [page for pool in self.pools.values() for page in pool.pages.values()]
        for holder in sorted({holder for page in pages for holder in +(page.holders + page.pins)}):
            if holder not in self.gone and holder not in event.keepers:
                self._check_left(holder)

    def _check_left(self, holder: str) -> None:
        for pool in self.pools.values():
            kept = [number for number, page in pool.pages.items() if page.holds(holder)]
            if kept:
                self.find("MEM-LEAK", f"{holder} still holds pages {kept}", pool, kept[0], holder)
                self.gone.add(holder)

    def count(self, event: events.Count) -> None:
        """The engine's own figures, or its lists, against what its events add up to. Each difference is told once."""
        pool = self.pool(event.pool)
        used = {number: page.kind for number, page in pool.pages.items() if page.kind != "free"}
        for kind, told in (("free", event.free), ("cached", event.cached), ("held", event.held)):
            listed = Counter(pool.expand(told if isinstance(told, list) else [], most=1 << 62))
            for number, times in listed.items():
                what = f"page {number} is twice in the list of {kind} pages"
                self._compare("MEM-COUNT", pool, f"{kind} {number}", times - 1, what, number)
            wrong = {number: number in listed and its != kind for number, its in used.items()}
            for number, is_wrong in wrong.items() if listed else ():
                what = f"page {number} is in the list of {kind} pages, but is {used[number]}"
                self._compare("MEM-COUNT", pool, f"in {kind} {number}", is_wrong, what, number)
            if told is not None and (kind != "free" or pool.told.num_pages is not None):
                due, right = len([*pool.of(kind)]), told if isinstance(told, int) else len(listed) - sum(wrong.values())
                missing = [number for number in pool.of(kind) if isinstance(told, list) and number not in listed]
                what = f"{right} pages are told to be {kind}, but it is {due}"
                self._compare(
                    "MEM-COUNT", pool, kind, right - due, what, missing[0] if right < due and missing else None
                )
        for number, references in (event.references or {}).items():
            difference = references - (pool.page(number).holders + pool.page(number).pins).total()
            what = f"page {number} is told to have {references} references: {difference} too many"
            self._compare("MEM-COUNT", pool, f"references {number}", difference, what, number)

    def _compare(
        self, rule: str, pool: PoolState, figure: str, difference: int, what: str, page: Page | None = None
    ) -> None:
        """A difference is told when it appears and when it changes."""
        if difference and pool.wrong.get(figure) != difference:
            self.find(rule, what, pool, page)
        pool.wrong[figure] = difference

    def failed(self, event: events.Failed) -> None:
        """The engine gave up: it is the finding."""
        self.find("MEM-FAILED", f"{event.kind}: {event.what}")

    # Names

    def publish(self, event: events.Publish) -> None:
        """Pages can be found by a name from now on: what it promises has to be there, or planned."""
        pool = self.pool(event.pool)
        numbers, slots = pool.expand(event.pages), event.slots or pool.size
        each = -(-slots // pool.unit)
        if event.labels is not None and len(event.labels) != each * len(numbers):
            raise Malformed(f"{len(event.labels)} labels for {len(numbers)} pages with {each} each")
        for index, (number, key) in enumerate(_pairs(numbers, event.keys)):
            assert key is not None
            page, labels = pool.page(number), event.labels and event.labels[index * each : (index + 1) * each]
            meant = pool.meant(labels, slots)
            if page.kind == "free" and not pool.told.keyed:
                self.find("MEM-NAME", f"page {number} is published as key {key}, but it is free", pool, number)
            twin = next((at for name, at in pool.names if name == key), None)
            old = Promise([], planned=True) if twin is None else pool.page(twin).keys[key]
            if not old.planned and any(self.agree(*both) is False for both in zip(old.meant, meant, strict=False)):
                self.find("MEM-NAME", f"key {key} names two contents, in pages {twin} and {number}", pool, number)
            page.keys[key] = Promise(meant, event.planned, event.writer)
            pool.names[key, number] = None
            left = page.kind == "held" if event.writer is None else page.holders[event.writer] > 0
            if not (event.planned and (pool.told.keyed or left)):
                self._check_promise(pool, number, key)

    def drop(self, event: events.Drop) -> None:
        """Names are withdrawn; from a storage, what they name."""
        pool = self.pool(event.pool)
        for number, key in _pairs(pool.expand(event.pages), event.keys):
            page = pool.page(number)
            named = [*page.keys] if key is None else [key] * (key in page.keys)
            if not (named or (pool.told.keyed and page.content)):
                self.find("MEM-NAME", f"{number} is not published, but its name is withdrawn", pool, number)
            self._unname(pool, number, named)
            if pool.told.keyed:
                page.content.clear()

    def _unname(self, pool: PoolState, number: Page, keys: Iterable[str]) -> None:
        for key in keys:
            del pool.page(number).keys[key], pool.names[key, number]

    def _check_promise(self, pool: PoolState, number: Page, key: str) -> None:
        """What a name promises is there, or is queued to be."""
        for slot, want in enumerate(pool.page(number).keys[key].meant):
            found = pool.page(number).content.get(slot)
            if (found is None and pool.told.writes_told) or (found and self.agree(found.meant, want) is False):
                what = f"key {key} finds page {number}, whose slot {slot} holds {found and found.meant[0]}"
                self.find("MEM-NAME", what, pool, number)
                return

    def check_plans(self, pool: PoolState, number: Page, gone: str | None = None) -> None:
        """What the names of a page promise has to be there, if nobody is left to write it: the writer is `gone`.

        Where it is not told who writes, whoever refers to the page may.
        """
        page = pool.page(number)
        for key, promise in page.keys.items():
            if promise.planned and (page.kind != "held" if promise.writer is None else promise.writer == gone):
                self._check_promise(pool, number, key)

    # Tables

    def map(self, event: events.Map) -> None:
        """A holder's table names pages from page index `index` on."""
        pool = self.pool(event.pool)
        table = self.tables.setdefault(event.table, Table(event.holder, pool))
        numbers, labels = pool.expand(event.pages), event.labels or []
        room = len(numbers) * (pool.size // pool.unit) - len(labels)
        if table.pool is not pool or not 0 <= event.index <= len(table.pages) or room < 0:
            raise Malformed(f"table {event.table} cannot name these pages there")
        table.holder = event.holder
        table.pages[event.index : event.index + len(numbers)] = numbers
        table.tell(event.index * pool.size, [*labels, *[None] * room])

    def unmap(self, event: events.Unmap) -> None:
        """A table ends before page index `index`, or has a hole from there on; without pages it is forgotten."""
        if 0 < event.stop < event.index:
            raise Malformed(f"page indices {event.index} to {event.stop} of table {event.table} are gone")
        table = self.tables.get(event.table)
        if table is not None and 0 < event.stop < len(table.pages):
            table.pages[event.index : event.stop] = [HOLE] * (event.stop - event.index)
        elif table is not None:
            del table.pages[event.index :]
            end = event.index * table.pool.size // table.pool.unit
            table.labels = {unit: label for unit, label in table.labels.items() if unit < end}
            if not table.pages:
                del self.tables[event.table]

    def learn(self, event: events.Learn) -> None:
        """Two labels are the same, in their first slots or wholly."""
        for offset in range(event.slots or max(pool.unit for pool in self.pools.values())):
            one, other = self._root((event.label, offset)), self._root((event.same, offset))
            self.same |= {one: other} if one != other else {}


def _pairs(numbers: list[Page], keys: list[str] | None) -> Iterable[tuple[Page, str | None]]:
    """Each page with its key, if they are told."""
    if keys is not None and len(keys) != len(numbers):
        raise Malformed(f"{len(keys)} keys for {len(numbers)} pages")
    return zip(numbers, keys or repeat(None), strict=False)
