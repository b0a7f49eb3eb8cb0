"""The device manager reads nothing back and allocates nothing while it works."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kvconform.oracle import Model
from kvconform.proxy import OracleProxy
from kvconform.vectors.runner import carry_out
from kvcuda.device_manager import DeviceManager
from kvcuda.manager import Manager
from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvspec.events import A, CacheUnfinished, Config, Evict, EvictAnswer, FreeState, Operation, SwaEvict, TakeState
from kvspec.model import looking
from tests.cuda_impl.traffic import requests
from tests.walk import RandomDraw, proposals

READS = ["item", "tolist", "cpu", "numpy", "nonzero", "unique", "__bool__", "__int__", "__index__", "__float__", "any"]
FUNCTIONS = ["unique", "nonzero", "cat", "empty", "zeros", "full", "tensor", "arange", "as_tensor", "from_numpy"]


class Steps:
    """Carries operations out, on a manager that names no page."""

    def __init__(self, manager: DeviceManager) -> None:
        self.manager = manager
        self.operations = 0

    def __call__(self, op: Operation[A], /) -> A:
        self.operations += 1
        if isinstance(op, Evict):
            return EvictAnswer([0] * self.manager.evict_pages(op.n, op.window, op.states).pages)  # type: ignore[return-value]
        arguments = [getattr(op, name) for name in op.__struct_fields__ if name not in ("obs", "refused")]
        answer: A = getattr(self.manager, str(op.__struct_config__.tag))(*arguments)
        return answer


def forbidden(name: str) -> Callable[..., Any]:
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"{name} was called: it waits for the device, or allocates")

    return fail


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, forbidden(f"Tensor.{name}"))
    for name in FUNCTIONS:
        monkeypatch.setattr(torch, name, forbidden(f"torch.{name}"))


CONFIG = SchedulerConfig(
    chunked_prefill_size=8, max_prefill_tokens=24, overlap=True, retract_interval=5, abort_interval=7, close_interval=9
)


def test_operations_neither_read_the_device_nor_allocate(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Config(4, 40, 5, 64)
    traffic = list(requests(seed=3, count=14, longest=20))
    step = Steps(DeviceManager(memory))
    forbid(monkeypatch)
    Scheduler(step, memory, iter(traffic), CONFIG).run()
    assert step.operations > 100
    figures = step.manager.report("idle")
    total = (figures.available or 0) + (figures.evictable or 0) + (figures.session_held or 0) + (figures.protected or 0)
    assert total == 160


HYBRID = {
    "sliding window": Config(2, 14, 3, 17, sliding_window=3, num_window_pages=12),
    "recurrent states": Config(2, 14, 3, 17, num_states=10),
}


@pytest.mark.slow
@pytest.mark.parametrize("config", HYBRID.values(), ids=HYBRID)
def test_operations_of_hybrid_pools_neither_read_nor_allocate(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat the operations of a random walk on the manager that never reads."""
    due = {SwaEvict, Evict, CacheUnfinished} if config.sliding_window else {TakeState, FreeState, Evict}
    model = Model(config)
    proxy = OracleProxy(Manager(config), model)
    carried_out: list[Operation[Any]] = []
    for op in proposals(model.state, RandomDraw(seed=4), 3000):
        carry_out(proxy, op)
        if op.refused is None:
            carried_out.append(op)
        if len(carried_out) > 150 and due <= {type(op) for op in carried_out}:
            break
    step = Steps(DeviceManager(config))
    forbid(monkeypatch)
    for op in carried_out:
        step(op)
    monkeypatch.undo()
    assert due <= {type(op) for op in carried_out}
    assert step.manager.report() == looking.figures(model.state)


def test_what_is_forbidden_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = DeviceManager(Config(4, 40, 5, 64))
    ring = manager.memory.ring
    forbid(monkeypatch)
    with pytest.raises(AssertionError, match="item"):
        ring[0].item()


@pytest.mark.gpu
def test_operations_never_synchronize() -> None:
    memory = Config(4, 4000, 32, 2048)
    traffic = list(requests(seed=3, count=100, longest=300))
    step = Steps(DeviceManager(memory))
    Scheduler(step, memory, iter(traffic[:50]), CONFIG).run()  # compiles the kernels
    torch.cuda.set_sync_debug_mode("error")
    try:
        Scheduler(step, memory, (one._replace(name=f"again {one.name}", session=None) for one in traffic), CONFIG).run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert step.operations > 500
