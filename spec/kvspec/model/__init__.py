"""The model: the specification as a machine that judges answers.

The specification is a relation: given a state and an operation, is this answer allowed, and what is the next state?
`Model.step` takes one operation together with what an implementation answered. Where the specification leaves a choice
(which free page, which victim of an eviction), the answer decides it. Without an answer the model makes the choice
itself, so the same code generates, checks step by step, and validates traces recorded elsewhere.

Each operation is a function of the state, in `waiting`, `running`, `leaving`, `hybrid`, `recurrent`
and `looking`. Each first
refuses what must be refused, then holds the answer against what is expected, and only then changes the state.
"""

from collections.abc import Callable
from typing import Any

from kvspec import events
from kvspec.events import Answer, Config, Event, Operation, Refusal, Refused
from kvspec.lengths import Lengths
from kvspec.model import hybrid, leaving, looking, recurrent, running, waiting
from kvspec.model.judging import pages_of
from kvspec.model.meaning import FORWARD, MakeLaw, Memory
from kvspec.model.state import State
from kvspec.pages import expand
from kvspec.rules import Violation

OPERATIONS: dict[type[Operation[Any]], Callable[[State, Any], Answer]] = {
    events.OpenSession: waiting.open_session,
    events.Submit: waiting.submit,
    events.MatchPrefix: waiting.match_prefix,
    events.Extend: running.extend,
    events.Decode: running.decode,
    events.Verify: running.verify,
    events.Launch: running.launch,
    events.Complete: running.complete,
    events.CacheUnfinished: leaving.cache_unfinished,
    events.Finish: leaving.finish,
    events.Retract: leaving.retract,
    events.Abort: leaving.abort,
    events.CloseSession: leaving.close_session,
    events.Preempt: leaving.preempt,
    events.SwaEvict: hybrid.swa_evict,
    events.TakeState: recurrent.take_state,
    events.FreeState: recurrent.free_state,
    events.Evict: leaving.evict,
    events.Report: looking.report,
    events.Snapshot: looking.snapshot,
}
"""The executable form of each operation."""


class Model:
    """The specification, watching one memory manager."""

    def __init__(self, config: Config, *, law: MakeLaw | None = None, writes_on: str = FORWARD) -> None:
        """An empty memory manager of the given sizes.

        A `law` (`kvspec.memory`) judges what each step means there; `writes_on` is the stream on which rows are
        written, that of the forward passes or "host".
        """
        self.state = State(config, None if law is None else Memory(config, law, writes_on))
        self.steps = 0

    def step(self, op: Event) -> None:
        """Judge one operation and its answer, and move on.

        With neither `obs` nor `refused` set, the model answers itself and fills `op.obs` in.

        Raises:
            Violation: the answer is not allowed, or an operation was carried out that must be refused.
            Refusal: there was no answer to judge, and the operation must be refused.
        """
        self.steps += 1
        carry_out(self.state, op)
        if self.state.memory is not None:
            self.state.memory.judge()

    def lengths_of(self, name: str) -> Lengths | None:
        """The lengths of a request, or of an idle session's slot; `None` if it holds nothing."""
        holder = self.state.requests.get(name) or self.state.sessions.get(name)
        return None if holder is None or holder.record is None else self.state.lengths[holder.record]


def carry_out(state: State, op: Event) -> None:
    """Judge one operation and its answer as `Model.step` does, but for what it means to the memory below."""
    try:
        answer = OPERATIONS[type(op)](state, op)
    except Refusal as refusal:
        if op.refused is None:
            if op.obs is None:
                raise
            raise _carried_out(state, op, refusal.refused) from None
        judge_refusal(state, refusal.refused, op.refused)
    else:
        if op.obs is None:
            op.obs = answer


def _carried_out(state: State, op: Event, due: Refused) -> Violation:
    """What is broken where an operation was carried out that must be refused: by what it let go, if it tells that."""
    rule, what = due.rule or "OP-1", f"the operation was carried out, but must be refused: {due.reason}"
    freed = expand(getattr(op.obs, "freed", None) or ())
    if rule == "OP-1" and freed:
        _, whose = pages_of(state).use(state, freed[0])
        return Violation("PAGE-1", f"{what}; page {freed[0]} was freed, but it {whose}", observed=freed)
    if rule == "OP-1" and getattr(op, "session", None) in state.closed_late:
        rule = "SESS-4"
    return Violation(rule, what, expected="refused", observed="carried out")


def judge_refusal(state: State, expected: Refused, observed: Refused) -> None:
    """Both refuse: the amounts that are missing must agree where they are told."""
    for name in ("pages_short", "rows_short", "window_short", "states_short") if expected.rule == "CAP-1" else ():
        told, due = getattr(observed, name), getattr(expected, name)
        if told and told != due:
            raise Violation("CAP-1", f"{name} of a refusal is wrong", expected=due, observed=told)
    rule = expected.rule or "OP-1"
    state.judged[rule] += 1
    state.judged["ROW-3"] += bool(expected.rows_short)
