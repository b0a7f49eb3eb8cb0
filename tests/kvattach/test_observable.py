"""Events of C++ are observed through a subclass, and their modules, the device and the host notice nothing."""

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvattach.observable import observable, with_events
from kvattach.patches import Patches
from kvattach.vllm.kinds import Kinds
from kvattach.vllm.offload import Offload, unobserved
from kvattach.vllm.workers import in_this_process
from tests.kvlab.checkout import release_of

torch = pytest.importorskip("torch")

STORED = """
import sys
from types import ModuleType
from tests.kvattach.cpp_device import Stream, load

device = load(sys.argv[1])
import torch
from kvattach.hooks import Hooks
from kvattach.observable import observable, with_events
from kvattach.streams import Streams
from kvspec.memory.events import Begin, End, Wait
from types import SimpleNamespace

ENGINE = '''
import torch

def store(stream, passes):
    computed = torch.Event()
    computed.record(passes)
    stream.wait_event(computed)
    stream.queue()
    done = torch.Event()
    done.record(stream)
    return computed, done
'''
engine, other = ModuleType("engine"), ModuleType("other")
exec(ENGINE, vars(engine))
exec(ENGINE, vars(other))
before = torch.Event

class Trace:
    def header(self, *_): ...
    def emit(self, *events):
        for event in events:
            print(type(event).__name__, *{"Begin": lambda: (event.id, event.stream), "End": lambda: (event.id,),
                "Wait": lambda: (event.stream, event.id)}[type(event).__name__]())

hooks = Hooks(Trace())
streams = Streams(hooks, Stream, observable(torch.Event))
Stream.current, stream = Stream(), Stream()
streams.clear(SimpleNamespace(current_stream=lambda: Stream.current))
hooks.set(engine, "torch", with_events(torch, streams.event))
streams.call_current("gpu")
hooks.emit(Begin("step 1", "gpu"))
streams.queued("step 1", "gpu")
Stream.current.queue()
computed, done = engine.store(stream, Stream.current)
streams.begin("store", [], [], stream=stream)
done.record(stream)
torch.Stream.wait_event(Stream.current, done)  # C++ takes it as an event
assert isinstance(computed, torch.Event) and torch.Event is before
assert not done.query()
print("not done")
_, unobserved = other.store(stream, Stream.current)
assert type(unobserved) is before
for one in (Stream.current, stream):
    one.finish(one.end.entries)
assert device.device_host_waits() == 0
assert done.query() and computed.query() and unobserved.query()
begun, ended = (engine.torch.Event(enable_timing=True) for _ in range(2))
begun.record(stream)
ended.record(stream)
assert begun.elapsed_time(ended) == 0
hooks.detach()
done.record(stream)
done.wait(Stream.current)
done.synchronize()
assert device.device_host_waits() == 1 and engine.torch is torch and hooks.problem is None
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.kvattach.cpp_device import compiled

    return compiled(tmp_path_factory.mktemp("device"))


def test_an_observable_event_is_an_event_of_its_class_in_all_that_can_be_asked() -> None:
    kind = observable(torch.Event)
    made, plain = kind(device="cpu", blocking=True), torch.Event(device="cpu", blocking=True)
    assert isinstance(made, torch.Event)
    assert (kind.__name__, kind.__module__, repr(made)) == ("Event", torch.Event.__module__, repr(plain))
    assert made.query() and made.device == plain.device
    refused: list[Callable[[Any], object]] = [pickle.dumps, copy.copy, lambda event: setattr(event, "other", 1)]
    for refuse in refused:
        for event in (made, plain):
            with pytest.raises((TypeError, AttributeError)):
                refuse(event)


def test_an_event_that_measures_time_has_a_plain_one_beside_it_since_cpp_takes_no_subclass_there() -> None:
    timed, plain = (kind(device="cpu", enable_timing=True) for kind in (observable(torch.Event), torch.Event))
    assert type(timed.kvspec_time) is torch.Event
    with pytest.raises(RuntimeError, match="expected other"):
        plain.elapsed_time(timed)
    with pytest.raises(ValueError, match="recorded"):
        timed.elapsed_time(timed)


def test_an_event_of_python_is_made_and_recorded_once() -> None:
    class Plain:
        def __init__(self, *given: object, **options: object) -> None:
            self.given, self.recorded = (given, options), list[object]()

        def record(self, stream: object = None) -> None:
            self.recorded.append(stream)

        def elapsed_time(self, other: "Plain") -> tuple["Plain", "Plain"]:
            return self, other

    kind = observable(Plain)
    one, timed = kind(7, blocking=True), kind(enable_timing=True)
    for event in (one, timed):
        event.record("stream")
    assert (one.given, one.recorded, one.kvspec_time) == (((7,), {"blocking": True}), ["stream"], None)
    assert timed.recorded == timed.kvspec_time.recorded == ["stream"]
    assert timed.elapsed_time(one) == (timed.kvspec_time, one)


def test_a_class_of_cpp_cannot_be_changed_and_its_subclass_can() -> None:
    asked: list[object] = []

    def ask(event: object) -> str:
        asked.append(event)
        return "asked"

    with pytest.raises(TypeError, match="immutable"):
        Patches().set(torch.Event, "query", ask)
    kind = observable(torch.Event)
    with Patches() as patches:
        patches.set(kind, "query", ask)
        made = kind(device="cpu")
        assert made.query() == "asked" and torch.Event(device="cpu").query() is True
        assert asked == [made]
    assert made.query() is True


def test_a_module_with_other_events_has_all_else_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = observable(torch.Event)
    made: Any = with_events(torch, kind)
    assert made.Event is kind and made.cuda is torch.cuda and made.empty is torch.empty
    monkeypatch.setattr(torch, "set_later", 7, raising=False)
    assert made.set_later == 7
    with pytest.raises(AttributeError, match="'torch' has no attribute 'nothing'"):
        _ = made.nothing


@pytest.mark.slow
def test_events_of_cpp_are_observed_where_a_module_makes_them_and_nowhere_else(library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STORED, str(library)], capture_output=True, text=True, check=False, timeout=120
    )
    assert not done.returncode, done.stderr
    assert done.stdout.splitlines() == [
        "Begin step 1 gpu",
        "Wait 2 step 1",
        "Wait 2 step 1",
        "Begin 1 2",
        "Begin 2 2",
        "not done",
        "End 2",
        "End step 1",
    ]


def driven(library: Path, hooked: str, connector: str, runs: int, defect: str = "") -> dict[str, Any]:
    """Drive the offloading of 0.33.0 on the device of C++."""
    arguments = [str(library), str(release_of("0.33.0", "vllm")), hooked, connector, str(runs), defect]
    command = [sys.executable, "-m", "tests.kvattach.on_device", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert not done.returncode, done.stderr
    assert "the trace ends" not in done.stderr, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.mark.slow
@pytest.mark.parametrize(("connector", "pools"), [("simple", ["host", "kv"]), ("chunks", ["buffers", "host", "kv"])])
def test_the_plugin_observes_offloading_with_events_of_cpp_and_the_host_waits_no_more_often(
    library: Path, connector: str, pools: list[str]
) -> None:
    hooked = driven(library, "hooked", connector, 3)
    assert hooked["rules"] == []
    assert hooked["pools"] == pools
    assert hooked["events"] > 6_000
    assert hooked["host_waits"] == driven(library, "bare", connector, 3)["host_waits"] > 0


@pytest.mark.slow
def test_without_its_worker_in_the_process_only_the_device_is_reported_and_what_transfers_hold_does_not_leak(
    library: Path,
) -> None:
    elsewhere = driven(library, "elsewhere", "simple", 3)
    assert elsewhere["events"] > 5_000
    assert (elsewhere["pools"], elsewhere["rules"]) == (["kv"], [])


def test_one_worker_is_in_the_process_of_its_scheduler_unless_its_executor_says_otherwise() -> None:
    def where(size: int, executor: str | None) -> bool:
        parallel = SimpleNamespace(world_size=size, distributed_executor_backend=executor)
        return in_this_process(SimpleNamespace(vllm_config=SimpleNamespace(parallel_config=parallel)))

    assert where(1, None) and where(1, "uni")
    assert not (where(2, None) or where(2, "mp") or where(1, "mp"))


def test_offloading_to_a_disk_is_another_kind() -> None:
    offload: Any = object.__new__(Offload)

    def of(**options: str) -> Any:
        config = SimpleNamespace(kv_connector_extra_config=options)
        return offload.of(SimpleNamespace(scheduler_manager="manager", _kv_transfer_config=config))

    assert of() == of(kv_offload_backend="cpu") == "manager"
    assert of(kv_offload_backend="disk") is None
    assert offload.of(SimpleNamespace()) is None


def test_a_transfer_of_one_of_several_connectors_holds_pages_too() -> None:
    busy, idle = (SimpleNamespace(scheduler_manager=SimpleNamespace(_reqs_to_load=loads)) for loads in ({"r0": 1}, {}))
    assert unobserved(busy) and unobserved(SimpleNamespace(_connectors=[idle, busy]))
    assert not (unobserved(idle) or unobserved(SimpleNamespace(_connectors=[idle])) or unobserved(None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("connector", "defect"),
    [
        ("simple", "load not waited for"),
        ("simple", "store taken for done"),
        ("simple", "store not fenced"),
        ("chunks", "chunk store not fenced"),
        ("chunks", "chunk store taken for done"),
        ("chunks", "chunk load taken for done"),
    ],
)
def test_the_plugin_finds_a_fault_in_the_order_of_copies_with_events_of_cpp(
    library: Path, connector: str, defect: str
) -> None:
    assert "MEM-RACE" in driven(library, "hooked", connector, 3, defect)["rules"]


def test_promises_of_keys_that_name_no_page_any_more_are_forgotten() -> None:
    offload: Any = object.__new__(Offload)
    named = {"kept": 1}
    pool = SimpleNamespace(cached_block_hash_to_block=SimpleNamespace(_cache=named))
    group = SimpleNamespace(state=False, page_size=4)
    offload._promised, offload._pools, offload._most = {}, {"kv": pool}, 8
    for key in ("kept", *range(100)):
        offload.promised(key, f"label {key}", 0, group)
    assert len(offload._promised) <= 8
    assert offload.stored("name", "kept", 5).labels == ["label kept"]


@pytest.mark.parametrize("observed", [False, True])
def test_kinds_of_offloading_are_hooked_only_where_streams_have_functions(
    observed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kinds, "_observed", lambda _: None)  # it needs vLLM
    stream = type("Stream", (), {"wait_stream": print} if observed else {})
    hooked: list[Any] = []
    kinds = Kinds(SimpleNamespace(), stream, None, {"json": lambda *made: hooked.append(made), "none.such": print})
    assert kinds.start(SimpleNamespace(connector=None), None, 16) == (None, {})
    assert bool(hooked) == observed
