"""The state machine finds what is broken, and its traces are traces."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import Phase, settings

from kvcli.main import run_command
from kvconform.features import POLICIES
from kvconform.fuzzing import refused
from kvconform.fuzzing.corpus import OF
from kvconform.fuzzing.fuzz import Budget, fuzz, shortest
from kvconform.fuzzing.machine import DoesNotConform, machine
from kvconform.fuzzing.reach import GOALS, HARD, PER, met, missed
from kvconform.fuzzing.run import Failure, Run, Tally
from kvconform.fuzzing.style import Chance
from kvconform.fuzzing.swarm import swarm
from kvconform.gallery.mutants import BUGS
from kvconform.levels.requests.minimise import effort_for_one
from kvconform.oracle import Model
from kvconform.proxy import RuleBroken
from kvconform.vectors.files import vector_files
from kvconform.vectors.runner import try_out
from kvref import Manager
from kvref.request import KvRecord
from kvspec import lengths
from kvspec.events import (
    EVENTS,
    Config,
    Refusal,
    ReleaseAnswer,
    Submit,
)
from tests.conformance.helpers import LIFE, KeepsPages
from tests.marks import one_in
from tests.walk import proposals

pytestmark = pytest.mark.slow

KEEPS = "tests.conformance.helpers:KeepsPages"


class LeavesTheTail(Manager):
    """A resumed session keeps its lengths in order, but its tail is never freed."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.session_cache._free_tail = self._forget_tail  # type: ignore[method-assign]

    def _forget_tail(self, kv: KvRecord, prefix_len: int) -> None:
        kv.lengths = lengths.resume(kv.lengths, prefix_len, self.config.page_size)


class TestReference(machine(Manager).TestCase):  # type: ignore[misc]
    settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


DESCRIBED = (
    "destructive-restore",
    "lent-slot-counted-twice",
    "overrun-slot-freed-twice",
    "protected-from-unaligned-prefix",
    "retract-tail-orphaned",
    "row-freed-between-chunks",
    "row-freed-while-read",
    "speculative-tail-orphaned",
)
"""Defects of sessions, tails and rows, which the machine finds in few examples."""


@pytest.mark.parametrize("name", one_in(2, DESCRIBED))
def test_the_machine_finds_what_the_documents_describe(name: str) -> None:
    """In the first examples of a seed. Hypothesis begins with small ones: a tenth of those that it may try."""
    few = settings(
        max_examples=24,
        stateful_step_count=30,
        deadline=None,
        database=None,
        phases=[Phase.generate],
    )
    for number in range(3, 20):
        case = hypothesis.seed(number)(machine(BUGS[name].factory)).TestCase
        case.settings = few
        try:
            case("runTest").debug()
        except DoesNotConform as failure:
            assert "is broken at a drawn run" in str(failure)
            assert any(f"{rule} is broken" in str(failure) for rule in BUGS[name].rules)
            return
    pytest.fail("no seed finds it")


def test_the_state_machine_fails_on_an_injected_defect_with_its_description(capsys: pytest.CaptureFixture[str]) -> None:
    case = machine(LeavesTheTail).TestCase
    case.settings = settings(
        max_examples=400,
        stateful_step_count=80,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
    )
    started = time.monotonic()
    with pytest.raises(DoesNotConform, match="TAIL-1 is broken at a drawn run") as failure:
        case("runTest").debug()
    text = str(failure.value)
    assert "The shortest operations that still show it" in text and "step" in text and "what happens" in text
    assert "asks how much of it is cached" in text and len(text.splitlines()) < 50
    assert not getattr(failure.value, "__notes__", []) and failure.value.__cause__ is None
    assert "draw" not in capsys.readouterr().out.lower()
    assert time.monotonic() - started < 120, "Hypothesis does not shrink"


