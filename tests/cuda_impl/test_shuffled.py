"""The random order of jobs and elements shows a dependence on it."""

from typing import Any

import pytest
import torch

from kvcuda.arena import Run
from kvcuda.backend import DEVICE, INTERPRETED
from kvcuda.memory import DeviceMemory
from kvcuda.row_table import ints
from kvcuda.streams import default_streams
from kvspec.events import Config

# kvcuda decides how kernels are decorated, so it comes before triton.
import triton  # isort: skip
import triton.language as tl  # isort: skip

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="a GPU draws its own orders")


def published_and_evicted() -> tuple[int, ...]:
    """The entries that an eviction puts on the ring, of pages whose publication is in the queue."""
    memory = DeviceMemory(Config(1, 8, 1, 8), default_streams(DEVICE))
    memory.extend(ints([0]), ints([0]), ints([2]))
    memory.publish(0, 0, [Run(0, 2)])
    memory.evict([Run(0, 2)])
    memory.flush()
    return tuple(memory.ring[:2].tolist())


def test_jobs_that_need_an_order_come_out_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {published_and_evicted() for _ in range(10)} == {(1, 2)}
    monkeypatch.setattr("kvcuda.moves._WAITS_FOR", {})
    assert {published_and_evicted() for _ in range(10)} == {(1, 2), (0, 0)}


def collide(target: Any) -> None:
    """Two elements write the same place."""
    elements = tl.arange(0, 2)
    tl.store(target + elements * 0, elements)


def test_elements_that_write_the_same_place_come_out_differently() -> None:
    kernel: Any = triton.jit(collide)
    target = torch.zeros(1, dtype=torch.int32)
    seen = set()
    for _ in range(20):
        kernel[(1,)](target)
        seen.add(target.item())
    assert seen == {0, 1}
