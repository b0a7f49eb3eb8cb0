"""Happens-before: for each operation the moments that are known to lie before it.

An operation has two moments: it has read, and it is done. It comes after the earlier operations of its stream, after
those that its stream or the operation itself waits for, and after those that its host had seen complete; and so after
all that these come after. An operation that a host has seen complete is not in flight for it; another host learns of
that by a message.
"""

from collections.abc import Container

from kvspec.memory.events import Begin, Done, End, OpId, Receive, Send, Wait

Moment = tuple[int, Done]
"""The number of an operation, and whether it is done or has only read."""
HOST = "host"
"""A host's own stream: what is done there is done at once."""


def numbered(id: OpId, hosts: Container[str | None]) -> tuple[str | None, int] | None:
    """The number of an operation, of at most 18 digits, and the host before it where its name has one of `hosts`.

    The name `decode/7` has one.
    """
    if isinstance(id, int):
        return None, id
    host, _, number = id.rpartition("/")
    return (host, int(number)) if host in hosts and number.isdecimal() and len(number) <= 18 else None


class Order:
    """The streams, and all operations that were queued, by their numbers from 0 on."""

    def __init__(self) -> None:
        """Nothing is queued."""
        self.streams: dict[str, set[Moment]] = {}
        """Stream -> the moments that lie before what is queued there next."""
        self.hosts: dict[str | None, set[Moment]] = {}
        """Host -> the moments that it knows to be over."""
        self.messages: dict[str, set[Moment]] = {}
        """Message -> the moments that its receiver knows to be over."""
        self.begun: list[Begin] = []
        self.before: list[set[Moment]] = []
        """For each operation the moments that lie before it."""
        self.named: dict[OpId, int] = {}
        """The last operation of each name."""
        self.ended: set[tuple[int, str | None]] = set()
        """Operations, and hosts that have reported their end, or need not."""

    def host(self, name: str | None) -> set[Moment]:
        """The moments that a host knows to be over; a new host knows what all others know, without reports."""
        if name not in self.hosts:
            known = self.hosts[name] = set.intersection(*self.hosts.values()) if self.hosts else set()
            self.ended |= {(number, name) for number, part in known if part == "all"}
        return self.hosts[name]

    def _stream(self, name: str, host: str | None) -> set[Moment]:
        return self.host(host) if name == HOST else self.streams.setdefault(name, set())

    def begin(self, event: Begin) -> int:
        """Queue an operation: its number."""
        host = self.host(event.host)
        stream = set[Moment]() if event.stream is None else self._stream(event.stream, event.host)
        after = [self.known(self.named[earlier]) for earlier in event.after if earlier in self.named]
        number = self.named[event.id] = len(self.begun)
        self.begun.append(event)
        self.before.append(stream.union(host, *after))
        self.ended |= {(number, event.host)} if event.stream == HOST else set()
        stream |= self.known(number)
        return number

    def known(self, number: int, part: Done = "all") -> set[Moment]:
        """The moments that lie before all that comes after an operation, or after its reads."""
        return {*self.before[number], (number, "reads"), (number, part)}

    def wait(self, event: Wait) -> None:
        """Later operations of a stream come after an operation or another stream."""
        known = self._stream(event.stream, event.host)
        if event.id in self.named:
            known |= self.known(self.named[event.id], event.part)
        if event.on is not None:
            known |= self._stream(event.on, event.host)

    def end(self, number: int, event: End) -> None:
        """A host has seen an operation, and all that comes before it."""
        self.host(event.host).update(self.known(number, event.part))
        self.ended |= {(number, event.host)} if event.part == "all" else set()

    def send(self, event: Send) -> None:
        """A message goes out, with operations or at once."""
        after = [self.known(self.named[earlier]) for earlier in event.after if earlier in self.named]
        self.messages[event.id] = self.host(event.host).union(*after)

    def receive(self, event: Receive) -> None:
        """A host knows what the sender of a message knew."""
        self.host(event.host).update(self.messages.get(event.id, ()))

    def flies(self, number: int | None, host: str | None) -> bool:
        """Whether there is such an operation, and it is in flight as far as a host knows."""
        known = self.host(host)
        return number is not None and (number, "all") not in known
