"""The law once more, as slowly and as plainly as can be: slot by slot, and every read looked at afresh.

What the law does for speed is not here: intervals, vector clocks, views of tables, uses that are forgotten. Order is a
graph of what happens before what, searched each time.
"""

from collections import Counter
from collections.abc import Generator, Iterator
from itertools import count
from typing import Any, NamedTuple

from kvspec.memory import events
from kvspec.memory.events import Event, Use

MISSING = ("never written", 0)
UNTOLD = ("untold", 0)
HOLE = 0
"""Stands in a table for a page that it names no longer."""
Slot = tuple[str, int]
"""A label and the offset in it."""


class Told(NamedTuple):
    """What is found: a rule, the page, and whether it may have been told of this table before."""

    rule: str
    page: int | None
    again: bool = False


class Order:
    """What happens before what: nodes and their successors."""

    def __init__(self) -> None:
        self.later: dict[int, set[int]] = {}
        self.numbers = count()
        self.fronts: dict[str, set[int]] = {"host": set()}
        """Stream -> what the next operation there comes after."""
        self.read: dict[int, int] = {}
        """Operation -> the moment when it has read."""
        self.done: dict[int, int] = {}
        self.flying: set[int] = set()

    def node(self, *earlier: int) -> int:
        number = next(self.numbers)
        for other in earlier:
            self.later.setdefault(other, set()).add(number)
        return number

    def before(self, one: int, other: int) -> bool:
        todo, seen = [one], {one}
        while todo:
            at = todo.pop()
            if at == other:
                return True
            todo += self.later.get(at, set()) - seen
            seen |= self.later.get(at, set())
        return False

    def begin(self, event: events.Begin) -> int:
        """The moment when the operation starts."""
        front = self.fronts["host"] | (set() if event.stream is None else self.fronts.setdefault(event.stream, set()))
        start = self.node(*front, *(self.done[int(id)] for id in event.after))
        self.read[int(event.id)] = self.node(start)
        self.done[int(event.id)] = self.node(self.read[int(event.id)])
        if event.stream is not None:
            self.fronts[event.stream] = {self.done[int(event.id)]}
        if event.stream != "host":
            self.flying.add(int(event.id))
        return start

    def wait(self, event: events.Wait) -> None:
        front = self.fronts.setdefault(event.stream, set())
        if event.id is not None:
            front.add((self.done if event.part == "all" else self.read)[int(event.id)])
        front |= self.fronts.get(event.on or "", set())

    def end(self, event: events.End) -> None:
        self.fronts["host"].add((self.done if event.part == "all" else self.read)[int(event.id)])

    def seen(self, id: int) -> bool:
        return any(self.before(self.done[id], moment) for moment in self.fronts["host"])


class Promise(NamedTuple):
    """What the first slots are promised to hold, whether that is only planned, and by whom, if that is told."""

    meant: list[Slot]
    planned: bool
    writer: str | None


class Page:
    """One page."""

    def __init__(self, size: int) -> None:
        self.holders: Counter[str] = Counter()
        self.pins: Counter[str] = Counter()
        self.keys: dict[str, Promise] = {}
        self.content = [MISSING] * size
        self.writes: list[list[int]] = [[] for _ in range(size)]
        """Slot -> when it was written."""
        self.reads: list[list[int]] = [[] for _ in range(size)]
        self.forgettable = False
        """It was free and was not handed out since: the law need not remember what is in it."""

    @property
    def kind(self) -> str:
        return "held" if self.holders or self.pins else "cached" if self.keys else "free"


class Table:
    """One table: for each position the page, the slot, and what it means."""

    def __init__(self, holder: str) -> None:
        self.holder = holder
        self.pages: list[int] = []
        self.meant: list[Slot] = []


