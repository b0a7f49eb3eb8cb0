"""The network between two servers with vLLM's NIXL connector: what is under way, what fails, and the time."""

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvattach.vllm.nixl import HEARTBEAT
from kvlab.vllm.workload import Workload

KINDS = ("pull", "push")
"""The engine's connectors: decode reads what prefill has kept, or prefill writes what decode has registered."""
SERVERS = ("prefill", "decode")
"""The two hosts; a server's port is its place here, and its clock begins that many hours later."""
SKEW = 3600.0
"""Seconds between the clocks of the servers, which count from different moments."""
LATENCY, LATE = 2.0, 90.0
"""Seconds that a message and a transfer take at most, where nothing is wrong, and if it is late."""


def named(server: str, life: int) -> str:
    """The name of a server that was started so often."""
    return server if life == 1 else f"{server}.{life}"


@dataclass
class Posted:
    """One transfer, from its making to its release."""

    sender: str
    to: str
    message: bytes
    ends: float = 0.0
    """The moment at which nothing of it is under way any more."""
    fails: float | None = None
    """The moment from which it counts as failed."""


@dataclass
class Network:
    """The transfers and messages between the servers. Seconds are the network's own."""

    current: ClassVar["Network"]

    work: Workload
    now: float = 0.0
    here: str = ""
    """The server at work."""
    schedulers: dict[str, Any] = field(default_factory=dict)
    """The scheduler's side of each server's connector; of one that is not there none."""
    lives: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 1))
    """How often each server was started."""
    transfers: dict[int, Posted] = field(default_factory=dict)
    reached: str = ""
    """The agent with whose memory the last transfer was posted."""
    _dice: random.Random = field(init=False)
    _messages: list[tuple[float, str, str, bytes, float]] = field(default_factory=list)
    """When it arrives, for which agent, from which, what it says, and when it was sent."""
    _dead: set[str] = field(default_factory=set)
    """Agents of servers that have died."""
    _numbers: int = 0

    def __post_init__(self) -> None:
        self._dice = random.Random(self.work.seed + 4)
        Network.current = self

    @property
    def clock(self) -> float:
        """Seconds on the clock of the server at work."""
        return self.now + SKEW * (1 + SERVERS.index(self.here))

    def takes(self, *, steady: bool = True) -> float:
        """Seconds that something takes; `steady`: it is one of those that may be in time whatever else is late."""
        late = self._dice.random() < self.work.late and not (steady and self.work.steady)
        return self._dice.random() * (LATE if late else LATENCY)

    def share(self) -> float:
        """A part of something."""
        return self._dice.random()

    def fails(self) -> bool:
        """Whether something fails."""
        return self._dice.random() < self.work.failing

    def number(self) -> int:
        """A handle."""
        self._numbers += 1
        return self._numbers

    def send(self, sender: str, to: str, message: bytes, at: float) -> None:
        """A notification goes out at a moment: it arrives, or does not, or twice."""
        steady = message.startswith(HEARTBEAT)
        lost = self._dice.random() < self.work.lost and not (steady and self.work.steady)
        times = 0 if lost else 1 + (self._dice.random() < self.work.doubled)
        self._messages += [(at + self.takes(steady=steady), to, sender, message, at) for _ in range(times)]

    def life(self, server: str) -> str:
        """The name of a server since it was started last."""
        return named(server, self.lives[server])

    def dies(self, server: str) -> None:
        """A server is no more: what it has under way ends, and transfers with its memory fail sooner or later."""
        gone = self.life(server)
        self._dead.add(gone)
        del self.schedulers[server]
        self.lives[server] += 1
        for posted in self.transfers.values():
            if posted.to == gone and posted.ends > self.now:
                posted.ends, posted.fails = self.now, self.now + self.takes(steady=False)
        self._messages = [one for one in self._messages if one[1] != gone and (one[2] != gone or one[4] <= self.now)]

    def answers(self, agent: str) -> bool:
        """Whether the server of an agent is still there."""
        return agent not in self._dead

    def arrived(self, agent: str) -> dict[str, list[bytes]]:
        """The notifications that an agent has got since the last time, by their senders."""
        got: dict[str, list[bytes]] = {}
        for message in sorted(one for one in self._messages if one[0] <= self.now and one[1] == agent):
            self._messages.remove(message)
            got.setdefault(message[2], []).append(message[3])
        return got
