"""`kvspec check` of several traces at a time says what it says of one after the other."""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from kvcli.main import run_command
from kvconform.findings.baseline import Baseline
from kvconform.findings.outcome import Case, Report
from kvconform.runs.side_by_side import side_by_side
from tests.conformance.helpers import HEADER, RECORDED, write

LEAKED = RECORDED[5] | {"obs": {"freed": []}}


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    """One that conforms, one that is not there, one with a finding, one of whose lines one cannot be used."""
    good = write(tmp_path / "good.jsonl", HEADER, *RECORDED)
    bad = write(tmp_path / "bad.jsonl", HEADER, *RECORDED[:5], LEAKED)
    cut = write(tmp_path / "cut.jsonl", HEADER, *RECORDED[:5], {"op": "dance"})
    return [str(good), str(tmp_path / "none.jsonl"), str(bad), str(cut), str(good)]


@pytest.mark.slow
@pytest.mark.parametrize("form", [[], ["--json"], ["--quiet"], ["--exitfirst"]])
def test_it_says_the_same_in_the_order_of_the_traces(
    traces: list[str], form: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    statuses, said = [], []
    for jobs in ("1", "3"):
        statuses.append(run_command(["check", *traces, *form, "--jobs", jobs]))
        said.append(capfd.readouterr())
    assert statuses == [1, 1]
    assert said[0] == said[1]
    assert len(said[0].out) > 100


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_the_same_in_several_traces_is_one_finding(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write(tmp_path / f"{name}.jsonl", HEADER, *RECORDED[:5], LEAKED) for name in ("a", "b", "c")]
    arguments = ["check", *map(str, paths), "--jobs", jobs]
    assert run_command([*arguments, "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["place"]["file"] == str(paths[0]) and found["count"] == 3
    assert [place["file"] for place in found["also"]] == [str(path) for path in paths[1:]]
    assert run_command(arguments) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("page(s) 2 were not freed and have no holder rule") == 1
    assert "PAGE-1 is broken at finish in 3 of 3 traces, 3 times" in out
    assert all(f"{path}: does not conform" in out for path in paths)


def dies(_out: Console, path: Path, _baseline: Baseline, report: Report) -> None:
    if path.name == "second":
        os.kill(os.getpid(), signal.SIGKILL)
    report.cases.append(Case(path.name, "conforms", str(path)))


def fails(_out: Console, _path: Path, _baseline: Baseline, _report: Report) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(("work", "verdicts"), [(dies, ["conforms", "unusable", "conforms"]), (fails, [])])
def test_a_process_that_dies_or_fails_is_reported(work: Callable[..., None], verdicts: list[str]) -> None:
    paths = list(map(Path, ("first", "second", "third")))
    checked = list(side_by_side(work, paths, 2, Console(quiet=True), Baseline()))
    assert [case.verdict for one in checked for case in one.report.cases] == verdicts
    assert [("second" in one.complained, "ZeroDivisionError" in one.fault) for one in checked] == (
        [(False, False), (True, False), (False, False)] if verdicts else [(False, True)] * 3
    )
    assert not multiprocessing.active_children()
