"""The law finds what a checker finds that looks at every slot at every read, and nothing else."""

from collections import Counter
from random import Random

import pytest

from kvlaw import Law
from kvspec.memory import Pool, events
from kvspec.memory.events import Event, Use
from tests.spec.memory.naive import HOLE, Naive

PAGES, HOLDERS, KEYS, LABELS = (1, 2, 3), ("a", "b"), ("k", "l"), ("x", "y", "z")
TABLES, STREAMS = ("ta", "tb"), ("s", "t")
POOLS = {
    "a label for each slot": Pool(2, len(PAGES), label_size=1),
    "a label for a page": Pool(2, len(PAGES)),
    "a label for two slots": Pool(4, len(PAGES), label_size=2),
}

FORGOTTEN = dict.fromkeys(("MEM-WRITTEN", "MEM-CONTENT", "MEM-NAME", "MEM-OVERWRITE"), "") | {"MEM-REWRITE": "MEM-RACE"}
"""What is not compared of a page that is free, whose content may be forgotten."""
EACH = {f"MEM-{rule}" for rule in ("NAME", "ORDER", "OVERWRITE", "RACE", "RELEASE", "REWRITE", "SHARE", "TAKE", "USE")}
EACH |= {"MEM-WRITTEN", "MEM-CONTENT", "told once"}
"""What walks find, but for those that mostly decode."""


