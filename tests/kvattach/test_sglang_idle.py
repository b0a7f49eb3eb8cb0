"""An idle SGLang server runs its loop all the time: its hooks then capture and emit nothing."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.late_hooks import Cache, Engine, Events, attached

from kvattach.sglang.live import _Live
from kvattach.tape import Tape
from kvspec.memory.events import Announce, Count, Idle, MemoryEvent

PAGE = 4
TURNS = 500


def after_idle(turn: Callable[[Any, _Live, Any], None], late: bool) -> tuple[list[MemoryEvent], int]:
    """The events of a server that serves, and of its idle turns; and how many events or captures these add."""
    events, engine = Events(), Engine(2, PAGE, "cpu", prompt=2 * PAGE)
    cache: Any = engine.cache
    cache.tree_core.kv_events = SimpleNamespace(enabled=True)
    cache.ongoing_backup = cache.ongoing_write_through = {}
    server: Any = SimpleNamespace(is_fully_idle=lambda: True)
    tape = Tape() if late else None
    with attached(engine, events, tape) as hooked:
        live = _Live(server, hooked)
        engine.admit(2)
        for _ in range(TURNS):
            engine.decode()
            cache.check_hicache_events()
        engine.finish(2)

        def so_far() -> int:
            return hooked.hooks.events if tape is None else tape.captures

        turn(cache, live, server)
        before = so_far()
        for _ in range(TURNS):
            turn(cache, live, server)
        return events.all, so_far() - before


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_the_turns_of_an_idle_server_emit_nothing(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def turn(cache: Any, live: _Live, server: Any) -> None:
        cache.check_hicache_events()
        live.idled(server)
        cache.take_events()

    monkeypatch.setattr(Cache, "take_events", lambda _: [])
    events, further = after_idle(turn, late)
    assert further == 0
    assert sum(isinstance(event, Count) and event.pool == "rows" for event in events) == TURNS // 100
    assert [type(event) for event in events[-2:]] == [Idle, Announce]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
def test_a_drain_of_a_storage_without_an_ended_backup_captures_nothing(late: bool) -> None:
    _, further = after_idle(lambda cache, *_: cache._drain_storage_control_queues_impl(), late)
    assert further == 0
