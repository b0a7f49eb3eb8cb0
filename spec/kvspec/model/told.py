"""What was answered to an operation, as the operation asks for it.

An operation says what each part of its answer has to be, by which rule, and leaves the comparison to a judge: what is
left out is not judged, numbers that nobody told are made up, and where nothing was answered the judge chooses.
`kvconform.oracle` has one such judge. Answers that decide what is due (which of two pages went back, how far a cursor
was moved) an operation reads itself, in `op.obs`.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from kvspec.events import Figures
from kvspec.model.records import Part
from kvspec.tokens import PrefixKey

PoolName = Literal["pages", "window", "states"]
"""Pages, window pages (20070), state slots (17850). Of a pool that a memory has not, nothing is asked."""
Needs = Sequence[tuple[str, int]]
"""How many numbers of a pool each request gets."""


class Told(Protocol):
    """The answer to one operation. Each method raises `Violation` if what was told is not what is due."""

    @property
    def chooses(self) -> bool:
        """Whether nothing was answered, so that all that is free to choose is chosen here."""

    def carried_out(self, rule: str = "OP-1", /, *others: str) -> None:
        """The operation is due by `rule`, and fits: it must not have been refused.

        If it was, by one of the `others`, that one is broken: what it asks for is there.
        """

    def length(self, part: str, rule: str, due: int, /) -> None:
        """A length, in tokens."""

    def choice(self, part: str, otherwise: int, /) -> int:
        """A number that is free to choose; `otherwise` if it was not told."""

    def given(self, pool: PoolName, needs: Needs, rule: str = "", /) -> dict[str, list[int]]:
        """Free numbers, each given to one request, as many as it needs by `rule` (else PAGE-2, SWA-1, MAMBA-1)."""

    def slot(self, part: str, req: str, /) -> int:
        """One free state slot."""

    def rows(self, kept: Mapping[str, int | None], /) -> dict[str, int]:
        """The row of each request: what it brings, or a free one (ROW-1, ROW-2)."""

    def freed(
        self,
        pool: PoolName,
        rule: str,
        due: Collection[int],
        staying: Mapping[int, str] | None = None,
        unpublished: Collection[int] = (),
        /,
    ) -> None:
        """What went back to a pool, in any order; what is left behind breaks `rule`.

        `staying` are numbers of which a rule of the operation itself says that they stay; `unpublished` are pages of a
        session that the store does not get (SESS-6).
        """

    def let_go(
        self,
        pages: list[int],
        rule: str,
        *,
        window_rule: str = "SWA-1",
        states: Collection[int] = (),
        states_rule: str = "MAMBA-2",
        staying: Mapping[int, str] | None = None,
        unpublished: Collection[int] = (),
    ) -> None:
        """What went back to all pools: `pages`, the window sides behind them, and `states`; none went to the store."""

    def revived(self, tombstones: Collection[int], /) -> None:
        """None of these pages of the store went back (SWA-6)."""

    def cached(self, slot: int | None, due: Collection[int], /) -> None:
        """The state slot that the store took, if it took one, is one of those due (MAMBA-4)."""

    def content(self, record: int, slot: int, length: int, what: str, /) -> None:
        """A slot of a record has its state after `length` tokens; `what` it is used for (DATA-2)."""

    def sources(self, batch: list[Part], /) -> None:
        """The slots from whose states a prefill batch goes on (DATA-2)."""

    def evicted(self, asked: int, /) -> dict[PrefixKey, int]:
        """The pages that left the store, by their prefixes, where so many were asked for."""

    def left(self, pool: PoolName, rule: str, asked: int, leaving: list[int], evictable: list[int], /) -> list[int]:
        """What left the store besides its pages: `leaving` with them, and enough of the others that may by `rule`."""

    def figures(self, due: Figures, /) -> None:
        """The figures of a report (ACC-1 to ACC-3)."""

    def whole(self) -> None:
        """The whole state, as far as it was told."""
