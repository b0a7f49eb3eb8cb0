"""Operations that each add one slot to the same tables, like decode steps, are counted and not checked one by one.

If a stream has read a whole table and written its last slot, the next slot needs no check: `uses` then only advances
two numbers. Here these numbers advance later, for many operations at once. Nothing else differs.
"""

from kvcheck.finding import Writer
from kvcheck.state import State, Table, Tail
from kvcheck.uses import count_uses
from kvspec.memory.events import OpId


class Appending:
    """Tables to which each operation of a stream adds one slot. The operation reads all of them and of one other table.

    The pages of a counted table stay with its holder: only an event of the holder, or one that breaks a rule, could
    release one. No other stream uses them.
    """

    def __init__(self, state: State, stream: str) -> None:
        """Begin without tables."""
        self._state, self._stream = state, stream
        self._tails: dict[str, tuple[Tail, int]] = {}
        """Table -> its tail, and the number of operations before it was admitted."""
        self._operations = 0
        self._last: Writer | None = None

    def admit(self, name: str, other: str, at: int) -> bool:
        """Whether the next operation needs no check when it adds position `at`. If so, the table is counted.

        `other` is the table that it reads up to the end of the page of that position.
        """
        table, read = self._state.tables.get(name), self._state.tables.get(other)
        tail = None if table is None else table.tail
        if table is None or read is None or tail is None:
            return False
        if tail.view.high != at or at == tail.end or not (self._looked(table, at) and self._looked(read, tail.end)):
            return False
        self._tails[name] = tail, self._operations
        return True

    def _looked(self, table: Table, stop: int) -> bool:
        """Whether the stream has checked a table up to a position, and nothing has changed since."""
        view = table.views.get(self._stream)
        return view is not None and view.low == 0 and stop <= view.high and not view.changed

    def count(self) -> None:
        """Count one more operation on these tables, which has begun."""
        self._add(self._state.clocks.streams[self._stream].flights[-1].by)

    def _add(self, operation: Writer) -> None:
        self._operations += 1
        self._last = operation
        tables = len(self._tails)
        count_uses(self._state, reads=2 * tables, writes=tables)

    def pass_by(self, id: OpId) -> bool:
        """Begin and end an operation without other effects, if nothing else is in flight. Returns whether it did so."""
        state = self._state
        if state.clocks.flights or len(state.clocks.hosts) > 1:
            return False
        state.clocks.pass_by(id, self._stream)
        state.checked["MEM-ORDER"] += 2
        state.event, state.at = state.event + 2, None
        self._add((id, state.event - 1))
        return True

    def leave(self, name: str) -> None:
        """Apply the counted operations to a table, which is no longer counted."""
        if name in self._tails:
            tail, since = self._tails.pop(name)
            tail.view.high += self._operations - since
            tail.content.stop += self._operations - since
            if self._operations > since:
                tail.page.writer = self._last
