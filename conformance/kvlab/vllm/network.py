"""The network between two servers with vLLM's NIXL connector: transfers, failures, and the time."""

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvattach.vllm.nixl import HEARTBEAT
from kvlab.vllm.workload import Workload

KINDS = ("pull", "push")
"""The engine's connectors: decode reads pages that prefill keeps, or prefill writes pages that decode registered."""
SERVERS = ("prefill", "decode")
"""The two hosts. A server's port is its place here; its clock is an hour ahead of that of the place before."""
SKEW = 3600.0
"""Seconds between the clocks of the servers."""
LATENCY, LATE = 2.0, 90.0
"""The most seconds that a message or a transfer takes: normally, and if it is late."""


def named(server: str, life: int) -> str:
    """The name of a server in one of its lives, from 1."""
    return server if life == 1 else f"{server}.{life}"


@dataclass
class Posted:
    """One transfer, from its creation to its release."""

    sender: str
    to: str
    message: bytes
    ends: float = 0.0
    """The time at which all of it has ended."""
    fails: float | None = None
    """The time from which it counts as failed."""


@dataclass
class Network:
    """The transfers and messages between the servers. Seconds are the network's own."""

    current: ClassVar["Network"]

    work: Workload
    now: float = 0.0
    here: str = ""
    """The current server."""
    schedulers: dict[str, Any] = field(default_factory=dict)
    """Running server -> the scheduler's side of its connector."""
    lives: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 1))
    """The number of times that each server was started."""
    transfers: dict[int, Posted] = field(default_factory=dict)
    reached: str = ""
    """The remote agent of the last posted transfer."""
    _dice: random.Random = field(init=False)
    _messages: list[tuple[float, str, str, bytes, float]] = field(default_factory=list)
    """Messages in flight: arrival time, receiver, sender, content, and the time of sending."""
    _dead: set[str] = field(default_factory=set)
    """Agents of servers that have died."""
    _numbers: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.work.seed + 4)
        Network.current = self

    @property
    def clock(self) -> float:
        """Seconds on the clock of the current server."""
        return self.now + SKEW * (1 + SERVERS.index(self.here))

    def takes(self, *, steady: bool = True) -> float:
        """Seconds that a message or transfer takes; `steady`: it is always in time under a steady workload."""
        late = self._dice.random() < self.work.late and not (steady and self.work.steady)
        return self._dice.random() * (LATE if late else LATENCY)

    def share(self) -> float:
        """A random fraction."""
        return self._dice.random()

    def fails(self) -> bool:
        """Whether an operation fails now."""
        return self._dice.random() < self.work.failing

    def number(self) -> int:
        """A new handle."""
        self._numbers += 1
        return self._numbers

    def send(self, sender: str, to: str, message: bytes, at: float) -> None:
        """Send a notification at a time: it arrives once, twice or never."""
        steady = message.startswith(HEARTBEAT)
        lost = self._dice.random() < self.work.lost and not (steady and self.work.steady)
        times = 0 if lost else 1 + (self._dice.random() < self.work.doubled)
        self._messages += [(at + self.takes(steady=steady), to, sender, message, at) for _ in range(times)]

    def life(self, server: str) -> str:
        """The name of a server in its current life."""
        return named(server, self.lives[server])

    def dies(self, server: str) -> None:
        """A server dies. Its operations in flight end, and transfers with its memory fail sooner or later."""
        gone = self.life(server)
        self._dead.add(gone)
        del self.schedulers[server]
        self.lives[server] += 1
        for posted in self.transfers.values():
            if posted.to == gone and posted.ends > self.now:
                posted.ends, posted.fails = self.now, self.now + self.takes(steady=False)
        self._messages = [one for one in self._messages if one[1] != gone and (one[2] != gone or one[4] <= self.now)]

    def answers(self, agent: str) -> bool:
        """Whether the server of an agent still runs."""
        return agent not in self._dead

    def arrived(self, agent: str) -> dict[str, list[bytes]]:
        """The notifications that have arrived for an agent since the last call, by sender."""
        got: dict[str, list[bytes]] = {}
        for message in sorted(one for one in self._messages if one[0] <= self.now and one[1] == agent):
            self._messages.remove(message)
            got.setdefault(message[2], []).append(message[3])
        return got
