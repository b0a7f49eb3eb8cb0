"""One admission of a request: its holder, its table, and the labels of the pages that it computes."""

from collections.abc import Sequence

from kvattach.hooks import chained
from kvspec.memory.events import Unify


class Run:
    """A request from its admission to its end or its preemption.

    The label of a page is the hash chain of all tokens up to its end. A page whose last token is not sampled yet gets a
    label of its own, which is unified with the chain once the token is known.
    """

    def __init__(self, name: str, page_size: int, whose: str = "") -> None:
        """No token is known yet. `whose` is the label before the first token (`foreign`)."""
        self.name, self.whose = name, whose
        self._size = page_size
        self._labels: list[str] = []
        self._promised: dict[int, str] = {}
        """Page -> its own label, which is not unified yet."""

    def labels(self, tokens: Sequence[int], first: int, stop: int) -> list[str]:
        """The labels of pages `first` to `stop` (exclusive), by the tokens that are known."""
        if tokens:
            self.grown(tokens)
        known = self._labels[first:stop]
        for index in range(first + len(known), stop):
            self._promised[index] = f"{self.name}#{index}"
            known.append(self._promised[index])
        return known

    @property
    def labelled(self) -> int:
        """The tokens of the pages whose labels are known."""
        return len(self._labels) * self._size

    def grown(self, tokens: Sequence[int], start: int = 0) -> list[Unify]:
        """Unify the labels of the pages that these tokens, from position `start` on, fill; all before are labelled."""
        learnt = []
        labels, size, promised = self._labels, self._size, self._promised
        label = labels[-1] if labels else self.whose
        for index in range(len(labels), (start + len(tokens)) // size):
            at = index * size - start
            label = self._chained(label, tuple(tokens[at : at + size]))
            labels.append(label)
            if index in promised:
                learnt.append(Unify(promised.pop(index), label))
        return learnt

    def _chained(self, before: str, page: tuple[int, ...]) -> str:
        """The label of a page that follows the label `before`."""
        return chained(before, page)


def foreign(*parts: str | None) -> str:
    """The label before the first token: it stands for the adapter's weights and the tenant of the content.

    It is made from the weights and the tenant, and not from the engine's key. Two labels of the same tokens differ only
    in this mark.
    """
    return f"~{chained('', parts)}" if any(parts) else ""
