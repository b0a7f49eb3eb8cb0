"""What happens before what, as a graph that is searched each time."""

from itertools import count

from kvspec.memory import events


class Graph:
    """Moments, and those that come right after each."""

    def __init__(self) -> None:
        self.later: dict[int, set[int]] = {}
        self.numbers = count()
        self.fronts: dict[str, set[int]] = {"host": set()}
        """Stream -> what the next operation there comes after."""
        self.read: dict[int, int] = {}
        """Operation -> the moment when it has read."""
        self.done: dict[int, int] = {}
        self.flying: set[int] = set()

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

    def begin(self, event: events.Begin) -> int:
        """The moment when the operation starts."""
        front = self.fronts["host"] | (set() if event.stream is None else self.fronts.setdefault(event.stream, set()))
        start = self.node(*front, *(self.done[int(id)] for id in event.after))
        self.read[int(event.id)] = self.node(start)
        self.done[int(event.id)] = self.node(self.read[int(event.id)])
        if event.stream is not None:
            self.fronts[event.stream] = {self.done[int(event.id)]}
        if event.stream != "host":
            self.flying.add(int(event.id))
        return start

    def wait(self, event: events.Wait) -> None:
        front = self.fronts.setdefault(event.stream, set())
        if event.id is not None:
            front.add((self.done if event.part == "all" else self.read)[int(event.id)])
        front |= self.fronts.get(event.on or "", set())

    def end(self, event: events.End) -> None:
        self.fronts["host"].add((self.done if event.part == "all" else self.read)[int(event.id)])
