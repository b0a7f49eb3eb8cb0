"""A finding for a stalled engine: requests wait, and nothing has been launched for a while."""

import time
from collections.abc import Callable

from kvattach.hooks import Hooks
from kvspec.memory.events import Failed

PATIENCE = 60.0
"""Seconds without a launch while requests wait."""


def who_waits(
    count: int, first: str, length: int, *, rows: tuple[int, int], tokens: tuple[int, int], evictable: int
) -> str:
    """So many waiting requests, the first with its length in tokens; the free ones and all of the rows and tokens."""
    waiting = "1 request waits, it is" if count == 1 else f"{count} requests wait, the first is"
    return (
        f"{waiting} {first} with {length} tokens; {rows[0]} of {rows[1]} rows are free, {tokens[0]} of {tokens[1]} "
        f"tokens, and {evictable} can be evicted"
    )


class Standstill:
    """Watches each turn of an engine's loop, and emits once each time that the engine stalls."""

    def __init__(self, hooks: Hooks, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without waiting requests."""
        self._hooks, self._clock = hooks, clock
        self._since: float | None = None
        self._said = False

    def turns(self, launched: bool, waiting: Callable[[], str]) -> None:
        """One turn of the loop. `waiting` describes the waiting requests; empty if there are none."""
        if launched or not (said := waiting()):
            self._since, self._said = None, False
            return
        now = self._clock()
        if self._since is None:
            self._since = now
        elif not self._said and now - self._since >= PATIENCE:
            self._said = True
            self._hooks.emit(Failed("stuck", f"nothing has been launched for {PATIENCE:.0f} s: {said}"))
