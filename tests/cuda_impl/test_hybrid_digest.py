"""The digest model with window layers and with recurrent states: a wrong window lookup or state slot shows."""

from collections.abc import Callable
from typing import Any

import pytest

from kvcuda.decode_graph import DecodeGraph
from kvcuda.device_manager import DeviceManager
from kvcuda.device_manager.running import Running
from kvcuda.digest import DigestModel, Layers, generate, layers_of, sample, states
from kvcuda.digest_step import DigestStep
from kvcuda.forward import StateBatch
from kvcuda.holdings import Holdings
from kvcuda.streams import Streams
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import Complete, Config, Decode, Extend, Launch, MatchPrefix, Submit, SwaEvict
from tests.cuda_impl.simulated_streams import DrawnStreams, SimulatedStreams
from tests.cuda_impl.traffic import requests, run
from tests.marks import one_in

pytestmark = pytest.mark.slow

WINDOWED = Config(4, 40, 5, 64, sliding_window=6, num_window_pages=30)
RECURRENT = Config(4, 40, 5, 64, num_states=21)
BUSY = SchedulerConfig(
    chunked_prefill_size=8, max_prefill_tokens=24, overlap=True, retract_interval=5, abort_interval=7, close_interval=9
)


def replay(config: Config, streams: Streams | None = None, mode: SchedulerConfig = BUSY, seed: int = 3) -> DigestStep:
    """Run traffic; the step that it ran on."""
    step = DigestStep(DeviceManager, config, streams=streams)
    scheduler = run(step, config, requests(seed, count=8, longest=21, layers=layers_of(config)), mode)
    assert scheduler.finished > 4
    assert len(step.sampled) > 20
    return step


SPECULATIVE = SchedulerConfig(drafts=3, overlap=True)
RUNS: dict[str, tuple[Config, SchedulerConfig, Callable[[], Streams | None]]] = {
    "window, drawn streams": (WINDOWED, BUSY, lambda: DrawnStreams(seed=2)),
    "window, speculative": (WINDOWED, SPECULATIVE, lambda: SimulatedStreams(lazy="forward")),
    "window of a page and one": (Config(16, 12, 5, 64, sliding_window=17, num_window_pages=11), BUSY, lambda: None),
    "window, pages of 1": (Config(1, 90, 5, 64, sliding_window=3, num_window_pages=70), BUSY, lambda: None),
    "states, late forward": (RECURRENT, BUSY, lambda: SimulatedStreams(lazy="forward")),
    "states, pages of 1": (Config(1, 90, 5, 64, num_states=21), BUSY, lambda: DrawnStreams(seed=3)),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("config", "mode", "streams"), one_in(2, RUNS.values()), ids=RUNS)
def test_replay_samples_what_the_oracle_samples(
    config: Config, mode: SchedulerConfig, streams: Callable[[], Streams | None]
) -> None:
    assert replay(config, streams(), mode).corruptions() == []


# Faults that must corrupt samples


