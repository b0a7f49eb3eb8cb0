"""A decode step that is captured once and replayed does what the operations do one by one."""

import pytest

from kvcuda.decode_graph import DecodeGraph
from kvcuda.device_manager import DeviceManager
from kvcuda.digest import generate
from kvcuda.digest_step import DigestStep
from kvspec.events import Complete, Config, Decode, Extend, Finish, Launch, MatchPrefix, Retract, Submit
from tests.cuda_impl.simulated_streams import SimulatedStreams


def decode(step: DigestStep, steps: int, replay: DecodeGraph | None) -> None:
    """Three requests prefill and decode `steps` tokens, the host one step ahead of the device."""
    prompts = {f"r{number}": [number, 7, 8, 9, 10][: number + 2] for number in range(3)}
    outputs = {req: generate(prompt, steps + 1) for req, prompt in prompts.items()}
    reqs = list(prompts)
    for req, prompt in prompts.items():
        step(Submit(req, list(prompt)))
        step(MatchPrefix(req))
    step(Extend([(req, len(prompt)) for req, prompt in prompts.items()]))
    step(Launch(1, reqs))
    for number in range(steps):
        if replay is not None:
            replay.decode_and_launch(number + 2, reqs)
        else:
            step(Decode(reqs))
            step(Launch(number + 2, reqs))
        step(Complete(number + 1, {req: outputs[req][number] for req in reqs}))
    step(Complete(steps + 1, {req: outputs[req][steps] for req in reqs}))


@pytest.mark.slow
def test_replayed_steps_sample_what_the_oracle_samples() -> None:
    config = Config(4, 32, 3, 64)
    step = DigestStep(DeviceManager, config)
    graph = DecodeGraph(step, 3)
    decode(step, 12, graph)
    assert len(step.sampled) == 39
    assert step.corruptions() == []
    for req in ("r0", "r1", "r2"):
        step(Finish(req))
    plain = DigestStep(DeviceManager, config)
    decode(plain, 12, None)
    assert plain.corruptions() == []


def test_graph_is_for_its_batch_size_only() -> None:
    step = DigestStep(DeviceManager, Config(4, 32, 3, 64))
    graph = DecodeGraph(step, 2)
    with pytest.raises(ValueError, match="captured for 2"):
        decode(step, 1, graph)


def test_pages_that_a_replay_takes_are_there_when_they_are_freed() -> None:
    """The replay writes rows on the forward stream, which is late here; a retract reads them on the scheduler's."""
    step = DigestStep(DeviceManager, Config(2, 8, 1, 16), streams=SimulatedStreams(lazy="forward"))
    graph = DecodeGraph(step, 1)
    step(Submit("a", [1, 2]))
    step(MatchPrefix("a"))
    step(Extend([("a", 2)]))
    step(Launch(1, ["a"]))
    graph.decode_and_launch(2, ["a"])
    step(Retract("a"))
    assert step.corruptions() == []
    assert sorted(step.manager.memory.ring.tolist()) == list(range(1, 9))


@pytest.mark.gpu
def test_graph_is_captured() -> None:
    step = DigestStep(DeviceManager, Config(16, 4096, 3, 4096))
    graph = DecodeGraph(step, 3)
    assert graph._graph is not None
    decode(step, 500, graph)
    assert step.corruptions() == []
