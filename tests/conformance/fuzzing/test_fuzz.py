"""The state machine finds what is broken, and its traces are traces."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from kvconform.checked import RuleBroken
from kvconform.cli import run_command
from kvconform.fuzzing import generate
from kvconform.fuzzing.fuzz import fuzz, shortest
from kvconform.fuzzing.machine import machine
from kvref import Manager
from kvref.request import KvRecord
from kvspec import lengths
from kvspec.events import CacheUnfinished, Complete, Config, Decode, Finish, Refusal, Submit, Verify
from kvspec.model import Model
from tests.walk import RandomDraw, proposals

LEAKY = "tests.conformance.fuzzing.test_fuzz:LeavesTheTail"


class LeavesTheTail(Manager):
    """A resumed session keeps its lengths in order, but its tail is never freed."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.session_cache._free_tail = self._forget_tail  # type: ignore[method-assign]

    def _forget_tail(self, kv: KvRecord, prefix_len: int) -> None:
        kv.lengths = lengths.resume(kv.lengths, prefix_len, self.config.page_size)


class TestReference(machine(Manager).TestCase):  # type: ignore[misc]
    settings = settings(max_examples=15, stateful_step_count=40, deadline=None)


def test_the_machine_fails_on_a_planted_defect_with_its_trace() -> None:
    case = machine(LeavesTheTail).TestCase
    case.settings = settings(
        max_examples=400,
        stateful_step_count=80,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
    )
    with pytest.raises(RuleBroken, match="TAIL-1") as failure:
        case("runTest").debug()
    notes = "\n".join(failure.value.__notes__)
    assert notes.splitlines()[0].startswith("Config(") and '{"op":"match_prefix"' in notes


def test_fuzzing_is_repeatable_and_its_shortest_trace_is_minimal() -> None:
    first, again = (fuzz(LeavesTheTail, 60, 3, lambda tally, elapsed: None) for _ in range(2))
    assert first.failure is not None and again.failure is not None
    assert first.tally.operations == again.tally.operations
    shrunk = shortest(first.failure, LeavesTheTail)
    assert shrunk is not None and isinstance(shrunk.demonstration.finding, RuleBroken)
    assert shrunk.demonstration.finding.rule.id == "TAIL-1"
    assert shrunk.complete, "leaving out any one operation more loses it"
    assert len(shrunk.demonstration.operations) <= 16 < shrunk.total


def test_the_command_writes_a_trace_that_run_and_check_accept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(tmp_path / "failure.jsonl.zst")
    assert run_command(["fuzz", "--impl", LEAKY, "--seconds", "60", "--out", trace]) == 1
    assert f"does not conform. The trace is in {trace}." in capsys.readouterr().out
    assert run_command(["run", trace, "--impl", LEAKY]) == 1
    assert "TAIL-1 is broken" in capsys.readouterr().out
    assert run_command(["check", trace]) == 1
    assert "TAIL-1 is broken" in capsys.readouterr().out
    assert run_command(["run", trace]) == 0, "the reference does better with the same operations"


def test_the_reference_survives_and_the_command_says_what_it_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["fuzz", "--seconds", "2", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert "reference: no rule was broken in" in out
    assert "Rules judged: ROW-1" in out and "slot lent" in out


def test_what_is_proposed_too_early_is_of_every_kind_and_must_be_refused() -> None:
    met = set()
    for seed in range(30):
        draw = RandomDraw(seed)
        model = Model(generate.config(draw))
        for op in proposals(model.state, draw, 150):
            with suppress(Refusal):
                model.step(op)  # type: ignore[arg-type]
            early = generate.hasty(model.state, draw)
            if early is not None:
                met.add(type(early))
                with pytest.raises(Refusal):
                    model.step(early)  # type: ignore[arg-type]
    assert met == {CacheUnfinished, Finish, Verify, Decode, Complete, Submit}
