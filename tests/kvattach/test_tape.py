"""Captures of hooks are resolved later, in order, with what tensors had when they were captured."""

import random
import threading
from collections.abc import Mapping
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from kvattach import tape as tapes
from kvattach.hooks import Hooks, RuleBroken
from kvattach.tape import Tape, TapeFullError
from kvspec.memory import Pool
from kvspec.memory.events import Drop, Idle, MemoryEvent
from tests.kvattach.lagging import Lagging


class Events:
    def __init__(self) -> None:
        self.all: list[MemoryEvent] = []
        self.threads: set[int] = set()

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        raise NotImplementedError

    def emit(self, *events: MemoryEvent) -> None:
        self.all += events
        self.threads.add(threading.get_ident())


class Engine:
    def free(self, pages: "Numbers") -> None:
        pages.clear()

    def reset(self) -> None: ...


class Numbers(list[int]):
    """Stands in for a tensor of the host."""

    is_cpu = True

    def clone(self) -> "Numbers":
        return Numbers(self)


def hooked(tape: Tape | None) -> tuple[Hooks, Events]:
    events = Events()
    hooks = Hooks(events)
    hooks.tape = tape

    def freed(_: Engine, pages: Numbers) -> None:
        hooks.later(lambda pages: hooks.emit(Drop("kv", [*pages])), pages)
        hooks.emit(Idle())

    def reset(_: Engine) -> None:
        with hooks.at_once("reset"):
            hooks.emit(Idle([str(len(events.all))]))

    hooks.hook(Engine, "free", before=freed)
    hooks.hook(Engine, "reset", before=reset)
    return hooks, events


def run(tape: Tape | None) -> list[MemoryEvent]:
    hooks, events = hooked(tape)
    try:
        for page in range(50):
            Engine().free(Numbers([page, page + 1]))
            if page % 20 == 19:
                Engine().reset()
    finally:
        hooks.detach()
    if tape is not None:
        tape.drain()
    assert hooks.problem is None
    return events.all


def test_late_events_are_those_of_hooks_that_resolve_at_once() -> None:
    expected = run(None)
    assert expected[0] == Drop("kv", [0, 1])
    for seed in range(20):
        lagging = Lagging(random.Random(seed))
        assert run(lagging) == expected
        assert lagging.most > 1
        assert lagging.waits == {"reset": 2}


def test_a_reference_in_the_place_of_a_copy_shows() -> None:
    assert any(run(Lagging(random.Random(seed), copies=False)) != run(None) for seed in range(20))


def test_a_thread_resolves() -> None:
    tape = Tape()
    tape.start()
    assert run(tape) == run(None)


def test_the_engine_has_time_for_further_captures_before_they_are_resolved() -> None:
    tape, resolved = Tape(), list[float]()
    tape.start()
    begin = perf_counter()
    for _ in range(100):
        tape.put(lambda: resolved.append(perf_counter() - begin))
    tape.drain()
    assert len(resolved) == 100 and resolved[0] >= tapes.PAUSE


def test_events_are_emitted_in_the_thread_of_the_tape_and_the_engine_waits_only_where_it_says_so() -> None:
    tape = Tape()
    hooks, events = hooked(tape)
    try:
        Engine().free(Numbers([1]))
        assert events.all == [] and hooks.seen == 2
        tape.start()
        Engine().reset()
        assert events.all == [Drop("kv", [1]), Idle(), Idle(["2"])]
        assert len(events.threads) == 2
    finally:
        hooks.detach()


def test_a_tape_that_is_full_ends_the_trace_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tapes, "MOST", 5)
    tape = Tape()
    hooks, events = hooked(tape)
    try:
        for _ in range(9):
            Engine().free(Numbers([1]))
        Engine().reset()
    finally:
        hooks.detach()
    assert hooks.problem is not None and TapeFullError.__name__ in hooks.problem
    assert tape.captures == 5
    tape.start()
    tape.drain()
    assert events.all == [], "an ended trace takes nothing more"


def test_an_error_of_a_resolution_ends_the_trace_and_not_the_engine() -> None:
    tape = Lagging(random.Random(1))
    hooks, events = hooked(tape)

    def fails() -> None:
        raise KeyError("page")

    try:
        hooks.later(fails)
        Engine().free(Numbers([1]))
        tape.drain()
        Engine().free(Numbers([1]))
    finally:
        hooks.detach()
    assert hooks.problem is not None and "KeyError" in hooks.problem
    assert events.all == []


def test_a_broken_rule_stops_the_engine_at_its_next_hook() -> None:
    tape = Lagging(random.Random(1))
    hooks, events = hooked(tape)

    def emit(*_: Any) -> None:
        raise RuleBroken("a leak")

    events.emit = emit  # type: ignore[method-assign]
    try:
        Engine().free(Numbers([1]))
        tape.drain()
        with pytest.raises(RuleBroken):
            Engine().free(Numbers([1]))
        with pytest.raises(RuleBroken):
            Engine().reset()
    finally:
        hooks.detach()


class Device:
    """A device with one stream, whose copies arrive when an event is looked at for the third time."""

    def __init__(self) -> None:
        self.recorded: list[int] = []
        self.copies: list[list[Any]] = []
        self.looks = 0

    def current_stream(self) -> str:
        return "stream"

    def event(self) -> "Device":
        self.looks = 0
        return self

    def record(self, _: str) -> None:
        self.recorded.append(len(self.copies))

    def query(self) -> bool:
        self.looks += 1
        if self.looks == 3:
            for copy in self.copies[: self.recorded[-1]]:
                copy[:] = ["arrived"]
        return self.looks >= 3

    def tensor(self) -> Any:
        """A tensor of this device."""

        def to(_: str, *, non_blocking: bool) -> list[Any]:
            assert non_blocking
            self.copies.append(["on its way"])
            return self.copies[-1]

        return SimpleNamespace(to=to, is_cpu=False)


def test_a_resolution_waits_until_its_copies_have_arrived_and_one_event_stands_for_all_that_are_queued() -> None:
    device, seen = Device(), list[Any]()
    tape = Tape(device.current_stream, device.event)
    for _ in range(3):
        tape.put(lambda one, none: seen.append((*one, none)), device.tensor(), None)
    tape.start()
    tape.drain()
    tape.put(lambda *copies: seen.extend(copies), device.tensor())
    tape.drain()
    assert seen == [("arrived", None)] * 3 + [["arrived"]]
    assert device.recorded == [3, 4]


def test_a_tensor_of_the_host_is_copied_at_once_beside_a_device() -> None:
    device, seen, pages = Device(), list[Any](), Numbers([1])
    tape = Tape(device.current_stream, device.event)
    tape.put(lambda one, other: seen.append((one, other)), device.tensor(), pages)
    pages.clear()
    tape.start()
    tape.drain()
    assert seen == [(["arrived"], [1])]