def test_window_looked_up_when_it_is_too_late_corrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the forward stream: by then pages were freed and handed out again, with other window pages behind them."""

    def look_up_late(self: DigestModel, slot: Any, entries: Any, batch: Any) -> None:
        self._take_lookups(entries, batch)

        def work() -> None:
            slot.upload(entries.size)
            self.enqueue_look_up(slot.device, len(entries))

        self._memory.streams.forward.run(work)

    monkeypatch.setattr(DigestModel, "_look_up", look_up_late)
    assert replay(WINDOWED, SimulatedStreams(lazy="forward")).corruptions()


def test_noted_slots_written_over_while_a_launch_reads_them_corrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcuda.digest.LOOKUP_BUFFERS", 1)
    take = DigestModel._take_lookups

    def take_at_once(self: DigestModel, entries: Any, batch: Any) -> None:
        self._lookup_readers[0] = None
        take(self, entries, batch)

    monkeypatch.setattr(DigestModel, "_take_lookups", take_at_once)
    assert replay(WINDOWED, SimulatedStreams(lazy="forward")).corruptions()


def test_window_side_given_back_too_early_corrupts(monkeypatch: pytest.MonkeyPatch) -> None:
    shed = Holdings.shed
    monkeypatch.setattr(Holdings, "shed", lambda self, kv, position: shed(self, kv, position + 4))
    assert replay(WINDOWED).corruptions()


def prefilled(config: Config, tokens: list[int]) -> DigestStep:
    """One request, `a`, has prefilled its tokens and got its first sample."""
    step = DigestStep(DeviceManager, config)
    step(Submit("a", list(tokens)))
    step(MatchPrefix("a"))
    step(Extend([("a", len(tokens))]))
    step(Launch(1, ["a"]))
    step(Complete(1, {"a": generate(tokens, 1, layers_of(config))[0]}))
    assert step.corruptions() == []
    return step


def decoded(step: DigestStep) -> list[int]:
    """How many tokens each wrong sample of another decode step followed."""
    step(Decode(["a"]))
    step(Launch(2, ["a"]))
    return [one.length for one in step.corruptions()]


@pytest.mark.parametrize(("position", "seen"), [(1, False), (2, True), (7, True)])
def test_one_wrong_window_page_within_the_window_is_seen(position: int, seen: bool) -> None:
    """Six positions before the eighth: those from 2 on."""
    step = prefilled(Config(1, 16, 2, 32, sliding_window=6, num_window_pages=16), list(range(8)))
    page = int(step.manager.memory.req_to_token[0, position])
    step.manager.memory.windows.window_of[page] = 16
    assert decoded(step) == ([9] if seen else [])


def test_one_wrong_state_slot_is_seen() -> None:
    step = prefilled(Config(4, 16, 2, 32, num_states=6), list(range(6)))
    kv = step.manager.holders["a"]
    kv.state, kv.tracked = kv.tracked[0].slot, [kv.tracked[0]._replace(slot=kv.state), *kv.tracked[1:]]
    assert decoded(step) == [7]


def sources_are_the_slots(pass_states: Callable[..., StateBatch]) -> Callable[..., StateBatch]:
    def changed(self: Running, *arguments: Any) -> StateBatch:
        batch = pass_states(self, *arguments)
        return batch._replace(sources=batch.slots * (batch.sources > 0))

    return changed


def borders_are_not_kept(pass_states: Callable[..., StateBatch]) -> Callable[..., StateBatch]:
    def changed(self: Running, *arguments: Any) -> StateBatch:
        batch = pass_states(self, *arguments)
        return batch._replace(borders=batch.borders * 0)

    return changed


@pytest.mark.parametrize("fault", [sources_are_the_slots, borders_are_not_kept])
def test_state_begun_from_the_wrong_slot_or_not_kept_corrupts(
    fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Running, "_pass_states", fault(Running._pass_states))
    assert replay(RECURRENT).corruptions()


def test_replayed_steps_of_all_layers_sample_what_the_oracle_samples() -> None:
    for config in (WINDOWED, RECURRENT):
        step = DigestStep(DeviceManager, config)
        graph = DecodeGraph(step, 2)
        graph._enqueue()  # as before a capture: words of zeros leave everything as it is
        prompts = {"a": [1, 2, 3], "b": [4, 5, 6, 7, 8]}
        outputs = {req: generate(prompt, 12, layers_of(config)) for req, prompt in prompts.items()}
        for req, prompt in prompts.items():
            step(Submit(req, list(prompt)))
            step(MatchPrefix(req))
        step(Extend([(req, len(prompt)) for req, prompt in prompts.items()]))
        step(Launch(0, ["a", "b"]))
        for number in range(1, 12):
            graph.decode_and_launch(number, ["a", "b"])
            step(Complete(number - 1, {req: tokens[number - 1] for req, tokens in outputs.items()}))
            if config.sliding_window:
                step(SwaEvict("b"))
        assert step.corruptions() == []


def test_oracle_is_what_the_layers_say() -> None:
    """A window of no less than all is full attention of other values; a state is a function of the values alone."""
    tokens = [3, 1, 4, 1, 5]
    wide = list(states(tokens, 3, Layers(window=100)))
    assert wide == list(states(tokens, 3, Layers(window=8)))
    assert wide != list(states(tokens, 3, Layers(window=3)))
    assert [sample(read) for read in wide[4:]] == generate(tokens, 4, Layers(window=8))
