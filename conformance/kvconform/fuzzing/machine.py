"""A Hypothesis state machine for any implementation, with the model as its oracle.

    from kvconform.fuzzing.machine import machine
    from my_engine.adapter import Adapter

    TestMyEngine = machine(Adapter).TestCase

is a whole pytest file: Hypothesis draws sizes and operations, the model checks every answer and a snapshot after it,
and a failure is kept in the example database. It is shortened and rendered as in all `kvspec` commands. At the end of
each run all memory is released, and the figures must add up to an empty pool.
"""

import unittest
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import Phase, Verbosity, assume, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from kvconform.features import lacks, needs_of_config, under
from kvconform.findings.formats import as_text
from kvconform.fuzzing.fuzz import finding_from
from kvconform.fuzzing.run import Run, Tally
from kvconform.fuzzing.style import Draw, T
from kvconform.fuzzing.swarm import swarm
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.vectors.runner import Factory
from kvspec.events import Config


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
    """The common part of all machines; `machine` adds the implementation to check."""

    factory: Factory
    draw_config: Callable[[Draw], Config] | None
    lacks: frozenset[str]
    """The features that the implementation declares as lacking; it is never asked for them."""
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
        drawn = drawn._replace(config=under(cls.factory, drawn.config))
        assume(not needs_of_config(drawn.config) & cls.lacks)
        self.run = Run(cls.factory, drawn, cls.lacks, cls.tally)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Carry out the operation that a generator proposes.

        One rule, not one for each generator: the run's style sets
        their weights, and Hypothesis would switch off generators that every run needs.
        """
        assert self.run is not None
        self.run.step(Drawn(data))

    def teardown(self) -> None:
        """Release everything, and ask for the figures of an empty pool."""
        if self.run is not None and self.run.failure is None:
            self.run.end()


STEPS = 100
"""Operations that are proposed in a run, unless the test's settings say otherwise."""


class DoesNotConform(AssertionError):
    """The failure of a machine's test: the description of its finding."""


def machine(factory: Factory, draw_config: Callable[[Draw], Config] | None = None) -> type[KVCacheMachine]:
    """The state machine of one implementation.

    `factory(config)` makes a fresh implementation; `draw_config` draws the sizes it is made with, by default all kinds
    of sizes and every pool that it has.
    """
    members: dict[str, Any] = {
        "factory": staticmethod(factory),
        "draw_config": None if draw_config is None else staticmethod(draw_config),
        "lacks": lacks(factory),
        "tally": Tally(),
    }
    made = type("KVCache", (KVCacheMachine,), members)
    setattr(made, "TestCase", _test_case(made))  # noqa: B010 - type checkers see a property
    return made


def _test_case(made: type[KVCacheMachine]) -> type[unittest.TestCase]:
    """The test of a machine. Hypothesis only draws: a failure is shortened and rendered as by `kvspec`."""
    usual: Any = made.TestCase

    class MachineTestCase(usual):  # type: ignore[misc]
        settings = settings(usual.settings, stateful_step_count=STEPS)

        def runTest(self) -> None:  # noqa: N802 - unittest's name
            __tracebackhide__ = True
            made.tally.failure = None
            phases = [phase for phase in self.settings.phases if phase not in (Phase.shrink, Phase.explain)]
            quiet = settings(
                self.settings, phases=phases, verbosity=Verbosity.quiet, print_blob=False, report_multiple_bugs=False
            )
            try:
                run_state_machine_as_test(made, settings=quiet)
            except (RuleBroken, ImplementationFailed, Flaky):
                if made.tally.failure is None:
                    raise
            if made.tally.failure is not None:
                finding, _ = finding_from(made.tally.failure, made.factory)
                raise DoesNotConform(f"\n\n{as_text(finding)}")

    MachineTestCase.__name__ = MachineTestCase.__qualname__ = usual.__qualname__
    return MachineTestCase
