"""Labels that become known later.

A label is a promise first: in overlap an operation is queued before the token that it computes is known. `unify` says
that two labels are the same in their first slots: in that range one of them stands for the other from then on.
"""

from bisect import bisect_right
from collections.abc import Collection
from operator import itemgetter

from kvcheck.finding import Malformed
from kvspec.memory.events import Label

RANGES = 256
"""Ranges of slots in which a label may stand for different ones. An engine needs as many as a page has tokens."""
_END = 1 << 62

Range = tuple[int, int, Label]
"""From slot, to slot, and the label that another one stands for there."""
_START = itemgetter(0)
_STEPS = 2
"""Labels that are passed on the way to another one without a note of where they lead."""
_REMEMBERED = 100_000
"""Such notes; then they begin anew."""


class Labels:
    """Which labels are the same."""

    def __init__(self) -> None:
        """Every label is itself."""
        self._stands_for: dict[Label, list[Range]] = {}
        """Label -> the ranges in which it stands for others, in order."""
        self._short: dict[tuple[Label, int], tuple[int, Label]] = {}
        """Label and slot -> before which slot it holds, and a label that it was found to stand for through others."""
        self._young: set[Label] = set()
        """Labels that were unified since the last `keep`: pages and operations may bear them only later."""

    def __len__(self) -> int:
        """The labels that stand for others."""
        return len(self._stands_for)

    def root(self, label: Label, slot: int) -> tuple[Label, int]:
        """The label that slot `slot` of a label really is of, and the slot before which that holds."""
        border, passed = _END, list[Label]()
        while (ranges := self._stands_for.get(label)) is not None:
            passed.append(label)
            if (short := self._short.get((label, slot))) is not None:
                stop, label = short
            else:
                place = bisect_right(ranges, slot, key=_START)
                if not place or ranges[place - 1][1] <= slot:
                    border = min(border, ranges[place][0]) if place < len(ranges) else border
                    break
                _, stop, label = ranges[place - 1]
            border = min(border, stop)
        if len(passed) > _STEPS:
            if len(self._short) > _REMEMBERED:
                self._short.clear()
            self._short.update({(one, slot): (border, label) for one in passed if one != label})
        return label, border

    def unify(self, label: Label, same: Label, slots: int) -> None:
        """The first `slots` slots of two labels are the same; 0: all of them.

        Raises:
            Malformed: a label would stand for others in more than `RANGES` ranges, or these two do already.
        """
        self._young |= {label, same}
        slot, end, ranges = 0, min(slots or _END, _END), 0
        while slot < end:
            ranges += 1
            if ranges > RANGES:
                raise Malformed(f"labels {label} and {same} stand for others in more than {RANGES} ranges of slots")
            (left, upto_left), (right, upto_right) = self.root(label, slot), self.root(same, slot)
            upto = min(end, upto_left, upto_right)
            if left != right:
                self._stand_for(left, slot, upto, right)
            slot = upto

    def _stand_for(self, label: Label, start: int, stop: int, other: Label) -> None:
        """In slots in which it stands for none, a label stands for another one."""
        ranges = self._stands_for.setdefault(label, [])
        place = bisect_right(ranges, start, key=_START)
        first = last = place
        if place and ranges[place - 1][1:] == (start, other):
            first, start = place - 1, ranges[place - 1][0]
        if place < len(ranges) and ranges[place][0] == stop and ranges[place][2] == other:
            last, stop = place + 1, ranges[place][1]
        ranges[first:last] = [(start, stop, other)]
        if len(ranges) > RANGES:
            raise Malformed(f"label {label} stands for others in more than {RANGES} ranges of slots")

    def same_up_to(self, one: Label, other: Label, start: int, stop: int) -> int:
        """The slot from `start` to `stop` up to which two labels are the same; none is the same beyond it."""
        slot = start
        while one != other and slot < stop:
            (left, upto_left), (right, upto_right) = self.root(one, slot), self.root(other, slot)
            if left != right:
                return slot
            slot = min(upto_left, upto_right)
        return stop

    def keep(self, live: Collection[Label]) -> None:
        """Forget what no label in `live` stands for any more, and none that was unified since the last time."""
        kept: dict[Label, list[Range]] = {}
        todo = [label for label in self._young.union(live) if label in self._stands_for]
        while todo:
            label = todo.pop()
            if label not in kept:
                kept[label] = self._stands_for[label]
                todo += [other for _, _, other in kept[label] if other in self._stands_for]
        self._stands_for = kept
        self._young.clear()
        self._short.clear()
