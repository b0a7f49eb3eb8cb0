"""One stretch of work of one request: a holder, its table, and the labels of what it computes."""

from collections.abc import Sequence

from kvattach.hooks import chained
from kvspec.memory.events import Unify


class Run:
    """A request from its admission to its end or its preemption.

    The label of a page is the chain of the tokens that end with it. A page whose last token is not known yet, because
    it is still to be sampled, has a label of its own; it is learnt later what it is.
    """

    def __init__(self, name: str, page_size: int, whose: str = "") -> None:
        """Nothing is known of it yet. `whose` is the label before the first token (`foreign`)."""
        self.name, self.whose = name, whose
        self._size = page_size
        self._labels: list[str] = []
        self._promised: set[int] = set()
        """Pages that were given labels of their own, of which it is not learnt yet what they are."""

    def labels(self, tokens: Sequence[int], first: int, stop: int) -> list[str]:
        """The labels of pages `first` to `stop`, by the tokens that are known."""
        self.grown(tokens)
        known = self._labels[first:stop]
        promised = range(first + len(known), stop)
        self._promised.update(promised)
        return known + [f"{self.name}#{index}" for index in promised]

    def grown(self, tokens: Sequence[int]) -> list[Unify]:
        """The promises that come true with these tokens."""
        learnt = []
        for index in range(len(self._labels), len(tokens) // self._size):
            page = tuple(tokens[index * self._size : (index + 1) * self._size])
            self._labels.append(self._chained(self._labels[-1] if self._labels else self.whose, page))
            if index in self._promised:
                self._promised.remove(index)
                learnt.append(Unify(f"{self.name}#{index}", self._labels[-1]))
        return learnt

    def _chained(self, before: str, page: tuple[int, ...]) -> str:
        """The label of the next page."""
        return chained(before, page)


def foreign(*parts: str | None) -> str:
    """The first label: for which adapter's weights and for whom the content is, and not how a key names these.

    Labels of the same tokens differ in its mark alone.
    """
    return f"~{chained('', parts)}" if any(parts) else ""
