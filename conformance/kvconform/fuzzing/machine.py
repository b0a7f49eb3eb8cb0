"""A Hypothesis state machine for any implementation, with the model as its oracle.

    from kvconform.fuzzing.machine import machine
    from my_engine.adapter import Adapter

    TestMyEngine = machine(Adapter).TestCase

is a whole pytest file: Hypothesis draws sizes and operations, the model checks every answer and a snapshot after it,
and a failure is kept in the example database. It is shortened and rendered as in all `kvspec` commands. At the end of
each run all memory is released, and the figures must add up to an empty pool.
"""

import unittest
from collections.abc import Callable
from typing import Any

from hypothesis import Phase, Verbosity, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from kvconform.features import lacks
from kvconform.findings.formats import as_text
from kvconform.fuzzing.fuzz import finding_from, shortest
from kvconform.fuzzing.operations import KVCacheMachine
from kvconform.fuzzing.run import Tally
from kvconform.fuzzing.style import Draw
from kvconform.levels.requests.minimise import effort_for_one
from kvconform.proxy import ImplementationFailed, RuleBroken
from kvconform.vectors.runner import Factory
from kvspec.events import Config

STEPS = 100
"""The number of operations proposed in a run, unless the test's settings give another."""


class DoesNotConform(AssertionError):
    """The failure of a machine's test: the description of its finding."""


def machine(factory: Factory, draw_config: Callable[[Draw], Config] | None = None) -> type[KVCacheMachine]:
    """The state machine of one implementation.

    `factory(config)` makes a fresh implementation; `draw_config` draws its sizes, by default all kinds of sizes and all
    its pools.
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
    """The test of a machine. Hypothesis only draws: failures are shortened and rendered as by `kvspec`."""
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
                found = shortest(made.tally.failure, made.factory, effort_for_one())
                finding, _ = finding_from(made.tally.failure, made.factory, found)
                raise DoesNotConform(f"\n\n{as_text(finding)}")

    MachineTestCase.__name__ = MachineTestCase.__qualname__ = usual.__qualname__
    return MachineTestCase
