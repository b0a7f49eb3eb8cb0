"""The law: what each event is allowed to do, and what it does.

Said as plainly as can be: slot by slot, every read looked at afresh, nothing forgotten but what the host has seen
complete. It never stops: what is found is told, and the state is mended in the way that hides least.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from kvspec.memory import events
from kvspec.memory.events import Begin, Event, OpId, Page, Pool, Use
from kvspec.memory.finding import Finding, Malformed
from kvspec.memory.holding import Holding
from kvspec.memory.order import Flight, Order
from kvspec.memory.pages import HOLE, UNTOLD, By, Meant, PageState, PoolState, Promise, Slot, Used


class Part(NamedTuple):
    """The slots of one page that a use touches, and what each is meant to hold."""

    pool: PoolState
    page: Page
    meant: dict[int, Meant]
    holder: str | None
    position: int
    """Of the page's slot 0 in the table, or in the use's pages one after the other."""

    @property
    def padding(self) -> bool:
        """Whether it is of no real page."""
        return self.page in self.pool.told.sinks


class Law(Holding):
    """The law, watching one engine's memory."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """Pools in which everything is free.

        Raises:
            Malformed: a pool's sizes make no sense.
        """
        super().__init__(pools)
        self.order = Order()
        self.operations: dict[int, Flight] = {}
        self.named: dict[OpId, Flight] = {}
        """The last operation of each name."""
        self.latest = 0
        """The largest name of an operation that is a number: one with a larger name was never begun."""

    def step(self, event: Event) -> list[Finding]:
        """Judge one event and move on; what it breaks, most often nothing.

        Raises:
            Malformed: no engine can mean this.
        """
        self.event, self.at, self.findings = self.event + 1, event.at, []
        judge: Any = getattr(self, str(type(event).__struct_config__.tag))
        judge(event)
        return self.findings

    # Operations

    def begin(self, event: Begin) -> None:
        """An operation is queued: each of its uses is judged, and counts from now on."""
        if event.id in self.order.flights:
            self.find("MEM-ORDER", f"operation {event.id} is begun again while it is in flight")
        flight = self.order.begin(event)
        self.operations[flight.number] = self.named[event.id] = flight
        self.latest = max(self.latest, event.id) if isinstance(event.id, int) else self.latest
        early = [not self._sees_own(event, use) for use in event.reads]
        taken = [None if self._sees_own(event, use) else self._gather(flight, use) for use, _ in event.copies]
        for use in [use for use, is_early in zip(event.reads, early, strict=True) if is_early]:
            self._read(flight, use)
        for use in event.writes:
            self._write(flight, use)
        for use in [use for use, is_early in zip(event.reads, early, strict=True) if not is_early]:
            self._read(flight, use)
        for copy, carried in zip(event.copies, taken, strict=True):
            self._put(flight, self._gather(flight, copy[0]) if carried is None else carried, copy)

    def _sees_own(self, event: Begin, use: Use) -> bool:
        """Whether a read sees what its operation writes."""
        pool = self.tables[use.table].pool if use.table in self.tables else self.pools.get(use.pool or "")
        return event.sees_own and (pool is None or pool.told.sees_own)

    def wait(self, event: events.Wait) -> None:
        """What is queued on a stream from now on comes after something."""
        if event.id is None and event.on is None:
            raise Malformed("a wait names neither an operation nor a stream")
        self.order.wait(event)

    def end(self, event: events.End) -> None:
        """The host has seen an operation complete; what it did not write is missing."""
        flight = self.order.flights.get(event.id)
        if flight is not None and flight.delivered is not None:
            self._find_early(event.id, flight.delivered, "seen complete")
            flight.delivered = None
        if not self.order.end(event.id, event.part):
            self.find("MEM-ORDER", f"operation {event.id} is taken for complete, but is not in flight")
        elif event.unwritten:
            self._fail(self.named[event.id], event.unwritten)

    def _fail(self, failed: Flight, unwritten: list[Use]) -> None:
        """What was to be written is missing where no later operation wrote: names of it are plans again.

        What operations in flight computed from it is worthless.
        """
        parts = [part for use in unwritten for part in self._paged(failed, use)]
        places = {(part.pool.name, part.page, slot) for part in parts for slot in part.meant}
        for flight in self.order.numbered.values():
            for place, by, holder in flight.found:
                if (by[0] == failed.number and place in places) or self._is_spoilt(by):
                    flight.spoilt.add(holder)
        for pool, number, meant, *_ in parts:
            page = pool.page(number)
            gone = [slot for slot in meant if page.writers.get(slot, failed.number) == failed.number]
            for slot in gone:
                page.content.pop(slot, None)
            if gone:
                page.keys = {key: Promise(promise.meant, planned=True) for key, promise in page.keys.items()}
                self.check_plans(pool, number)

    def _is_spoilt(self, by: By) -> bool:
        """Whether what an operation computed for a holder is worthless."""
        return not self.operations[by[0]].spoilt.isdisjoint({by[1], None})

    def deliver(self, event: events.Deliver) -> None:
        """What an operation computed for a holder leaves the engine."""
        flight = self.order.flights.get(event.id)
        if isinstance(event.id, int) and event.id > self.latest:
            self._find_early(event.id, event.holder, "begun")
        elif flight is not None and flight.event.stream in self.order.told:
            self._find_early(event.id, event.holder, "seen complete")
        elif flight is not None:
            flight.delivered = event.holder
        if event.id in self.named and self._is_spoilt((self.named[event.id].number, event.holder)):
            what = f"what operation {event.id} computed for {event.holder} is delivered, but what it read was not there"
            self.find("MEM-DELIVER", what, holder=event.holder)

    def _find_early(self, id: OpId, holder: str, told: str) -> None:
        what = f"what operation {id} computed for {holder} is delivered before it is {told}"
        self.find("MEM-DELIVER", what, holder=holder)

    # What operations do to slots

    def parts_of(self, use: Use) -> list[Part]:
        """The slots of a use, page by page; none if its table names no page."""
        if (use.table is None) == (use.pool is None) or (use.table is not None and (use.pages or use.holder)):
            raise Malformed("a use names a table, or a pool with its pages")
        table = None if use.table is None else self.tables.get(use.table)
        if use.table is not None and table is None:
            return []
        pool = self.pool(use.pool) if table is None else table.pool
        pages, holder = (pool.expand(use.pages), use.holder) if table is None else (table.pages, table.holder)
        start, stop = use.start, use.stop or len(pages) * pool.size
        if start > stop:
            raise Malformed(f"a use of slots {start} to {stop}")
        labels = table.told(start, stop) if table is not None and use.labels is None else use.labels
        meant, parts = pool.meant(labels, stop - start, start), list[Part]()
        for index in range(start // pool.size, -(-stop // pool.size)):
            base = index * pool.size
            within = range(max(start, base), min(stop, base + pool.size))
            page = pages[index] if 0 <= index < len(pages) else HOLE
            parts.append(Part(pool, page, {at - base: meant[at - start] for at in within}, holder, base))
        return parts

    def _paged(self, flight: Flight, use: Use) -> list[Part]:
        """The slots of a use that have a page, padding among them; the others are findings."""
        parts = self.parts_of(use)
        if use.table is not None and use.table not in self.tables:
            self.find("MEM-USE", f"table {use.table} is used, but it names no page")
        for part in parts:
            if part.page == HOLE:
                self.tell(flight, use, part, {"MEM-USE": part.meant})
        return [part for part in parts if part.page != HOLE]

    def tell(self, flight: Flight, use: Use, part: Part, wrong: Mapping[str, Collection[int]]) -> bool:
        """Tell what is wrong with which slots of a use, rule by rule; whether that makes worthless what is computed."""
        page = None if part.page == HOLE else part.page
        for rule, slots in wrong.items():
            if slots:
                what = f"operation {flight.event.id} uses slots {sorted(slots)} of page {page} for {part.holder}"
                self.find(rule, what, part.pool, page, None if rule == "MEM-OVERWRITE" else part.holder)
        return bool(wrong.get("MEM-WRITTEN") or wrong.get("MEM-CONTENT"))

    def _read(self, flight: Flight, use: Use, *, copied: bool = False) -> list[Part]:
        """Judge a read.

        A copy that does not say what it means to find may take slots along that were never written. What is read of
        padding for nobody, meaning nothing, as for an empty entry of a batch, is thrown away; but a copy keeps it.
        """
        parts = self._paged(flight, use)
        for part in parts:
            pool, number, meant, holder, _ = part
            page, untold = pool.page(number), [label is None for label, _ in meant.values()]
            if part.padding:
                thrown_away = holder is None and not copied and all(untold)
                self.tell(flight, use, part, {"MEM-USE": () if thrown_away else meant})
                continue
            may_lack = not pool.told.writes_told or (copied and untold[0] and not pool.told.keyed)
            found = {slot: page.content[slot] for slot in meant if slot in page.content}
            wrong: dict[str, Collection[int]] = {
                "MEM-USE": () if pool.told.keyed or page.holds(holder) else meant,
                "MEM-RACE": self._unordered(flight, page, meant, reads=False),
                "MEM-WRITTEN": () if may_lack else meant.keys() - found.keys(),
                "MEM-CONTENT": [at for at, slot in found.items() if self.agree(slot.meant, meant[at]) is False],
            }
            if self.tell(flight, use, part, wrong) or any(map(self._is_worthless, found.values())):
                flight.spoilt.add(holder)
            flight.found += [((pool.name, number, at), slot.by, holder) for at, slot in found.items()]
            page.uses.append(Used((flight.number, "reads"), frozenset(meant), writes=False))
        return parts

    def _is_worthless(self, slot: Slot) -> bool:
        """Whether what a slot holds was computed from what was not there."""
        return slot.worthless or self._is_spoilt(slot.by)

    def _unordered(self, flight: Flight, page: PageState, slots: Collection[int], *, reads: bool) -> list[int]:
        """Slots that an earlier operation writes, or with `reads` reads, and nothing orders the two."""
        page.uses = [used for used in page.uses if used.when[0] in self.order.numbered]
        rivals = [used for used in page.uses if (used.writes or reads) and not self.order.follows(flight, used.when)]
        return [slot for slot in slots if any(slot in used.slots for used in rivals)]

    def _write(self, flight: Flight, use: Use) -> None:
        """Judge a write, and let it take effect."""
        parts = self._paged(flight, use)
        for part in parts:
            by = flight.number, part.holder
            self._write_part(
                flight, use, part, {slot: Slot(UNTOLD if use.may else meant, by) for slot, meant in part.meant.items()}
            )
        if parts and use.table is not None and use.labels is not None:
            first = max(use.start, 0)
            self.tables[use.table].tell(first, use.labels[(first - use.start) // parts[0].pool.unit :])

    def _write_part(self, flight: Flight, use: Use, part: Part, new: Mapping[int, Slot | None]) -> None:
        """Judge the write of slots of one page, and let it take effect; `None`: a copy leaves nothing there."""
        pool, page = part.pool, part.pool.page(part.page)
        if part.padding:
            return
        told = {slot: (page.content[slot].meant, to.meant) for slot, to in new.items() if to and slot in page.content}
        same = len(told) == len(new) and all(self.agree(*both) for both in told.values())
        differ = [slot for slot, both in told.items() if self.agree(*both) is False]
        bared = [slot for slot, to in new.items() if to is None and slot in page.content]
        guarded = page.shared or not all(promise.planned for promise in page.keys.values())
        wrong: dict[str, Collection[int]] = {
            "MEM-USE": () if pool.told.keyed or page.holds(part.holder) else part.meant,
            "MEM-OVERWRITE": [slot for slot in differ if self._is_guarded(pool, page, slot)] + bared * guarded,
            "MEM-REWRITE" if same else "MEM-RACE": self._unordered(flight, page, part.meant, reads=True),
        }
        self.tell(flight, use, part, wrong)
        if (pool.name, part.page) in flight.written and differ and self._is_told_otherwise(flight, part, new):
            self.find("MEM-RACE", f"operation {flight.event.id} writes two contents", pool, part.page, part.holder)
        flight.written.add((pool.name, part.page))
        page.writers |= dict.fromkeys(new, flight.number)
        page.content = {slot: old for slot, old in page.content.items() if slot not in new}
        page.content |= {slot: to for slot, to in new.items() if to is not None}
        page.uses.append(Used((flight.number, "all"), frozenset(part.meant), writes=True))

    def _is_guarded(self, pool: PoolState, page: PageState, slot: int) -> bool:
        """Whether what is in a slot may not be overwritten with something else: it is shared, or a name finds it.

        Of what is there a plan protects what it promises: the rest is on the way to it (a copy first, then a pass).
        """
        promises = page.keys.values()
        if (page.shared or pool.told.keyed) and not any(promise.planned for promise in promises):
            return True
        promised = [(promise.meant[slot], promise.planned) for promise in promises if slot < len(promise.meant)]
        alike = [(self.agree(page.content[slot].meant, meant), planned) for meant, planned in promised]
        return any(agree or (agree is None and not planned) for agree, planned in alike)

    def _is_told_otherwise(self, flight: Flight, part: Part, new: Mapping[int, Slot | None]) -> bool:
        """Whether another write of the operation is told to leave something else: nothing orders the two."""
        others = [one for use in flight.event.writes if not use.may for one in self.parts_of(use)]
        there = [one.meant for one in others if (one.pool, one.page) == (part.pool, part.page)]
        both = [(meant, new.get(slot)) for one in there for slot, meant in one.items()]
        return any(to is not None and self.agree(meant, to.meant) is False for meant, to in both)

    def _gather(self, flight: Flight, source: Use) -> list[Slot | None]:
        """Read what a copy takes along, slot by slot."""
        parts = self._read(flight, source, copied=True)
        there = [part.pool.page(part.page).content.get(slot) for part in parts for slot in part.meant]
        return [slot and slot._replace(worthless=self._is_worthless(slot)) for slot in there]

    def _put(self, flight: Flight, taken: list[Slot | None], copy: tuple[Use, Use]) -> None:
        """Write what a copy took along, slot by slot; where nothing was written, nothing is in the target either."""
        target, parts = copy[1], self._paged(flight, copy[1])
        if len(taken) != (room := sum(len(part.meant) for part in parts)):
            pages = [[part.page for part in self.parts_of(use)] for use in copy]
            if all(some and HOLE not in some for some in pages):
                raise Malformed(f"a copy of {len(taken)} slots to {room}")
            return
        slots = iter(taken)
        for part in parts:
            by = flight.number, part.holder
            carried = {slot: one and one._replace(by=by) for slot, one in zip(part.meant, slots, strict=False)}
            labelled = {slot: Slot(meant, by) for slot, meant in part.meant.items()}
            self._write_part(flight, target, part, labelled if target.labels else carried)
