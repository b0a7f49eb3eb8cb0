"""The network between SGLang's prefill and decode servers: what takes how long, what fails, and the time."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kvlab.turns import Turns

SERVERS = ("prefill", "decode")
"""The two hosts; the place of a server here is the end of its address."""
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
    inboxes: dict[str, list[tuple[float, int, list[bytes]]]] = field(default_factory=dict)
    """Server -> what is on its way to it, when it is there, and its number."""
    routes: dict[str, Any] = field(default_factory=dict)
    """The registration of the prefill server."""
    transfers: int = 0
    """How many transfers were posted."""
    unsettled: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    """Transfers that have failed for their caller and go on: when they end, their number, and what they do then."""
    silent: dict[str, float] = field(default_factory=dict)
    """Server -> until when it does not answer."""
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
                self.silent[server] = self.now + self._dice.random() * SILENT
        for one in [one for one in self.unsettled if one[0] <= self.now]:
            self.unsettled.remove(one)
            one[2]()
            self.over(one[1], True)

    def answers(self, server: str) -> bool:
        """Whether a server answers now."""
        return self.silent.get(server, 0.0) <= self.now

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
        self.turns.wait(lambda: self.now >= until)
        self._wakes.remove(until)

    def quiet(self) -> float:
        """Seconds until something arrives or is over."""
        arrivals = [one[0] for inbox in self.inboxes.values() for one in inbox]
        return min([*arrivals, *self._wakes, *(one[0] for one in self.unsettled), self.now + LATE]) - self.now