def test_fuzzing_is_repeatable_and_its_shortest_trace_is_minimal() -> None:
    first, again = (fuzz(LeavesTheTail, Budget(60), 3, lambda tally, elapsed: None) for _ in range(2))
    assert first.failure is not None and again.failure is not None
    assert first.tally.operations == again.tally.operations
    found = shortest(first.failure, LeavesTheTail, effort_for_one())
    assert found.counterexample is not None and isinstance(found.counterexample.finding, RuleBroken)
    assert found.counterexample.finding.rule.id == "TAIL-1"
    assert found.note.startswith("The shortest operations"), "leaving out any one operation more loses it"
    assert len(found.counterexample.operations) <= 16 < len(first.failure.operations)


def test_the_command_writes_a_trace_that_run_and_check_accept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, start = str(tmp_path / "failure.jsonl.zst"), time.monotonic()
    assert run_command(["fuzz", "--impl", KEEPS, "--seconds", "3", "--out", trace]) == 1
    assert time.monotonic() - start < 3.3, "the shortest trace is looked for within the budget"
    assert f"does not conform. The trace is in {trace}." in capsys.readouterr().out
    assert run_command(["run", trace, "--impl", KEEPS]) == 1
    assert "PAGE-1 is broken" in capsys.readouterr().out
    assert run_command(["check", trace]) == 1
    assert "PAGE-1 is broken" in capsys.readouterr().out
    assert run_command(["run", trace]) == 0, "the reference does better with the same operations"


def test_a_budget_of_operations_is_the_same_on_a_busy_machine() -> None:
    first, again = (fuzz(Manager, Budget(operations=500), 3, lambda tally, elapsed: None) for _ in range(2))
    assert first.tally.operations == again.tally.operations and 500 <= first.tally.steps < 600


@pytest.mark.parametrize(("policy", "feature"), [(p, f) for p, ways in POLICIES.items() for f in ways.items()])
def test_the_reference_conforms_under_each_policy(policy: str, feature: tuple[str, str]) -> None:
    declared = type("Declared", (Manager,), {policy: (feature[0],)})
    tally = fuzz(declared, Budget(operations=600), 0, lambda tally, elapsed: None).tally
    assert tally.failure is None


def test_runs_come_by_what_is_hard_to_come_by() -> None:
    missing = set(HARD)
    for seed in range(800):
        draw = Chance(seed)
        drawn = swarm(draw)
        model = Model(drawn.config)
        for _ in range(160):
            op = draw.choice(drawn.bag)(model.state, draw, drawn.style)
            if op is not None:
                with suppress(Refusal):
                    model.step(op)
                    missing.difference_update(met(model.state, op))
        if not missing:
            return
    pytest.fail(f"never came by {missing}")


@pytest.mark.thorough
@pytest.mark.long
def test_what_the_documents_are_about_is_met_often() -> None:
    tally = fuzz(Manager, Budget(operations=PER), 4, lambda tally, elapsed: None).tally
    assert list(missed(tally.reached, tally.steps)) == []
    assert tally.runs * (OF - 1) // OF >= len(vector_files()), "each vector begins a run"
    assert min(tally.checked[rule] for rule in ("SESS-2", "LEN-3", "TAIL-1")) > 700


def test_a_goal_that_is_not_reached_is_named() -> None:
    assert list(missed(dict.fromkeys(GOALS, 2 * PER), PER)) == []
    assert next(missed({"slot lent": 7}, 2 * PER)) == "slot lent: 7 of 1,000 times"
    assert list(missed({}, PER - 1)) == [], "of a short run nothing is due"


class ForgetsToEndATurn(Manager):
    """A session whose waiting turn is aborted after a retract accepts no further turn: it holds nothing, and sticks."""

    def abort(self, req: str) -> ReleaseAnswer:
        request = self.requests.get(req)
        answer = super().abort(req)
        if request is not None and request.slot is not None and request.extended and req not in self.running:
            request.slot.turn = req
        return answer


def test_at_the_end_of_a_run_every_name_is_used_again() -> None:
    draw = Chance(1)
    run = Run(ForgetsToEndATurn, swarm(draw, config=Config(4, 16, 2, 64)), frozenset(), Tally())
    life: list[dict[str, Any]] = [
        {"op": "open_session", "session": "s"},
        LIFE[0] | {"session": "s"},
        *LIFE[1:5],
        {"op": "retract", "req": "r"},
    ]
    for op in msgspec.convert(life, list[EVENTS]):
        run.perform(op)
    with pytest.raises(RuleBroken):
        run.end(reuse=True)
    assert isinstance(run.history[-1], Submit)


