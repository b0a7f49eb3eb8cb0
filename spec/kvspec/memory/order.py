"""What happens before what: for each operation the moments that are known to lie before it.

An operation has two moments: it has read, and it is done. It comes after what its stream queued earlier, after what its
stream waits for, after what it waits for by itself, and after what the host had seen when it queued it; and so after
all that these come after. What the host has seen complete lies before everything that is queued from then on: it is in
flight no longer, and need not be remembered.
"""

from typing import Literal

from kvspec.memory.events import Begin, OpId, Page, Wait

Part = Literal["all", "reads"]
Moment = tuple[int, Part]
"""The number of an operation, and whether it is done or has only read."""
HOST = "host"
"""The host's own stream: what is done there is done at once."""


class Flight:
    """An operation that is queued."""

    def __init__(self, number: int, event: Begin, before: set[Moment]) -> None:
        """The operation `number`, which comes after some moments."""
        self.number, self.event, self.before = number, event, frozenset(before)
        self.delivered: str | None = None
        """For whom its result left the engine, when it was not known yet whether its end would be told."""
        self.spoilt: set[str | None] = set()
        """The holders for whom its result is worthless."""
        self.found: list[tuple[object, tuple[int, str | None], str | None]] = []
        """What it read: the place, who had written there, and for which holder it read."""
        self.written: set[tuple[str, Page]] = set()
        """The pages that it has written, with their pools."""

    def known(self, part: Part) -> set[Moment]:
        """The moments that lie before all that comes after it, or after its reads."""
        return {*self.before, (self.number, "reads"), (self.number, part)}


class Order:
    """The streams, and the operations in flight."""

    def __init__(self) -> None:
        """Nothing is queued."""
        self.streams: dict[str, set[Moment]] = {HOST: set()}
        """Stream -> the moments that lie before what is queued there next."""
        self.flights: dict[OpId, Flight] = {}
        """Operations in flight by their names."""
        self.numbered: dict[int, Flight] = {}
        """All operations in flight, by their numbers."""
        self.begun = 0
        self.seen: set[OpId] = set()
        """Operations that are complete because a later one is: their own end may still be told."""
        self.told: set[str | None] = set()
        """Streams of which it is told when an operation ends."""

    def begin(self, event: Begin) -> Flight:
        """Queue an operation."""
        stream = set[Moment]() if event.stream is None else self.streams.setdefault(event.stream, set())
        after = [self.flights[earlier].known("all") for earlier in event.after if earlier in self.flights]
        self.begun += 1
        flight = Flight(self.begun, event, stream.union(self.streams[HOST], *after))
        stream |= flight.known("all")
        if event.stream != HOST:
            self.flights[event.id] = self.numbered[flight.number] = flight
            self.seen.discard(event.id)
        self._land()
        return flight

    def wait(self, event: Wait) -> None:
        """What is queued on a stream from now on comes after something; after what is not in flight it does anyhow."""
        known = self.streams.setdefault(event.stream, set())
        if event.id in self.flights:
            known |= self.flights[event.id].known(event.part)
        known |= self.streams.get(event.on or "", set())
        self._land()

    def end(self, id: OpId, part: Part) -> bool:
        """The host has seen it, and all that comes before it; false if it is neither in flight nor covered so."""
        flight = self.flights.get(id)
        if flight is not None:
            self.streams[HOST] |= flight.known(part)
            self.told.add(flight.event.stream)
            self._land()
        complete = flight is not None or id in self.seen
        self.seen -= {id} if part == "all" else set()
        return complete

    def follows(self, flight: Flight, moment: Moment) -> bool:
        """Whether an operation comes after a moment, or that is its own."""
        return moment[0] not in self.numbered or moment[0] == flight.number or moment in flight.before

    def _land(self) -> None:
        """What the host knows to be done is in flight no longer."""
        for number in [number for number, part in self.streams[HOST] if part == "all" and number in self.numbered]:
            flight = self.numbered.pop(number)
            if self.flights.get(flight.event.id) is flight:
                del self.flights[flight.event.id]
                self.seen.add(flight.event.id)
        for known in self.streams.values():
            known &= {moment for moment in known if moment[0] in self.numbered}
