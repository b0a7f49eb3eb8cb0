"""Labels that become known later.

A label is a promise first: in overlap an operation is queued before the token that it computes is known. `learn` says
that two labels are the same in their first slots: in that range one of them stands for the other from then on.
"""

from collections.abc import Collection

from kvspec.memory.events import Label

_END = 1 << 62


class Labels:
    """Which labels are the same."""

    def __init__(self) -> None:
        """Every label is itself."""
        self._stands_for: dict[Label, list[tuple[int, int, Label]]] = {}
        """Label -> from slot, to slot, and the label that it stands for there."""

    def __len__(self) -> int:
        """The labels that stand for others."""
        return len(self._stands_for)

    def root(self, label: Label, slot: int) -> tuple[Label, int]:
        """The label that slot `slot` of a label really is of, and the slot before which that holds."""
        border = _END
        while (ranges := self._stands_for.get(label)) is not None:
            for start, stop, other in ranges:
                if start <= slot < stop:
                    label, border = other, min(border, stop)
                    break
                if slot < start:
                    border = min(border, start)
            else:
                return label, border
        return label, border

    def unify(self, label: Label, same: Label, slots: int) -> None:
        """The first `slots` slots of two labels are the same; 0: all of them."""
        slot, end = 0, min(slots or _END, _END)
        while slot < end:
            (left, upto_left), (right, upto_right) = self.root(label, slot), self.root(same, slot)
            upto = min(end, upto_left, upto_right)
            if left != right:
                self._stands_for.setdefault(left, []).append((slot, upto, right))
            slot = upto

    def alike(self, one: Label, other: Label, start: int, stop: int) -> int:
        """The slot from `start` to `stop` up to which two labels are the same; none is the same beyond it."""
        slot = start
        while one != other and slot < stop:
            (left, upto_left), (right, upto_right) = self.root(one, slot), self.root(other, slot)
            if left != right:
                return slot
            slot = min(upto_left, upto_right)
        return stop

    def keep(self, live: Collection[Label]) -> None:
        """Forget what no label in `live` stands for any more."""
        kept: dict[Label, list[tuple[int, int, Label]]] = {}
        todo = [label for label in live if label in self._stands_for]
        while todo:
            label = todo.pop()
            if label not in kept:
                kept[label] = self._stands_for[label]
                todo += [other for _, _, other in kept[label] if other in self._stands_for]
        self._stands_for = kept
