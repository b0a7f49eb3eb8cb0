"""What happens before what: for each operation the moments that are known to lie before it.

An operation has two moments: it has read, and it is done. It comes after what its stream queued earlier, after what its
stream waits for, after what it waits for by itself, and after what the host had seen when it queued it; and so after
all that these come after. What the host has seen done is in flight no longer.
"""

from kvspec.memory.events import Begin, Done, OpId, Wait

Moment = tuple[int, Done]
"""The number of an operation, and whether it is done or has only read."""
HOST = "host"
"""The host's own stream: what is done there is done at once."""


class Order:
    """The streams, and all operations that were queued, by their numbers from 0 on."""

    def __init__(self) -> None:
        """Nothing is queued."""
        self.streams: dict[str, set[Moment]] = {HOST: set()}
        """Stream -> the moments that lie before what is queued there next."""
        self.begun: list[Begin] = []
        self.before: list[set[Moment]] = []
        """For each operation the moments that lie before it."""
        self.named: dict[OpId, int] = {}
        """The last operation of each name."""
        self.ended: set[int] = set()
        """Operations whose end was told, or is not to be told."""

    def begin(self, event: Begin) -> int:
        """Queue an operation: its number."""
        stream = set[Moment]() if event.stream is None else self.streams.setdefault(event.stream, set())
        after = [self.known(self.named[earlier]) for earlier in event.after if earlier in self.named]
        number = self.named[event.id] = len(self.begun)
        self.begun.append(event)
        self.before.append(stream.union(self.streams[HOST], *after))
        self.ended |= {number} if event.stream == HOST else set()
        stream |= self.known(number)
        return number

    def known(self, number: int, part: Done = "all") -> set[Moment]:
        """The moments that lie before all that comes after an operation, or after its reads."""
        return {*self.before[number], (number, "reads"), (number, part)}

    def wait(self, event: Wait) -> None:
        """What is queued on a stream from now on comes after something."""
        known = self.streams.setdefault(event.stream, set())
        if event.id in self.named:
            known |= self.known(self.named[event.id], event.part)
        known |= self.streams.get(event.on or "", set())

    def end(self, number: int, part: Done) -> None:
        """The host has seen an operation, and all that comes before it."""
        self.streams[HOST] |= self.known(number, part)
        self.ended |= {number} if part == "all" else set()

    def flies(self, number: int) -> bool:
        """Whether an operation is in flight."""
        return (number, "all") not in self.streams[HOST]
