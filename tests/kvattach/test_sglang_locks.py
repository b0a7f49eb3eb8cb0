"""The pages that a lock passes to a request, in releases in which only its node names a lock."""

from types import SimpleNamespace
from typing import Any

from kvattach.sglang.locks import Locks
from kvattach.sglang.view import KV, NEW, STATES, WINDOW
from kvspec.memory.events import Transfer


def passed(low: int | None) -> list[Transfer]:
    """The events for a lock on two nodes of four tokens, whose window begins at token `low`."""
    events: list[Transfer] = []
    locks: Any = object.__new__(Locks)
    locks._tree = SimpleNamespace(pools=[KV, WINDOW, STATES], pages_of=lambda _, values: iter(values))
    locks.hooks = SimpleNamespace(emit=events.append)
    locks._path_passed("request", low, ["first", "second"], [4, 4], [1], [2], [3], [4], [5], [6])
    return events


def test_a_lock_passes_its_windows_and_its_last_state() -> None:
    window, state = Transfer(NEW, "request", WINDOW, [5]), Transfer(NEW, "request", STATES, [6])
    assert passed(4) == [Transfer(NEW, "request", KV, [1, 4]), window, state]
    assert passed(0)[1] == Transfer(NEW, "request", WINDOW, [2, 5])
    assert passed(None) == [Transfer(NEW, "request", KV, [1, 4]), state], "its window was released before"
