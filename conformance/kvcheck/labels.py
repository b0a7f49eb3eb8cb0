"""Labels that become known later.

With overlap an operation is queued before the token that it computes is known, so its label is a placeholder at first.
`unify` makes two labels the same in their first slots: in that range one of them stands for the other from then on.
"""

from bisect import bisect_right
from collections.abc import Collection
from operator import itemgetter

from kvcheck.finding import Malformed
from kvspec.memory.events import Label

RANGES = 256
"""The most ranges of slots in which one label may stand for others. An engine needs one for each token of a page."""
_END = 1 << 62

Range = tuple[int, int, Label]
"""Start, stop, and the label to look up instead in these slots."""
_START = itemgetter(0)
_STEPS = 2
"""A lookup that follows more labels than this leaves shortcuts."""
_REMEMBERED = 100_000
"""More shortcuts than this are all forgotten."""


class Labels:
    """The labels that are known to be the same."""

    def __init__(self) -> None:
        """Every label is the same only as itself."""
        self._stands_for: dict[Label, list[Range]] = {}
        """Label -> the ranges in which it stands for others, in order."""
        self._short: dict[tuple[Label, int], tuple[int, Label]] = {}
        """Shortcuts. Label and slot -> the slot before which the shortcut holds, and the label that it leads to."""
        self._young: set[Label] = set()
        """Labels unified since the last `keep`, which retains them: pages and operations may bear them only later."""

    def __len__(self) -> int:
        """The number of labels that stand for others."""
        return len(self._stands_for)

    def root(self, label: Label, slot: int) -> tuple[Label, int]:
        """The label that `label` leads to at slot `slot`, through any others, and the slot before which that holds."""
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
        """Make the first `slots` slots of two labels the same; 0: all slots.

        Raises:
            Malformed: one label, or the two together, would stand for others in more than `RANGES` ranges of slots.
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
        """Let a label stand for another one in slots in which it stands for none yet."""
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
        """The first slot from `start` on at which two labels differ; `stop` if they differ nowhere before it."""
        slot = start
        while one != other and slot < stop:
            (left, upto_left), (right, upto_right) = self.root(one, slot), self.root(other, slot)
            if left != right:
                return slot
            slot = min(upto_left, upto_right)
        return stop

    def keep(self, live: Collection[Label]) -> None:
        """Forget all but the labels in `live`, those unified since the last call, and the labels that they lead to."""
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
