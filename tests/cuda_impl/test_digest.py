"""The device's samples, computed through the rows, equal those of an uncached computation, in any scheduling."""

import pytest

from kvcuda.device_manager import DeviceManager
from kvcuda.digest import generate, sample, states
from kvcuda.digest_step import DigestStep
from kvcuda.memory import OUT_BUFFERS
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import Complete, Config, Extend, Launch, MatchPrefix, Submit
from tests.cuda_impl.traffic import requests, run

SMALL = {
    "chunks": SchedulerConfig(chunked_prefill_size=8, max_prefill_tokens=24),
    "everything": SchedulerConfig(
        chunked_prefill_size=8,
        max_prefill_tokens=24,
        overlap=True,
        mixed_chunk=True,
        retract_interval=5,
        abort_interval=7,
        close_interval=9,
    ),
    "speculative": SchedulerConfig(drafts=3, overlap=True),
}


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("config", SMALL.values(), ids=SMALL)
def test_replay_samples_what_the_oracle_samples(config: SchedulerConfig, page_size: int) -> None:
    memory = Config(page_size, 160 // page_size, 5, 64)
    step = DigestStep(DeviceManager, memory)
    scheduler = run(step, memory, requests(seed=page_size + 1, count=10, longest=20), config)
    assert scheduler.finished > 6
    assert len(step.sampled) > 15
    assert step.corruptions() == []


@pytest.mark.gpu
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("config", SMALL.values(), ids=SMALL)
def test_long_replay_samples_what_the_oracle_samples(config: SchedulerConfig, page_size: int) -> None:
    memory = Config(page_size, 20_000 // page_size, 32, 2048)
    step = DigestStep(DeviceManager, memory, max_words=1 << 16, max_samples=1 << 20)
    larger = SchedulerConfig(
        **{**vars(config), "chunked_prefill_size": 200, "max_prefill_tokens": 1000},
    )
    scheduler = run(step, memory, requests(seed=page_size, count=300, longest=600), larger)
    assert scheduler.finished > 200
    assert step.corruptions() == []


def test_one_wrong_slot_changes_what_is_sampled() -> None:
    """The model can fail: a row that names another request's page is noticed at the next step."""
    step = DigestStep(DeviceManager, Config(4, 16, 2, 32))
    for req, first in (("a", 1), ("b", 2)):
        step(Submit(req, [first, 2, 3, 4, 5, 6]))
        step(MatchPrefix(req))
    step(Extend([("a", 6), ("b", 6)]))
    step(Launch(1, ["a", "b"]))
    step(Complete(1, {req: generate([first, 2, 3, 4, 5, 6], 1)[0] for req, first in (("a", 1), ("b", 2))}))
    assert step.corruptions() == []
    rows = step.manager.memory.req_to_token
    rows[1, 2] = rows[0, 2]
    step.manager.decode(["a", "b"])
    step.manager.launch(2, ["a", "b"])
    assert [(one.launch, one.req, one.length) for one in step.corruptions()] == [(2, "b", 7)]


def test_launch_of_slots_that_are_gone_is_refused() -> None:
    step = DigestStep(DeviceManager, Config(4, 32, 8, 32))
    for number in range(OUT_BUFFERS + 1):
        step(Submit(f"r{number}", [number, 1]))
        step(MatchPrefix(f"r{number}"))
        step(Extend([(f"r{number}", 2)]))
    with pytest.raises(ValueError, match="comes too late"):
        step(Launch(1, ["r0"]))
    step(Launch(1, ["r1"]))
    assert step.corruptions() == []


def test_oracle_follows_its_own_samples() -> None:
    tokens = [5, 6, 7]
    outputs = generate(tokens, 4)
    assert [sample(state) for state in states(tokens + outputs[:3])][2:] == outputs
    assert len(set(outputs)) > 1