class Writer:
    """Draws events that are well-formed; whether they are allowed is nobody's business."""

    def __init__(self, random: Random, pool: Pool) -> None:
        self.random, self.pool = random, pool
        self.unit = pool.label_size or pool.page_size
        self.tables: dict[str, list[int]] = {}
        self.begun = 0

    def event(self) -> Event:
        """One more event: operations more often than the rest."""
        often = (self.begin,) * 6 + (self.take, self.share, self.release, self.map) * 2
        now_and_then = (self.pass_on, self.publish, self.drop, self.unmap, self.wait, self.end, self.learn)
        return self.random.choice(often + now_and_then)()

    def holder(self) -> str:
        return self.random.choice(HOLDERS)

    def some(self) -> list[int]:
        return self.random.sample(PAGES, self.random.choice((1, 1, 1, 2)))

    def labels(self, start: int, stop: int) -> list[str] | None:
        """Now and then none; mostly the first, so that what is meant is often there."""
        units = range(start // self.unit, -(-stop // self.unit)) if stop > start else ()
        return [self.random.choice((*LABELS, LABELS[0])) for _ in units] if self.random.random() < 0.6 else None

    def take(self) -> Event:
        return events.Take(self.holder(), "kv", [*self.some()])

    def share(self) -> Event:
        pages = self.some()
        keys = [self.random.choice(KEYS) for _ in pages] if self.random.random() < 0.3 else None
        return events.Share(self.holder(), "kv", [*pages], keys, pin=self.random.random() < 0.3)

    def release(self) -> Event:
        return events.Release(self.holder(), "kv", [*self.some()])

    def pass_on(self) -> Event:
        whole = self.random.random() < 0.5
        return events.PassOn(*HOLDERS) if whole else events.PassOn(*HOLDERS, "kv", [*self.some()])

    def publish(self) -> Event:
        pages, slots = self.some(), self.random.randint(0, self.pool.page_size)
        each = -(-(slots or self.pool.page_size) // self.unit)
        labels = [self.random.choice(LABELS) for _ in range(each * len(pages))] if self.random.random() < 0.7 else None
        keys = [self.random.choice(KEYS) for _ in pages]
        planned = self.random.random() < 0.5
        writer = self.random.choice((None, None, *HOLDERS)) if planned else None
        return events.Publish("kv", [*pages], keys, labels, slots, planned=planned, writer=writer)

    def drop(self) -> Event:
        pages = self.some()
        return events.Drop(
            "kv", [*pages], [self.random.choice(KEYS) for _ in pages] if self.random.random() < 0.5 else None
        )

    def map(self) -> Event:
        """A page stands in a table once."""
        table = self.random.choice(TABLES)
        there = self.tables.get(table, [])
        index = self.random.randint(0, len(there))
        pages = [page for page in self.some() if page not in there[:index] and page not in there[index + 1 :]]
        pages = [page for page in pages if page not in there or len(pages) == 1]
        self.tables[table] = there[:index] + pages + there[index + len(pages) :]
        labels = self.labels(0, len(pages) * self.pool.page_size)
        return events.Map(table, self.holder(), "kv", index, [*pages], labels)

    def unmap(self) -> Event:
        table = self.random.choice(TABLES)
        there = self.tables.pop(table, [])
        index = self.random.randint(0, len(there))
        stop = self.random.randint(index, len(there)) if self.random.random() < 0.3 else 0
        if 0 < stop < len(there):
            self.tables[table] = there[:index] + [HOLE] * (stop - index) + there[stop:]
        elif index:
            self.tables[table] = there[:index]
        return events.Unmap(table, index, stop)

    def use(self) -> Use:
        table = self.random.choice(TABLES)
        pages = self.some()
        through = bool(self.tables.get(table)) and self.random.random() < 0.75
        room = (len(self.tables[table]) if through else len(pages)) * self.pool.page_size
        start, stop = sorted((self.random.randint(0, room), self.random.randint(1, room)))
        if start == stop:
            start, stop = 0, room
        labels = self.labels(start, stop) if self.random.random() < 0.4 else None
        if through:
            return Use(table, start=start, stop=stop, labels=labels)
        return Use(None, "kv", [*pages], start, stop, labels, self.random.choice((None, *HOLDERS)))

    def begin(self) -> Event:
        writes, reads = [], []
        for _ in range(self.random.choice((1, 1, 2))):
            use = self.use()
            if self.random.random() < 0.5:
                use.may = self.random.random() < 0.1
                writes.append(use)
            else:
                reads.append(use)
        copies = [self.copy()] if self.random.random() < 0.15 else []
        self.begun += 1
        after: list[int | str] = [self.random.randrange(self.begun)] if self.random.random() < 0.1 else []
        return events.Begin(
            self.begun,
            self.random.choice((*STREAMS * 3, "host", None)),
            reads,
            writes,
            copies,
            after=[id for id in after if id],
            sees_own=self.random.random() < 0.8,
        )

    def copy(self) -> tuple[Use, Use]:
        """As many slots as fit, to others or to some of the same; through no hole."""
        source, target = self.whole(), self.whole()
        length = min(source.stop - source.start, target.stop - target.start)
        for use in (source, target):
            use.stop = use.start + length
            if use.labels is not None:
                use.labels = use.labels[: -(-use.stop // self.unit) - use.start // self.unit]
        return source, target

    def whole(self) -> Use:
        """A use of what has no hole."""
        while (use := self.use()).table is not None and HOLE in self.tables[use.table]:
            pass
        return use

    def wait(self) -> Event:
        if not self.begun or self.random.random() < 0.5:
            return events.Wait(self.random.choice(STREAMS), on=self.random.choice(STREAMS))
        id = self.random.randint(1, self.begun)
        return events.Wait(self.random.choice(STREAMS), id, part=self.random.choice(("all", "reads")))

    def end(self) -> Event:
        return (
            events.End(self.random.randint(1, self.begun), self.random.choice(("all", "all", "reads")))
            if self.begun
            else self.take()
        )

    def learn(self) -> Event:
        one, other = self.random.sample(LABELS, 2)
        return events.Learn(one, other, self.random.randint(0, self.unit))


class Decoding(Writer):
    """Mostly requests that decode: a table grows by a position at each step. Now and then anything else happens."""

    def __init__(self, random: Random, pool: Pool) -> None:
        super().__init__(random, pool)
        self.ends = dict.fromkeys(TABLES, 0)
        self.due: list[Event] = []

    def event(self) -> Event:
        """Most often a decode step."""
        if self.due:
            return self.due.pop()
        return super().event() if self.random.random() < 0.15 else self.step()

    def step(self) -> Event:
        """One more position for a request; a page first, if it needs one, and a new request after the last one."""
        table = self.random.choice(TABLES)
        holder, there, end = HOLDERS[TABLES.index(table)], self.tables.get(table, []), self.ends[table]
        free = [page for page in PAGES if not any(page in pages for pages in self.tables.values())]
        if end < len(there) * self.pool.page_size:
            self.ends[table] = end + 1
            self.begun += 1
            return events.Begin(
                self.begun, STREAMS[0], [Use(table, stop=end + 1)], [Use(table, start=end, stop=end + 1)]
            )
        if free:
            page = self.random.choice(free)
            self.tables[table] = [*there, page]
            labels = [f"{holder}{self.begun}.{unit}" for unit in range(self.pool.page_size // self.unit)]
            self.due.append(events.Map(table, holder, "kv", len(there), [page], labels))
            return events.Take(holder, "kv", [page])
        self.tables.pop(table, None)
        self.ends[table] = 0
        self.due += [events.Release(holder, "kv", [page]) for page in there if page != HOLE]
        return events.Unmap(table)


def disagreements(
    random: Random, pool: Pool, steps: int, reached: Counter[str] | None = None, writes: type[Writer] = Writer
) -> list[str]:
    """What only one of the two finds, behind the events up to there."""
    law, naive, writer = Law({"kv": pool}), Naive(pool), writes(random, pool)

    def compared(rule: str, page: object) -> tuple[str, object]:
        """Of a free page only who uses it is told for certain."""
        forgettable = isinstance(page, int) and naive.pages[page].forgettable
        return FORGOTTEN.get(rule, rule) if forgettable else rule, page

    trace: list[str] = []
    for _ in range(steps):
        event = writer.event()
        if isinstance(event, events.Begin):  # what is forgotten of a free page is not copied to others
            event.copies = [pair for pair in event.copies if not naive.may_forget(pair[0])]
        trace.append(repr(event))
        seen = naive.step(event)
        due = {compared(found.rule, found.page) for found in seen if not found.again}
        allowed = {compared(found.rule, found.page) for found in seen}
        found = {compared(finding.rule, finding.page) for finding in law.step(event)}
        due, found = ({(rule, page) for rule, page in some if rule} for some in (due, found))
        if reached is not None:
            reached.update(rule for rule, _ in due & found)
            reached["told once"] += len(allowed - found)
        if not due <= found <= allowed:
            return [*trace, f"only the law finds {found - allowed}, only the slow one {due - found}"]
    return []


def shortest(pool: Pool, writes: type[Writer], walks: int, steps: int) -> list[str]:
    """Of so many walks the one on which the two disagree first."""
    reached = Counter[str]()
    traces = [disagreements(Random(seed), pool, steps, reached, writes) for seed in range(walks)]
    assert writes is Decoding or reached.keys() >= EACH, EACH - reached.keys()
    return min(traces, key=_when)


def _when(trace: list[str]) -> int:
    return len(trace) or 1 << 62


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_the_law_finds_what_looking_at_every_slot_finds(pool: Pool) -> None:
    assert shortest(pool, Writer, walks=120, steps=40) == []


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
def test_decode_steps_are_judged_as_if_every_slot_were_looked_at(pool: Pool) -> None:
    larger = Pool(4, len(PAGES), label_size=pool.label_size)
    assert shortest(larger, Decoding, walks=60, steps=60) == []
