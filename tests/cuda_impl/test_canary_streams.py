"""Row writes and forward passes on two streams: the canary is silent in every order that events allow.

Each wait that is taken away shows: what a late pass reads, or where it writes, is another's by then.
"""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from kvcuda.device_manager import DeviceManager
from kvcuda.memory import OUT_BUFFERS
from kvcuda.staging import Staging
from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvref.scheduler.req import GenerateReq
from kvspec.events import Complete, Config, Decode, Extend, Launch, MatchPrefix, Submit
from tests.cuda_impl.guarded import GuardedStep
from tests.cuda_impl.simulated_streams import DrawnStreams, SimulatedEvent, SimulatedStream, SimulatedStreams
from tests.cuda_impl.test_streams import OVERLAPPED, HandsRowsOutEarly
from tests.cuda_impl.traffic import requests
from tests.marks import one_in

pytestmark = pytest.mark.slow

WINDOWED = Config(4, 40, 5, 64, sliding_window=6, num_window_pages=30)
RECURRENT = Config(4, 40, 5, 64, num_states=21)
PLAIN = Config(4, 40, 5, 64)
SPECULATIVE = SchedulerConfig(drafts=3, overlap=True)


def violations(
    streams: Any,
    config: Config = PLAIN,
    mode: SchedulerConfig = OVERLAPPED,
    manager: type[DeviceManager] = DeviceManager,
    count: int = 14,
) -> list[Any]:
    traffic = list(requests(seed=1, count=count, longest=20))
    step = GuardedStep(config, traffic, manager=manager, streams=streams)
    Scheduler(step, config, iter(traffic), mode).run()
    assert step.guard.passes > 10
    return step.guard.found()


ORDERS = {
    "late forward": (PLAIN, OVERLAPPED, lambda: SimulatedStreams(lazy="forward")),
    "late scheduler": (PLAIN, OVERLAPPED, lambda: SimulatedStreams(lazy="scheduler")),
    "drawn": (PLAIN, OVERLAPPED, lambda: DrawnStreams(seed=1)),
    "drafts": (PLAIN, SPECULATIVE, lambda: SimulatedStreams(lazy="forward")),
    "window": (WINDOWED, OVERLAPPED, lambda: SimulatedStreams(lazy="forward")),
    "states": (RECURRENT, OVERLAPPED, lambda: SimulatedStreams(lazy="forward")),
}


@pytest.mark.parametrize(("config", "mode", "streams"), one_in(2, ORDERS.values()), ids=ORDERS)
def test_no_order_that_events_allow_shows(config: Config, mode: SchedulerConfig, streams: Any) -> None:
    assert violations(streams(), config, mode) == []


def test_row_handed_out_while_it_is_read_shows() -> None:
    assert violations(SimulatedStreams(lazy="forward"), manager=HandsRowsOutEarly)


def test_row_written_before_the_launch_that_reads_it_has_ended_shows() -> None:
    assert violations(SimulatedStreams(lazy="forward", deaf="scheduler"))


def test_row_read_before_it_is_written_shows() -> None:
    assert violations(SimulatedStreams(lazy="scheduler", deaf="forward"))


# The waits one by one


class Early(SimulatedStream):
    """A stream that does not hold for some events."""

    def __init__(self, stream: SimulatedStream, skipped: Callable[[str], bool]) -> None:
        super().__init__(eager=stream._eager)
        self._skipped = skipped

    def wait(self, event: Any) -> None:
        if not self._skipped(inspect.stack()[1].function):
            super().wait(event)


def without(function: str, lazy: str) -> SimulatedStreams:
    """Streams of which the scheduler's does not wait where this function of the manager says so."""
    streams = SimulatedStreams(lazy=lazy)
    streams.scheduler = Early(streams.scheduler, lambda caller: caller == function)
    return streams


def test_row_withheld_until_a_completion_that_nothing_waits_for_shows() -> None:
    assert violations(without("complete", "forward"))


def late_launches(streams: SimulatedStreams, count: int) -> list[Any]:
    """More launches in flight than there are buffers for their words, on a forward stream that is late."""
    config = Config(4, 4 * count, count, 32)
    reqs = [GenerateReq(f"r{number}", [number, 1, 2, 3, 4], [0, 0]) for number in range(count)]
    step = GuardedStep(config, reqs, streams=streams)
    for number, req in enumerate(reqs):
        step(Submit(req.name, list(req.tokens)))
        step(MatchPrefix(req.name))
        step(Extend([(req.name, 5)]))
        step(Launch(number, [req.name]))
    for number, req in enumerate(reqs):
        step(Complete(number, {req.name: 0}))
    names = [req.name for req in reqs]
    step(Decode(names))
    step(Launch(99, names))
    return step.guard.found()


def test_slots_of_new_tokens_that_are_written_over_while_a_late_pass_reads_them_show() -> None:
    count = OUT_BUFFERS + 2
    assert late_launches(SimulatedStreams(lazy="forward"), count) == []
    assert late_launches(without("_next_out", "forward"), count)


def late_words(patch: pytest.MonkeyPatch) -> list[Any]:
    """The scheduler's stream is late, and has fewer buffers for its words than batches are prepared."""
    made = Staging.__init__
    with patch.context() as few:
        few.setattr(Staging, "__init__", lambda self, words, device, streams: made(self, words, device, streams, 2))
        names = ["a", "b", "c"]
        step = GuardedStep(
            Config(4, 32, 4, 32),
            [GenerateReq(name, [ord(name), 1, 2, 3, 4], [0, 0]) for name in names],
            streams=SimulatedStreams(lazy="scheduler"),
        )
        for name in names:
            step(Submit(name, [ord(name), 1, 2, 3, 4]))
            step(MatchPrefix(name))
            step(Extend([(name, 5)]))
        step(Launch(0, names))
        step(Complete(0, dict.fromkeys(names, 0)))
        step(Decode(names))
        step(Launch(1, names))
        return step.guard.found()


def test_words_that_are_written_over_while_a_late_stream_reads_them_show(monkeypatch: pytest.MonkeyPatch) -> None:
    assert late_words(monkeypatch) == []
    monkeypatch.setattr(SimulatedEvent, "query", lambda self: True)
    assert late_words(monkeypatch)


def test_row_whose_duplicates_are_replaced_early_reads_the_same() -> None:
    """The one wait that does not show: either page of a duplicate holds the same content."""
    assert violations(without("flush", "forward")) == []
