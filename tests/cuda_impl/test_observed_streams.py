"""The memory checker finds nothing in the streams' events, and a race without any one of the manager's waits."""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvcuda
from kvcheck import Checker, Finding
from kvconform.traces.codec import read_vector
from kvconform.vectors.files import vector_files
from kvconform.vectors.runner import unanswered
from kvcuda.decode_graph import DecodeGraph
from kvcuda.device_manager import DeviceManager
from kvcuda.digest import layers_of
from kvcuda.digest_step import DigestStep
from kvcuda.forward import ForwardBatch
from kvcuda.memory_events import Emit, pools
from kvcuda.observed_streams import ObservedEvent, ObservedStream, ObservedStreams
from kvcuda.row_table import RowTable
from kvcuda.streams import default_streams
from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import Config, Evict, Extend, Launch, MatchPrefix, Refusal, Retract, Snapshot, Submit
from kvspec.memory.events import Begin, Event
from tests.cuda_impl.simulated_streams import SimulatedStream, SimulatedStreams
from tests.cuda_impl.traffic import requests
from tests.marks import one_in

pytestmark = pytest.mark.slow

OVERLAPPED = SchedulerConfig(
    chunked_prefill_size=8, max_prefill_tokens=24, overlap=True, retract_interval=3, abort_interval=5
)
CONFIGS = {
    "plain": Config(4, 40, 5, 64),
    "windows": Config(4, 40, 5, 64, sliding_window=6, num_window_pages=40),
    "states": Config(4, 40, 5, 64, num_states=16),
}


class Undone(SimulatedStream):
    """A stream that moves only when the host waits for it, and then does no work: the manager never reads results."""

    def run(self, work: Callable[[], object], uses: object = None) -> None:
        super().run(lambda: None)


class Recorder:
    """A memory checker that keeps its events and findings."""

    def __init__(self, config: Config) -> None:
        self.checker = Checker(pools(config))
        self.found: list[Finding] = []
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.found += self.checker.step(event)

    @property
    def operations(self) -> list[Begin]:
        return [event for event in self.events if isinstance(event, Begin) and event.stream != "host"]


def observed(config: Config, emit: Emit) -> ObservedStreams:
    """Streams without progress until the host waits for them."""
    streams = SimulatedStreams(lazy="scheduler")
    streams.scheduler, streams.forward = Undone(), Undone()
    return ObservedStreams(streams, config, emit)


def soak(config: Config, seed: int = 1, manager: type[DeviceManager] = DeviceManager, count: int = 25) -> Recorder:
    """Requests and turns of sessions, overlapped, with the digest model's forward passes."""
    recorder = Recorder(config)
    step = DigestStep(manager, config, streams=observed(config, recorder))
    Scheduler(step, config, requests(seed, count, 20, layers_of(config)), OVERLAPPED).run()
    return recorder


def replays() -> Recorder:
    """Decode steps as graphs, on the forward stream, with moves of pages between them."""
    config = Config(2, 12, 2, 64)
    recorder = Recorder(config)
    step = DigestStep(DeviceManager, config, streams=observed(config, recorder))
    graph = DecodeGraph(step, 1)
    for number, req in enumerate("abc"):
        step(Submit(req, [number, 1]))
        step(MatchPrefix(req))
        step(Extend([(req, 2)]))
        step(Launch(2 * number, [req]))
        graph.decode_and_launch(2 * number + 1, [req])
        step(Retract(req))
        step.manager.memory.flush()
        for launch in (2 * number, 2 * number + 1):
            step.manager.complete(launch, {})
    return recorder


def far_ahead(config: Config) -> Recorder:
    """More launches in flight than there are buffers for what they read."""
    recorder = Recorder(config)
    step = DigestStep(DeviceManager, config, streams=observed(config, recorder))
    for number, (req, short) in enumerate((f"long {at}", f"short {at}") for at in range(6)):
        for name, prompt in ((req, [number, 1, 2, 3, 4]), (short, [number])):  # a kernel for each
            step(Submit(name, [*prompt]))
            step(MatchPrefix(name))
        step(Extend([(req, 5), (short, 1)]))
        step(Launch(number, [req, short]))
    return recorder


