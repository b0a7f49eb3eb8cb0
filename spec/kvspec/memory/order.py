"""What happens before what: for each operation the moments that are known to lie before it.

An operation has two moments: it has read, and it is done. It comes after what its stream queued earlier, after what its
stream waits for, after what it waits for by itself, and after what the host had seen when it queued it; and so after
all that these come after. What the host has seen done is in flight no longer.
"""

from dataclasses import dataclass
from typing import Literal

from kvspec.memory.events import Begin, OpId, Wait

Part = Literal["all", "reads"]
Moment = tuple[int, Part]
"""The number of an operation, and whether it is done or has only read."""
HOST = "host"
"""The host's own stream: what is done there is done at once."""


@dataclass(eq=False)
class Flight:
    """An operation that was queued."""

    number: int
    event: Begin
    before: set[Moment]
    ended: bool = False
    """Whether its end was told."""

    def known(self, part: Part) -> set[Moment]:
        """The moments that lie before all that comes after it, or after its reads."""
        return {*self.before, (self.number, "reads"), (self.number, part)}


class Order:
    """The streams, and all operations that were queued."""

    def __init__(self) -> None:
        """Nothing is queued."""
        self.streams: dict[str, set[Moment]] = {HOST: set()}
        """Stream -> the moments that lie before what is queued there next."""
        self.flights: list[Flight] = []
        """By their numbers."""
        self.named: dict[OpId, Flight] = {}
        """The last operation of each name."""

    def is_done(self, number: int) -> bool:
        """Whether the host has seen an operation done: if not, it is in flight."""
        return (number, "all") in self.streams[HOST]

    def begin(self, event: Begin) -> Flight:
        """Queue an operation."""
        stream = set[Moment]() if event.stream is None else self.streams.setdefault(event.stream, set())
        after = [self.named[earlier].known("all") for earlier in event.after if earlier in self.named]
        before = stream.union(self.streams[HOST], *after)
        flight = Flight(len(self.flights), event, before, ended=event.stream == HOST)
        stream |= flight.known("all")
        self.flights.append(flight)
        self.named[event.id] = flight
        return flight

    def wait(self, event: Wait) -> None:
        """What is queued on a stream from now on comes after something."""
        known = self.streams.setdefault(event.stream, set())
        if event.id in self.named:
            known |= self.named[event.id].known(event.part)
        known |= self.streams.get(event.on or "", set())

    def end(self, flight: Flight, part: Part) -> None:
        """The host has seen it, and all that comes before it."""
        self.streams[HOST] |= flight.known(part)
        flight.ended = part == "all"
