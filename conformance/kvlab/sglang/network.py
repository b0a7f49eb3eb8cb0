"""The network between SGLang's prefill and decode servers: what takes how long, what fails, and the time."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvlab.turns import Turns

SERVERS = ("prefill", "decode")
"""The two hosts; the place of a server here is the end of its address."""
LATER = {f"{server}.2": server for server in SERVERS}
"""The second life of each server."""
SKEW = 3600.0
"""Seconds between the clocks of the servers, which count from different moments."""
LATENCY, LATE = 2.0, 90.0
"""Seconds that a message and a transfer take at most, where nothing is wrong, and if it is late."""
SLOW = 5
"""How many times longer a transfer takes that is slow; that is in time for all that ends by the clock."""
SILENT = 40.0
"""Seconds for which a server does not answer, at most."""


@dataclass(frozen=True)
class Faults:
    """How often something goes wrong between the servers."""

    late: float = 0.0
    """How often something takes longer than a release that is put off."""
    cut: float = 0.0
    """How often a connection breaks when something is sent: all that is on its way there is lost."""
    doubled: float = 0.0
    refused: float = 0.0
    """How often a transfer fails, and is over then."""
    left: float = 0.0
    """How often a transfer fails by its time-out, and goes on all the same."""
    silent: float = 0.0
    """How often, for each second, a server begins to be silent."""
    steady: bool = False
    """Whether aborts arrive all the same: where one is lost, decode gives pages back by the clock."""


def address(server: str) -> str:
    """The address of a server."""
    return f"10.0.0.{1 + SERVERS.index(server)}"


def named(server: str, life: int) -> str:
    """The name of a server that was started so often."""
    return server if life == 1 else f"{server}.{life}"


def reached(place: str) -> str:
    """The server at an address, in the life that has the port: it has another one whenever it is started."""
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
    """Its effect, at its end."""


@dataclass
class Network:
    """The connections and transfers of one drive. Seconds are the network's own."""

    current: ClassVar["Network"]

    faults: Faults
    turns: Turns
    seed: int
    now: float = 0.0
    here: str = ""
    """The server at work."""
    lives: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 1))
    """How often each server was started."""
    up: set[str] = field(default_factory=lambda: {*SERVERS})
    """The servers that run, each in its life."""
    inboxes: dict[str, list[tuple[float, int, list[bytes]]]] = field(default_factory=dict)
    """Server, in its life -> what is on its way to it, when it is there, and its number."""
    routes: dict[str, Any] = field(default_factory=dict)
    """The registration of the prefill server."""
    unsettled: list[Unsettled] = field(default_factory=list)
    """Transfers that go on after they have failed."""
    silent: dict[str, float] = field(default_factory=dict)
    """Server, in its life -> until when it does not answer."""
    over: Callable[[int, bool], None] = lambda *_: None
    """Called when a transfer that has failed for its caller is over: its number, and whether all of it is written."""
    _dice: random.Random = field(init=False)
    _numbers: int = 0
    _wakes: list[float] = field(default_factory=list)
    """The moments for which threads wait."""

    def __post_init__(self) -> None:
        self._dice = random.Random(f"{self.seed} network")
        Network.current = self

    @property
    def clock(self) -> float:
        """Seconds on the clock of the server at work."""
        return self.now + SKEW * (1 + SERVERS.index(self.here))

    def calm_down(self) -> None:
        """From now on nothing goes wrong any more."""
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
        """The name of a server since it was started last."""
        return named(server, self.lives[server])

    def dies(self, server: str) -> None:
        """A server is no more, and with it all that it has under way."""
        gone = self.life(server)
        self.up.remove(gone)
        self.lives[server] += 1
        self.unsettled = [one for one in self.unsettled if one.sender != gone]
        if server == "prefill":
            self.routes.clear()

    def starts(self, server: str) -> None:
        """It is there again, under its address, with another port."""
        self.up.add(self.life(server))

    def answers(self, life: str) -> bool:
        """Whether a server answers now, in its life."""
        return life in self.up and self.silent.get(life, 0.0) <= self.now

    def happens(self, how_often: float) -> bool:
        """Whether something happens now."""
        return self._dice.random() < how_often

    def share(self) -> float:
        """A part of something."""
        return self._dice.random()

    def takes(self) -> float:
        """Seconds that something takes."""
        return self._dice.random() * (LATE if self.happens(self.faults.late) else LATENCY)

    def moves(self) -> float:
        """Seconds that a transfer takes: some are slow."""
        return self.takes() * (SLOW if self.happens(0.3) else 1)

    def number(self) -> int:
        """The number of something that is on its way."""
        self._numbers += 1
        return self._numbers

    def wait(self, seconds: float) -> None:
        """Let others go on until so many seconds have passed."""
        until = self.now + seconds
        self._wakes.append(until)
        try:
            self.turns.wait(lambda: self.now >= until)
        finally:
            self._wakes.remove(until)

    def quiet(self) -> float:
        """Seconds until something arrives or is over."""
        arrivals = [one[0] for life, inbox in self.inboxes.items() if life in self.up for one in inbox]
        return min([*arrivals, *self._wakes, *(one.ends for one in self.unsettled), self.now + LATE]) - self.now
