"""The model: the allowed answers of each operation, and its effect.

The specification is a relation: given a state and an operation, is this answer allowed, and what is the next state?
Where it leaves a choice (which free page, which victim of an eviction), the answer decides it.

Each operation is a function of the state, the operation and the observed `answer`, in `waiting`, `running`, `leaving`,
`hybrid`, `recurrent` and `looking`. Each first refuses what must be refused. Then it states the expected value of each
field and changes the state, a pool after the other. `kvconform.oracle.Model` carries them out and compares answers.
Numbers in parentheses are pull requests of the source documents.
"""

from collections.abc import Callable
from typing import Any

from kvspec import events
from kvspec.events import Operation
from kvspec.model import hybrid, leaving, looking, recurrent, running, waiting
from kvspec.model.answer import ObservedAnswer
from kvspec.model.state import State

OPERATIONS: dict[type[Operation[Any]], Callable[[State, Any, ObservedAnswer], None]] = {
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
