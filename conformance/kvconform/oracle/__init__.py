"""The oracle: compares the answers of an implementation with those that the specification expects.

observed    one answer, field by field; without an answer it makes up a right one
numbers     the pages, slots and rows that an answer lists, one by one
inspection  the figures and the whole state of a report; `holders`: requests and sessions
parts       the comparisons that these share; `runs`: lists of numbers as runs
pools       pools, and the owners of their numbers in words
notes       counts on the way, and facts that decide which rule a wrong answer breaks
watched     the same with a memory below: the memory events of each change
meaning     the memory events of a step; `agreement` compares the state with their sum
fastpath/   the same model, faster for decode batches

Not here: the expected answers (`kvspec.model`).
"""

from kvconform.oracle import agreement as agreement
from kvconform.oracle.meaning import FORWARD, MakeChecker, Memory
from kvconform.oracle.notes import CHOICES, NOTES, NotedState
from kvconform.oracle.observed import Observed
from kvconform.oracle.pools import owner_name, pool_of, record_name
from kvconform.oracle.watched import WatchedState
from kvspec.events import Config, Event, Extend, Refusal, Refused
from kvspec.lengths import Lengths
from kvspec.model import OPERATIONS
from kvspec.pages import expand
from kvspec.rules import Violation

__all__ = [
    "CHOICES",
    "Model",
    "NotedState",
    "Observed",
    "WatchedState",
    "carry_out",
    "check_refusal",
    "owner_name",
    "record_name",
]


class Model:
    """The specification, watching one memory manager."""

    def __init__(self, config: Config, *, checker: MakeChecker | None = None, writes_on: str = FORWARD) -> None:
        """An empty memory manager of the given sizes.

        `checker` makes the memory checker for the memory events of each step. `writes_on` is the stream on which rows
        are written: that of the forward passes, or "host".
        """
        self.state = NotedState(config)
        if checker is not None:
            self.state = WatchedState(config, memory=Memory(config, checker, writes_on))
        self.steps = 0

    def step(self, op: Event) -> None:
        """Check one operation and its answer, and apply it.

        With neither `obs` nor `refused` set, the model itself answers and fills in `op.obs`.

        Raises:
            Violation: the answer is not allowed, or the operation was carried out but must be refused. Refusal: there
            was no answer to check, and the operation must be refused.
        """
        self.steps += 1
        carry_out(self.state, op)
        if self.state.memory is not None:
            self.state.memory.check()

    def lengths_of(self, name: str) -> Lengths | None:
        """The lengths of a request, or of an idle session's slot; `None` if it holds nothing."""
        holder = self.state.requests.get(name) or self.state.sessions.get(name)
        return None if holder is None or holder.record is None else self.state.lengths[holder.record]


def carry_out(state: NotedState, op: Event) -> None:
    """Check one operation and its answer as `Model.step` does, without its memory events."""
    answer = Observed(state, op)
    notes = NOTES[type(op)](state, op) if type(op) in NOTES else None
    if notes is not None:
        next(notes)
    try:
        OPERATIONS[type(op)](state, op, answer)
    except Refusal as refusal:
        if op.refused is None:
            if op.obs is None:
                raise
            raise _carried_out(state, op, refusal.refused) from None
        check_refusal(state, refusal.refused, op.refused)
        state.batch_refused |= isinstance(op, Extend)
    else:
        if op.obs is None:
            op.obs = answer.made_up()
        if notes is not None:
            next(notes, None)


def _carried_out(state: NotedState, op: Event, due: Refused) -> Violation:
    """The violation of an operation that must be refused, but was carried out. Its freed pages may show which rule."""
    rule, what = due.rule or "OP-1", f"the operation was carried out, but must be refused: {due.reason}"
    freed = expand(getattr(op.obs, "freed", None) or ())
    pool = pool_of(state, "pages")
    if rule == "OP-1" and freed and pool is not None:
        _, whose = pool.use(state, freed[0])
        return Violation(
            "PAGE-1", f"{what}; page {freed[0]} was freed, but it {whose}", observed=freed, part="freed.early"
        )
    if rule == "OP-1" and getattr(op, "session", None) in state.closed_late:
        rule = "SESS-4"
    return Violation(rule, what, expected="refused", observed="carried out", part="refused")


AMOUNTS = ("pages_short", "rows_short", "window_short", "states_short")
"""The amounts that a refusal by CAP-1 names as missing."""


def check_refusal(state: NotedState, expected: Refused, observed: Refused) -> None:
    """Both refuse: reported missing amounts must agree."""
    amounts = [(name, getattr(observed, name), getattr(expected, name)) for name in AMOUNTS]
    reported = expected.rule == "CAP-1" and any(found for _, found, _ in amounts)
    for name, found, due in amounts if reported else ():
        if found != due:
            # A refused earlier batch has kept these rows.
            rule = "ROW-3" if name == "rows_short" and found > due and state.batch_refused else "CAP-1"
            raise Violation(rule, f"{name} of a refusal is wrong", expected=due, observed=found, part=name)
    rule = expected.rule or "OP-1"
    state.checked[rule] += 1
    state.checked["ROW-3"] += bool(expected.rows_short)
