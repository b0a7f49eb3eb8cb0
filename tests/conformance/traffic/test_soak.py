"""Traffic in every combination of modes."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from rich.console import Console

from kvcli.main import run_command
from kvconform.console import progress_bar
from kvconform.fleet.fuzzing import soaked
from kvconform.fuzzing.fuzz import Budget
from kvconform.fuzzing.run import Failure
from kvconform.implementations import load
from kvconform.proxy import RuleBroken
from kvconform.traffic.soak import WITHOUT_SCHEDULER, combinations, run_of, soak, soak_run
from kvconform.traffic.soak import soaked as soaked_here
from kvref.manager import Manager
from kvspec.events import MatchPrefix, Refusal
from kvspec.rules import Violation


def test_every_mode_meets_every_other() -> None:
    every = list(combinations())
    assert len(set(every)) == len(every) == (2 * 3 + 1) * 3 * 2 * 2 * 3 * 2 * 4 * 2
    for one in ("overlap", "mixed_chunk", "drafts", "retract_interval", "abort_interval"):
        for other in ("overlap", "mixed_chunk", "drafts", "retract_interval", "abort_interval"):
            assert any(getattr(mode, one) and getattr(mode, other) for mode, *_ in every)


@pytest.mark.slow
def test_the_reference_survives_a_short_soak(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["soak", "--minutes", "0.05", "--seed", "9"]) == 0
    assert "reference: no rule was broken." in capsys.readouterr().out


def test_a_defect_ends_a_soak_and_is_shown_by_its_shortest_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "shortest.jsonl"
    assert run_command(["soak", "--impl", "bug:stale-row-index", "--minutes", "1", "--out", str(trace)]) == 1
    out = capsys.readouterr().out
    assert f"ROW-4 is broken at {trace}:{len(trace.read_text().splitlines())}, snapshot" in out
    assert "what happens" in out and "is finished" in out
    assert out.endswith(f"bug:stale-row-index: does not conform. The trace is in {trace}.\n")
    assert run_command(["run", str(trace), "--impl", "bug:stale-row-index"]) == 1
    assert "ROW-4 is broken" in capsys.readouterr().out


class Plain(Manager):
    """Has nothing but plain requests, and lets none go while a launch runs for it."""

    lacks = frozenset(("sessions", "preempt", "speculative", "sliding_window", "recurrent_states", "release_in_flight"))

    def open_session(self, session: str) -> NoReturn:
        raise Refusal(None, session)


@pytest.mark.slow
def test_a_soak_asks_for_nothing_that_is_lacking() -> None:
    runs = [soak_run(Plain, 0, number) for number in range(0, 200, 5)]
    assert all(run.failure is None for run in runs)
    operations = sum((run.operations for run in runs), Counter[str]())
    assert operations["finish"] > 50 and operations["abort"]


class _Here:
    """A cluster of this process."""

    def as_done(self, work: Callable[[int], Any], sent: Iterable[int]) -> Iterator[SimpleNamespace]:
        return (SimpleNamespace(result=work(number)) for number in sent)


def test_a_finding_of_a_worker_is_carried_out_here_once_more() -> None:
    bug = "bug:stale-row-index"
    failed = next(one for one in soaked(_Here(), load(bug), bug, 0) if one.failure is not None)  # type: ignore[arg-type]
    assert failed.failure is not None and isinstance(failed.failure.finding, RuleBroken)
    assert failed.failure.finding.rule.id == "ROW-4" and failed.failure.operations


def test_a_finding_that_needs_the_scheduler_says_so(tmp_path: Path) -> None:
    _, run = run_of(0, 0)
    done = next(iter(soaked_here(Manager, 0)))
    stuck = Failure(run.config, [MatchPrefix("r")], RuleBroken(Violation("LIVE-1", "no progress"), 1, MatchPrefix("r")))
    out = Console(width=120)
    with out.capture() as printed:
        endless = iter([done._replace(failure=stuck)])
        assert not soak(out, progress_bar(), endless, Manager, "mine", Budget(60), tmp_path / "trace.jsonl")
    assert "LIVE-1 is broken" in printed.get() and WITHOUT_SCHEDULER in printed.get()


def test_each_run_is_recorded_for_check(tmp_path: Path) -> None:
    assert run_command(["soak", "--operations", "300", "--record", str(tmp_path / "traces")]) == 0
    traces = sorted(map(str, (tmp_path / "traces").iterdir()))
    assert traces and run_command(["check", "-q", *traces]) == 0
