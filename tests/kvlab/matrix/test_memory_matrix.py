"""The matrix of engines as they run: the report on a release, its explanation, and the kept results."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from kvattach.hooks import Hooks, Trace
from kvattach.patches import Patches
from kvcheck import Checker
from kvcheck.words import describe
from kvconform.traces.memory import MemoryReader, open_trace
from kvlab.drives import Known, Trial, drive_trial
from kvlab.goals import Goal, hit
from kvlab.injection import Defect
from kvlab.issues import Issue
from kvlab.matrix import check, memory, worker
from kvlab.matrix.check import checked
from kvlab.matrix.kept import keep, recall
from kvlab.matrix.outcome import report_of
from kvlab.matrix.report import AnyReport, Group, MemoryReport, Shown, Task, compare, line
from kvlab.matrix.table import show
from kvspec.memory import Pool
from kvspec.memory.events import EndHolder, Failed, Idle, Release, Take

POOLS = {"kv": Pool(page_size=4, num_pages=8)}
LEAK = Known(
    Issue("leak", "a page is forgotten", "memory", rule="MEM-LEAK", code="MEM-LEAK/ended", fixed="0.2.0"), runs=5
)


class Engine:
    """An engine of one function; what is wrong with it is switched on by name."""

    def __init__(self, *wrong: str) -> None:
        self.wrong = set(wrong)
        self.runs = 0
        self.goals: dict[str, Goal] = {}

    def trial(self, known: list[Known], fixes: str = "") -> Trial:
        hooks: list[Hooks] = []

        def attach(trace: Trace) -> Hooks:
            hooks[:] = [Hooks(trace)]
            return hooks[0]

        def run(seed: int) -> None:
            self.runs += 1
            emit = hooks[0].emit
            hooks[0].trace.header("engine", POOLS)
            if "driver" in self.wrong:
                raise AttributeError("no such function")
            if "stand-in" in self.wrong:
                emit(Failed("assertion", "schedule: AttributeError: no attribute 'dcp_world_size'"))
                return
            emit(Take("a", "kv", [1, 2]))
            if "leak" not in self.wrong or seed < 2:
                emit(Release("a", "kv", [2]))
            emit(Release("a", "kv", [1]))
            if "twice" in self.wrong and seed == 1:
                emit(Release("a", "kv", [1]))
            emit(EndHolder("a"))
            emit(Idle())

        def fix(patches: Patches) -> None:
            patches.set(self, "wrong", self.wrong - {fixes})

        return Trial("engine", attach, run, [], fix if fixes else None, known, self.goals)


def drive(trial: Trial, out: Path, monkeypatch: pytest.MonkeyPatch, release: str = "0.1.0") -> MemoryReport:
    def chosen(*_: Any) -> Trial:
        return trial

    monkeypatch.setattr(memory, "trial_of", chosen)
    report = worker.work(Task("memory", "engine", release, None, str(out), 0.05, 0))
    assert isinstance(report, MemoryReport)
    return report


def test_a_known_defect_is_looked_for_alone_and_taken_away_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = drive(Engine("leak").trial([LEAK], fixes="leak"), tmp_path, monkeypatch)
    assert report.known["leak"] is not None
    assert (report.known["leak"].code, report.known["leak"].event) == ("MEM-LEAK/ended", 13)
    assert report.explained
    assert report.runs >= 1
    assert report.reached["take"] == report.runs


def test_a_goal_that_no_run_reaches_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.goals = {"pages are taken": lambda events: Take("a", "kv", [1, 2]) in events, "a page is hit": hit}
    monkeypatch.setattr(memory, "LEAST", 1)
    report = drive(engine.trial([]), tmp_path, monkeypatch)
    assert report.missed == ["a page is hit"]
    assert not report.unexplained and not report.explained
    assert line(report).endswith("never reached: a page is hit")
    console = Console(record=True, width=200)
    show(console, [report])
    assert "Never reached: engine 0.1.0, a page is hit" in console.export_text()
    (case,) = report_of("engine", [report]).cases
    assert (case.verdict, case.reason) == ("fails", "never reached: a page is hit")


def test_too_few_runs_say_nothing_of_goals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.goals = {"a page is hit": hit}
    monkeypatch.setattr(memory, "LEAST", 1 << 30)
    assert drive(engine.trial([]), tmp_path, monkeypatch).explained


def test_a_release_with_less_than_half_of_the_pairs_of_an_older_one_is_red() -> None:
    counts = {"0.2.0": 90, "0.1.0": 30, "0.3.0": 0, "checkout": 15, "0.4.0": 7, "0.5.0": 99}
    reports = [MemoryReport("engine", release, pairs=pairs) for release, pairs in counts.items()]
    compare(reports)
    assert [report.missed for report in reports if not report.explained] == [
        ["half of the 15 pairs of checkout (it has 7)"]
    ]


def test_pairs_are_those_of_the_first_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LEAST", 1)
    report = drive(Engine().trial([]), tmp_path, monkeypatch)
    assert report.pairs == 1  # a page is taken and released
    assert "1 pairs" in line(report)


def test_a_known_defect_is_gone_where_it_is_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = drive(Engine().trial([LEAK], fixes="leak"), tmp_path, monkeypatch, "0.2.0")
    assert report.known == {"leak": None}
    assert report.searched == {"leak": 25}
    assert report.explained


def test_a_known_defect_that_shows_after_its_fix_is_not_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = drive(Engine("leak").trial([LEAK._replace(runs=0)]), tmp_path, monkeypatch, "0.2.0")
    assert report.known == {"leak": None}
    assert [group.code for group in report.unexplained] == ["MEM-LEAK/ended"]


def test_a_known_defect_without_runs_of_its_own_is_recognised_by_its_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = drive(Engine("leak").trial([LEAK._replace(runs=0)]), tmp_path, monkeypatch)
    assert report.known["leak"] is not None
    assert report.explained


def test_a_rule_alone_explains_nothing_beside_its_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = drive(
        Engine("leak").trial([LEAK._replace(issue=msgspec.structs.replace(LEAK.issue, code=""))]), tmp_path, monkeypatch
    )
    assert report.known["leak"] is not None
    assert [group.code for group in report.unexplained] == ["MEM-LEAK/ended"]


def test_an_unknown_finding_is_reported_with_its_shortest_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = drive(Engine("twice").trial([LEAK]), tmp_path, monkeypatch)
    (group,) = report.unexplained
    assert (group.code, group.pool, group.seed, group.times) == ("MEM-RELEASE/not-held", "kv", 1, 1)
    with open_trace(Path(group.file)) as trace:
        assert isinstance(trace, MemoryReader)
        checker = Checker(trace.header.pools)
        found = [[finding.rule for finding in checker.step(event)] for _, event in trace]
    assert found == [["MEM-RELEASE"]] or found[-1] == ["MEM-RELEASE"]


@pytest.mark.parametrize("wrong", ["driver", "stand-in"])
def test_an_engine_that_the_driver_does_not_fit_is_no_finding(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = drive(Engine(wrong).trial([]), tmp_path, monkeypatch)
    assert report.not_supported is not None
    assert "the driver does not fit it" in report.not_supported
    assert "\n" not in report.not_supported
    assert report.explained


def test_the_table_shows_known_gone_unsupported_and_unexplained_findings() -> None:
    group = Group("MEM-RELEASE/not-held", "kv", "", 3, 40, "page 1 is released twice", 7, "out/x.jsonl")
    reports = [
        MemoryReport("engine", "0.1.0", runs=5, events=1234, known={"leak": Shown("MEM-LEAK/ended", 1015, "")}),
        MemoryReport("engine", "0.2.0", runs=5, events=99, known={"leak": None}, unexplained=[group]),
        MemoryReport("engine", "0.3.0", "it is of another kind"),
    ]
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        show(console, reports)
    rows = {row.split()[0]: row.split()[1:] for row in capture.get().splitlines() if row.strip()}
    assert rows["leak"] == ["1,015", "·"]
    assert rows["events"] == ["1,234", "99"]
    with console.capture() as capture_known:
        show(
            console, [MemoryReport("vllm", "0.33.0", known={"shifted-window-chunk": None, "chunk-ends-in-block": None})]
        )
    known = {row.split()[0]: row.split()[1:] for row in capture_known.get().splitlines() if row.strip()}
    assert known["shifted-window-chunk"] == ["missed"]
    assert known["chunk-ends-in-block"] == ["·"], "0.26.0 was the last with it"
    assert "Not explained: engine 0.2.0, MEM-RELEASE/not-held (3)" in capture.get()
    assert line(reports[0]).endswith("1,234 events in 5 runs; known defects: leak (MEM-LEAK/ended at event 1,015)")
    assert line(reports[2]) == "engine 0.3.0, as it runs: not supported: it is of another kind"


def test_what_is_kept_counts_for_the_same_key_only(tmp_path: Path) -> None:
    path, report = tmp_path / "kept" / "one.json", MemoryReport("engine", "0.1.0", runs=5)
    keep(path, {"seed": 0}, report)
    assert recall(path, {"seed": 0}, MemoryReport) == report
    assert recall(path, {"seed": 1}, MemoryReport) is None
    assert recall(tmp_path / "none.json", {"seed": 0}, MemoryReport) is None
    path.write_text('{"key": {"seed": 0}, "report": {"')
    assert recall(path, {"seed": 0}, MemoryReport) is None


def test_a_second_run_does_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driven: list[str] = []

    def once(task: Task) -> AnyReport:
        driven.append(task.release)
        return MemoryReport(task.engine, task.release, runs=1)

    monkeypatch.setattr(check, "_run", once)
    checkout = tmp_path / "nano-vllm"
    checkout.mkdir()
    (checkout / "scheduler.py").write_text("one")
    for again in (False, False, True):
        checked("memory", "nano-vllm", str(checkout), 1.0, 0, tmp_path / "out", None, again=again)
    assert driven == ["nano-vllm"] * 2
    (checkout / "scheduler.py").write_text("another")
    checked("memory", "nano-vllm", str(checkout), 1.0, 0, tmp_path / "out", None, again=False)
    assert driven == ["nano-vllm"] * 3


@pytest.mark.parametrize(
    ("engine", "release", "reason"),
    [
        ("nano-vllm", "0.1.0", "not on the package index"),
        ("nano-vllm", "nowhere/nano-vllm", "there is no folder"),
        ("mini-sglang", "installed", "not installed"),
    ],
)
def test_a_release_that_is_not_there_says_why(engine: str, release: str, reason: str, tmp_path: Path) -> None:
    report = checked("memory", engine, release, 1.0, 0, tmp_path, None, again=False)
    assert report.not_supported is not None
    assert reason in report.not_supported


@pytest.mark.slow
def test_a_folder_that_holds_another_engine_is_not_supported(tmp_path: Path) -> None:
    report = checked("memory", "nano-vllm", str(tmp_path), 1.0, 0, tmp_path / "out", None, again=False)
    assert report.not_supported == f"{tmp_path} holds no nano-vllm"
    assert msgspec.json.decode(msgspec.json.encode(report), type=MemoryReport) == report


def test_an_exception_of_a_run_is_a_finding_with_an_injected_defect_and_an_error_elsewhere() -> None:
    place = (Engine, "__init__", "self.runs = 0", "self.runs = 1")
    trace = drive_trial(Engine("driver").trial([]), range(3), defect=Defect("raises", "", (place,)))
    assert [(events, finding.rule) for events, finding in trace.found] == [(1, "MEM-FAILED")]
    assert "the run of seed 0: AttributeError: no such function" in describe(trace.found[0][1])
    with pytest.raises(AttributeError, match="no such function"):
        drive_trial(Engine("driver").trial([]), range(3))


def test_a_trial_begins_at_a_seed_and_stops_after_so_many_events() -> None:
    engine = Engine("twice")
    assert not drive_trial(engine.trial([]), range(2, 5)).found
    assert engine.runs == 3
    assert drive_trial(engine.trial([]), range(1, 3)).found, "the run of seed 1 releases a page twice"
    trace = drive_trial(engine.trial([]), range(2, 102), events=12)
    assert trace.events == 15, "five events a run, and a run is not cut"
