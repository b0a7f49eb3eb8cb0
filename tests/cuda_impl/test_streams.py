"""Row writes and forward reads run on two streams: the manager's waits are needed, and suffice (RACE-1)."""

from typing import Any

import pytest
import torch

from kvcuda.device_manager import DeviceManager
from kvcuda.digest import generate
from kvcuda.digest_step import DigestStep
from kvcuda.memory import OUT_BUFFERS
from kvcuda.streams import CudaStreams
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import Complete, Config, Decode, Extend, Launch, MatchPrefix, Submit
from tests.cuda_impl.simulated_streams import DrawnStreams, SimulatedStreams
from tests.cuda_impl.traffic import requests, run

pytestmark = pytest.mark.slow

OVERLAPPED = SchedulerConfig(
    chunked_prefill_size=8, max_prefill_tokens=24, overlap=True, retract_interval=3, abort_interval=5
)


class HandsRowsOutEarly(DeviceManager):
    """Without the rule that a row is withheld while a launch in flight reads it."""

    def __init__(self, config: Config, **options: Any) -> None:
        super().__init__(config, **options)
        never: Any = _NeverRead()
        self.rows._readers = never


class _NeverRead:
    """In place of the number of launches that read each row."""

    def __getitem__(self, rows: Any) -> int:
        return 0

    def __setitem__(self, rows: Any, readers: int) -> None:
        return None


def corruptions(manager: type[DeviceManager], streams: Any, longest: int = 20) -> int:
    memory = Config(4, 2 * longest, 5, 64 if longest == 20 else 2048)
    step = DigestStep(manager, memory, streams=streams)
    run(step, memory, requests(seed=1, count=25, longest=longest), OVERLAPPED)
    return len(step.corruptions())


@pytest.mark.parametrize("lazy", ["forward", "scheduler"])
def test_no_order_that_events_allow_corrupts(lazy: str) -> None:
    assert corruptions(DeviceManager, SimulatedStreams(lazy=lazy)) == 0


def test_no_order_that_is_drawn_corrupts() -> None:
    assert corruptions(DeviceManager, DrawnStreams(seed=1)) == 0


def test_row_handed_out_while_it_is_read_corrupts() -> None:
    assert corruptions(HandsRowsOutEarly, SimulatedStreams(lazy="forward")) > 0


def test_row_written_before_the_launch_that_reads_it_has_ended_corrupts() -> None:
    assert corruptions(DeviceManager, SimulatedStreams(lazy="forward", deaf="scheduler")) > 0


def test_row_read_before_it_is_written_corrupts() -> None:
    assert corruptions(DeviceManager, SimulatedStreams(lazy="scheduler", deaf="forward")) > 0


def test_slots_of_new_tokens_stay_until_a_late_launch_has_read_them() -> None:
    """More launches in flight than `out_cache_loc` has room for batches."""
    step = DigestStep(DeviceManager, Config(4, 32, 8, 32), streams=SimulatedStreams(lazy="forward"))
    reqs = [f"r{number}" for number in range(OUT_BUFFERS + 2)]
    for number, req in enumerate(reqs):
        step(Submit(req, [number, 1, 2, 3, 4]))
        step(MatchPrefix(req))
        step(Extend([(req, 5)]))
        step(Launch(number, [req]))
    for number, req in enumerate(reqs):
        step(Complete(number, {req: generate([number, 1, 2, 3, 4], 1)[0]}))
    step(Decode(reqs))
    step(Launch(99, reqs))
    assert step.corruptions() == []


# The same on two CUDA streams. A forward pass that sleeps first widens the window.

SLEEP = 20_000_000
"""Clock cycles: about 10 ms."""


class DeafScheduler(CudaStreams):
    """The scheduler's stream is the current one, but it ignores events."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler.wait = lambda event: None  # type: ignore[method-assign]


def stressed(manager: type[DeviceManager], streams: CudaStreams) -> int:
    memory = Config(4, 400, 5, 512)
    sleep = lambda: torch.cuda._sleep(SLEEP)  # noqa: E731
    step = DigestStep(manager, memory, streams=streams, before_forward=sleep)
    config = SchedulerConfig(**{**vars(OVERLAPPED), "chunked_prefill_size": 40, "max_prefill_tokens": 120})
    run(step, memory, requests(seed=1, count=40, longest=100), config)
    return len(step.corruptions())


@pytest.mark.gpu
def test_slow_forward_corrupts_nothing() -> None:
    assert stressed(DeviceManager, CudaStreams()) == 0


@pytest.mark.gpu
def test_slow_forward_shows_a_row_handed_out_early() -> None:
    assert stressed(HandsRowsOutEarly, CudaStreams()) > 0


@pytest.mark.gpu
def test_slow_forward_shows_a_missing_event() -> None:
    assert stressed(DeviceManager, DeafScheduler()) > 0
