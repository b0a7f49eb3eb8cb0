"""The plain checker without repeated findings: the fast one looks again only where something changed."""

from collections.abc import Collection, Mapping

from kvspec.memory import Finding, Pool
from kvspec.memory.checker import Checker, Part
from kvspec.memory.events import Begin, End, Event, Use
from kvspec.memory.order import HOST
from kvspec.rules import rule_of


class Once(Checker):
    """A wrong read through a table is reported once for a stream: again only after a right one."""

    def __init__(self, pools: Mapping[str, Pool]) -> None:
        super().__init__(pools)
        self.open: set[tuple[object, ...]] = set()
        """The findings at the last use of a position through a table, by stream."""
        self.repeated: list[Finding] = []
        """The rules that the last event breaks besides, and that were reported before."""
        self.parts: list[Part] = []
        """Of the use at hand."""

    def step(self, event: Event) -> list[Finding]:
        self.repeated = []
        return super().step(event)

    def parts_of(self, use: Use) -> list[Part]:
        self.parts = super().parts_of(use)
        return self.parts

    def report(self, use: Use, part: Part, wrong: Mapping[str, Collection[int]]) -> bool:
        """A finding on a write need not be reported of its stream's reads either."""
        assert isinstance(self.event, Begin | End)
        event = self.order.begun[self.order.named[self.event.id]]
        reads = not any(use is written for written in (*event.writes, *(to for _, to in event.copies)))
        index = next(index for index, one in enumerate(self.parts, use.start // part.page.pool.size) if one is part)
        new = dict[str, Collection[int]]()
        for rule, slots in wrong.items():
            stream = event.stream, event.host if event.stream == HOST else None
            place = use.table, stream, part.page.number, index, rule_of(rule).replace("REWRITE", "RACE")
            there = {(*place, slot): slot for slot in part.meant}
            bad = {one for one, slot in there.items() if slots and (slot in slots or not reads)}
            through = use.table is not None and not (reads and use.labels)
            lenient = rule == "MEM-WRITTEN/unwritten" and any(use is source for source, _ in event.copies)
            if through and reads and slots and bad <= self.open:
                before = len(self.findings)
                super().report(use, part, {rule: slots})
                self.repeated += self.findings[before:]
                del self.findings[before:]
            else:
                new[rule] = slots
            if through and (slots or not lenient):
                self.open = (self.open - there.keys() if reads else self.open) | bad
        return super().report(use, part, new)
