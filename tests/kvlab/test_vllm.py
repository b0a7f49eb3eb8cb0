"""vLLM, hooked and driven: from the wheels that are there; what the hooks say of tables and labels, without any."""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kvattach.hooks import Hooks
from kvattach.vllm.launches import Launches
from kvattach.vllm.residency import Group, Run
from kvcheck.labels import Labels
from kvcli.main import app
from kvlab.drives import CheckedTrace
from kvlab.stubs import Arguments
from kvlab.vllm.driver import Drive, StuckError
from kvlab.vllm.engine import Drafter
from kvlab.vllm.workload import chunks_workload, offloading_workload, random_workload
from tests.kvlab.checkout import release_of

FULL = Group(0, 4, 0, False, 8)
WINDOW = Group(1, 4, 6, False, 4)


def run_of(*tokens: int, group: Group = FULL) -> Run:
    groups = [Group(0, 4, 0, False, 4), group] if group.number else [group]
    return Run("r0.1", SimpleNamespace(_all_token_ids=list(tokens), mm_features=()), groups)


def test_a_table_of_small_pages_leaves_the_rest_of_each_page_alone() -> None:
    assert [FULL.slot(token) for token in (0, 3, 4, 9)] == [0, 3, 8, 17]


def test_a_pass_reads_its_window_and_not_more() -> None:
    run = run_of(*range(20), group=WINDOW)
    run.rows[1] = 5
    use = run.reads(WINDOW, 10, 10)
    assert use is not None and (use.start, use.stop) == (5, 10)


def test_what_a_release_has_besides_is_off_in_its_configuration() -> None:
    options = Arguments(uses_mrope=True)
    assert options.uses_mrope is True and options.uses_something_new is None
    assert not hasattr(options, "__iter__")
    drafter = Drafter(use_eagle=lambda: True)
    assert drafter.use_eagle() is True and drafter.uses_something_new() is False and drafter.new_limit is None


def test_what_may_be_written_ends_with_the_table() -> None:
    run = run_of(1, 2, 3)
    run.rows[0] = 1
    use = run.writes(FULL, 2, 9, at_most=True)
    assert use is not None and (use.start, use.stop, use.at_most) == (2, 8, True)
    assert run.writes(FULL, 4, 9) is None


def test_equal_prefixes_have_equal_labels_and_others_have_not() -> None:
    one, same, other = run_of(*range(8)), run_of(*range(9)), run_of(9, *range(1, 8))
    assert [one.label(FULL, page) for page in (0, 1)] == [same.label(FULL, page) for page in (0, 1)]
    assert one.label(FULL, 1) != other.label(FULL, 1), "the second page has equal tokens behind another prefix"


def test_a_promised_page_is_learnt_when_its_last_token_is_known() -> None:
    run = run_of(1, 2, 3)
    mapped = run.mapped(FULL, [5])
    assert mapped.labels == [run.promise(FULL, 0)]
    assert list(run.grown()) == []
    run.request._all_token_ids.append(4)
    (learnt,) = run.grown()
    assert (learnt.label, learnt.same) == (run.promise(FULL, 0), run_of(1, 2, 3, 4).label(FULL, 0))
    assert list(run.grown()) == []


def test_a_promise_comes_true_before_any_table_has_its_page() -> None:
    """A turn begins, or a load starts, inside a page; an output that is late makes it whole before it is mapped."""
    run = run_of(1, 2, 3)
    assert run.label(FULL, 0) == run.label(FULL, 0) == run.promise(FULL, 0)
    run.request._all_token_ids.append(4)
    assert run.due == 4
    (learnt,) = run.grown()
    assert (learnt.label, learnt.same) == (run.promise(FULL, 0), run_of(1, 2, 3, 4).label(FULL, 0))
    assert run.mapped(FULL, [5]).labels == [learnt.same]
    assert list(run.grown()) == []


def test_a_hit_inside_a_page_says_what_that_page_has_in_common_with_the_one_that_was_found() -> None:
    large, small = Group(0, 8, 0, False, 8), Group(1, 2, 0, False, 8)
    found, other = (
        Run(name, SimpleNamespace(_all_token_ids=tokens, mm_features=()), [large, small])
        for name, tokens in (("r0.1", [*range(12)]), ("r1.2", [*range(12), 99, 99, 99, 99]))
    )
    labels = Labels()
    for learnt in [*found.begun(large, 12), *other.hit(10)]:
        labels.unify(learnt.label, learnt.same, learnt.slots)
    same = labels.same_up_to(found.label(large, 1), other.label(large, 1), 0, 8)
    assert same == 2, "ten tokens were found, two in page 1"
    assert not [*other.hit(8)], "the hit ends with a page"


