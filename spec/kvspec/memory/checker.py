"""The plain memory checker: which events the memory model allows, and their effects.

It is as plain as can be: it checks slot by slot, checks every read anew, and forgets nothing. It never stops: after a
finding it continues from the state that hides the fewest later findings. Events are taken to be well-formed.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from kvspec.memory import Finding, events
from kvspec.memory.events import Event, Pool, Use
from kvspec.memory.holding import Holding
from kvspec.memory.order import Order, numbered
from kvspec.memory.pages import UNLABELLED, By, Meant, PageState, Promise, Slot, Table


class Part(NamedTuple):
    """The slots of one page that a use touches, and what each is meant to hold."""

    page: PageState
    meant: dict[int, Meant]
    holder: str | None


class Checker(Holding):
    """Checks the memory events of one engine."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        """Pools in which everything is free."""
        super().__init__(pools)
        self.order = order = Order()
        self.wait, self.send, self.receive = order.wait, order.send, order.receive
        self.ends_reported: set[str | None] = set()
        """Streams whose operations have reported ends."""
        self.delivered: dict[int, str] = {}
        """Operation -> the holder whose result was delivered before it was known whether ends are reported."""
        self.found: list[tuple[By, PageState, int, By]] = []
        """All reads: the reader, the page, the slot, and its last writer."""
        self.wrote: dict[tuple[PageState, int], Meant] = {}
        """The content that the current operation writes to each slot."""
        self.tainted: set[By] = set()
        """Operations with the holders whose results are tainted; without a holder, all results."""

    def step(self, event: Event) -> list[Finding]:
        """Check one event and apply it; its findings, most often none."""
        self.number, self.event, self.findings = self.number + 1, event, []
        check: Any = getattr(self, str(type(event).__struct_config__.tag))
        check(event)
        return self.findings

    def begin(self, event: events.Begin) -> None:
        """An operation is queued: each of its uses is checked, and takes effect."""
        if self.order.flies(self.order.named.get(event.id), event.host):
            self.find("MEM-ORDER/begun-again")
        number, self.wrote = self.order.begin(event), {}
        reads: list[tuple[Use, Use | None]] = [*[(use, None) for use in event.reads], *event.copies]
        late = [
            event.reads_own_writes and all(part.page.pool.config.reads_own_writes for part in self.parts_of(use))
            for use, _ in reads
        ]
        early = [
            None if reads_own_writes else self._read(number, *read)
            for read, reads_own_writes in zip(reads, late, strict=True)
        ]
        for use in event.writes:
            self._write(number, use)
        for (use, to), found in zip(reads, early, strict=True):
            carried = self._read(number, use, to) if found is None else found
            if to is not None:
                self._write(number, to, carried)

    def end(self, event: events.End) -> None:
        """A host has seen an operation complete; what it did not write is missing."""
        number = self.order.named.get(event.id)
        flies = self.order.flies(number, event.host)
        if number is None or (number, event.host) in self.order.ended:
            self.find("MEM-ORDER/not-in-flight")
            return
        if flies:
            self.ends_reported.add(self.order.begun[number].stream)
            if number in self.delivered:
                self.find("MEM-DELIVER/incomplete", holder=self.delivered.pop(number))
        self.order.end(number, event)
        if event.unwritten:
            self._fail(number, event.unwritten)

    def _fail(self, failed: int, unwritten: list[Use]) -> None:
        """Mark the slots that a failed operation left unwritten, and taint the operations in flight that read them.

        Slots that a later operation wrote stay written.
        """
        parts = [part for use in unwritten for part in self._paged(use)]
        missing = {(failed, part.page, at) for part in parts for at in part.meant}
        for reader, page, at, writer in self.found:
            if any(self.order.flies(reader[0], host) for host in self.order.hosts) and (
                (writer[0], page, at) in missing or self._is_tainted(writer)
            ):
                self.tainted.add(reader)
        for page, meant, _ in parts:
            gone = [at for at in meant if at in page.writers and page.writers[at][0] == failed]
            page.content = {at: slot for at, slot in page.content.items() if at not in gone}
            if gone:
                for key, promise in page.keys.items():
                    page.pool.names[key, page] = Promise(promise.meant, planned=True)
                self.check_plans(page)

    def _is_tainted(self, by: By) -> bool:
        """Whether the results of an operation for a holder are tainted."""
        return not self.tainted.isdisjoint({by, (by[0], None)})

    def deliver(self, event: events.Deliver) -> None:
        """The result of an operation for a holder leaves the engine."""
        number = self.order.named.get(event.id)
        flies = self.order.flies(number, event.host)
        name = numbered(event.id, self.order.hosts)
        begun = [numbered(one.id, {one.host}) for one in self.order.begun]
        same = [one[1] for one in begun if one is not None and name is not None and one[0] == name[0]]
        if name is not None and name[1] > max(same, default=0):
            self.find("MEM-DELIVER/not-begun", holder=event.holder)
        elif number is not None and flies:
            if self.order.begun[number].stream in self.ends_reported:
                self.find("MEM-DELIVER/incomplete", holder=event.holder)
            else:
                self.delivered[number] = event.holder
        if number is not None and self._is_tainted((number, event.holder)):
            self.find("MEM-DELIVER/tainted", holder=event.holder)

    # Slots

    def parts_of(self, use: Use) -> list[Part]:
        """The slots of a use, page by page; none if its table names no page."""
        pool = None if use.pool is None else self.pools[use.pool]
        table = self.tables.get(use.table or "") if pool is None else Table(pool, use.holder, pool.expand(use.pages))
        if table is None:
            return []
        pool, start, stop = table.pool, use.start, use.stop or len(table.pages) * table.pool.size
        given = None if use.labels is None else pool.meant(use.labels, stop - start, start)
        slots: dict[int, dict[int, Meant]] = {}
        for at in range(start, stop):
            meant = table.meant.get(at, UNLABELLED) if given is None else given[at - start]
            slots.setdefault(at // pool.size, {})[at % pool.size] = meant
        pages = {index: table.pages[index] if 0 <= index < len(table.pages) else pool.page(None) for index in slots}
        return [Part(pages[index], slots[index], table.holder) for index in slots]

    def _paged(self, use: Use) -> Iterator[Part]:
        """The slots of a use that have a page, padding among them; the others are findings."""
        if use.table is not None and use.table not in self.tables:
            self.find("MEM-USE/no-table")
        for part in self.parts_of(use):
            if part.page.kind == "hole":
                self.report(use, part, {"MEM-USE/no-page": part.meant})
            else:
                yield part

    def report(self, _use: Use, part: Part, wrong: Mapping[str, Collection[int]]) -> bool:
        """Report the rules that slots of a use break; whether that taints the operation's results."""
        for code, slots in wrong.items():
            if slots:
                self.find(code, part.page, None if code.startswith("MEM-OVERWRITE") else part.holder)
        return any(slots for code, slots in wrong.items() if code.startswith(("MEM-WRITTEN", "MEM-CONTENT")))

    def _read(self, number: int, use: Use, to: Use | None) -> list[Slot | None]:
        """Check a read, or a copy `to` another place; the content, slot by slot.

        A copy without labels may carry slots that were never written. A read of padding without a holder and without
        labels, as for an empty entry of a batch, has no effect; in a copy it has.
        """
        taken: list[Slot | None] = []
        for part in self._paged(use):
            page, meant, holder = part
            unlabelled, config = [label is None for label, _ in meant.values()], page.pool.config
            may_lack = not config.writes_reported or (to is not None and unlabelled[0] and not config.keyed)
            found = {at: page.content[at] for at in meant if at in page.content}
            wrong: dict[str, Collection[int]] = {}
            if page.number in config.padding:
                wrong["MEM-USE/padding"] = () if holder is None and all(unlabelled) and to is None else meant
            else:
                wrong["MEM-USE/not-held"] = () if config.keyed or page.holds(holder) else meant
                wrong["MEM-RACE/read"] = self._unordered(number, part, reads=False)
                wrong["MEM-WRITTEN/unwritten"] = () if may_lack else meant.keys() - found.keys()
                differ = {at: slot.meant for at, slot in found.items() if self.differ(slot.meant, meant[at])}
                shifted = next(((there[0] == meant[at][0]) for at, there in differ.items()), False)
                wrong["MEM-CONTENT/shifted" if shifted else "MEM-CONTENT/other"] = differ
            if self.report(use, part, wrong) or any(self._is_tainted(slot.by) for slot in found.values()):
                self.tainted.add((number, holder))
            last = {at: page.writers[at] for at in meant if at in page.writers}
            self.found += [((number, holder), page, at, by) for at, by in last.items()]
            page.uses.append(((number, "reads"), meant, False))
            taken += map(found.get, meant)
        return taken

    def _unordered(self, number: int, part: Part, *, reads: bool) -> list[int]:
        """Slots that an earlier operation writes, or with `reads` reads, and nothing orders the two."""
        before = self.order.known(number)
        rivals = [slots for when, slots, writes in part.page.uses if (writes or reads) and when not in before]
        return [at for at in part.meant if any(at in slots for slots in rivals)]

    def _write(self, number: int, use: Use, carried: list[Slot | None] | None = None) -> None:
        """Check a write and apply it. A copy without labels writes the content that it `carried`."""
        parts = [*self._paged(use)]
        if carried is not None and len(carried) != sum(len(part.meant) for part in parts):  # through a hole
            return
        slots = iter(carried or ())
        for part in parts:
            by = number, part.holder
            meant = dict.fromkeys(part.meant, UNLABELLED) if use.at_most else part.meant
            new: dict[int, Slot | None] = {at: Slot(one, by) for at, one in meant.items()}
            if carried is not None and not use.labels:  # tainted content stays tainted
                both = zip(part.meant, slots, strict=False)
                new = {at: slot if not slot or self._is_tainted(slot.by) else slot._replace(by=by) for at, slot in both}
            if part.page.number not in part.page.pool.config.padding:
                self._overwrite(number, use, part, new)
            if carried is None:
                self.wrote |= {(part.page, at): one for at, one in meant.items() if one[0] is not None}
        if parts and use.table is not None and use.labels is not None and carried is None:
            self.tables[use.table].set_labels(use.start, use.labels)

    def _overwrite(self, number: int, use: Use, part: Part, new: Mapping[int, Slot | None]) -> None:
        """Check the write of slots of one page and apply it; `None`: a copy leaves the slot unwritten."""
        page, there = part.page, part.page.content
        differ = {
            at: to for at, to in new.items() if at in there and (not to or self.differ(there[at].meant, to.meant))
        }
        same = all(to and at in there and self.agree(there[at].meant, to.meant) for at, to in new.items())
        wrong: dict[str, Collection[int]] = {
            "MEM-USE/not-held": () if page.pool.config.keyed or page.holds(part.holder) else part.meant,
            "MEM-OVERWRITE/content": [at for at, to in differ.items() if to and self._is_guarded(page, at, to)],
            "MEM-OVERWRITE/unwritten": [at for at, to in differ.items() if not to and self._is_guarded(page, at, to)],
            "MEM-REWRITE/write" if same else "MEM-RACE/write": self._unordered(number, part, reads=True),
        }
        self.report(use, part, wrong)
        if any(to and self.differ(self.wrote.get((page, at), UNLABELLED), to.meant) for at, to in differ.items()):
            self.find("MEM-RACE/itself", page, part.holder)  # nothing orders the writes of one operation
        page.writers |= dict.fromkeys(new, (number, part.holder))
        page.content = {at: slot for at, slot in {**there, **new}.items() if slot is not None}
        page.uses.append(((number, "all"), part.meant, True))

    def _is_guarded(self, page: PageState, at: int, to: Slot | None) -> bool:
        """Whether what is in a slot may not be overwritten with something else: it is shared, or a name finds it.

        Of what is there a plan protects what it promises: the rest is on the way to it (a copy first, then a pass).
        """
        promises, meant = page.keys.values(), page.content[at].meant
        plans, shared = [promise.planned for promise in promises], sum(not pin for _, pin in page.references) > 1
        if to is None:
            return shared or not all(plans)
        agreements = [(self.agree(meant, one.meant[at]), one.planned) for one in promises if at < len(one.meant)]
        promised = any(agree or (agree is None and not planned) for agree, planned in agreements)
        return promised or ((shared or page.pool.config.keyed) and not any(plans))
