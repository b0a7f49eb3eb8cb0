"""An implementation that carries everything out, and tells nothing of it."""

from typing import Any

from kvref import Manager
from kvspec.events import Answer, EvictAnswer


def silenced(name: str) -> Any:
    def method(self: Manager, *args: Any) -> Answer:
        answer: Answer = getattr(Manager, name)(self, *args)
        return EvictAnswer([]) if isinstance(answer, EvictAnswer) else type(answer)()

    return method


OPERATIONS = (
    *("open_session", "submit", "match_prefix", "extend", "decode", "verify", "launch", "complete", "cache_unfinished"),
    *("finish", "retract", "abort", "close_session", "preempt", "evict", "report", "snapshot", "swa_evict"),
    *("take_state", "free_state"),
)

Silent = type("Silent", (Manager,), {name: silenced(name) for name in OPERATIONS})
"""Answers nothing."""
