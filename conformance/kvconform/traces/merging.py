"""Reads files of several hosts as one trace, in which each message is received after it was sent.

Only messages order the hosts: a host continues until it must wait for a message that is not sent yet. Of the hosts that
can continue, the one with the fewest unreceived messages does, so that none gets far ahead of its receivers. One event
of each file is read ahead; a message is remembered until it is received.

Names get their host: `r1` of host `decode` is `decode/r1`, and so is `decode/r1` in the file of another host.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple

from kvconform.errors import InputError
from kvconform.traces.codec import created
from kvconform.traces.hosts import HOST, Names
from kvconform.traces.lines import Lines
from kvconform.traces.memory import MemoryReader, check_host, open_trace
from kvconform.traces.routers import Events, RouterReader
from kvspec.memory.events import MemoryEvent, Pool, Receive, Send, Wait
from kvtrace.header import VERSION, MemoryHeader, encode

LONGEST = 256
"""The most characters of a host's name, which begins all its names."""
REMEMBERED = 10_000
"""The most received messages that are remembered, as they may be received again."""


class Parts(NamedTuple):
    """Files that are read as one trace, one for each host."""

    paths: tuple[Path, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.paths))

    @property
    def name(self) -> str:
        """The names of the files."""
        return " + ".join(path.name for path in self.paths)

    def is_file(self) -> bool:
        """Whether all can be read a second time."""
        return all(path.is_file() for path in self.paths)


Source = Path | Parts | Events
"""A trace, in one file or in several, or recorded KV events."""


def size_of(source: Source) -> int:
    """The size of a stored trace in bytes."""
    paths = source.paths if isinstance(source, Parts) else [source.path if isinstance(source, Events) else source]
    return sum(path.stat().st_size for path in paths)


class _Part:
    """The file of one host, and its next event."""

    def __init__(self, path: Path) -> None:
        self.reader = MemoryReader(Lines(path))
        self.path = path
        self.host = self.reader.header.host or path.name.split(".")[0]
        self.names = Names(self.host, ())
        self.line = 1
        """The line of the next event, or of the last one."""
        self.event: MemoryEvent | None = None
        """The next event; `None`: there is none."""
        self.problem: InputError | None = None
        """Why it ends early."""
        self.unreceived = 0
        """The number of its messages that no host has received yet."""
        self._events = iter(self.reader)

    def advance(self) -> None:
        """Read the next event."""
        try:
            self.line, self.event = next(self._events, (self.line, None))
        except InputError as error:
            self.event, self.problem = None, error

    def rest(self) -> Iterator[tuple[int, MemoryEvent]]:
        """The events after the next one."""
        return self._events


class MergedReader:
    """Reads the files of several hosts as one trace; a context manager and an iterator over `(line number, event)`.

    The line is that of the merged trace.

    Raises:
        InputError: a file is invalid, or does not fit the others. All events that could be ordered have been yielded by
        then.
    """

    level: Literal["memory"] = "memory"

    def __init__(self, parts: Parts) -> None:
        """Open the files and read their headers."""
        with ExitStack() as closing:
            hosts: dict[str, _Part] = {}
            for path in parts.paths:
                part = _Part(path)
                closing.push(part.reader)
                if part.host in hosts:
                    reason = f"host {part.host!r} has a file, {hosts[part.host].path}: `host` in the header names it"
                    raise InputError(path, 1, reason)
                if "/" in part.host or len(part.host) > LONGEST:
                    reason = f"the name of a host has a slash or more than {LONGEST} characters: {part.host!r}"
                    raise InputError(path, 1, reason)
                hosts[part.host] = part
            self._parts = [part for _, part in sorted(hosts.items())]
            for part in self._parts:
                part.names.hosts = hosts.keys()
            self.header = MemoryHeader(VERSION, "memory", self._producers(), self._pools())
            for part in self._parts:
                part.names.pools = self.header.pools
            self._closing = closing.pop_all()
        self._part = self._parts[0]
        self._sent: dict[str, _Part] = {}
        """Unreceived message -> its sender."""
        self._received: dict[str, _Part] = {}
        """Message received lately -> its sender."""

    def __enter__(self) -> "MergedReader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.close()

    @property
    def files(self) -> list[Lines]:
        """The files that are read."""
        return [part.reader.lines for part in self._parts]

    def place(self, line: int) -> tuple[Path, int]:
        """The file of the last event read, and its line there."""
        return self._part.path, self._part.line

    def __iter__(self) -> Iterator[tuple[int, MemoryEvent]]:
        """Each event. At first each host waits for itself: one that began later would know earlier events of others."""
        begins = [Wait(HOST, on=HOST, host=part.host) for part in self._parts]
        yield from enumerate(chain(begins, self._interleaved()), start=2)
        problems = [part.problem for part in self._parts if part.problem is not None]
        if problems:
            first, *more = problems
            raise InputError(first.file, first.line, "; ".join([first.reason, *map(str, more)]))
        waiting = [part for part in self._parts if part.event is not None]
        if waiting:
            raise _stuck(waiting)

    def _interleaved(self) -> Iterator[MemoryEvent]:
        for part in self._parts:
            part.advance()
        while ready := [part for part in self._parts if part.event is not None and not self._waits(part.event)]:
            self._part = part = min(ready, key=lambda one: (one.unreceived, one is not self._part))
            while part.event is not None and not self._waits(part.event):
                event = part.event
                self._note(part, event)
                yield self._renamed(part, event)
                part.advance()
                if isinstance(event, Send | Receive):
                    break

    def _waits(self, event: MemoryEvent) -> bool:
        """Whether an event must come after one that has not been read yet."""
        return isinstance(event, Receive) and event.id not in self._sent and event.id not in self._received

    def _note(self, part: _Part, event: MemoryEvent) -> None:
        """Note that a message is sent or received."""
        if isinstance(event, Send):
            sender = self._sent.get(event.id) or self._received.pop(event.id, part)
            if sender is not part:
                raise InputError(part.path, part.line, f"message {event.id!r} is sent by {sender.path}, too")
            part.unreceived += event.id not in self._sent
            self._sent[event.id] = part
        elif isinstance(event, Receive) and event.id in self._sent:
            sender = self._received[event.id] = self._sent.pop(event.id)
            sender.unreceived -= 1
            if len(self._received) > REMEMBERED:
                del self._received[next(iter(self._received))]

    def _producers(self) -> str:
        return ", ".join(dict.fromkeys(part.reader.header.producer for part in self._parts))

    def _pools(self) -> dict[str, Pool]:
        """The pools of all hosts. Only a storage can be shared: it has one name for all."""
        pools: dict[str, Pool] = {}
        for part in self._parts:
            for name, pool in part.reader.header.pools.items():
                merged = part.names.own[name] = name if pool.keyed else part.names.named(name)
                first = pools.setdefault(merged, pool)
                if first is not pool and not (pool.keyed and first == pool):
                    raise InputError(part.path, 1, f"pool {name!r} is declared in another file, and otherwise")
        return pools

    def _renamed(self, part: _Part, event: MemoryEvent) -> MemoryEvent:
        """An event with names of the merged trace."""
        check_host(part.path, part.line, event, part.host)
        try:
            return part.names.renamed(event)
        except LookupError as error:
            raise InputError(part.path, part.line, f"{error.args[0]} in these files") from error


