"""The order of operations, as a graph that is searched each time."""

from itertools import count

from kvspec.memory import events


class Graph:
    """Moments, and those that come right after each."""

    def __init__(self) -> None:
        self.later: dict[int, set[int]] = {}
        self.numbers = count()
        self.fronts: dict[tuple[str, str | None], set[int]] = {}
        """Stream, and if it is a host's own whose, -> what the next operation there comes after."""
        self.messages: dict[str, set[int]] = {}
        self.read: dict[int, int] = {}
        """Operation -> the moment when it has read."""
        self.done: dict[int, int] = {}

    def front(self, stream: str, host: str | None) -> set[int]:
        """A new host knows what all others know."""
        own = stream == "host"
        key = stream, host if own else None
        if key not in self.fronts:
            others = [front for (name, _), front in self.fronts.items() if name == "host"] if own else []
            moments = (*self.read.values(), *self.done.values()) if others else ()
            known = (one for one in moments if all(any(self.before(one, at) for at in front) for front in others))
            self.fronts[key] = {*known}
        return self.fronts[key]

    def node(self, *earlier: int) -> int:
        number = next(self.numbers)
        for other in earlier:
            self.later.setdefault(other, set()).add(number)
        return number

    def before(self, one: int, other: int) -> bool:
        todo, seen = [one], {one}
        while todo:
            at = todo.pop()
            if at == other:
                return True
            todo += self.later.get(at, set()) - seen
            seen |= self.later.get(at, set())
        return False

    def has_seen(self, id: int, host: str | None) -> bool:
        """Whether a host knows an operation to be done."""
        return any(self.before(self.done[id], one) for one in self.front("host", host))

    def begin(self, event: events.Begin) -> int:
        """The moment when the operation starts."""
        front = self.front("host", event.host)
        front = front | (set() if event.stream is None else self.front(event.stream, event.host))
        start = self.node(*front, *(self.done[int(id)] for id in event.after))
        self.read[int(event.id)] = self.node(start)
        self.done[int(event.id)] = self.node(self.read[int(event.id)])
        if event.stream is not None:
            own = self.front(event.stream, event.host)
            own.clear()
            own.add(self.done[int(event.id)])
        return start

    def wait(self, event: events.Wait) -> None:
        front = self.front(event.stream, event.host)
        if event.id is not None:
            front.add((self.done if event.part == "all" else self.read)[int(event.id)])
        if event.on is not None:
            front |= self.front(event.on, event.host)

    def end(self, event: events.End) -> None:
        moments = self.done if event.part == "all" else self.read
        self.front("host", event.host).add(moments[int(event.id)])

    def send(self, event: events.Send) -> None:
        self.messages[event.id] = self.front("host", event.host) | {self.done[int(id)] for id in event.after}

    def receive(self, event: events.Receive) -> None:
        front = self.front("host", event.host)
        front |= self.messages.get(event.id, set())