def test_a_state_behind_more_tokens_than_there_are_has_no_content() -> None:
    state = Group(0, 4, 0, True, 4)
    run = run_of(1, 2, 3, 4, 5, 6, group=state)
    (read, write), (again, _) = run.states(state, 5, 7, 6), run.states(state, 7, 8, 8)
    assert read is not None and again is not None
    assert write.labels != again.labels, "what the next pass means to go on from was never there"
    assert run.states(state, 5, 7, 7)[1].labels == again.labels


def test_workloads_of_kv_offload_have_both_policies_and_avoid_windows_where_that_is_known() -> None:
    works = [chunks_workload(seed) for seed in range(60)]
    assert {work.offload for work in works} == {"lru", "arc"}
    assert {kind for work in works for kind, _, _ in work.groups} == {"full", "window", "state"}
    fixed = [chunks_workload(seed, known=False) for seed in range(60)]
    assert {kind for work in fixed for kind, _, _ in work.groups} == {"full", "state"}
    states = [work for work in fixed if work.groups[-1][0] == "state"]
    assert not any(work.sync_loads or len({size for _, size, _ in work.groups}) > 1 for work in states)
    assert {work.host_chunk for work in works} == {1, 2, 3} and any(work.sync_loads for work in works)


class Recorded:
    """The parts of the hooks that launches need, with one request in one pool."""

    def __init__(self, run: Run, group: Group) -> None:
        self.hooks, self.groups, self.runs = Hooks(CheckedTrace()), [group], {"r0": run}
        self.emitted: list[Any] = []

    def owns(self, scheduler: Any) -> bool:
        """There is one scheduler."""
        return True

    def emit(self, *events: Any) -> None:
        self.emitted += events

    def count(self) -> None: ...

    def in_use(self, page: int) -> bool:
        return bool(page)

    def idle(self, scheduler: Any) -> None: ...


def test_a_result_for_a_token_that_no_request_has_is_not_the_content_of_a_page() -> None:
    group = Group(0, 4, 0, False, 4)
    run = run_of(1, 2, 3, group=group)
    run.request.request_id, run.request.is_prefill_chunk, run.rows[0] = "r0", False, 2
    recorded = Recorded(run, group)
    launches = Launches(recorded)
    manager = SimpleNamespace(get_block_ids=lambda _: ([7, 8],))
    scheduler = SimpleNamespace(connector=None, num_lookahead_tokens=0, kv_cache_manager=manager)
    launches.start(scheduler, observed=False)

    def scheduled(start: int, tokens: int) -> list[tuple[int, int, list[str] | None]]:
        cached = SimpleNamespace(req_ids=["r0"], new_block_ids=[None], num_computed_tokens=[start], resumed_req_ids=())
        launches._scheduled(
            None,
            SimpleNamespace(
                scheduled_new_reqs=[],
                scheduled_cached_reqs=cached,
                scheduled_spec_decode_tokens={},
                num_scheduled_tokens={"r0": tokens},
            ),
            scheduler,
        )
        return [(use.start, use.stop, use.labels) for use in recorded.emitted[-1].writes]

    assert scheduled(0, 3) == [(0, 3, None)]
    assert scheduled(3, 1) == [(3, 4, None)], "the launch in flight samples its token"
    assert scheduled(4, 2) == [(1, 2, ["no token of r0.1/0"]), (4, 5, None)]


