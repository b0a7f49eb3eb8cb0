"""The observed answer to an operation, as the operation reads it.

Each operation states the expected value of every answer field and the rule that it tests. An `ObservedAnswer` compares:
fields that are left out are not checked, numbers that were not reported are made up, and without any answer it chooses.
`kvconform.oracle` implements it. If an answer decides what is expected (which of two pages was freed, how far a cursor
was moved), the operation reads `op.obs` itself.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from kvspec.events import Figures
from kvspec.model.records import Part
from kvspec.tokens import PrefixKey

PoolName = Literal["pages", "window", "states"]
"""Pages, window pages (20070), state slots (17850). A pool that a memory lacks is never asked for."""
Needs = Sequence[tuple[str, int]]
"""How many numbers of a pool each request gets."""


class ObservedAnswer(Protocol):
    """The answer to one operation. Each method raises `Violation` if a reported value is not the expected one."""

    @property
    def chooses(self) -> bool:
        """Whether there is no answer, so that every free choice is made here."""

    def carried_out(self, rule: str = "OP-1", /, *others: str) -> None:
        """The operation is due by `rule`, and fits: a refusal breaks `rule`.

        A refusal by one of the `others` breaks that rule instead: what it asks for is there.
        """

    def length(self, part: str, rule: str, due: int, /) -> None:
        """A length, in tokens."""

    def choice(self, part: str, otherwise: int, /) -> int:
        """A number that is free to choose; `otherwise` if it was not reported."""

    def room(self, exact: int, estimate: int, /) -> int:
        """The pages that must be free: `exact`, or `estimate` for an engine that refuses by its estimate."""

    def withheld(self, rows: int, /) -> int:
        """How many rows the engine goes on withholding, as shown by a refusal of an operation that needs `rows`."""

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
        """The freed numbers of a pool, in any order; a missing one breaks `rule`.

        `staying` are numbers that must stay by a rule of the operation itself; `unpublished` are pages of a session
        that the store must not get (SESS-6).
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
        """The freed numbers of all pools: `pages`, the window sides behind them, and `states`. The store gets none."""

    def revived(self, moves: Collection[tuple[int, int]], /) -> None:
        """Window sides of duplicates move to tombstones, in pairs: neither tombstone nor side was freed (SWA-6)."""

    def cached(self, slot: int | None, due: Collection[int], /) -> None:
        """The state slot that the store took, if it took one, is one of those due (MAMBA-4)."""

    def content(self, record: int, slot: int, length: int, what: str, /) -> None:
        """A slot of a record has its state after `length` tokens; `what` it is used for (DATA-2)."""

    def sources(self, batch: list[Part], /) -> None:
        """The slots from whose states a prefill batch goes on (DATA-2)."""

    def evicted(self, asked: int, /) -> dict[PrefixKey, int]:
        """The pages that left the store, by their prefixes, after `asked` pages were asked for."""

    def left(self, pool: PoolName, rule: str, asked: int, leaving: list[int], evictable: list[int], /) -> list[int]:
        """The numbers that left the store besides pages: `leaving`, and enough of the `evictable` ones by `rule`."""

    def figures(self, due: Figures, /) -> None:
        """The figures of a report (ACC-1 to ACC-3)."""

    def whole(self) -> None:
        """The whole state, as far as it was reported."""
