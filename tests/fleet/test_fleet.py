"""`--ray` changes where check, fuzz, soak and explore are carried out, and nothing of their output."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvconform.console import BROKEN, CONFORMS, UNUSABLE, Forms, progress_bar
from kvconform.exploring import exhaust
from kvconform.exploring.scope import SCOPES
from kvconform.findings.baseline import Baseline
from kvconform.fleet.checking import check_traces, check_url
from kvconform.fleet.cluster import Cluster
from kvconform.fleet.fuzzing import OPERATIONS, fuzzed, soaked
from kvconform.fuzzing.coverage import Coverage
from kvconform.fuzzing.fuzz import Budget, fuzz_on
from kvconform.implementations import load
from kvconform.levels.level import Task
from kvconform.runs.vectors import run_vectors
from kvconform.traffic.soak import soak

RACE = Path(__file__).parents[2] / "conformance/examples/reuse_before_the_fence.jsonl"
FORMS = Forms(json=True)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces as three machines write them: six that conform, two with one defect, one that breaks off."""
    folder = tmp_path_factory.mktemp("traces")
    vectors = [Path(name) for name in ("duplicate_publish_p4", "logit_reserve")]
    for machine in ("one", "two", "three"):
        task = Task(vectors, "reference", folder / machine)
        run_vectors(Console(quiet=True), task, Forms(quiet=True))
    shutil.copy(RACE, folder / "one/race.jsonl")
    shutil.copy(RACE, folder / "two/race.jsonl")
    (folder / "three/torn.jsonl").write_text('{"kvspec": 2, ')
    os.utime(folder / "two/race.jsonl", (1_700_000_000, 1_700_000_000))
    return folder


def checked(cluster: Cluster, out: Console, *urls: str) -> tuple[int, dict[str, object]]:
    with out.capture() as printed:
        status = check_traces(out, cluster, urls, None, FORMS)
    return status, json.loads(printed.get())


def test_descriptions_are_those_without_a_cluster(tmp_path: Path) -> None:
    """A page is handed out twice, and read unwritten by the second holder: with `-v` this is reported whole, too."""
    pages = {"pool": "kv", "pages": [1]}
    lines = [{"kvspec": 2, "level": "memory", "producer": "t", "pools": {"kv": {"num_pages": 2}}}]
    lines += [{"op": "take", "holder": holder, **pages} for holder in "ab"]
    lines += [{"op": "begin", "id": 1, "stream": "s", "reads": [pages | {"holder": "b"}]}]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    reported = {}
    for forms in (Forms(quiet=True), Forms(), Forms(verbose=True)):
        findings = check_url(str(path), [], forms.described).report.findings
        assert [finding.follows for finding in findings] == ["", "It may follow from 1."]
        reported[forms] = [bool(finding.trace.moments) for finding in findings]
    assert [*reported.values()] == [[False, False], [True, False], [True, True]]


def test_traces_are_checked_by_url_and_one_defect_is_reported_once(
    cluster: Cluster, traces: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = Console(width=200)
    with out.capture() as printed:
        status = check_traces(out, cluster, [f"file://{traces}/*/*.jsonl"], None, Forms())
    assert status == BROKEN
    reported = printed.get()
    assert reported.count("MEM-RACE is broken") == 1
    assert "1. is in 2 of 9 traces, the oldest of 2023-11-14 22:13 UTC" in reported
    assert "9 traces: 6 conforms, 2 fails, 1 unusable" in reported
    assert "torn.jsonl" in capsys.readouterr().err


def test_the_report_counts_every_trace_once(cluster: Cluster, traces: Path) -> None:
    status, report = checked(cluster, Console(width=200), f"{traces}/*/*.jsonl")
    files = [case["file"] for case in report["cases"]]  # type: ignore[attr-defined]
    assert len(files) == len(set(files)) == 9
    assert status == BROKEN
    assert checked(cluster, Console(width=200), f"{traces}/three/torn.jsonl")[0] == UNUSABLE
    assert checked(cluster, Console(width=200), f"{traces}/three/logit*.jsonl")[0] == CONFORMS


def test_fuzzing_finds_a_mutant_and_its_trace_is_reported_with_answers(cluster: Cluster) -> None:
    impl = "bug:retract-tail-orphaned"
    carried_out = fuzzed(cluster, load(impl), impl, Budget(operations=100 * OPERATIONS), 1)
    failure = next(tally.failure for tally, _ in carried_out if tally.failure is not None)
    assert failure.operations[-1].obs is not None
    assert "page(s)" in str(failure.finding)


def test_fuzzing_the_reference_finds_nothing_and_puts_together_what_was_reached(cluster: Cluster) -> None:
    budget = Budget(operations=2 * OPERATIONS)
    carried_out = fuzzed(cluster, load("reference"), "reference", budget, 1)
    result = fuzz_on(carried_out, budget, lambda *_: None, Baseline())
    assert not result.kinds
    assert result.tally.steps >= 2 * OPERATIONS
    assert result.tally.reached["prefix matched"] > 0


def test_a_part_knows_what_the_parts_before_it_have_reached(cluster: Cluster) -> None:
    parts: list[tuple[int, Coverage]] = []
    as_done = cluster.as_done

    def noted(sent: Iterable[Any]) -> Iterator[Any]:
        for part in sent:
            parts.append(part)
            yield part

    class Watched(Cluster):
        def __init__(self) -> None:
            pass

        def as_done(self, work: Any, sent: Any) -> Any:
            return as_done(work, noted(sent))

    workers = cluster.workers
    for tally, _ in fuzzed(Watched(), load("reference"), "reference", Budget(operations=(workers + 1) * OPERATIONS), 1):
        assert tally.runs
    first, *_, last = [known for _, known in parts]
    assert not first.runs
    assert last.runs.total() >= 10
    assert set(last.reached) == set(last.runs)


def test_soaking_ends_at_its_budget(cluster: Cluster, tmp_path: Path) -> None:
    out, factory, budget = Console(width=120), load("reference"), Budget(operations=3000)
    endless = soaked(cluster, factory, "reference", 3)
    with out.capture() as printed:
        assert soak(out, progress_bar(), endless, factory, "reference", budget, tmp_path / "none.jsonl")
    assert "reference: no rule was broken." in printed.get()


def test_exploring_counts_the_same_states(cluster: Cluster) -> None:
    here, there = exhaust(SCOPES["tiny"]), exhaust(SCOPES["tiny"], spread=cluster.in_order)
    assert there.holds
    assert (there.states, there.transitions, there.depth, there.keys) == (
        here.states,
        here.transitions,
        here.depth,
        here.keys,
    )
