"""Agreement: the decisions of a group of hosts, which are the same for all, in the same order."""

from collections.abc import Iterator

from kvspec.memory.events import Decide

Member = tuple[str, str | None]
"""A group and a host."""


class Agreement:
    """The decisions of each group."""

    def __init__(self) -> None:
        """Nothing is decided."""
        self.decided: dict[str, list[str]] = {}
        """Group -> its decisions, each as the first host made it."""
        self.made: dict[Member, int] = {}
        """Host of a group -> how many of them it has made."""
        self.apart: set[Member] = set()
        """Those that differ from their groups: from then on they are not checked."""

    def decide(self, event: Decide) -> bool:
        """A host makes the next decision of its group; whether it is the group's."""
        member, decided = (event.group, event.host), self.decided.setdefault(event.group, [])
        if member in self.apart:
            return True
        number = self.made.get(member, 0)
        self.made[member] = number + 1
        if number == len(decided):
            decided.append(event.what)
        if decided[number] != event.what:
            self.apart.add(member)
        return member not in self.apart

    def behind(self) -> Iterator[Member]:
        """The hosts that have not made all decisions of their groups; they differ from now on."""
        for member, number in self.made.items():
            if member not in self.apart and number < len(self.decided[member[0]]):
                self.apart.add(member)
                yield member