class KeepsPagesOrFails(KeepsPages):
    """Has another defect in pools of 8 pages."""

    def finish(self, req: str) -> ReleaseAnswer:
        if self.config.num_pages == 8:
            raise KeyError(req)
        return super().finish(req)


TWO = "tests.conformance.fuzzing.test_fuzz:KeepsPagesOrFails"


def test_it_goes_on_until_the_time_is_up_and_reports_each_kind_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rounds(*_: object) -> Iterator[tuple[Tally, float]]:
        tally = Tally()
        for num_pages in (16, 8, 16, 16):
            config = Config(4, num_pages, 2, 64)
            shown = try_out(msgspec.convert(LIFE, list[EVENTS]), config, KeepsPagesOrFails)
            assert shown is not None
            tally.failure = Failure(config, shown.operations, shown.finding)
            yield tally, 1.0

    monkeypatch.setattr("kvconform.fuzzing.fuzz.runs", rounds)
    out = tmp_path / "failure.jsonl"
    assert run_command(["fuzz", "--impl", TWO, "--out", str(out)]) == 1
    reported = capsys.readouterr().out
    assert re.findall(r"(PAGE-1 is broken|The implementation failed.*) at .*/(\S+):.*finish(.*)\n", reported) == [
        ("PAGE-1 is broken", "failure.jsonl", ", 3 times"),
        ("The implementation failed against OP-1", "failure.2.jsonl", ""),
    ]
    for path in tmp_path.iterdir():
        assert run_command(["run", str(path), "--impl", TWO]) == 1


def test_fuzzing_goes_on_after_something_breaks_and_ends_in_time_with_its_traces_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that goes on whenever it is read: operations and attempts to shorten take time, waiting does not.
    looks = count()
    monkeypatch.setattr(time, "monotonic", lambda: next(looks) * 0.15)
    arguments = ["fuzz", "--impl", KEEPS, "--seconds", "20", "--seed", "3", "--out", str(tmp_path / "failure.jsonl")]
    assert run_command(arguments) == 1
    # A quarter of the time at most is kept for shortening what broke.
    assert 20 * 0.75 <= next(looks) * 0.15 <= 20 * 1.1
    assert (tmp_path / "failure.jsonl").exists()


def test_what_is_accepted_is_counted_and_not_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = tmp_path / "known.toml"
    rules = "PAGE-1", "SESS-4", "MAMBA-2", "MAMBA-4"
    known.write_text("".join(f'[[known]]\nrule = "{rule}"\nreason = "injected"\n' for rule in rules))
    out = tmp_path / "failure.jsonl"
    arguments = ["fuzz", "--impl", KEEPS, "--seconds", "3", "--out", str(out), "--baseline", str(known)]
    assert run_command(arguments) == 0
    assert re.search(r"Known: PAGE-1: [1-9]\d* times. injected", capsys.readouterr().out)
    assert not out.exists()


def test_the_reference_survives_and_the_command_says_what_it_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["fuzz", "--operations", "3000", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert "reference: no rule was broken in" in out
    assert "Rules checked: ROW-1" in out and "slot lent" in out


def test_what_is_proposed_at_a_wrong_moment_is_of_every_kind_and_must_be_refused() -> None:
    met = set[type]()
    wrong = Counter[int]()
    for seed in range(30):
        draw = Chance(seed)
        drawn = swarm(draw)
        model = Model(drawn.config)
        for op in proposals(model.state, draw, 150, drawn):
            with suppress(Refusal):
                model.step(op)
            for number, moments in enumerate(refused.wrong_moments(model.state)):
                wrong[number] += len(moments)
            early = refused.hasty(model.state, draw)
            if early is not None:
                met.add(type(early))
                with pytest.raises(Refusal):
                    model.step(early)
    assert len(met) == 13 and min(wrong.values()) > 0
