"""What a decode batch that goes on means below.

Of a request that adds a slot to its last page, the law needs to know no more than that. So a launch is told with what
it does for the others, those that have come to a new page; `settle` adds what was left out.
"""

from kvcheck import Checker
from kvcheck.appending import Appending
from kvspec.memory.events import Begin
from kvspec.model.meaning import FORWARD, Books, Computed, Memory


def appends(memory: Memory) -> bool:
    """Whether a decode step does nothing but to add slots, on the one stream that there is, and the law counts them."""
    config, forward = memory.config, memory.writes_on == FORWARD
    return forward and not (config.sliding_window or config.num_states) and isinstance(memory.checker, Checker)


class Onward:
    """A decode batch that goes on, and the memory below."""

    def __init__(self, memory: Memory) -> None:
        """Nobody yet."""
        assert isinstance(memory.checker, Checker)
        self._memory = memory
        self._appending = Appending(memory.checker.state, FORWARD)
        self._batch: dict[int, int] = {}
        """Record -> how many positions it has before the first step, as if it had been there from then on."""
        self._since: dict[int, int] = {}
        """Record -> the step after which it joined."""
        self._whole: dict[int, None] = {}
        """Records whose part in the next launch is told."""
        self._begun: dict[int, tuple[int, list[Begin]]] = {}
        """Launch in flight -> the step, and its operations as they were told."""
        self._untold: tuple[Books, int, int] | None = None
        """The launch in flight, and its step, if nothing of it is told: it is told when anything else is."""
        self._told_whole = len(memory.passes([])) > 1
        """Whether a launch is more than one operation: each is told."""

    def join(self, record: int, committed: int, step: int) -> None:
        """A record joins the batch after a step, with so many positions."""
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

    def launch(self, state: Books, launch: int, step: int, opening: list[int]) -> None:
        """A step, counted from 1, is launched; records in `opening` begin a page.

        Raises:
            Violation: the law is broken.
        """
        self.catch_up()
        for record in opening:
            self._leave(record)
        if self._whole or self._begun or self._told_whole:
            self._tell(state, launch, step)
        else:
            self._untold = state, launch, step

    def catch_up(self) -> None:
        """Something else is to be told, so tell of the launch in flight.

        Raises:
            Violation: the law is broken.
        """
        if self._untold is not None:
            untold, self._untold = self._untold, None
            self._tell(*untold)

    def _tell(self, state: Books, launch: int, step: int) -> None:
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
            Violation: the law is broken.
        """
        if self._untold is not None and self._appending.pass_by(launch):
            self._untold = None
        else:
            self.catch_up()
            self._begun.pop(launch, None)
            self._memory.complete(launch, [])
        self._memory.check()

    def part(self, record: int) -> None:
        """A record leaves the batch, while none of its launches is in flight."""
        self._leave(record)
        del self._batch[record], self._since[record], self._whole[record]

    def settle(self) -> None:
        """The batch goes on no more: write what it did, and what its launches in flight use, into the law."""
        self.catch_up()
        for record in self._batch:
            self._leave(record)
        for step, begun in self._begun.values():
            there = {record: None for record, since in self._since.items() if since < step}
            for operation, (reads, writes) in zip(begun, self._memory.passes(self._parts(there, step)), strict=True):
                operation.reads, operation.writes = reads, writes
