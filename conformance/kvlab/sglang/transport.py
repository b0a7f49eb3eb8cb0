"""Runs SGLang's own transfers on a simulated network: its threads take turns, and Mooncake's library is a stub.

The managers, senders and receivers of transfers are the engine's, with their threads.
"""

import ctypes
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from kvattach.patches import Patches
from kvlab.sglang.network import Network, Unsettled, address, reached
from kvlab.sglang.sockets import REQUESTS, ZMQ, Context, socket_of
from kvlab.turns import Task

INVENTED = 1 << 40
"""Lower addresses are those of pages without tensors."""


class Thread:
    """Stands in for `threading.Thread`: it runs in its turns."""

    def __init__(self, target: Callable[..., object], args: tuple[Any, ...] = (), name: str = "", **_: object) -> None:
        """A thread that has not started."""
        self._task = Task(Network.current.here, name or target.__name__, lambda: target(*args))

    def start(self) -> None:
        """Run from the next turn on."""
        Network.current.turns.add(self._task)


class Event:
    """Stands in for `threading.Event`: it is never set, and each wait ends by its timeout."""

    def is_set(self) -> bool:
        """Whether it is set: never."""
        return False

    def wait(self, seconds: float) -> bool:
        """Wait until the timeout."""
        Network.current.wait(seconds)
        return False


class Queue:
    """Stands in for `FastQueue`."""

    def __init__(self) -> None:
        """An empty queue."""
        self._waiting: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Append an item. Other threads may run before the caller goes on."""
        self._waiting.append(item)
        Network.current.turns.wait()

    def get(self) -> Any:
        """Wait for the next item."""
        Network.current.turns.wait(lambda: bool(self._waiting))
        return self._waiting.popleft()


CLOCK = SimpleNamespace(
    monotonic=lambda: Network.current.clock,
    monotonic_ns=lambda: int(Network.current.clock * 1e9),
    perf_counter=lambda: Network.current.clock,
    sleep=lambda seconds: Network.current.wait(seconds),  # noqa: PLW0108
    time=lambda: Network.current.clock,
)

# Mooncake's library


class Library:
    """Stands in for the `MooncakeTransferEngine` of the current server: it returns when a transfer is done."""

    def __init__(self) -> None:
        """Name the session by the server's address and port."""
        network = Network.current
        self._life = network.life(network.here)
        self._session = f"{address(network.here)}:{1 + network.lives[network.here]}"
        self._posted = 0

    def get_session_id(self) -> str:
        """The name by which the other server finds this session."""
        return self._session

    def batch_register(self, *_: object) -> int:
        """Do nothing: any memory may be transferred."""
        return 0

    def batch_transfer_sync(self, session: str, sources: list[int], targets: list[int], lengths: list[int]) -> int:
        """Write into the other server's memory. Returns 0, or -1 if that has failed or takes too long."""
        network = Network.current
        self._posted += 1
        number, takes, faults, to = self._posted, network.moves(), network.faults, reached(session)

        def move() -> None:
            for source, target, length in zip(sources, targets, lengths, strict=True):
                if source >= INVENTED:
                    ctypes.memmove(target, source, length)

        if network.happens(faults.left):
            network.unsettled.append(Unsettled(network.now + takes, number, self._life, to, move))
            network.wait(takes * network.share())
            return -1
        network.wait(takes)
        if to not in network.up or network.happens(faults.refused):
            network.over(number, False)
            return -1
        move()
        return 0

    def send_probe(self, session: str) -> int:
        """0 if the other server answers."""
        return 0 if Network.current.answers(reached(session)) else -1


@contextmanager
def played(modules: Any, network: Network) -> Iterator[None]:
    """Run the engine's transfers on a network. `modules` are the release's modules that use a network."""
    threading = modules.common.threading
    threads = SimpleNamespace(
        **{name: getattr(threading, name) for name in ("Lock", "RLock", "local", "Condition")},
        Thread=Thread,
        Event=Event,
    )
    with Patches() as patches:
        for module in (modules.common, modules.mooncake):
            patches.set(module, "threading", threads)
        for module in (modules.common, modules.mooncake, modules.prefill, modules.decode, modules.bootstrap):
            patches.set(module, "time", CLOCK)
        for name, value in {
            "zmq": ZMQ,
            "requests": REQUESTS,
            "get_zmq_socket_on_host": socket_of,
            "get_local_ip_auto": lambda *_: address(network.here),
        }.items():
            patches.set(modules.common, name, value)
        receiver = modules.common.CommonKVReceiver
        for name, value in {"_ctx": Context(), "_socket_cache": {}, "_socket_locks": {}}.items():
            patches.set(receiver, name, value)
        patches.set(
            modules.utils, "dist", SimpleNamespace(ReduceOp=SimpleNamespace(MIN=0, MAX=1), get_world_size=lambda _: 1)
        )
        patches.set(logging.Logger, "warning_once", lambda *_: None)
        patches.set(modules.mooncake, "FastQueue", Queue)
        patches.set(modules.mooncake, "get_mooncake_transfer_engine", Library)
        yield
