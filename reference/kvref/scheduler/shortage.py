"""The shortage of an operation, and its rest after memory was freed."""

from typing import NamedTuple

from kvspec.events import EvictAnswer, Refusal, ReleaseAnswer
from kvspec.pages import Runs, expand


class Shortage(NamedTuple):
    """The amount of each pool that is short, or was freed. 0 or less is enough."""

    pages: int = 0
    rows: int = 0
    window: int = 0
    """Window pages."""
    states: int = 0

    @property
    def is_left(self) -> bool:
        """Whether anything is short."""
        return max(self) > 0

    @property
    def is_evictable(self) -> bool:
        """Whether a pool is short that the prefix store has memory of."""
        return max(self.pages, self.window, self.states) > 0

    def less(self, given: "Shortage") -> "Shortage":
        """The rest of the shortage."""
        return Shortage(*(short - more for short, more in zip(self, given, strict=True)))


NOTHING = Shortage()


def shortage(refusal: Refusal) -> Shortage:
    """The shortage of a refusal; a refusal for another reason is raised again."""
    refused = refusal.refused
    short = Shortage(refused.pages_short, refused.rows_short, refused.window_short, refused.states_short)
    if refused.rule != "CAP-1" and not short.is_left:
        raise refusal
    return short if short.is_left else Shortage(pages=1)


def evicted(answer: EvictAnswer) -> Shortage:
    """The memory that an eviction has freed, as far as its answer reports it."""
    return Shortage(_count(answer.evicted), 0, _count(answer.window_evicted), _count(answer.states_evicted))


def released(answer: ReleaseAnswer) -> Shortage:
    """The memory that a record's release has freed, as far as its answer reports it."""
    return Shortage(_count(answer.freed), 1, _count(answer.window_freed), _count(answer.states_freed))


def _count(numbers: Runs | None) -> int:
    return len(expand(numbers or ()))
