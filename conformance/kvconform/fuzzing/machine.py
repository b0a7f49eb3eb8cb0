"""A Hypothesis state machine for any implementation, with the model as its oracle.

    from kvconform.fuzzing import machine
    from my_engine.adapter import Adapter

    TestMyEngine = machine(Adapter).TestCase

is a whole pytest file: Hypothesis draws sizes and operations, the model judges every answer and a snapshot after it,
and a failure is shrunk, printed and kept in the example database. At the end of each run everything is released, and
the figures must add up to an empty pool.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from kvconform.checked import ImplementationFailed, RuleBroken
from kvconform.features import lacks, needs_of_config
from kvconform.fuzzing.run import Run, Tally
from kvconform.fuzzing.style import Draw, T
from kvconform.fuzzing.swarm import swarm
from kvconform.traces.codec import compressed
from kvconform.vectors.runner import Factory
from kvspec.events import Config, Operation


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


class KVCacheMachine(RuleBasedStateMachine):
    """What the machines of all implementations share; `machine` adds what to check."""

    factory: Factory
    draw_config: Callable[[Draw], Config] | None
    lacks: frozenset[str]
    """What the implementation declares that it does not have, and is never asked for."""
    tally: Tally

    def __init__(self) -> None:
        """Before the sizes are drawn."""
        super().__init__()
        self.run: Run | None = None

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Draw the sizes and the style, and make a fresh implementation."""
        cls, draw = type(self), Drawn(data)
        config = None if cls.draw_config is None else cls.draw_config(draw)
        drawn = swarm(draw, cls.lacks, config)
        assume(not needs_of_config(drawn.config) & cls.lacks)
        self.run = Run(cls.factory, drawn, cls.lacks, cls.tally)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Carry out what one of the generators proposes.

        One rule, not one for each generator: which are likely is the run's style, and Hypothesis would switch off for
        a whole run what nothing goes on without.
        """
        assert self.run is not None
        with self.told(self.run):
            self.run.step(Drawn(data))

    def teardown(self) -> None:
        """Release everything, and ask for the figures of an empty pool."""
        if self.run is not None and self.run.failure is None:
            with self.told(self.run):
                self.run.end()

    @staticmethod
    @contextmanager
    def told(run: Run) -> Iterator[None]:
        """Add the trace that led to a failure."""
        try:
            yield
        except (RuleBroken, ImplementationFailed) as finding:
            finding.add_note("\n".join([str(run.swarm.config), *(_line(done) for done in run.history)]))
            raise


def machine(factory: Factory, draw_config: Callable[[Draw], Config] | None = None) -> type[KVCacheMachine]:
    """The state machine of one implementation.

    `factory(config)` makes a fresh implementation; `draw_config` draws the sizes it is made with, all kinds of sizes
    and every pool that it has unless told otherwise.
    """
    members: dict[str, Any] = {
        "factory": staticmethod(factory),
        "draw_config": None if draw_config is None else staticmethod(draw_config),
        "lacks": lacks(factory),
        "tally": Tally(),
    }
    return type("KVCache", (KVCacheMachine,), members)


def _line(op: Operation[Any]) -> str:
    """An operation with its answer, as a trace has it."""
    return msgspec.json.encode(compressed(op)).decode()
