"""The memory events of a steady decode batch.

For a request that only appends to its last page a counter is enough. So the events of a launch cover only the requests
that start a new page; `settle` adds the others.
"""

from kvcheck import Checker
from kvcheck.appending import Appending
from kvconform.oracle.meaning import FORWARD, Computed, Memory
from kvspec.memory.events import Begin
from kvspec.model.state import State


def appends(memory: Memory) -> bool:
    """Whether a decode step only appends slots, on the one stream, and the memory checker can count these."""
    config, forward = memory.config, memory.writes_on == FORWARD
    return forward and not (config.sliding_window or config.num_states) and isinstance(memory.checker, Checker)


class Onward:
    """A steady decode batch, and the memory below it."""

    def __init__(self, memory: Memory) -> None:
        """Begin with an empty batch."""
        assert isinstance(memory.checker, Checker)
        self._memory = memory
        self._appending = Appending(memory.checker.state, FORWARD)
        self._batch: dict[int, int] = {}
        """Record -> its positions before the first step, as if it had been in the batch from the beginning."""
        self._since: dict[int, int] = {}
        """Record -> the step after which it joined."""
        self._whole: dict[int, None] = {}
        """Records with a part in the next launch that is emitted."""
        self._begun: dict[int, tuple[int, list[Begin]]] = {}
        """Launch in flight -> the step, and its emitted operations."""
        self._waiting: tuple[State, int, int] | None = None
        """The launch in flight and its step, if it is not emitted yet. The next other event emits it."""
        self._several = len(memory.passes([])) > 1
        """Whether a launch is several operations, each of which is emitted."""

    def join(self, record: int, committed: int, step: int) -> None:
        """A record joins the batch after a step, with `committed` positions."""
        self.catch_up()
        self._batch[record], self._since[record], self._whole[record] = committed - step, step, None
        self._admit(step)

    def _admit(self, steps: int) -> None:
        for record in [*self._whole]:
            names = self._memory.names[record]
            if self._appending.admit(names.table, names.row, self._batch[record] + steps):
                del self._whole[record]

    def _leave(self, record: int) -> None:
        self._appending.leave(self._memory.names[record].table)
        self._whole[record] = None

    def launch(self, state: State, launch: int, step: int, opening: list[int]) -> None:
        """A step, counted from 1, is launched; records in `opening` begin a page.

        Raises:
            Violation: a rule of the memory model is broken.
        """
        self.catch_up()
        for record in opening:
            self._leave(record)
        if self._whole or self._begun or self._several:
            self._begin(state, launch, step)
        else:
            self._waiting = state, launch, step

    def catch_up(self) -> None:
        """Emit the launch in flight, before another event.

        Raises:
            Violation: a rule of the memory model is broken.
        """
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._begin(*waiting)

    def _begin(self, state: State, launch: int, step: int) -> None:
        memory = self._memory
        memory.launch(state, launch, self._parts(self._whole, step))
        self._begun[launch] = step, [event for event in memory.pending if isinstance(event, Begin)]
        memory.check()
        self._appending.count()
        self._admit(step)

    def _parts(self, records: dict[int, None], step: int) -> list[Computed]:
        return [(record, self._batch[record] + step - 1, self._batch[record] + step) for record in records]

    def complete(self, launch: int) -> None:
        """The oldest launch has completed.

        Raises:
            Violation: a rule of the memory model is broken.
        """
        if self._waiting is not None and self._appending.pass_by(launch):
            self._waiting = None
        else:
            self.catch_up()
            self._begun.pop(launch, None)
            self._memory.complete(launch, [])
        self._memory.check()

    def part(self, record: int) -> None:
        """A record leaves the batch. None of its launches is in flight."""
        self._leave(record)
        del self._batch[record], self._since[record], self._whole[record]

    def settle(self) -> None:
        """End the batch: write its appends, and the uses of its launches in flight, into the memory checker."""
        self.catch_up()
        for record in self._batch:
            self._leave(record)
        for step, begun in self._begun.values():
            there = {record: None for record, since in self._since.items() if since < step}
            for operation, (reads, writes) in zip(begun, self._memory.passes(self._parts(there, step)), strict=True):
                operation.reads, operation.writes = reads, writes