class Naive:
    """The law over one pool named kv."""

    def __init__(self, pool: events.Pool) -> None:
        self.pool, self.size, self.unit = pool, pool.page_size, pool.label_size or pool.page_size
        self.order = Order()
        assert pool.num_pages is not None
        self.pages = {number: Page(self.size) for number in range(1, pool.num_pages + 1)}
        self.tables: dict[str, Table] = {}
        self.equal: dict[Slot, Slot] = {}
        self.named: dict[tuple[str, int], int] = {}
        """Which key found which page, in the order in which they were published: some may be dropped since."""
        self.writes: list[Use] = []
        """Of the operation at hand."""
        self.written: set[int] = set()
        """The pages that it has written so far."""
        self.open: set[tuple[object, ...]] = set()
        """What was found wrong at the last read of a position through a table, by stream."""

    def step(self, event: Event) -> set[Told]:
        step: Any = getattr(self, type(event).__name__.lower())
        found = set(step(event))
        for page in self.pages.values():
            page.forgettable = page.forgettable or page.kind == "free"
        return found

    # Holding

    def take(self, event: events.Take) -> Iterator[Told]:
        for number in event.pages:
            page = self._page(number)
            if page.kind != "free":
                yield Told("MEM-TAKE", self._number(number))
            page.keys.clear()
            page.forgettable = False
            page.content = [MISSING] * self.size
            page.holders[event.holder] += 1

    def share(self, event: events.Share) -> Iterator[Told]:
        for index, number in enumerate(event.pages):
            page = self._page(number)
            if page.kind == "free" or (event.keys and event.keys[index] not in page.keys):
                yield Told("MEM-SHARE", self._number(number))
            (page.pins if event.pin else page.holders)[event.holder] += 1

    def release(self, event: events.Release) -> Iterator[Told]:
        for number in event.pages:
            page = self._page(number)
            references = self._let_go(page, event.holder)
            last = references is page.holders and event.holder not in page.holders
            if references is None:
                yield Told("MEM-RELEASE", self._number(number))
            elif not all(
                self._kept(page, key)
                for key, promise in page.keys.items()
                if (page.kind == "cached" if promise.writer is None else last and promise.writer == event.holder)
            ):
                yield Told("MEM-NAME", self._number(number))

    def passon(self, event: events.PassOn) -> Iterator[Told]:
        if event.pages is not None:
            for number in event.pages:
                page = self._page(number)
                gone = self._let_go(page, event.old)
                if gone is None:
                    yield Told("MEM-RELEASE", self._number(number))
                else:
                    gone[event.new] += 1
                if event.old not in page.holders:
                    self._write_instead(page, event)
            return
        for page in self.pages.values():
            if event.old in page.holders or event.old in page.pins:
                self._write_instead(page, event)
            for references in (page.holders, page.pins):
                references[event.new] += references.pop(event.old, 0)
                references += Counter()
        for table in self.tables.values():
            if table.holder == event.old:
                table.holder = event.new

    def _write_instead(self, page: Page, event: events.PassOn) -> None:
        for key, promise in page.keys.items():
            if promise.writer == event.old:
                page.keys[key] = promise._replace(writer=event.new)

    def publish(self, event: events.Publish) -> Iterator[Told]:
        slots = event.slots or self.size
        each = -(-slots // self.unit)
        for index, (number, key) in enumerate(zip(event.pages, event.keys, strict=True)):
            page = self._page(number)
            labels = None if event.labels is None else event.labels[index * each : (index + 1) * each]
            promised = [self._label(labels, slot) for slot in range(slots)]
            self.named = {name: at for name, at in self.named.items() if name[0] in self.pages[name[1]].keys}
            old, was_planned, _ = next(
                (self.pages[at].keys[key] for name, at in self.named.items() if name[0] == key), ([], True, None)
            )
            unlike = not was_planned and any(self._differ(a, b) for a, b in zip(old, promised, strict=False))
            wrong = page.kind == "free"
            late = event.planned and (page.kind == "held" if event.writer is None else event.writer in page.holders)
            page.keys[key] = Promise(promised, event.planned, event.writer)
            self.named[key, self._number(number)] = self._number(number)
            if wrong or unlike or not (late or self._kept(page, key, planned=False)):
                yield Told("MEM-NAME", self._number(number))

    def drop(self, event: events.Drop) -> Iterator[Told]:
        for index, number in enumerate(event.pages):
            page = self._page(number)
            named = list(page.keys) if event.keys is None else [event.keys[index]]
            if not named or any(page.keys.pop(key, None) is None for key in named):
                yield Told("MEM-NAME", self._number(number))

    def leave(self, event: events.Leave) -> Iterator[Told]:
        held = [n for n, page in self.pages.items() if event.holder in page.holders or event.holder in page.pins]
        if held:
            yield Told("MEM-LEAK", None)

    # Tables

    def map(self, event: events.Map) -> Iterator[Told]:
        table = self.tables.setdefault(event.table, Table(event.holder))
        table.holder = event.holder
        table.pages[event.index : event.index + len(event.pages)] = [self._number(page) for page in event.pages]
        start = event.index * self.size
        labels: list[str | None] = [*(event.labels or [])]
        labels += [None] * (len(event.pages) * (self.size // self.unit) - len(labels))
        meant = [self._label(labels, slot) for slot in range(len(event.pages) * self.size)]
        table.meant[start : start + len(meant)] = meant
        yield from ()

    def unmap(self, event: events.Unmap) -> Iterator[Told]:
        if event.table in self.tables:
            table = self.tables[event.table]
            if 0 < event.stop < len(table.pages):
                table.pages[event.index : event.stop] = [HOLE] * (event.stop - event.index)
            else:
                del table.pages[event.index :], table.meant[event.index * self.size :]
            if not table.pages:
                del self.tables[event.table]
        yield from ()

    def learn(self, event: events.Learn) -> Iterator[Told]:
        for offset in range(event.slots or self.unit):
            self.equal[self._root((event.label, offset))] = self._root((event.same, offset))
        yield from ()

    # Operations

    def begin(self, event: events.Begin) -> Iterator[Told]:
        id, start = int(event.id), self.order.begin(event)
        self.writes, self.written = event.writes, set()
        reads = [self._read(id, start, use, event.stream) for use in event.reads]
        writes = [self._write(id, start, use, event.stream) for use in event.writes]
        for told in (*writes, *reads) if event.sees_own else reads:
            yield from told
        if event.sees_own:
            for source, target in event.copies:
                yield from self._put(id, start, target, (yield from self._gather(id, start, source)))
        else:
            carried = []
            for source, _ in event.copies:
                carried.append((yield from self._gather(id, start, source)))
            for told in writes:
                yield from told
            for (_, target), slots in zip(event.copies, carried, strict=True):
                yield from self._put(id, start, target, slots)

    def wait(self, event: events.Wait) -> Iterator[Told]:
        self.order.wait(event)
        yield from ()

    def end(self, event: events.End) -> Iterator[Told]:
        if int(event.id) not in self.order.flying:
            yield Told("MEM-ORDER", None)
            return
        self.order.end(event)
        if event.part == "all":
            self.order.flying.discard(int(event.id))

    def _slots(self, use: Use) -> list[tuple[int, int, Slot, int]]:
        """Page, slot, what it is meant to hold, and position."""
        if use.table is not None:
            table = self.tables[use.table]
            pages = table.pages
        else:
            table, pages = None, [self._number(page) for page in use.pages]
        stop, out = use.stop or len(pages) * self.size, []
        for position in range(use.start, stop):
            if use.labels is not None:
                meant = use.labels[position // self.unit - use.start // self.unit], position % self.unit
            else:
                meant = UNTOLD if table is None else table.meant[position]
            out.append((pages[position // self.size], position % self.size, meant, position))
        return out

    def _read(self, id: int, start: int, use: Use, stream: str | None, *, copied: bool = False) -> Iterator[Told]:
        """What is `copied` may be missing where the copy does not say what it means to find in a page."""
        holder = self.tables[use.table].holder if use.table else use.holder
        cached = use.table is not None and use.labels is None and not copied
        slots = self._slots(use)
        first = {number: meant for number, _, meant, _ in reversed(slots)}
        carried = {number for number, meant in first.items() if copied and meant == UNTOLD}
        for number, slot, meant, position in slots:
            if number == HOLE:
                place = use.table, stream, position, number, "MEM-USE"
                yield Told("MEM-USE", None, cached and place in self.open)
                self.open.add(place)
                continue
            page = self.pages[number]
            found = page.content[slot]
            wrong = {
                "MEM-USE": not self._holds(page, holder),
                "MEM-RACE": any(
                    when != self.order.done[id] and not self.order.before(when, start) for when in page.writes[slot]
                ),
                "MEM-WRITTEN": found == MISSING and number not in carried,
                "MEM-CONTENT": found != MISSING and self._differ(found, meant),
            }
            for rule, is_wrong in wrong.items():
                place = use.table, stream, position, number, rule
                if is_wrong:
                    yield Told(rule, number, cached and place in self.open)
                if cached:
                    (self.open.add if is_wrong else self.open.discard)(place)
            page.reads[slot].append(self.order.read[id])

    def _gather(self, id: int, start: int, source: Use) -> Generator[Told, None, list[Slot]]:
        """What a copy takes along, slot by slot."""
        yield from self._read(id, start, source, None, copied=True)
        return [self.pages[number].content[slot] for number, slot, *_ in self._slots(source)]

    def _put(self, id: int, start: int, target: Use, carried: list[Slot]) -> Iterator[Told]:
        """Where nothing was written, nothing is in the target either."""
        if target.labels is not None:
            carried = [meant for _, _, meant, _ in self._slots(target)]
        yield from self._write(id, start, target, None, carried)

    def _write(
        self, id: int, start: int, use: Use, stream: str | None, carried: list[Slot] | None = None
    ) -> Iterator[Told]:
        """Write what is meant, or what was `carried` there."""
        holder = self.tables[use.table].holder if use.table else use.holder
        slots = self._slots(use)
        if carried is not None:
            slots = [(*one[:2], slot, one[3]) for one, slot in zip(slots, carried, strict=True)]
        for number in dict.fromkeys(number for number, *_ in slots):
            if number == HOLE:
                yield Told("MEM-USE", None)
                self._told(use, stream, number, slots, "MEM-USE")
                continue
            page = self.pages[number]
            new = {slot: UNTOLD if use.may else meant for at, slot, meant, _ in slots if at == number}
            if not self._holds(page, holder):
                yield Told("MEM-USE", number)
                self._told(use, stream, number, slots, "MEM-USE")
            if any(
                self._kept_from_a_copy(page, slot)
                if label == MISSING
                else self._guarded(page, slot) and self._differ(page.content[slot], label)
                for slot, label in new.items()
            ):
                yield Told("MEM-OVERWRITE", number)
            if any(
                when not in (self.order.done[id], self.order.read[id]) and not self.order.before(when, start)
                for slot in new
                for when in page.writes[slot] + page.reads[slot]
            ):
                same = all(self._same(page.content[slot], label) for slot, label in new.items())
                yield Told("MEM-REWRITE" if same else "MEM-RACE", number)
                self._told(use, stream, number, slots, "MEM-RACE")
            told_new = {slot: label for slot, label in new.items() if label != MISSING}
            if number in self.written and any(self._differ(page.content[slot], told_new[slot]) for slot in told_new):
                told = [one for other in self.writes if not other.may for one in self._slots(other)]
                if any(at == number and self._differ(meant, told_new.get(slot, UNTOLD)) for at, slot, meant, _ in told):
                    yield Told("MEM-RACE", number)
            self.written.add(number)
            for slot, label in new.items():
                page.content[slot] = label
                page.writes[slot].append(self.order.done[id])
        if use.table is not None and use.labels is not None and carried is None:
            table = self.tables[use.table]
            for unit, name in enumerate(use.labels, use.start // self.unit):
                for offset in range(self.unit):
                    table.meant[unit * self.unit + offset] = name, offset

    def may_forget(self, use: Use) -> bool:
        """Whether the law need not remember all that is in the slots of a use."""
        return any(self.pages[number].forgettable for number, *_ in self._slots(use))

    def _told(
        self, use: Use, stream: str | None, number: int, slots: list[tuple[int, int, Slot, int]], rule: str
    ) -> None:
        """What is found of a write through a table need not be told again of its stream's reads."""
        if use.table is not None:
            self.open.update((use.table, stream, at, page, rule) for page, _, _, at in slots if page == number)

    # Small questions

    def _number(self, page: int | str | tuple[int, int]) -> int:
        assert isinstance(page, int)
        return page

    def _page(self, page: int | str | tuple[int, int]) -> Page:
        return self.pages[self._number(page)]

    def _holds(self, page: Page, holder: str | None) -> bool:
        return page.kind != "free" if holder is None else holder in page.holders or holder in page.pins

    def _let_go(self, page: Page, holder: str) -> Counter[str] | None:
        for references in (page.holders, page.pins):
            if references[holder]:
                references[holder] -= 1
                if not references[holder]:
                    del references[holder]
                return references
            del references[holder]
        return None

    def _kept(self, page: Page, key: str, planned: bool = True) -> bool:
        """Whether what a name only plans (or else what it promises at all) is there."""
        promised, is_planned, _ = page.keys[key]
        return (planned and not is_planned) or all(
            found != MISSING and not self._differ(found, want)
            for found, want in zip(page.content, promised, strict=False)
        )

    def _guarded(self, page: Page, slot: int) -> bool:
        """Whether what is in a slot may not be overwritten with something else."""
        found = page.content[slot]
        return found != MISSING and (
            (len(page.holders) > 1 and not any(promise.planned for promise in page.keys.values()))
            or any(
                self._same(found, promised[slot]) or (not planned and not self._differ(found, promised[slot]))
                for promised, planned, _ in page.keys.values()
                if slot < len(promised)
            )
        )

    def _kept_from_a_copy(self, page: Page, slot: int) -> bool:
        """Whether what is in a slot may not be replaced by nothing at all."""
        return page.content[slot] != MISSING and (
            len(page.holders) > 1 or not all(promise.planned for promise in page.keys.values())
        )

    def _label(self, labels: list[str | None] | list[str] | None, slot: int) -> Slot:
        label = None if labels is None else labels[slot // self.unit]
        return UNTOLD if label is None else (label, slot % self.unit)

    def _root(self, slot: Slot) -> Slot:
        while slot in self.equal and self.equal[slot] != slot:
            slot = self.equal[slot]
        return slot

    def _differ(self, one: Slot, other: Slot) -> bool:
        return UNTOLD not in (one, other) and self._root(one) != self._root(other)

    def _same(self, one: Slot, other: Slot) -> bool:
        return one != MISSING and UNTOLD not in (one, other) and self._root(one) == self._root(other)
