"""The end of a run, in each driver: the last requests are not aborted, and a request that never ends is found."""

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kvlab.mini_sglang import driver as mini_sglang
from kvlab.sglang_jax import driver as sglang_jax
from kvlab.tokens import Tokens

AT_ONCE = 4
"""Requests that run."""

Receive = Callable[[], list[Any]]
"""The next messages."""


def of_mini_sglang(live: list[int], left: int) -> Receive:
    shape = mini_sglang.Shape(4, 8, AT_ONCE, 8, 2, overlap=True, aborts=1.0)
    messages = SimpleNamespace(AbortBackendMsg=lambda uid: f"abort {uid}")
    engine: Any = SimpleNamespace(message=messages)
    traffic = mini_sglang._Traffic(engine, shape, Random(0), left, Tokens(0))
    traffic.live += live
    return lambda: traffic.receive(blocking=not left and not live[1:])


def of_sglang_jax(live: list[int], left: int) -> Receive:
    shape = sglang_jax.Shape(4, 8, AT_ONCE, 8, 8, 2, True, False, True, 0.0, aborts=1.0)
    messages = SimpleNamespace(AbortReq=lambda rid: f"abort {rid}")
    engine: Any = SimpleNamespace(messages=messages)
    traffic = sglang_jax._Traffic(engine, shape, Random(0), left, Tokens(0))
    traffic.live += live
    traffic.is_idle = lambda: not left and not live[1:]
    return traffic.recv_requests


@pytest.mark.parametrize("made", [of_mini_sglang, of_sglang_jax])
def test_the_last_requests_are_not_aborted(made: Callable[[list[int], int], Receive]) -> None:
    assert made([1, 2, 3], 0)()[0].startswith("abort")
    assert made([1, 2], 0)() == []


@pytest.mark.parametrize("made", [of_mini_sglang, of_sglang_jax])
def test_a_request_that_is_left_when_all_is_idle_was_forgotten(made: Callable[[list[int], int], Receive]) -> None:
    receive = made([1], 0)
    with pytest.raises(RuntimeError, match="the requests never finish: 1 were forgotten"):
        for _ in range(4):
            receive()