def _stuck(waiting: Sequence[_Part]) -> InputError:
    """The reason why each of these waits for a message: no file sends it, or they wait in a circle."""
    awaited = {part: (part.event.id, part.line) for part in waiting if isinstance(part.event, Receive)}
    messages = {message for message, _ in awaited.values()}
    sent: dict[str, tuple[_Part, int]] = {}
    for part in waiting:
        for line, event in part.rest():
            if isinstance(event, Send) and event.id in messages:
                sent.setdefault(event.id, (part, line))
    for part, (message, line) in awaited.items():
        if message not in sent:
            reason = f"message {message!r} is received here, and no file sends it (a killed host's file lacks its end)"
            return InputError(part.path, line, reason)
    circle, next_one = list[_Part](), waiting[0]
    while next_one not in circle:
        circle.append(next_one)
        next_one, _ = sent[awaited[next_one][0]]
    del circle[: circle.index(next_one)]
    parts: list[str] = []
    for part in circle:
        message, _ = awaited[part]
        sender, line = sent[message]
        parts.append(f"{message!r} is sent at {sender.path}:{line}, after {awaited[sender][0]!r} is received")
    return InputError(next_one.path, awaited[next_one][1], f"a circle of messages: {'; '.join(parts)}")


AnyReader = MemoryReader | MergedReader | RouterReader


def open_memory(source: Source) -> AnyReader:
    """Open a trace of the memory level.

    Raises:
        InputError: a file or its header is invalid.
    """
    if isinstance(source, Parts):
        return MergedReader(source)
    if isinstance(source, Events):
        return RouterReader(source)
    trace = open_trace(source)
    assert isinstance(trace, MemoryReader)
    return trace


def places(parts: Parts, lines: Collection[int]) -> dict[int, tuple[Path, int]]:
    """Line of the merged trace -> its file, and the line there."""
    found: dict[int, tuple[Path, int]] = {}
    with MergedReader(parts) as trace:
        for line, _ in trace:
            if line in lines:
                found[line] = trace.place(line)
            if len(found) == len(lines):
                break
    return found


def merge(paths: Sequence[Path], out: Path) -> int:
    """Merge the files of several hosts into one trace, compressed for `.gz` or `.zst`. Returns the number of events.

    Raises:
        InputError: a file is invalid, or does not fit the others; events that could be ordered before are written.
        OSError: the trace cannot be written.
    """
    with MergedReader(Parts(tuple(paths))) as trace:
        if any(out.exists() and out.samefile(path) for path in paths):
            raise InputError(out, 0, "the merged trace would overwrite a file that it is made of")
        with created(out) as file:
            file.write(encode(trace.header) + b"\n")
            events = 0
            for _, event in trace:
                file.write(encode(event) + b"\n")
                events += 1
    return events
