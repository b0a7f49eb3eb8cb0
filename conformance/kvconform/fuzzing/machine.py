"""A Hypothesis state machine for any implementation, with the model as its oracle.

    from kvconform.fuzzing import machine
    from my_engine.adapter import Adapter

    TestMyEngine = machine(Adapter).TestCase

is a whole pytest file: Hypothesis draws sizes and operations, the model judges every answer and a snapshot after it,
and a failure is shrunk, printed and kept in the example database. At the end of each run everything is released, and
the figures must add up to an empty pool.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kvconform.checked import Checked, ImplementationFailed, RuleBroken, make
from kvconform.features import lacks, needs_now, needs_of_config
from kvconform.fuzzing import generate
from kvconform.fuzzing.generate import GENERATORS, Draw
from kvconform.traces.codec import compressed
from kvconform.vectors.runner import Factory, carry_out
from kvspec.events import Abort, CloseSession, Config, Evict, Launch, Operation, Report
from kvspec.invariants import check
from kvspec.model import Model
from kvspec.model.state import State

T = TypeVar("T")


class Failure(NamedTuple):
    """A run that failed."""

    config: Config
    operations: Sequence[Operation[Any]]
    """Everything that was done on one fresh implementation, with its answers; the failing operation is the last."""
    finding: RuleBroken | ImplementationFailed


class Tally:
    """What all runs of a machine have met together."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.runs = 0
        self.failure: Failure | None = None
        """The latest run that failed."""
        self.operations: Counter[str] = Counter()
        self.judged: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()

    @property
    def steps(self) -> int:
        """Operations in all."""
        return self.operations.total()


class Drawn:
    """Choices that Hypothesis makes, and shrinks towards the first option."""

    def __init__(self, data: st.DataObject) -> None:
        """Draw from `data`."""
        self._data = data

    def integer(self, low: int, high: int) -> int:
        """A number in `low..high`."""
        return self._data.draw(st.integers(low, high))

    def choice(self, options: Sequence[T]) -> T:
        """One of `options`."""
        return options[self._data.draw(st.integers(0, len(options) - 1))]


_BAG = [generator for generator, weight in GENERATORS.items() for _ in range(weight)]


class _First:
    """Always the first choice: for what has to be done, not tried."""

    def integer(self, low: int, high: int) -> int:
        return low

    def choice(self, options: Sequence[T]) -> T:
        return options[0]


class KVCacheMachine(RuleBasedStateMachine):
    """What the machines of all implementations share; `machine` adds what to check."""

    factory: Factory
    draw_config: Callable[[Draw], Config]
    lacks: frozenset[str]
    """What the implementation declares that it does not have, and is never asked for."""
    tally: Tally

    def __init__(self) -> None:
        """Before the sizes are drawn."""
        super().__init__()
        self.config: Config | None = None
        self.failure: Failure | None = None
        self.history: list[Operation[Any]] = []

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Draw the sizes and make a fresh implementation."""
        cls = type(self)
        cls.tally.runs += 1
        config = cls.draw_config(Drawn(data))
        assume(not needs_of_config(config) & cls.lacks)
        self.config = config
        self.model = Model(config, law=True)
        implementation = make(cls.factory, config)
        self.checked = Checked(implementation, self.model, record=self.history.append, snapshot_every=1)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Carry out what one of the generators proposes.

        One rule, not one for each generator: Hypothesis would switch some of them off for a whole run, and a run
        without launches, say, gets nowhere.
        """
        draw = Drawn(data)
        op = draw.choice(_BAG)(self.state, draw)
        if op is not None and self.supports(op):
            self.perform(op)

    def supports(self, op: Operation[Any]) -> bool:
        """Whether the implementation has all that `op` needs now."""
        lacking = type(self).lacks
        return not lacking or not needs_now(self.state, op) & lacking

    @property
    def state(self) -> State:
        """What the model knows."""
        return self.model.state

    def perform(self, op: Operation[Any]) -> None:
        """Carry one operation out; on a failure, add the trace that led to it."""
        type(self).tally.operations[str(op.__struct_config__.tag)] += 1
        try:
            carry_out(self.checked, op)
            check(self.state)
        except (RuleBroken, ImplementationFailed) as finding:
            assert self.config is not None
            if not self.history or self.history[-1] is not finding.op:
                self.history.append(finding.op or op)
            type(self).tally.failure = self.failure = Failure(self.config, self.history, finding)
            finding.add_note("\n".join([str(self.config), *(_line(done) for done in self.history)]))
            raise

    def teardown(self) -> None:
        """Release everything, and ask for the figures of an empty pool."""
        if self.config is None or self.failure is not None:
            return
        cls, state = type(self), self.state
        if cls.lacks and state.prepared:
            self.perform(Launch(max(state.flights, default=0) + 1, list(state.prepared)))
        while (op := generate.complete(state, _First())) is not None:
            self.perform(op)
        endings: list[Operation[Any]] = [
            *map(Abort, state.requests),
            *map(CloseSession, state.sessions),
            Evict(self.config.num_pages),
        ]
        for ending in endings:
            if self.supports(ending):
                self.perform(ending)
        if all(request.record is None for request in state.requests.values()):
            self.perform(Report("idle"))
        cls.tally.judged += self.model.judged
        cls.tally.reached += self.model.reached


def machine(factory: Factory, draw_config: Callable[[Draw], Config] | None = None) -> type[KVCacheMachine]:
    """The state machine of one implementation.

    `factory(config)` makes a fresh implementation; `draw_config` draws the sizes it is made with, small ones with
    every pool that it has unless told otherwise.
    """
    lacking = lacks(factory)
    members: dict[str, Any] = {
        "factory": staticmethod(factory),
        "draw_config": staticmethod(draw_config or partial(generate.config, lacks=lacking)),
        "lacks": lacking,
        "tally": Tally(),
    }
    return type("KVCache", (KVCacheMachine,), members)


def _line(op: Operation[Any]) -> str:
    """An operation with its answer, as a trace has it."""
    return msgspec.json.encode(compressed(op)).decode()