WORKLOADS: dict[str, Callable[[], Recorder]] = {
    "replays": replays,
    "far ahead": lambda: far_ahead(Config(4, 40, 12, 64)),
    "far ahead, with windows": lambda: far_ahead(Config(4, 40, 12, 64, sliding_window=6, num_window_pages=40)),
    "plain": lambda: soak(CONFIGS["plain"]),
    "states": lambda: soak(CONFIGS["states"]),
    "windows": lambda: soak(CONFIGS["windows"], count=60),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_found_in_a_soak(config: Config, seed: int) -> None:
    recorder = soak(config, seed)
    assert recorder.found == []
    assert {begin.stream for begin in recorder.operations} == {"scheduler", "forward"}


@pytest.mark.parametrize("workload", ["replays", "far ahead", "far ahead, with windows"])
def test_nothing_is_found_elsewhere(workload: str) -> None:
    assert WORKLOADS[workload]().found == []


def test_nothing_is_found_while_kernels_run() -> None:
    config = CONFIGS["plain"]
    recorder = Recorder(config)
    step = DigestStep(DeviceManager, config, streams=ObservedStreams(default_streams("cpu"), config, recorder))
    Scheduler(step, config, requests(1, 8, 12), OVERLAPPED).run()
    assert step.corruptions() == []
    assert recorder.found == []


@pytest.mark.parametrize("path", one_in(3, vector_files()), ids=lambda path: path.stem)
def test_nothing_is_found_in_a_vector(path: Path) -> None:
    vector = read_vector(path)
    config = vector.header.config
    recorder = Recorder(config)
    streams = observed(config, recorder)

    def forward(batch: ForwardBatch) -> None:
        assert streams.listener is not None
        streams.forward.run(lambda: None, streams.listener.forward(*batch[2:6], manager.memory.out_cache_loc))

    manager = DeviceManager(config, forward=forward, streams=streams)
    for step in vector.steps:
        op = unanswered(step.op)
        if isinstance(op, Snapshot):
            continue
        method = manager.evict_pages if isinstance(op, Evict) else getattr(manager, str(op.__struct_config__.tag))
        try:
            method(*[getattr(op, name) for name in op.__struct_fields__ if name not in ("obs", "refused")])
        except Refusal:
            continue
    manager.memory.flush()
    assert recorder.found == []


# Without one of the waits


def waits() -> Iterator[tuple[str, int]]:
    """Every place in kvcuda where a stream or the host waits for a stream."""
    root = Path(kvcuda.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.stem in ("streams", "observed_streams"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = ast.unparse(node.func.value)
                if node.func.attr in ("wait", "synchronize") and not of.endswith(("streams", "torch.cuda")):
                    yield path.relative_to(root).as_posix(), node.lineno


WAITS = list(waits())


def take_away(monkeypatch: pytest.MonkeyPatch, place: tuple[str, int]) -> None:
    """Remove one wait."""
    path, line = place

    def deaf(original: Callable[..., None]) -> Callable[..., None]:
        def elsewhere(*arguments: Any) -> None:
            caller = sys._getframe(1)
            if (caller.f_lineno, caller.f_code.co_filename.endswith(f"/kvcuda/{path}")) != (line, True):
                original(*arguments)

        return elsewhere

    monkeypatch.setattr(ObservedStream, "wait", deaf(ObservedStream.wait))
    monkeypatch.setattr(ObservedEvent, "synchronize", deaf(ObservedEvent.synchronize))


def test_all_waits_are_known() -> None:
    assert len(WAITS) >= 8


@pytest.mark.parametrize("place", WAITS, ids=lambda place: f"{place[0]}:{place[1]}")
def test_without_a_wait_a_race_is_found(monkeypatch: pytest.MonkeyPatch, place: tuple[str, int]) -> None:
    take_away(monkeypatch, place)
    assert any(finding.rule == "MEM-RACE" for workload in WORKLOADS.values() for finding in workload().found)


# Without something else


def test_row_handed_out_while_it_is_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a launch reads are no longer withheld."""
    monkeypatch.setattr(RowTable, "let_go", RowTable._give_back)
    assert "MEM-RACE" in [finding.rule for finding in soak(CONFIGS["plain"]).found]


def test_matched_prefix_that_is_not_copied_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words have no job for a fresh row's matched prefix."""
    prepare = DeviceManager._begin
    monkeypatch.setattr(
        DeviceManager, "_begin", lambda self, prefill, copies, states: prepare(self, prefill, [], states)
    )
    assert "MEM-WRITTEN" in [finding.rule for finding in soak(CONFIGS["plain"]).found]
