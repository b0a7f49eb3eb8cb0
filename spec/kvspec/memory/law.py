"""The law: what each event is allowed to do, and what it does.

Said as plainly as can be: slot by slot, every read looked at afresh, nothing forgotten. It never stops: what is found
is told, and the state is mended in the way that hides least.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from kvspec.memory import Finding, events
from kvspec.memory.events import Begin, Event, Pool, Use
from kvspec.memory.holding import Holding
from kvspec.memory.order import Flight, Order
from kvspec.memory.pages import UNTOLD, By, Meant, PageState, Promise, Slot, Table, require

Place = tuple[PageState, int]
"""A page and a slot of it."""


class Part(NamedTuple):
    """The slots of one page that a use touches, and what each is meant to hold."""

    page: PageState
    meant: dict[int, Meant]
    holder: str | None
    position: int
    """Of the page's slot 0 in the table, or in the use's pages one after the other."""


class Law(Holding):
    """The law, watching one engine's memory."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """Pools in which everything is free.

        Raises:
            Malformed: a pool's sizes make no sense.
        """
        super().__init__(pools)
        self.order = Order()
        self.told: set[str | None] = set()
        """Streams of which it is told when an operation ends."""
        self.delivered: dict[int, str] = {}
        """Operation -> for whom its result left the engine, when it was not known yet whether its end would be told."""
        self.found: list[tuple[By, Place, By]] = []
        """What was read: by whom, where, and who had written there."""
        self.wrote: dict[Place, Meant] = {}
        """What the operation at hand is told to leave, by its writes."""
        self.spoilt: set[By] = set()
        """What is worthless of what operations computed; without a holder, all of it."""

    def step(self, event: Event) -> list[Finding]:
        """Judge one event and move on; what it breaks, most often nothing.

        Raises:
            Malformed: no engine can mean this.
        """
        self.number, self.event, self.findings = self.number + 1, event, []
        judge: Any = getattr(self, str(type(event).__struct_config__.tag))
        judge(event)
        return self.findings

    # Operations

    def begin(self, event: Begin) -> None:
        """An operation is queued: each of its uses is judged, and counts from now on."""
        named = self.order.named.get(event.id)
        if named is not None and not self.order.is_done(named.number):
            self.find("MEM-ORDER")
        for copy in event.copies:
            sizes = {sum(len(part.meant) for part in self.parts_of(use)) for use in copy}
            require(len(sizes - {0}) < 2, f"a copy of {' and '.join(map(str, sizes))} slots")
        flight, self.wrote = self.order.begin(event), {}
        reads: list[tuple[Use, Use | None]] = [*[(use, None) for use in event.reads], *event.copies]
        late = [event.sees_own and all(part.page.pool.told.sees_own for part in self.parts_of(use)) for use, _ in reads]
        early = [None if sees_own else self._read(flight, *read) for read, sees_own in zip(reads, late, strict=True)]
        for use in event.writes:
            self._write(flight, use)
        for (use, to), found in zip(reads, early, strict=True):
            carried = self._read(flight, use, to) if found is None else found
            if to is not None:
                self._write(flight, to, carried)

    def wait(self, event: events.Wait) -> None:
        """What is queued on a stream from now on comes after something."""
        require(event.id is not None or event.on is not None, "a wait names neither an operation nor a stream")
        self.order.wait(event)

    def end(self, event: events.End) -> None:
        """The host has seen an operation complete; what it did not write is missing."""
        flight = self.order.named.get(event.id)
        if flight is None or flight.ended:
            self.find("MEM-ORDER")
            return
        if not self.order.is_done(flight.number):
            self.told.add(flight.event.stream)
            if flight.number in self.delivered:
                self.find("MEM-DELIVER", holder=self.delivered.pop(flight.number))
        self.order.end(flight, event.part)
        if event.unwritten:
            self._fail(flight, event.unwritten)

    def _fail(self, failed: Flight, unwritten: list[Use]) -> None:
        """What was to be written is missing where no later operation wrote: names of it are plans again.

        What operations in flight computed from it is worthless.
        """
        parts = [part for use in unwritten for part in self._paged(failed, use)]
        places = {(part.page, slot) for part in parts for slot in part.meant}
        for reader, place, writer in self.found:
            lacks = (writer[0] == failed.number and place in places) or self._is_spoilt(writer)
            if lacks and not self.order.is_done(reader[0]):
                self.spoilt.add(reader)
        for page, meant, *_ in parts:
            gone = [slot for slot in meant if page.writers.get(slot, failed.number) == failed.number]
            for slot in gone:
                page.content.pop(slot, None)
            if gone:
                for key, promise in page.keys.items():
                    page.pool.names[key, page] = Promise(promise.meant, planned=True)
                self.check_plans(page)

    def _is_spoilt(self, by: By) -> bool:
        """Whether what an operation computed for a holder is worthless."""
        return not self.spoilt.isdisjoint({by, (by[0], None)})

    def deliver(self, event: events.Deliver) -> None:
        """What an operation computed for a holder leaves the engine."""
        flight = self.order.named.get(event.id)
        begun = max((id for id in self.order.named if isinstance(id, int)), default=0)
        wrong = isinstance(event.id, int) and event.id > begun
        if flight is not None and not self.order.is_done(flight.number):
            wrong = flight.event.stream in self.told
            self.delivered |= {} if wrong else {flight.number: event.holder}
        if wrong or (flight is not None and self._is_spoilt((flight.number, event.holder))):
            self.find("MEM-DELIVER", holder=event.holder)

    # What operations do to slots

    def parts_of(self, use: Use) -> list[Part]:
        """The slots of a use, page by page; none if its table names no page."""
        alone = use.table is None or not (use.pool or use.pages or use.holder)
        require(alone, "a use names a table, or a pool with its pages")
        if use.table is None:
            table = Table(self.pool(use.pool), use.holder, self.pool(use.pool).expand(use.pages))
        elif use.table in self.tables:
            table = self.tables[use.table]
        else:
            return []
        pool, start, stop = table.pool, use.start, use.stop or len(table.pages) * table.pool.size
        require(start <= stop, f"a use of slots {start} to {stop}")
        told = None if use.labels is None else pool.meant(use.labels, stop - start, start)
        slots: dict[int, dict[int, Meant]] = {}
        for at in range(start, stop):
            meant = table.meant.get(at, UNTOLD) if told is None else told[at - start]
            slots.setdefault(at // pool.size, {})[at % pool.size] = meant
        pages = {index: table.pages[index] if 0 <= index < len(table.pages) else pool.page(None) for index in slots}
        return [Part(pages[index], slots[index], table.holder, index * pool.size) for index in slots]

    def _paged(self, flight: Flight, use: Use) -> Iterator[Part]:
        """The slots of a use that have a page, padding among them; the others are findings."""
        if use.table is not None and use.table not in self.tables:
            self.find("MEM-USE")
        for part in self.parts_of(use):
            if part.page.kind == "hole":
                self.tell(flight, use, part, {"MEM-USE": part.meant})
            else:
                yield part

    def tell(self, _flight: Flight, _use: Use, part: Part, wrong: Mapping[str, Collection[int]]) -> bool:
        """Tell which rules slots of a use break; whether that makes worthless what is computed."""
        for rule, slots in wrong.items():
            if slots:
                self.find(rule, part.page, None if rule == "MEM-OVERWRITE" else part.holder)
        return bool(wrong.get("MEM-WRITTEN") or wrong.get("MEM-CONTENT"))

    def _read(self, flight: Flight, use: Use, to: Use | None) -> list[Slot | None]:
        """Judge a read, or a copy `to` somewhere; what it finds, slot by slot.

        A copy that does not say what it means to find may take slots along that were never written. What is read of
        padding for nobody, meaning nothing, as for an empty entry of a batch, is thrown away; but a copy keeps it.
        """
        taken: list[Slot | None] = []
        for part in self._paged(flight, use):
            page, meant, holder, _ = part
            untold, told = [label is None for label, _ in meant.values()], page.pool.told
            may_lack = not told.writes_told or (to is not None and untold[0] and not told.keyed)
            found = {at: page.content[at] for at in meant if at in page.content}
            wrong: dict[str, Collection[int]] = {
                "MEM-USE": () if told.keyed or page.holds(holder) else meant,
                "MEM-RACE": self._unordered(flight, part, reads=False),
                "MEM-WRITTEN": () if may_lack else meant.keys() - found.keys(),
                "MEM-CONTENT": [at for at, slot in found.items() if self.agree(slot.meant, meant[at]) is False],
            }
            if page.kind == "padding":
                wrong = {"MEM-USE": () if holder is None and all(untold) and to is None else meant}
            if self.tell(flight, use, part, wrong) or any(map(self._is_worthless, found.values())):
                self.spoilt.add((flight.number, holder))
            self.found += [((flight.number, holder), (page, at), slot.by) for at, slot in found.items()]
            page.uses.append(((flight.number, "reads"), meant, False))
            taken += [slot and slot._replace(worthless=self._is_worthless(slot)) for slot in map(found.get, meant)]
        return taken

    def _is_worthless(self, slot: Slot) -> bool:
        """Whether what a slot holds was computed from what was not there."""
        return slot.worthless or self._is_spoilt(slot.by)

    def _unordered(self, flight: Flight, part: Part, *, reads: bool) -> list[int]:
        """Slots that an earlier operation writes, or with `reads` reads, and nothing orders the two."""
        before = {*flight.before, (flight.number, "reads"), (flight.number, "all")}
        rivals = [slots for when, slots, writes in part.page.uses if (writes or reads) and when not in before]
        return [slot for slot in part.meant if any(slot in slots for slots in rivals)]

    def _write(self, flight: Flight, use: Use, carried: list[Slot | None] | None = None) -> None:
        """Judge a write, and let it take effect. A copy that does not say what it brings leaves what it `carried`."""
        parts = [*self._paged(flight, use)]
        if carried is not None and len(carried) != sum(len(part.meant) for part in parts):  # through a hole
            return
        slots = iter(carried or ())
        for part in parts:
            by = flight.number, part.holder
            new: dict[int, Slot | None]
            if carried is None or use.labels:
                new = {at: Slot(UNTOLD if use.may else meant, by) for at, meant in part.meant.items()}
            else:
                new = {at: slot and slot._replace(by=by) for at, slot in zip(part.meant, slots, strict=False)}
            if part.page.kind != "padding":
                self._overwrite(flight, use, part, new)
            if carried is None and not use.may:
                self.wrote |= {(part.page, at): meant for at, meant in part.meant.items() if meant[0] is not None}
        if parts and use.table is not None and use.labels is not None and carried is None:
            self.tables[use.table].tell(use.start, use.labels)

    def _overwrite(self, flight: Flight, use: Use, part: Part, new: Mapping[int, Slot | None]) -> None:
        """Judge the write of slots of one page, and let it take effect; `None`: a copy leaves nothing there."""
        page, there = part.page, part.page.content
        alike = {at: to is not None and self.agree(there[at].meant, to.meant) for at, to in new.items() if at in there}
        differ = {at: new[at] for at, agrees in alike.items() if agrees is False}
        same = len(alike) == len(new) and all(alike.values())
        wrong: dict[str, Collection[int]] = {
            "MEM-USE": () if page.pool.told.keyed or page.holds(part.holder) else part.meant,
            "MEM-OVERWRITE": [at for at, to in differ.items() if self._is_guarded(page, at, to)],
            "MEM-REWRITE" if same else "MEM-RACE": self._unordered(flight, part, reads=True),
        }
        self.tell(flight, use, part, wrong)
        own = [(self.wrote.get((page, at), UNTOLD), to.meant) for at, to in differ.items() if to]
        if any(self.agree(*both) is False for both in own):  # nothing orders the writes of one operation
            self.find("MEM-RACE", page, part.holder)
        page.writers |= dict.fromkeys(new, flight.number)
        page.content = {at: slot for at, slot in {**there, **new}.items() if slot is not None}
        page.uses.append(((flight.number, "all"), part.meant, True))

    def _is_guarded(self, page: PageState, at: int, to: Slot | None) -> bool:
        """Whether what is in a slot may not be overwritten with something else: it is shared, or a name finds it.

        Of what is there a plan protects what it promises: the rest is on the way to it (a copy first, then a pass).
        """
        promises = page.keys.values()
        plans = [promise.planned for promise in promises]
        if to is None:
            return page.shared or not all(plans)
        meant = page.content[at].meant
        alike = [(self.agree(meant, one.meant[at]), one.planned) for one in promises if at < len(one.meant)]
        promised = any(agree or (agree is None and not planned) for agree, planned in alike)
        return promised or ((page.shared or page.pool.told.keyed) and not any(plans))
