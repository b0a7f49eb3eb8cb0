"""Row writes and forward passes on two lanes: the canary is silent in every order that events allow.

Each wait that is taken away shows: what a late pass reads, or where it writes, is another's by then.
"""

from typing import Any

import pytest

from kvcuda.device_manager import DeviceManager
from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import Config
from tests.cuda_impl.guarded import GuardedStep
from tests.cuda_impl.simulated_lanes import DrawnLanes, SimulatedLanes
from tests.cuda_impl.test_lanes import OVERLAPPED, HandsRowsOutEarly
from tests.cuda_impl.traffic import requests

WINDOWED = Config(4, 40, 5, 64, sliding_window=6, num_window_pages=30)
RECURRENT = Config(4, 40, 5, 64, num_states=21)
PLAIN = Config(4, 40, 5, 64)
SPECULATIVE = SchedulerConfig(drafts=3, overlap=True)


def violations(
    lanes: Any,
    config: Config = PLAIN,
    mode: SchedulerConfig = OVERLAPPED,
    manager: type[DeviceManager] = DeviceManager,
    count: int = 14,
) -> list[Any]:
    traffic = list(requests(seed=1, count=count, longest=20))
    step = GuardedStep(config, traffic, manager=manager, lanes=lanes)
    Scheduler(step, config, iter(traffic), mode).run()
    assert step.guard.passes > 10
    return step.guard.found()


ORDERS = {
    "late forward": (PLAIN, OVERLAPPED, lambda: SimulatedLanes(lazy="forward")),
    "late scheduler": (PLAIN, OVERLAPPED, lambda: SimulatedLanes(lazy="scheduler")),
    "drawn": (PLAIN, OVERLAPPED, lambda: DrawnLanes(seed=1)),
    "drafts": (PLAIN, SPECULATIVE, lambda: SimulatedLanes(lazy="forward")),
    "window": (WINDOWED, OVERLAPPED, lambda: SimulatedLanes(lazy="forward")),
    "states": (RECURRENT, OVERLAPPED, lambda: SimulatedLanes(lazy="forward")),
}


@pytest.mark.parametrize(("config", "mode", "lanes"), ORDERS.values(), ids=ORDERS)
def test_no_order_that_events_allow_shows(config: Config, mode: SchedulerConfig, lanes: Any) -> None:
    assert violations(lanes(), config, mode) == []


def test_row_handed_out_while_it_is_read_shows() -> None:
    assert violations(SimulatedLanes(lazy="forward"), manager=HandsRowsOutEarly)


def test_row_written_before_the_launch_that_reads_it_has_ended_shows() -> None:
    assert violations(SimulatedLanes(lazy="forward", deaf="scheduler"))


def test_row_read_before_it_is_written_shows() -> None:
    assert violations(SimulatedLanes(lazy="scheduler", deaf="forward"))
