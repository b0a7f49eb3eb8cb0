"""A faster model: the steps of a decode batch are counted, and written into the state when it is read.

`decode_batch` has the steps of such a batch, `effects` their memory events. A caller that reads the state after each
step, as exploring does, gains nothing.
"""

from kvconform.oracle import Model, NotedState, carry_out
from kvconform.oracle.fastpath.decode_batch import Steady
from kvspec.events import Event
from kvspec.rules import Violation


class QuickModel(Model):
    """A model that batches decode steps."""

    @property
    def state(self) -> NotedState:
        """The state. A caller that changes it must have read it since the last step."""
        self._steady.settle()
        return self._state

    @state.setter
    def state(self, state: NotedState) -> None:
        self._state = state
        self._steady = Steady(state)

    @property
    def unsettled(self) -> NotedState:
        """The read-only state without the steps of the current batch: its pages are current, its requests are not."""
        return self._state

    def step(self, op: Event) -> None:
        """Check one operation and its answer, and apply it, as any model does."""
        self.steps += 1
        state, steady = self._state, self._steady
        if steady.step(op):
            return
        steady.make_way(op)
        try:
            carry_out(state, op)
        except Violation:
            if steady.settle():  # the violation includes the state of the batch
                carry_out(state.copy(), op)
            raise
        if state.memory is not None:
            state.memory.check()
        steady.note(op)
