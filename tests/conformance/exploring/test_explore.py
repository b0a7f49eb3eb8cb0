"""Exploration is complete, sound, shortest, and can fail."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import kvconform.oracle
from kvconform.exploring import SCOPES, Arrival, Scope, exhaust
from kvconform.exploring.checkpoint import Checkpoint
from kvconform.exploring.report import brief, exhaust_and_show, show_explored
from kvconform.exploring.scope import OPTIONAL, SOMETIMES
from kvconform.exploring.search import Explored
from kvconform.gallery.finders import rule_of
from kvconform.oracle import Model
from kvconform.oracle.meaning import Memory
from kvconform.proxy import RuleBroken
from kvspec.events import Config
from tests.conformance.exploring.small import POOLS, SMALL, small_with

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small() -> Explored:
    return exhaust(SMALL)


@pytest.mark.parametrize("jobs", [2, 3])
def test_the_result_does_not_depend_on_the_number_of_processes(small: Explored, jobs: int) -> None:
    assert exhaust(SMALL, jobs=jobs)._replace(seconds=0) == small._replace(seconds=0)


@pytest.mark.parametrize("pools", POOLS)
def test_every_trace_to_something_reached_shows_it_at_its_end(small: Explored, pools: str) -> None:
    result = exhaust(small_with(pools)) if pools else small
    assert result.holds
    assert len(result.witnesses) > 8
    for label, trace in result.witnesses.items():
        model = Model(result.scope.config)
        for op in trace[:-1]:
            model.step(op)
        assert not model.state.reached[label]
        model.step(trace[-1])
        assert model.state.reached[label]


def test_what_is_worth_reaching_is_what_the_oracle_counts() -> None:
    folder = Path(kvconform.oracle.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    counted = {label for line in re.findall(r"reached\[(.*?)\] \+=", source) for label in re.findall(r'"(.*?)"', line)}
    assert counted == set(SOMETIMES)


def test_scopes_declare_together_all_that_is_worth_reaching() -> None:
    assert frozenset().union(*(scope.sometimes for scope in SCOPES.values())) == frozenset(SOMETIMES)
    assert frozenset().union(*(scope.operations for scope in SCOPES.values())) == frozenset(OPTIONAL)


def test_every_transition_conforms_to_the_memory_model(small: Explored) -> None:
    assert exhaust(SMALL, checker=True)._replace(seconds=0) == small._replace(seconds=0)


def test_a_transition_that_breaks_the_memory_model_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Memory, "release", lambda memory, holder, pool, pages: None)
    finding = exhaust(SMALL, checker=True).finding
    assert finding is not None and isinstance(finding.finding, RuleBroken)
    assert finding.finding.rule.id == "MEM-LEAK"
    assert exhaust(SMALL).holds


def test_something_declared_that_is_not_reached_fails_the_run(small: Explored) -> None:
    result = small._replace(scope=SMALL._replace(sometimes=frozenset(("overshoot", "tail freed"))))
    assert result.missing == {"overshoot"}
    assert not result.holds
    console = Console(record=True, width=120)
    show_explored(console, [result])
    assert "1 not reached" in console.export_text()


def without_contracts(code: str) -> Any:
    """The output of a program that runs without contracts, as JSON."""
    environment = os.environ | {"KVSPEC_CONTRACTS": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


EXHAUST = """
import json
from kvconform.exploring import SCOPES, exhaust
results = [exhaust(SCOPES[name]) for name in ("tiny", "speculative")]
print(json.dumps([[one.scope.name, one.states, one.transitions, one.depth, one.holds] for one in results]))
"""


def test_the_smallest_scopes_hold() -> None:
    """The others take minutes: `make explore`."""
    assert without_contracts(EXHAUST) == [
        ["tiny", 5353, 22823, 25, True],
        ["speculative", 4223, 18830, 37, True],
    ]


BROKEN_SPECIFICATION = """
import json
from kvconform.exploring import SCOPES, exhaust
from kvconform.exploring.report import brief
from kvspec import lengths
lengths.tail = lambda kept, allocated, page_size: range(kept // page_size, -(-allocated // page_size))
finding = exhaust(SCOPES["tiny"]).finding
print(json.dumps([finding.finding.rule.id, [brief(op) for op in finding.operations]]))
"""


def test_a_tail_that_begins_inside_a_page_is_found_by_the_shortest_trace() -> None:
    rule, trace = without_contracts(BROKEN_SPECIFICATION)
    assert rule == "PAGE-2"
    assert trace == [
        "open_session s",
        "submit s1 of 2",
        "match_prefix s1",
        "extend s1 to 2",
        "launch 1 of s1",
        "retract s1",
        "match_prefix s1",
    ]


CURSOR_TOO_FAR = """
import json
from kvspec.model import hybrid
from kvspec.window import evictable_until
def too_far(state, request, record):
    held, config = state.lengths[record], state.config
    bound = evictable_until(held.committed, config.sliding_window, config.page_size)
    return max(held.protected, state.cursor[record], bound)
hybrid.furthest_cursor = too_far
from kvconform.exploring import SCOPES, exhaust
from kvconform.exploring.report import brief
finding = exhaust(SCOPES["sliding-window"]).finding
print(json.dumps([finding.finding.rule.id, [brief(op) for op in finding.operations]]))
"""


def test_a_cursor_that_forgets_the_last_token_is_found_by_the_shortest_trace() -> None:
    """A request retracted before its token comes begins one position before its committed length, and reads farther."""
    rule, trace = without_contracts(CURSOR_TOO_FAR)
    assert rule == "SWA-2"
    assert trace == ["submit a of 5", "match_prefix a", "extend a to 5", "launch 1 of a", "swa_evict a"]


# LIVE-1


PINNED = Scope(
    name="pinned",
    about="",
    config=Config(page_size=1, num_pages=2, num_rows=2, max_context_len=5),
    arrivals=(Arrival("a", (1,)), Arrival("s1", (0,), "s"), Arrival("t1", (0,), "t")),
    operations=frozenset(("preempt", "evict")),
    sometimes=frozenset(),
)


def test_idle_sessions_that_pin_the_pool_are_a_deadlock_unless_they_are_preempted() -> None:
    assert exhaust(PINNED).holds
    finding = exhaust(PINNED.without(["preempt"])).finding
    assert finding is not None
    assert rule_of(finding) == "LIVE-1"
    assert [brief(op) for op in finding.operations] == [
        "open_session s",
        "submit a of 1",
        "submit s1 of 1",
        "match_prefix a",
        "match_prefix s1",
        "extend s1 to 1",
        "launch 1 of s1",
        "decode s1",
        "complete 1",
        "launch 1 of s1",
        "finish s1",
        "complete 1",
    ]
    assert "a wait, and nothing that the scheduler may do changes the state any more" in str(finding.finding)


def test_turns_that_wait_with_their_sessions_memory_are_a_deadlock_unless_the_lend_can_be_ended() -> None:
    arrivals = (*(Arrival(name, (0,), name[0]) for name in ("s1", "s2", "t1", "t2")),)
    scope = PINNED._replace(arrivals=arrivals, config=Config(1, 3, 2, 5))
    assert exhaust(scope._replace(operations=scope.operations | {"give_back"})).holds
    finding = exhaust(scope).finding
    assert finding is not None
    assert rule_of(finding) == "LIVE-1"
    assert [brief(op) for op in finding.operations] == [
        "open_session s",
        "open_session t",
        "submit s1 of 1",
        "submit t1 of 1",
        "match_prefix s1",
        "match_prefix t1",
        "extend s1 to 1, t1 to 1",
        "launch 1 of s1, t1",
        "complete 1",
        "finish s1",
        "submit s2 of 3",
        "match_prefix s2",
        "finish t1",
        "submit t2 of 3",
        "match_prefix t2",
    ]
    assert "request s2 holds 1, request t2 holds 1" in str(finding.finding)


def test_requests_that_grow_beside_each_other_are_a_deadlock_unless_one_is_retracted() -> None:
    arrivals = (Arrival("a", (0,), outputs=3), Arrival("b", (1,), outputs=3))
    scope = PINNED._replace(arrivals=arrivals, config=Config(1, 3, 2, 5))
    assert exhaust(scope._replace(operations=scope.operations | {"retract"})).holds
    finding = exhaust(scope).finding
    assert finding is not None
    assert rule_of(finding) == "LIVE-1"


def test_requests_that_wait_with_a_state_each_are_a_deadlock_unless_they_give_it_back() -> None:
    scope = PINNED._replace(
        config=Config(1, 3, 2, 5, num_states=3),
        arrivals=(Arrival("a", (0,)), Arrival("b", (1,))),
        operations=frozenset(("evict", "take_state", "free_state")),
    )
    assert exhaust(scope).holds
    finding = exhaust(scope.without(["free_state"])).finding
    assert finding is not None
    assert rule_of(finding) == "LIVE-1"
    assert [brief(op) for op in finding.operations] == [
        "submit a of 1",
        "submit b of 1",
        "match_prefix a",
        "match_prefix b",
        "take_state a",
        "take_state b",
    ]


class Stopped(Exception):
    """The search is interrupted."""


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_search_goes_on_from_its_checkpoint(
    small: Explored, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvconform.exploring.checkpoint.EVERY", 0.0)
    path = tmp_path / "explored"
    expanded: list[int] = []

    def stop(_states: int, done: int, depth: int) -> None:
        expanded.append(done)
        if depth == 4:
            raise Stopped

    with pytest.raises(Stopped):
        exhaust(SMALL, progress=stop, checkpoint=Checkpoint(path, [SMALL], checker=False))
    before, expanded = expanded, []
    going_on = Checkpoint(path, [SMALL], checker=False)
    result = exhaust(SMALL, jobs=jobs, progress=lambda _, done, __: expanded.append(done), checkpoint=going_on)
    assert result._replace(seconds=0.0) == small._replace(seconds=0.0)
    assert expanded[0] > before[-2] > 1
    going_on.after_scope(SMALL.name, result)
    assert Checkpoint(path, [SMALL], checker=False).complete == {SMALL.name: result}
    console, noted = Console(quiet=True), Checkpoint(path, [SMALL], checker=False)
    assert exhaust_and_show(console, [SMALL], 1, checker=False, checkpoint=noted)
    assert not path.exists()


@pytest.mark.parametrize("other", ["scope", "checker", "code"])
def test_a_checkpoint_of_another_search_is_begun_anew(
    other: str, small: Explored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "explored"
    Checkpoint(path, [SMALL], checker=False).after_scope(SMALL.name, small)
    if other == "code":
        monkeypatch.setattr("sys.version", "another")
    scope = SMALL._replace(max_batch=1) if other == "scope" else SMALL
    assert Checkpoint(path, [scope], checker=other == "checker").complete == {}


def test_progress_has_an_estimate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvconform.exploring.report.PRINTED_EVERY", 0.0)
    console = Console(width=120)
    assert exhaust_and_show(console, [SMALL], 1, checker=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 5
    assert all(re.fullmatch(r"kvspec: .* \(1 of 1\): [\d,]+ states, [\d,]+ expanded, .*", line) for line in lines)
    assert re.search(r"; at least [\d,]+ s more$", lines[-2])