@pytest.mark.parametrize(
    ("queues", "ended", "idle", "where"),
    [
        ({"running": ["r1"], "skipped_waiting": ["r2"]}, False, False, "are left after 0 steps: each in a queue"),
        ({"running": ["r1", "r2"]}, False, False, "2 requests are left after 0 steps: each running"),
        ({"waiting": ["r2"]}, False, False, "2 requests are left after 0 steps: 1 in no queue"),
        ({"waiting": ["r1", "r2"]}, False, True, "the scheduler says that it has none, each in a queue"),
        ({}, True, True, "the scheduler says that it has none, each finished"),
    ],
)
def test_a_run_that_stands_still_says_where_its_requests_are(
    queues: dict[str, list[str]], ended: bool, idle: bool, where: str
) -> None:
    requests = {
        name: SimpleNamespace(request_id=name, is_finished=lambda: ended, mm_features=[]) for name in ("r1", "r2")
    }
    for request in requests.values():
        request.num_computed_tokens = 4
    drive = object.__new__(Drive)
    drive.scheduler = SimpleNamespace(
        requests=requests,
        has_requests=lambda: not idle,
        encoder_cache_manager=SimpleNamespace(cached={}, num_freeable_slots=7),
        **{queue: [requests[name] for name in names] for queue, names in queues.items()},
    )
    with pytest.raises(StuckError, match=re.escape(where) + "$"):
        drive.run(steps=0)


@pytest.mark.parametrize(
    ("first", "length", "cached", "lacks"),
    [(5, 8, {}, True), (0, 8, {}, True), (5, 7, {}, False), (6, 8, {}, False), (5, 8, {"image": set()}, False)],
)
def test_a_run_that_stands_still_says_that_an_image_has_no_room(
    first: int, length: int, cached: dict[str, set[str]], lacks: bool
) -> None:
    image = SimpleNamespace(identifier="image", mm_position=SimpleNamespace(offset=first, length=length))
    drive = object.__new__(Drive)
    cache = SimpleNamespace(cached=cached, num_freeable_slots=7)
    drive.scheduler = SimpleNamespace(encoder_cache_manager=cache)
    assert drive._lacks_room(SimpleNamespace(num_computed_tokens=4, mm_features=[image])) == lacks


def test_each_seed_is_one_workload_and_they_differ() -> None:
    assert random_workload(7) == random_workload(7)
    works = [random_workload(seed) for seed in range(60)]
    assert {work.connector for work in works} == {"", "sync", "async"}
    assert {work.policy for work in works} == {"fcfs", "priority"}
    assert {kind for work in works for kind, _, _ in work.groups} == {"full", "window", "state"}
    assert all(not work.failing or work.connector == "async" for work in map(random_workload, range(60), [False] * 60))


def test_workloads_with_offloading_have_both_kinds_and_a_small_pool_on_the_host() -> None:
    works = [offloading_workload(seed) for seed in range(60)]
    assert {work.offload for work in works} == {"eager", "lazy"}
    assert {kind for work in works for kind, _, _ in work.groups} == {"full", "window", "state"}
    assert any(work.host < work.blocks for work in works) and not any(work.connector for work in works)
    fixed = [offloading_workload(seed, known=False) for seed in range(60)]
    assert all(work.host >= work.blocks for work in fixed if work.offload == "lazy")
    assert not any(work.offload == "eager" and work.groups[0][1] > work.groups[-1][1] for work in fixed)


EVENTS = ("eviction", "removed twice", "group", "parent", "tokens", "adapter", "hash", "batch")
"""Injected defects of the events for routers."""

TRIED = """
import json, logging, sys
from pathlib import Path
from kvlab.drives import drive_trial
from kvlab.trial import trial_of

logging.disable(logging.CRITICAL)
trial = trial_of("vllm", Path(sys.argv[1]))
runs, fixed, names = json.loads(sys.argv[2])
trace = drive_trial(trial, range(runs), fixed=fixed)
found = {}
for defect in trial.defects:
    if defect.name in names:
        first = drive_trial(trial, range(12), defect=defect, fixed=fixed).first
        found[defect.name] = None if first is None else first[1].rule
print(json.dumps([trace.events, [[f.rule, f.code] for _, f in trace.found if f.cause is None], found]))
"""


def release(version: str) -> Path:
    """The folder of a release; the test is skipped where it, or torch, is missing."""
    folder = release_of(version, "vllm")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed; vLLM's classes need it")
    return folder


