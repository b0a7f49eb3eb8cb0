"""The matrix of releases: what explains a finding, and one real release from its wheel."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from rich.console import Console

from kvconform.fuzzing.walks import Walker, supported
from kvconform.proxy import RuleBroken
from kvconform.traces.codec import TraceReader
from kvlab.matrix import check
from kvlab.matrix.check import checked
from kvlab.matrix.findings import described, explanation
from kvlab.matrix.report import AnyReport, Found, RequestReport, Task
from kvlab.matrix.table import show
from kvlab.releases import NotFetched, fetch
from kvref.manager import Manager
from kvspec.events import Config, Decode, OpenSession, RowsRead, Submit
from tests.conformance.helpers import check_trace

RELEASE = "0.5.10"


def found(rule: str, operation: str, trace: list[str], part: str = "") -> Found:
    return Found(rule, operation, f"{rule}: {part}", "a random walk", trace, part=part)


def explaining(one: Found, release: str) -> str | None:
    return explanation(one, release, "sglang")


def test_an_explanation_holds_for_its_releases_only() -> None:
    double = found("ACC-1", "report", ["open_session", "report"])
    assert explaining(double, "0.5.10") == explaining(double, "0.5.10.post1") == "double-count"
    assert explaining(double, "0.5.9") is None
    assert explaining(double, "0.5.11") is None
    assert explaining(double, "installed") is None


def test_an_explanation_needs_its_operations_as_often_as_listed() -> None:
    once = found("SESS-2", "match_prefix", ["retract", "match_prefix"])
    twice = found("SESS-2", "match_prefix", ["retract", "match_prefix", "retract", "match_prefix"])
    assert explaining(once, "0.5.12") is None
    assert explaining(twice, "0.5.12") == "retracted-twice"


def test_an_explanation_may_hold_for_one_pool_only() -> None:
    cut_short = found("STORE-5", "cache_unfinished", ["cache_unfinished"], "protected_len")
    assert explaining(cut_short, "0.5.12") is None
    cut_short.pool = "states"
    assert explaining(cut_short, "0.5.12") == "state-branch"


def test_a_window_that_goes_back_with_its_page_is_explained_where_it_is_known() -> None:
    published = found("SWA-2", "cache_unfinished", ["swa_evict", "finish", "cache_unfinished"], "window_freed.early")
    assert explaining(published, "0.5.9") == "leaf-without-window"
    assert explaining(published, "0.5.11") is None
    finished = found("SWA-2", "finish", ["submit", "submit", "finish"], "window_freed.early")
    assert explaining(finished, "0.5.23") == "window-branch"
    finished.trace.remove("submit")
    assert explaining(finished, "0.5.23") is None
    given = found("STORE-5", "finish", ["swa_evict", "finish"], "freed.early")
    given.pool = "window"
    assert explaining(given, "0.5.22") == "window-within-page"
    assert explaining(given, "0.5.23") is None
    named = found("STORE-1", "snapshot", ["cache_unfinished", "snapshot"], "store_pages")
    named.pool = "window"
    assert explaining(named, "0.5.22") == explaining(named, "0.5.18") == "window-within-page"
    assert explaining(named, "0.5.17") is None
    shorter = found("STORE-5", "cache_unfinished", ["cache_unfinished"], "protected_len")
    shorter.pool = "window"
    assert explaining(shorter, "0.5.19") == "window-within-page"
    assert explaining(shorter, "0.5.17") is None


def test_a_finding_without_an_explanation_says_whom_to_suspect() -> None:
    assert "Suspect the adapter" in "".join(described(found("DATA-1", "launch", ["launch"]), "sglang"))


def test_the_table_shows_rules_that_held_broken_ones_and_unexplained_findings() -> None:
    explained = found("ACC-1", "report", ["report"])
    explained.explanation = "double-count"
    lacks, one = ["late_publish", "rowless"], found("ROW-1", "extend", ["extend"])
    reports = [
        RequestReport("sglang", "0.5.10", lacks=lacks, checked={"ROW-1": 3}, found=[explained]),
        RequestReport("sglang", "0.5.11", checked={"ACC-1": 1}, found=[one]),
    ]
    console = Console(width=100, color_system=None)
    with console.capture() as capture:
        show(console, reports)
    rows = {line.split()[0]: line.split()[1:] for line in capture.get().splitlines() if line.strip()}
    assert rows["ROW-1"] == ["·", "?"]
    assert rows["ACC-1"] == ["A", "·"]
    assert "Not explained: sglang 0.5.11, extend" in capture.get()
    assert "Not in 0.5.10: late publication" in capture.get()
    assert "rowless" not in capture.get(), "who has rows does not miss running without"


@pytest.mark.slow
@pytest.mark.parametrize("rows_read", get_args(RowsRead))
def test_walks_find_nothing_in_the_reference_however_launches_read_rows(rows_read: RowsRead) -> None:
    walker = Walker(managing(Manager, rows_read), frozenset({"deep_overlap"}), seed=1)
    assert not list(walker.findings(0.5))
    assert walker.operations > 0


@pytest.mark.slow
def test_who_says_that_rows_are_written_in_order_and_withholds_them_is_found() -> None:
    class Withholds(Manager):
        def __init__(self, config: Config) -> None:
            super().__init__(msgspec.structs.replace(config, rows_read="until_complete"))

    (shown, _), *_ = Walker(managing(Withholds, "in_order"), frozenset({"deep_overlap"}), seed=1).findings(1.0)
    assert isinstance(shown.finding, RuleBroken)
    assert shown.finding.rule.id in {"ACC-1", "ROW-1", "OP-1", "RACE-1"}


def managing(base: type[Manager], rows_read: RowsRead) -> type[Manager]:
    return type("Managing", (base,), {"rows_read": (rows_read,)})


def test_operations_that_need_what_is_lacking_are_not_supported() -> None:
    config = Config(page_size=4, num_pages=8, num_rows=2, max_context_len=64)
    assert supported([Submit("A", [1])], config, frozenset({"sessions", "speculative"}))
    assert not supported([OpenSession("s")], config, frozenset({"sessions"}))
    assert not supported([Decode(["A"], 2)], config, frozenset({"speculative"}))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> RequestReport:
    """The findings of the vectors in one release, in a process of its own."""
    for needed in ("torch", "triton", "numpy"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed; SGLang's classes need it")
    try:
        folder = fetch(RELEASE)  # kept in the user's cache folder, where kvspec keeps releases
    except NotFetched as error:
        pytest.skip(str(error))
    task = Task("request", "sglang", RELEASE, str(folder), str(tmp_path_factory.mktemp("matrix")), seconds=0, seed=0)
    command = [sys.executable, "-m", "kvlab.matrix.worker", msgspec.json.encode(task).decode()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=RequestReport)


@pytest.mark.slow
@pytest.mark.long
def test_the_seeds_bugs_show_in_the_release_that_has_them(report: RequestReport) -> None:
    by_rule = {(one.rule, one.explanation) for one in report.found}
    assert ("SESS-3", "double-count") in by_rule
    assert ("TAIL-1", "tail-leak") in by_rule
    assert ("SESS-2", "reserve-twice") in by_rule


@pytest.mark.slow
def test_what_is_wrong_with_its_hybrid_pools_shows(report: RequestReport) -> None:
    by_rule = {(one.rule, one.explanation) for one in report.found}
    assert ("SWA-6", "locked-tombstone") in by_rule
    assert ("MAMBA-2", "session-states") in by_rule, "a double count in the figures comes before it in its vectors"
    assert {"SWA-1", "SWA-2", "SWA-3", "SWA-4", "SWA-5", "SWA-6", "ACC-2"} <= report.checked.keys()
    assert {"MAMBA-1", "MAMBA-2", "MAMBA-3", "MAMBA-4", "MAMBA-5", "ACC-3"} <= report.checked.keys()


@pytest.mark.slow
def test_a_release_may_do_less_than_a_vector_works_out(report: RequestReport) -> None:
    """It evicts a whole node where one state was asked for: allowed, but not what the vector expects."""
    assert "state_capacity_miss" in report.conform


@pytest.mark.slow
def test_all_that_is_found_in_the_release_is_explained(report: RequestReport) -> None:
    assert not [one for one in report.found if one.explanation is None]


@pytest.mark.slow
def test_a_chunked_request_keeps_its_row_in_this_release(report: RequestReport) -> None:
    kept = [name for name in report.conform if name.startswith("row_kept_over_chunks")]
    assert len(kept) == 4
    assert report.checked["ROW-2"] > 0


@pytest.mark.slow
def test_vectors_that_need_what_the_release_lacks_are_not_run(report: RequestReport) -> None:
    assert "late_publish" in report.lacks
    assert report.skipped["state_of_the_prompt_is_gone"] == ["late_publish"]


@pytest.mark.slow
def test_a_row_is_checked_as_launches_of_the_release_read_it(report: RequestReport) -> None:
    assert "row_withheld_until_launch_completes" in report.conform
    assert report.skipped["row_free_under_a_launch_that_copied_it"] == ["rows_at_launch"]
    assert report.reached["row not withheld"] > 0


@pytest.mark.slow
def test_a_written_trace_shows_the_same_finding_again(report: RequestReport) -> None:
    for one in report.found:
        with TraceReader(Path(one.file)) as trace:
            outcome = check_trace(trace)
        if one.rule == "raises":  # the operation has no answer, and a trace ends before it
            continue
        if one.operation == "submit":  # only the adapter sees what a session puts before a turn's tokens
            continue
        assert outcome.finding is not None, one.file
        assert str(outcome.finding).startswith(one.rule), one.file
        assert Path(one.file).with_suffix(".txt").is_file()


@pytest.mark.slow
def test_a_folder_without_sglang_is_said_to_hold_none(tmp_path: Path) -> None:
    report = checked("request", "sglang", f"{tmp_path}/", 0, 0, tmp_path / "out", None, again=False)
    assert report.not_supported == f"{tmp_path} holds no SGLang release"


def test_what_was_checked_before_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is reported by the last folder's name: findings in it are never written there."""
    (tmp_path / "mine" / "sglang").mkdir(parents=True)
    asked: list[Task] = []

    def once(task: Task) -> AnyReport:
        asked.append(task)
        return RequestReport(task.engine, task.release)

    monkeypatch.setattr(check, "_run", once)
    for again in (False, False, True):
        report = checked("request", "sglang", f"{tmp_path}/mine", 1.0, 0, tmp_path / "out", None, again=again)
        assert report.release == "mine"
    assert [task.release for task in asked] == ["mine", "mine"]
