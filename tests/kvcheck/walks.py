"""Events that are well-formed, drawn at random; they may break any rule."""

from collections.abc import Iterator
from copy import deepcopy
from random import Random

from kvspec.memory import Pool, events
from kvspec.memory.checker import Checker
from kvspec.memory.events import Event, Page, Pages, Use

HOLDERS, KEYS, LABELS, STREAMS = ("a", "b"), ("k", "l"), ("x", "y", "z"), ("s", "t")
TABLES = {"ta": "kv", "tb": "kv", "tc": "states"}
"""Table -> its pool."""


def pools(random: Random, pages: int) -> dict[str, Pool]:
    """K/V pages of some size, recurrent states, and a storage."""
    size = random.choice((1, 2, 4))
    unit = random.choice([unit for unit in (0, 1, 2, 4) if not unit or size % unit == 0])
    reported, first, padding = random.random() < 0.85, random.choice((0, 1)), random.choice(([], [2]))
    kv = Pool(size, pages, first_page=first, label_size=unit, padding=padding, writes_reported=reported)
    return {"kv": kv, "states": Pool(1, 2, reads_own_writes=False), "disk": Pool(size, label_size=unit, keyed=True)}


class Walk:
    """Draws events; `checker` is what has followed them so far."""

    pages = 4
    """Of K/V, in all."""

    def __init__(self, random: Random, checker: Checker) -> None:
        self.random, self.checker = random, checker
        self.begun = 0

    def event(self) -> Event:
        """One more event: operations more often than the rest."""
        often = (self.begin,) * 8 + (self.take, self.share, self.release, self.map) * 2
        also = (self.publish, self.end, self.deliver) * 2 + (
            self.transfer,
            self.drop,
            self.unmap,
            self.wait,
            self.unify,
        )
        return self.random.choice(often + also + (self.reserve, self.end_holder, self.idle, self.count))()

    def host(self) -> str | None:
        """The process that reports an event."""
        return None

    def holder(self) -> str:
        return self.random.choice(HOLDERS)

    def pool(self, *, keyed: bool = True) -> str:
        return self.random.choice(("kv", "kv", "kv", "states", *["disk"] * keyed))

    def numbers(self, pool: str) -> list[Page]:
        config = self.checker.pools[pool].config
        return ["d", "e"] if config.keyed else [*range(config.first_page, config.first_page + (config.num_pages or 0))]

    def some(self, pool: str) -> Pages:
        return [*self.random.sample(self.numbers(pool), self.random.choice((1, 1, 1, 2)))]

    def real(self, pool: str) -> Pages:
        """No padding among them."""
        return [page for page in self.some(pool) if page not in self.checker.pools[pool].config.padding]

    def keys(self, pages: Pages) -> list[str]:
        return [self.random.choice(KEYS) for _ in pages]

    def units(self, pool: str, start: int, stop: int) -> int:
        unit = self.checker.pools[pool].unit
        return -(-stop // unit) - start // unit if start < stop else 0

    def labels(self, pool: str, start: int, stop: int, reported: float) -> list[str] | None:
        """Now and then none; mostly the first, so that what is meant is often there."""
        labels = [self.random.choice((*LABELS, LABELS[0])) for _ in range(self.units(pool, start, stop))]
        return labels if self.random.random() < reported else None

    def take(self) -> Event:
        pool = self.pool(keyed=False)
        return events.Take(self.holder(), pool, self.some(pool))

    def share(self) -> Event:
        pool = self.pool()
        pages = self.real(pool)
        keys = self.keys(pages) if self.random.random() < 0.3 else None
        return events.Share(self.holder(), pool, pages, keys, pin=self.random.random() < 0.3)

    def release(self) -> Event:
        pool = self.pool()
        return events.Release(self.holder(), pool, self.some(pool))

    def transfer(self) -> Event:
        pool, drawn = self.pool(), self.random.random()
        if drawn < 0.4:
            return events.Transfer(*HOLDERS)
        return events.Transfer(*HOLDERS, pool, None if drawn < 0.6 else self.real(pool))

    def publish(self) -> Event:
        pool = self.pool()
        pages, size = self.real(pool), self.checker.pools[pool].size
        slots = self.random.randint(0, size)
        labels = [self.random.choice(LABELS) for _ in range(self.units(pool, 0, slots or size) * len(pages))]
        planned = self.random.random() < 0.5
        writer = self.random.choice((None, None, *HOLDERS)) if planned else None
        reported = labels if self.random.random() < 0.7 else None
        return events.Publish(pool, pages, self.keys(pages), reported, slots, planned=planned, writer=writer)

    def drop(self) -> Event:
        pool = self.pool()
        pages = self.real(pool)
        return events.Drop(pool, pages, self.keys(pages) if self.random.random() < 0.5 else None)

    def reserve(self) -> Event:
        return events.Reserve(self.holder(), self.pool(keyed=False), self.random.randint(0, 3))

    def end_holder(self) -> Event:
        return events.EndHolder(self.holder())

    def idle(self) -> Event:
        pools = self.random.choice((None, None, ["kv"], ["states", "kv"], []))
        return events.Idle(self.random.sample(HOLDERS, self.random.randint(0, 2)), pools)

    def count(self) -> Event:
        """Figures or lists, mostly wrong ones."""
        pool = self.pool(keyed=False)
        numbers = [number for number in self.numbers(pool) if isinstance(number, int)]

        def figure() -> int | Pages | None:
            few: Pages = [self.random.choice(numbers) for _ in range(self.random.randint(0, 4))]
            return self.random.choice((None, self.random.randint(0, 3), few))

        references = {self.random.choice(numbers): self.random.randint(0, 2)}
        return events.Count(pool, figure(), figure(), figure(), self.random.choice((None, references)))

    def unify(self) -> Event:
        one, other = self.random.sample(LABELS, 2)
        return events.Unify(one, other, self.random.randint(0, 4))

    def there(self, name: str) -> list[Page | None]:
        """The pages of a table; `None`: a hole."""
        return [page.number for page in self.checker.tables[name].pages] if name in self.checker.tables else []

    def map(self) -> Event:
        """A page stands in a table once."""
        name, pool = self.random.choice([*TABLES.items()])
        there = self.there(name)
        index = self.random.randint(0, len(there))
        pages = [page for page in self.some(pool) if page not in there[:index] and page not in there[index + 1 :]]
        pages = [page for page in pages if page not in there or len(pages) == 1]
        labels = self.labels(pool, 0, len(pages) * self.checker.pools[pool].size, reported=0.6)
        return events.Map(name, self.holder(), pool, index, pages, labels)

    def unmap(self) -> Event:
        name = self.random.choice([*TABLES])
        index = self.random.randint(0, len(self.there(name)))
        stop = self.random.randint(index, len(self.there(name))) if self.random.random() < 0.3 else 0
        return events.Unmap(name, index, stop)

    def use(self, *, whole: bool = False) -> Use:
        """Often of what a holder has; `whole`: through no hole."""
        tables = [name for name in TABLES if self.there(name) and not (whole and None in self.there(name))]
        if tables and self.random.random() < 0.4:
            name = self.random.choice(tables)
            start, stop = self.span(TABLES[name], len(self.there(name)))
            return Use(name, start=start, stop=stop, labels=self.labels(TABLES[name], start, stop, reported=0.4))
        pool, holder = self.pool(), self.random.choice((None, *HOLDERS))
        pages = self.some(pool)
        own = [(pool, one) for pool in self.checker.pools for one in HOLDERS if self.holds(pool, one)]
        if own and self.random.random() < 0.7:
            pool, holder = self.random.choice(own)
            pages = [*self.random.sample(held := self.holds(pool, holder), self.random.randint(1, len(held)))]
        start, stop = self.span(pool, len(pages))
        return Use(None, pool, pages, start, stop, self.labels(pool, start, stop, reported=0.6), holder)

    def holds(self, pool: str, holder: str) -> list[Page]:
        pages = self.checker.pools[pool].pages.values()
        return [page.number for page in pages if page.number is not None and page.references[holder, False]]

    def span(self, pool: str, pages: int) -> tuple[int, int]:
        room = pages * self.checker.pools[pool].size
        start, stop = sorted((self.random.randint(0, room), self.random.randint(1, room)))
        return (start, stop) if start < stop and self.random.random() < 0.6 else (0, room)

    def begin(self) -> Event:
        reads, writes = list[Use](), list[Use]()
        for _ in range(self.random.choice((1, 1, 2))):
            use = self.use()
            if self.random.random() < 0.5:
                use.at_most = self.random.random() < 0.1
                writes.append(use)
            else:
                reads.append(use)
        copies = [self.copy() for _ in range(self.random.choice((0, 0, 0, 0, 1, 2)))]
        self.begun += 1
        after: list[int | str] = [self.random.randint(1, self.begun)] if self.random.random() < 0.1 else []
        stream, reads_own_writes = self.random.choice((*STREAMS * 3, "host", None)), self.random.random() < 0.8
        return events.Begin(self.begun, stream, reads, writes, copies, after, reads_own_writes, host=self.host())

    def copy(self) -> tuple[Use, Use]:
        """As many slots as fit, to others or to some of the same; no content that may be forgotten is copied."""
        source, target = self.use(whole=True), self.use(whole=True)
        length = min(source.stop - source.start, target.stop - target.start)
        for use in (source, target):
            use.stop = use.start + length
            if use.labels is not None:
                use.labels = use.labels[: self.units(use.pool or TABLES[use.table or ""], use.start, use.stop)]
        return source, target

    def wait(self) -> Event:
        stream = self.random.choice((*STREAMS, "host"))
        if not self.begun or self.random.random() < 0.5:
            return events.Wait(self.random.choice(STREAMS), on=self.random.choice(STREAMS), host=self.host())
        part: events.Done = self.random.choice(("all", "reads"))
        return events.Wait(stream, self.random.randint(1, self.begun), part=part, host=self.host())

    def end(self) -> Event:
        """Of one of the last operations; now and then it did not write what it meant to write to pages."""
        id = self.random.randint(max(1, self.begun - 4), max(1, self.begun))
        host = self.host()
        if id not in self.checker.order.named or self.random.random() < 0.6:
            return events.End(id, self.random.choice(("all", "all", "reads")), host=host)
        event = self.checker.order.begun[self.checker.order.named[id]]
        written = [use for use in (*event.writes, *(target for _, target in event.copies)) if self.last(id, use, host)]
        unwritten = [Use(None, use.pool, use.pages, use.start, use.stop) for use in written]
        return events.End(id, unwritten=unwritten, host=host)

    def last(self, id: int, use: Use, host: str | None) -> bool:
        """Whether no complete operation wrote to its pages since, or one wrote through a table."""
        if use.pool is None:
            return False
        order, pages = self.checker.order, self.checker.pools[use.pool].expand(use.pages)
        later = {number for page in pages for number, _ in page.writers.values() if number > order.named[id]}
        begun = [order.begun[number] for number in later]
        known = any(one.copies or any(other.table for other in one.writes) for one in begun)
        return all(order.flies(number, host) for number in later) and not known

    def deliver(self) -> Event:
        id = self.random.randint(max(1, self.begun - 4), max(1, self.begun) + (self.random.random() < 0.1))
        return events.Deliver(id, self.holder(), host=self.host())


class Apart(Walk):
    """Three hosts, which learn of each other's operations by messages only."""

    def __init__(self, random: Random, checker: Checker) -> None:
        super().__init__(random, checker)
        self.sent = 0

    def event(self) -> Event:
        """Now and then a message, a third of them with operations, a few of them never sent; or a decision."""
        drawn = self.random.random()
        if drawn < 0.08:
            self.sent += 1
            after: list[int | str] = [self.random.randint(1, self.begun)] if self.begun and drawn < 0.03 else []
            return events.Send(f"m{self.sent}", after, host=self.host())
        if drawn > 0.94:
            what = self.random.choice(("x",) * 24 + ("y",))
            return events.Decide(self.random.choice(("tp", "dp")), what, host=self.host())
        if drawn < 0.18:
            return events.Receive(f"m{self.random.randint(max(0, self.sent - 3), self.sent)}", host=self.host())
        return super().event()

    def host(self) -> str | None:
        """The third one comes late."""
        return self.random.choice((None, None, "p", "p", *["d"] * (self.begun > 6)))


class Announcing(Walk):
    """Two hosts that announce the blocks of two tiers: mostly what names find, and now and then anything else."""

    def __init__(self, random: Random, checker: Checker) -> None:
        super().__init__(random, checker)
        self.known: dict[tuple[str | None, str], dict[str, None]] = {}
        self.numbers_of: dict[str | None, int] = {None: -1, "d": -1}

    def event(self) -> Event:
        """Half of the time names come and go."""
        drawn = self.random.random()
        if drawn < 0.4:
            return self.announce()
        return self.publish() if drawn < 0.6 else self.drop() if drawn < 0.75 else super().event()

    def announce(self) -> Event:
        """Blocks that are not announced yet, or are found no more; sometimes wrongly, or in a batch out of order."""
        pool, host = self.random.choice(("kv", "disk")), self.random.choice((None, None, "d"))
        tier = self.random.choice(("GPU", "CPU")) if self.random.random() < 0.1 else {"kv": "GPU", "disk": "CPU"}[pool]
        known, names = self.known.setdefault((host, tier), {}), self.checker.names(pool)
        stored, removed = [key for key in names if key not in known], [key for key in known if key not in names]
        if self.random.random() < 0.2:
            stored, removed = self.random.sample(KEYS, self.random.randint(0, 2)), self.random.sample(KEYS, 1)
        cleared = self.random.random() < 0.1
        if cleared:
            known.clear()
        for key in removed:
            known.pop(key, None)
        known |= dict.fromkeys(stored)
        labels = [
            self.random.choice(LABELS) for _ in range(self.units(pool, 0, self.checker.pools[pool].size) * len(stored))
        ]
        labels = labels[self.random.random() < 0.1 :]
        parent = self.random.choice((None, None, None, *KEYS)) if stored else None
        whole = pool if self.random.random() < 0.6 else None
        reported = labels if self.random.random() < 0.4 else None
        return events.Announce(tier, stored, parent, reported, removed, cleared, whole, self.number(host), host=host)

    def number(self, host: str | None) -> int | None:
        """Most often the next one, if any."""
        drawn = self.random.random()
        if drawn < 0.6:
            return None
        off = 0 if drawn < 0.85 else self.random.randint(-3, 2)
        number = max(0, self.numbers_of[host] + 1 + off)
        self.numbers_of[host] = max(self.numbers_of[host], number) if number else 0
        return number


class Decoding(Walk):
    """Mostly requests that decode: a table grows by a position at each step. Now and then anything else happens."""

    def __init__(self, random: Random, checker: Checker) -> None:
        super().__init__(random, checker)
        self.ends = {"ta": 0, "tb": 0}
        self.due: list[Event] = []

    def event(self) -> Event:
        """Most often a decode step."""
        if self.due:
            return self.due.pop()
        return super().event() if self.random.random() < 0.15 else self.step()

    def step(self) -> Event:
        """One more position for a request; a page first, if it needs one, and a new request after the last one."""
        name, pool = self.random.choice([*self.ends]), self.checker.pools["kv"]
        holder, there, end = HOLDERS[[*self.ends].index(name)], self.there(name), self.ends[name]
        taken = {page.number for table in self.checker.tables.values() for page in table.pages} | {*pool.config.padding}
        free = [page for page in self.numbers("kv") if page not in taken]
        if end < len(there) * pool.size:
            self.ends[name] = end + 1
            self.begun += 1
            write = Use(name, start=end, stop=end + 1)
            return events.Begin(self.begun, STREAMS[0], [Use(name, stop=end + 1)], [write])
        if free:
            page = self.random.choice(free)
            labels = [f"{holder}{self.begun}.{unit}" for unit in range(pool.size // pool.unit)]
            self.due.append(events.Map(name, holder, "kv", len(there), [page], labels))
            return events.Take(holder, "kv", [page])
        self.ends[name] = 0
        self.due += [events.Release(holder, "kv", [page]) for page in there if page is not None]
        return events.Unmap(name)


class Together(Walk):
    """Mostly requests that take, fill, publish and let go of several pages at once, and find what others published."""

    pages = 9

    def __init__(self, random: Random, checker: Checker) -> None:
        super().__init__(random, checker)
        self.due: dict[str, list[Event]] = {"ta": [], "tb": []}
        self.cached: dict[Page, str] = {}
        """Page -> the key under which an orderly request left it."""

    def some(self, pool: str) -> Pages:
        """Now and then a few that follow one another."""
        return [*self.run(self.numbers(pool))] if self.random.random() < 0.3 else super().some(pool)

    def run(self, pages: list[Page]) -> list[Page]:
        first = self.random.randint(0, len(pages))
        return pages[first : first + self.random.randint(0, 4)] or pages[:1]

    def event(self) -> Event:
        """Most often what comes next for a request."""
        name = self.random.choice([*self.due])
        if self.random.random() < 0.1:
            return super().event()
        due = self.due[name] = self.due[name] or [*self.request(name, HOLDERS[[*self.due].index(name)])]
        if not due:
            return super().event()
        event = self.mixed(due)
        if isinstance(event, events.Map) and self.there(name):
            due.insert(0, event)
            return events.Unmap(name)
        if isinstance(event, events.Begin):
            if any(
                use.stop > len(self.there(name)) * self.checker.pools["kv"].size
                for use in (*event.reads, *event.writes)
            ):
                return super().event()  # anything has happened to the table since
            self.begun += 1
            event.id = self.begun
            if self.random.random() < 0.5:
                due.insert(0, events.End(self.begun))
        return event

    def mixed(self, due: list[Event]) -> Event:
        """The next event that is due; now and then too early, once more later, or not as it should be."""
        chance = self.random.random()
        if chance < 0.07:
            due.insert(0, due.pop(self.random.randrange(min(3, len(due)))))
        elif chance < 0.14:
            due.insert(self.random.randint(1, len(due)), self.tainted(deepcopy(due[0])))
        return self.tainted(due.pop(0)) if chance > 0.9 else due.pop(0)

    def tainted(self, event: Event) -> Event:
        """An event of several pages with other names, labels, or a page twice; or as it is."""
        how = self.random.randrange(4)
        if how == 0 and isinstance(event, events.Publish | events.Map):
            event.labels = [*reversed(event.labels or [])]
        elif how == 1 and isinstance(event, events.Share | events.Publish | events.Drop):
            event.keys = [*reversed(event.keys or [])] or event.keys
        elif how == 2 and isinstance(event, events.Publish):
            event.keys = [f"{key}+" for key in event.keys]
        elif how == 3 and isinstance(event, events.Take | events.Release) and event.pages:
            event.pages = [*event.pages, event.pages[0]]
        elif how == 3 and isinstance(event, events.Share):
            event.keys = None
        elif isinstance(event, events.Take | events.Release | events.Share):
            event.holder = self.holder()
        return event

    def request(self, name: str, holder: str) -> Iterator[Event]:
        """All of a request, and what is evicted after it."""
        size, unit = self.checker.pools["kv"].size, self.checker.pools["kv"].unit
        units, stream, found = size // unit, STREAMS[self.random.random() < 0.2], list[Page]()
        if self.cached and self.random.random() < 0.5:
            found = self.run([*self.cached])
        keys = [self.cached[page] for page in found]
        used = {page.number for table in self.checker.tables.values() for page in table.pages}
        used |= {*self.checker.pools["kv"].config.padding}
        used |= {*found} if self.random.random() < 0.1 else {*found, *self.cached}
        new = self.run([page for page in self.numbers("kv") if page not in used])
        labels = [f"{key}.{part}" for key in [*keys, *(f"{holder}{page}" for page in new)] for part in range(units)]
        if not (found or new):
            return
        if found:
            yield events.Share(holder, "kv", [*found], keys)
        for page in new:
            self.cached.pop(page, None)
        yield events.Take(holder, "kv", [*new])
        yield events.Map(name, holder, "kv", 0, [*found, *new], labels)
        start, stop = len(found) * size, (len(found) + len(new)) * size - (bool(new) and self.random.random() < 0.3)
        reported = self.random.choice((None, labels))
        if self.random.random() < 0.1 and stop:
            yield events.Begin(0, self.random.choice(STREAMS), [Use(name, stop=stop)])
        middle = self.random.choice((start, start + size, self.random.randint(start, max(start, stop))))
        for first, last in ((start, min(middle, stop)), (min(middle, stop), stop)):
            if first < last:
                part = reported and reported[first // unit : -(-last // unit)]
                yield events.Begin(0, stream, [Use(name, stop=last)], [Use(name, None, [], first, last, part)])
        skipped = self.random.choice((0, 0, 1))
        full = new[skipped : max(0, stop // size - len(found))]
        names = [f"{holder}{page}" for page in full]
        if self.random.random() < 0.8 and full:
            yield events.Publish("kv", [*full], names, labels[(len(found) + skipped) * units :][: len(full) * units])
            self.cached.update(zip(full, names, strict=True))
        yield events.Begin(0, self.random.choice(STREAMS), [Use(name, stop=stop)] if stop else [])
        parts = [found, new] if self.random.random() < 0.8 else [[*found, *new[:1]], new[1:]]
        if self.random.random() < 0.2:
            yield events.Unmap(name, self.random.randint(0, len(found) + len(new)))
        gone: list[Event] = [events.Unmap(name), *(events.Release(holder, "kv", [*pages]) for pages in parts)]
        yield from gone if self.random.random() < 0.8 else reversed(gone)
        if self.cached and self.random.random() < 0.6:
            out = self.run([*self.cached])
            names = [self.cached.pop(page) for page in out]
            yield events.Drop("kv", [*out], names if self.random.random() < 0.7 else None)
