"""The decisions of a group of hosts. Decisions that some host must still make are remembered."""

from collections import deque
from collections.abc import Iterator

from kvcheck.clocks import HOSTS
from kvcheck.finding import Malformed

_REMEMBERED = 10_000
"""The most remembered decisions of a group. Hosts that are further behind are not checked."""

Host = str | None


class Decisions:
    """The decisions of one group, each with the first host that made it."""

    def __init__(self) -> None:
        """Begin without decisions."""
        self._decided = deque[tuple[str, Host]]()
        self._forgotten = 0
        self._made: dict[Host, int] = {}
        """Host -> the number of decisions that it has made."""
        self._at: dict[int, dict[Host, None]] = {}
        """Number of decisions -> the hosts that have made so many, without deviating ones: these are not checked."""

    def decide(self, host: Host, what: str) -> tuple[str, Host] | None:
        """A host makes its next decision. Returns another host's decision at this place if it differs.

        Raises:
            Malformed: the group has too many hosts.
        """
        number = self._made.get(host, 0)
        if number and not self._leave(host, number):
            return None
        if number == self._forgotten + len(self._decided):
            self._decided.append((what, host))
            if len(self._decided) > _REMEMBERED:
                self._decided.popleft()
                self._forgotten += 1
        self._made[host] = number + 1
        if len(self._made) > HOSTS:
            raise Malformed(f"a group of more than {HOSTS} hosts")
        due = self._due(number)
        if due is not None and due[0] != what:
            return due
        self._at.setdefault(number + 1, {})[host] = None
        return None

    def behind(self) -> Iterator[tuple[Host, str, Host]]:
        """The hosts that lag behind, each with its next decision and that decision's host. They leave the check."""
        for number in sorted(self._at.keys() - {self._forgotten + len(self._decided)}):
            what, other = self._due(number) or self._decided[0]
            yield from ((host, what, other) for host in self._at.pop(number))

    def _leave(self, host: Host, number: int) -> bool:
        """Remove a host from those that have made so many decisions. Returns whether it was among them."""
        there = self._at.get(number, {})
        if host not in there:
            return False
        del there[host]
        if not there:
            del self._at[number]
        return True

    def _due(self, number: int) -> tuple[str, Host] | None:
        """A decision, if it is remembered."""
        return self._decided[number - self._forgotten] if number >= self._forgotten else None