def tried(version: str, runs: int, fixed: bool, *defects: str) -> tuple[int, list[list[str]], dict[str, str | None]]:
    """Events, findings and the findings on injected defects, from a process of its own: it holds one release."""
    command = [sys.executable, "-c", TRIED, str(release(version)), json.dumps([runs, fixed, defects])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert not done.returncode, done.stderr
    answer: Any = json.loads(done.stdout)
    return answer[0], answer[1], answer[2]


@pytest.mark.slow
def test_a_release_without_its_known_defects_is_clean_and_injected_ones_are_found() -> None:
    injected = {
        "hit not counted": {"MEM-USE", "MEM-COUNT"},
        "left in the free list": {"MEM-COUNT"},
        "tail not freed": {"MEM-LEAK"},
        "freed twice": {"MEM-RELEASE"},
        "published too far": {"MEM-NAME"},
        "load taken for done": {"MEM-RACE"},
        "sent pages freed": {"MEM-RACE"},
        "row not reported": {"MEM-USE", "MEM-NAME"},
        "forgotten when preempted": {"MEM-FAILED"},
        "load not waited for": {"MEM-RACE"},
        "store taken for done": {"MEM-RACE"},
        "host block not freed": {"MEM-LEAK"},
        "chunk store not fenced": {"MEM-RACE"},
        "chunk store taken for done": {"MEM-RACE"},
        "image: neighbour": {"MEM-CONTENT"},
        "image: last block": {"MEM-ANNOUNCE"},
        **{f"event: {name}": {"MEM-ANNOUNCE"} for name in EVENTS},
    }
    events, findings, found = tried("0.33.0", 16, True, *injected)
    assert events > 20_000
    assert findings == []
    for name, rules in injected.items():
        assert found[name] in rules, name


@pytest.mark.slow
def test_the_release_before_the_fence_has_the_race_that_the_fence_fixed() -> None:
    command = [sys.executable, "-m", "kvcli", "engines", "reproduce", str(release("0.22.1")), "freed-in-flight"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert re.match(r"freed-in-flight: MEM-RACE/\w+ at event [\d,]+: .*load .* gpu writes", done.stdout), done.stdout


SWITCHED = """
import sys
from dataclasses import replace
from pathlib import Path
from kvlab.vllm.release import prepare

prepare(Path(sys.argv[1]))
from kvattach.patches import Patches
from kvattach.vllm.plugin import register
from kvlab.vllm.kv_events import FIXES

patches = Patches()
for fix in FIXES:
    fix(patches)
register()
from kvlab.vllm.driver import Drive
from kvlab.vllm.workload import random_workload

print(Drive(random_workload(3, known=False)).run()["launches"])
"""


@pytest.mark.slow
def test_the_plugin_records_what_conforms_and_is_silent_without_the_variable(tmp_path: Path) -> None:
    folder = release("0.33.0")
    said = {}
    for name, variable in (("off", ""), ("on", f"record:{tmp_path / 'on.jsonl'}"), ("wrong", "recrd")):
        done = subprocess.run(
            [sys.executable, "-c", SWITCHED, str(folder)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "KVSPEC": variable},
        )
        assert int(done.stdout) > 20
        said[name] = done.stderr
    assert said["off"] == ""
    assert said["wrong"].count("\n") == 1 and "KVSPEC=recrd" in said["wrong"]
    (trace,) = tmp_path.glob("*")
    checked = CliRunner().invoke(app, ["check", str(trace)])
    assert checked.exit_code == 0, checked.output
    assert "conforms" in checked.output


def test_vllm_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, function = project["entry-points"]["vllm.general_plugins"]["kvspec"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_a_pass_of_chunked_attention_reads_its_own_chunk() -> None:
    group = Group(0, 4, 0, False, 4, chunk=16)
    assert [group.first_read(token) for token in (0, 15, 16, 37)] == [0, 0, 16, 32]
    assert group.bounded


def test_behind_a_hit_the_group_that_is_not_cached_is_computed_again_and_the_others_are_left_alone() -> None:
    cached, rebuilt = Group(0, 4, 0, False, 4), Group(1, 4, 8, False, 4, rebuilt=True)
    run = run_of(*range(20), group=cached)
    run.request.replay_start = 4
    launches = Launches(Recorded(run, cached))
    launches._rebuilt = 8
    assert [launches._kept(run, cached, start, 20) for start in (4, 8, 12, 16)] == [12, 12, 12, 16]
    assert launches._kept(run, cached, 4, 8) == 8
    assert launches._kept(run, rebuilt, 4, 20) == 4
    run.rows = [5, 5]
    run.tables = ["r/0", "r/1"]
    read = run.reads(rebuilt, 8, 8)
    assert read is not None and (read.start, read.stop) == (4, 8)
