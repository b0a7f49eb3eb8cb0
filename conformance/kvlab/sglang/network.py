"""The network between SGLang's prefill and decode servers: durations, failures, and the time."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvlab.turns import Turns

SERVERS = ("prefill", "decode")
"""The two hosts. A server's address ends with its place here, from 1."""
LATER = {f"{server}.2": server for server in SERVERS}
"""The name of each server in its second life -> the server."""
SKEW = 3600.0
"""Seconds between the clocks of the servers."""
LATENCY, LATE = 2.0, 90.0
"""The most seconds that a message or a transfer takes: normally, and if it is late."""
SLOW = 5
"""A slow transfer takes so many times longer; it still ends before every timeout."""
SILENT = 40.0
"""The most seconds for which a server does not answer."""


@dataclass(frozen=True)
class Faults:
    """The probabilities of failures between the servers."""

    late: float = 0.0
    """That a message or transfer takes longer than decode waits before it releases pages."""
    cut: float = 0.0
    """That a connection breaks at a message: this message and the last ones in flight there are lost."""
    doubled: float = 0.0
    refused: float = 0.0
    """That a transfer fails and ends."""
    left: float = 0.0
    """That a transfer fails by a timeout, but goes on."""
    silent: float = 0.0
    """That a server becomes silent, per second."""
    steady: bool = False
    """Whether aborts always arrive. After a lost abort decode gives pages back by a timeout."""


def address(server: str) -> str:
    """The address of a server."""
    return f"10.0.0.{1 + SERVERS.index(server)}"


def named(server: str, life: int) -> str:
    """The name of a server in one of its lives, from 1."""
    return server if life == 1 else f"{server}.{life}"


def reached(place: str) -> str:
    """The server at an address, in the life with that port: each start of a server has another port."""
    host, _, port = place.rpartition(":")
    return named(SERVERS[int(host[-1]) - 1], int(port) - 1)


@dataclass(frozen=True)
class Unsettled:
    """A transfer that has failed for its caller and goes on."""

    ends: float
    number: int
    sender: str
    to: str
    move: Callable[[], None]
    """Its effect, applied at its end."""


@dataclass
class Network:
    """The connections and transfers of one drive. Seconds are the network's own."""

    current: ClassVar["Network"]

    faults: Faults
    turns: Turns
    seed: int
    now: float = 0.0
    here: str = ""
    """The current server."""
    lives: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 1))
    """The number of times that each server was started."""
    up: set[str] = field(default_factory=lambda: {*SERVERS})
    """The servers that run, each in its life."""
    inboxes: dict[str, list[tuple[float, int, list[bytes]]]] = field(default_factory=dict)
    """Server, in its life -> messages in flight to it: arrival time, number and content."""
    routes: dict[str, Any] = field(default_factory=dict)
    """The registration of the prefill server."""
    unsettled: list[Unsettled] = field(default_factory=list)
    """Transfers that go on after they have failed."""
    silent: dict[str, float] = field(default_factory=dict)
    """Server, in its life -> the time until which it does not answer."""
    over: Callable[[int, bool], None] = lambda *_: None
    """Called when a transfer that has failed for its caller ends: its number, and whether it was written."""
    _dice: random.Random = field(init=False)
    _numbers: int = 0
    _wakes: list[float] = field(default_factory=list)
    """The times until which threads wait."""

    def __post_init__(self) -> None:
        self._dice = random.Random(f"{self.seed} network")
        Network.current = self

    @property
    def clock(self) -> float:
        """Seconds on the clock of the current server."""
        return self.now + SKEW * (1 + SERVERS.index(self.here))

    def calm_down(self) -> None:
        """From now on nothing fails."""
        self.faults = Faults()
        self.silent.clear()

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        for server in SERVERS:
            if self._dice.random() < self.faults.silent * seconds:
                self.silent[self.life(server)] = self.now + self._dice.random() * SILENT
        for one in [one for one in self.unsettled if one.ends <= self.now]:
            self.unsettled.remove(one)
            there = one.to in self.up
            if there:
                one.move()
            self.over(one.number, there)

    def life(self, server: str) -> str:
        """The name of a server in its current life."""
        return named(server, self.lives[server])

    def dies(self, server: str) -> None:
        """A server dies. Its transfers in flight end."""
        gone = self.life(server)
        self.up.remove(gone)
        self.lives[server] += 1
        self.unsettled = [one for one in self.unsettled if one.sender != gone]
        if server == "prefill":
            self.routes.clear()

    def starts(self, server: str) -> None:
        """The server runs again, at its address with another port."""
        self.up.add(self.life(server))

    def answers(self, life: str) -> bool:
        """Whether a server, in this life, answers now."""
        return life in self.up and self.silent.get(life, 0.0) <= self.now

    def happens(self, how_often: float) -> bool:
        """Whether an event of this probability happens now."""
        return self._dice.random() < how_often

    def share(self) -> float:
        """A random fraction."""
        return self._dice.random()

    def takes(self) -> float:
        """Seconds that a message takes."""
        return self._dice.random() * (LATE if self.happens(self.faults.late) else LATENCY)

    def moves(self) -> float:
        """Seconds that a transfer takes: some are slow."""
        return self.takes() * (SLOW if self.happens(0.3) else 1)

    def number(self) -> int:
        """The number of a new message."""
        self._numbers += 1
        return self._numbers

    def wait(self, seconds: float) -> None:
        """Let other threads run until so many seconds have passed."""
        until = self.now + seconds
        self._wakes.append(until)
        try:
            self.turns.wait(lambda: self.now >= until)
        finally:
            self._wakes.remove(until)

    def quiet(self) -> float:
        """Seconds until the next arrival, end of a transfer, or end of a wait."""
        arrivals = [one[0] for life, inbox in self.inboxes.items() if life in self.up for one in inbox]
        return min([*arrivals, *self._wakes, *(one.ends for one in self.unsettled), self.now + LATE]) - self.now
