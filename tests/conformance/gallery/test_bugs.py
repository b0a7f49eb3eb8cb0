"""The gallery: every defect is found, and blamed on its rule; the reference is not."""

import io
import re
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from rich.console import Console

from kvcli.main import run_command
from kvconform.fuzzing.fuzz import Budget
from kvconform.fuzzing.swarm import memory
from kvconform.gallery import finders
from kvconform.gallery.description import describe_bug
from kvconform.gallery.finders import (
    Specimen,
    examine,
    find_by_fuzzing,
    find_by_memory_model,
    find_by_vectors,
    rule_of,
    shorten,
    show_table,
)
from kvconform.gallery.memory_alone import findings
from kvconform.gallery.mutants import BUGS
from kvconform.gallery.mutants.bug import SYNTHETIC, Bug
from kvconform.gallery.replaying import Run, carry_out, patience, replay, shortest_loop
from kvconform.oracle import Model
from kvconform.vectors.files import read_vectors
from kvconform.vectors.runner import try_out, unanswered
from kvref.manager import Manager
from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvref.scheduler.req import GenerateReq
from kvspec.events import (
    CacheUnfinished,
    CloseSession,
    Complete,
    Config,
    Extend,
    Finish,
    Launch,
    MatchPrefix,
    OpenSession,
    Operation,
    Refusal,
    Report,
    Snapshot,
    Submit,
)
from kvspec.rules import RULES
from tests.marks import one_in
from tests.walk import SEEDS, RandomDraw, proposals

pytestmark = pytest.mark.slow

VECTORS = [vector for vector in read_vectors() if not vector.name.endswith(("_p16", "_p64"))]
"""Those with small pages: the others do the same in large ones, and take longer."""
REFERENCE = Bug("reference", "No defect.", (), "", "")
SMALL = Config(page_size=4, num_pages=16, num_rows=4, max_context_len=64)
OF_MANAGER = [bug for bug in BUGS.values() if not bug.is_of_scheduler]

DEMANDED = {
    "row of a chunked request freed between chunks": "row-freed-between-chunks",
    "row allocation that assigns some and then fails": "rows-given-by-halves",
    "released row index kept": "stale-row-index",
    "row freed at finish while the overlapped launch still reads it": "row-freed-while-read",
    "protected length taken from the unaligned prefix": "protected-from-unaligned-prefix",
    "held tokens not rounded up to pages": "held-not-rounded-up",
    "idle check that forgets tree-protected tokens of sessions": "idle-check-forgets-session-locks",
    "two new chunked requests in one batch": "two-new-chunks-in-a-batch",
    "the too strict check that forbids a last chunk and a new chunk together": "last-chunk-forbids-first-chunk",
    "destructive restore": "destructive-restore",
    "chunk stash of a session inserted into the tree": "chunk-stash-published",
    "lent slot counted twice": "lent-slot-counted-twice",
    "finished request without a row counted": "finished-request-counted",
    "speculative tail orphaned": "speculative-tail-orphaned",
    "retract retry off by one": "retract-tail-orphaned",
    "tail freed from inside a page": "tail-freed-from-inside-a-page",
    "prefix shortened by one too many": "prefix-shortened-twice",
    "old prefix length taken from the unaligned prefix at finish": "old-prefix-from-unaligned-prefix",
    "last token's slot dropped from the release": "last-slot-kept",
    "double free of the over-run decode slot": "overrun-slot-freed-twice",
    "continuing chunk not counted as chunked": "continuing-chunk-samples",
    "retract reservation from the wrong length": "reservation-from-wrong-length",
    "abort that saves inflated lengths": "abort-saves-inflated-lengths",
    "abort that leaves the lend open": "abort-leaves-the-lend-open",
    "close that frees KV in use": "close-frees-kv-in-use",
    "endless prefill-retract loop": "endless-prefill-retract-loop",
    "publish that frees the shared page instead of the duplicate": "publish-frees-the-shared-page",
    "eviction of a locked page": "locked-page-evicted",
    "lock taken on a retry and never released": "lock-taken-at-retry",
    "held window tokens that ignore the eviction cursor": "window-held-ignores-the-cursor",
    "window freed twice around the cursor": "window-freed-twice-around-the-cursor",
    "idle check that mixes the pools": "idle-check-mixes-the-pools",
    "idle sanity check that demands unlocked nodes while sessions hold locks": "idle-check-forbids-window-locks",
    "last token's slot leaked on finish with SWA": "window-last-token-leaked",
    "state slot freed with the row and again with the store": "state-freed-with-the-row",
    "state slot leaked when admission fails after the state was taken": "state-of-the-rejected-leaked",
    "tombstone matched as if alive": "tombstone-matched",
    "window lock released one node too far": "window-lock-released-too-far",
}


def named(bug: Bug) -> str:
    return bug.name


@pytest.mark.parametrize("name", DEMANDED.values(), ids=DEMANDED.keys())
def test_the_gallery_has_every_defect_that_is_demanded_of_it(name: str) -> None:
    assert name in BUGS


MEMORY_CHECKER_ALONE: dict[str, set[str]] = {
    "row-freed-while-read": {"MEM-TAKE"},
    "retract-tail-orphaned": {"MEM-LEAK"},
    "overrun-slot-freed-twice": {"MEM-RELEASE", "MEM-COUNT"},
    "locked-page-evicted": {"MEM-COUNT"},
    "abort-saves-inflated-lengths": {"MEM-CONTENT"},
    "cursor-one-page-too-far": {"MEM-USE"},
    "state-freed-with-the-row": {"MEM-RELEASE"},
    "published-before-launch": {"MEM-NAME"},
    "held-not-rounded-up": set(),
}
"""Some defects, and the rules of the memory model that they break first; a wrong figure breaks none."""


@pytest.mark.parametrize("bug", BUGS.values(), ids=named)
def test_a_defect_names_rules_and_documents_that_exist(bug: Bug) -> None:
    assert set(bug.rules) <= RULES.keys()
    assert bug.source and {number for source in bug.source for number in [int(source)]}
    assert not bug.synthetic or set(bug.source) <= set(RULES[bug.rule].origin.split(", "))
    assert bug.title.endswith(".") and bug.symptom.endswith(".")
    assert BUGS[bug.name] is bug


@pytest.mark.parametrize("bug", one_in(2, OF_MANAGER), ids=named)
def test_vectors_find_every_defect_and_blame_its_rule(bug: Bug) -> None:
    """Vectors that are about its rules; `kvspec bugs` tries all."""
    found = find_by_vectors(bug, [vector for vector in VECTORS if set(vector.header.rules) & set(bug.rules)])
    assert found
    assert {one.rule for one in found} <= set(bug.rules)


@pytest.mark.parametrize(
    "name", ["withheld-row-lost", "shared-lock-kept", "evicted-leaves-counted", "held-not-rounded-up"]
)
def test_vectors_without_a_report_find_a_lost_row_a_kept_lock_and_a_wrong_counter(name: str) -> None:
    silent = [
        vector._replace(steps=[step for step in vector.steps if not isinstance(step.op, Report)]) for vector in VECTORS
    ]
    assert find_by_vectors(BUGS[name], silent)


def test_no_vector_finds_a_defect_in_the_reference() -> None:
    assert find_by_vectors(REFERENCE, VECTORS) == []


def test_a_closing_slot_that_is_gone_too_early_is_blamed_though_it_had_no_private_page() -> None:
    operations: list[Operation[Any]] = [
        OpenSession("s"),
        Submit("t1", [1, 2, 3, 4], "s"),
        MatchPrefix("t1"),
        Extend([("t1", 4)]),
        Launch(1, ["t1"]),
        Complete(1, {"t1": 5}),
        CacheUnfinished("t1"),
        Finish("t1"),
        Submit("t2", [1, 2, 3, 4, 5, 6], "s"),
        CloseSession("s"),
    ]
    assert try_out(operations, SMALL, Manager) is None
    shown = try_out(operations, SMALL, BUGS["close-frees-kv-in-use"].factory)
    assert shown is not None and rule_of(shown) == "SESS-4"
    assert isinstance(shown.finding.op, Snapshot)


@pytest.mark.parametrize(
    "name", ["stale-row-index", "row-freed-between-chunks", "last-slot-kept", "locked-page-evicted"]
)
def test_fuzzing_finds_a_defect_and_shortens_it(name: str) -> None:
    found = find_by_fuzzing(BUGS[name], Budget(60), seed=1)
    assert found.shown is not None
    assert found.shown.rule in BUGS[name].rules
    assert found.shown.events <= 16


RARE = frozenset(
    (
        "abort-saves-inflated-lengths",
        "close-frees-kv-in-use",
        "evicted-leaves-counted",
        "front-page-evicted",
        "last-token-matched",
        "match-without-a-state",
        "newer-border-overwritten",
        "old-prefix-from-unaligned-prefix",
        "overshoot-saved",
        "prefix-shortened-twice",
        "publish-frees-the-shared-page",
        "resumed-below-protected",
        "resumed-from-the-working-state",
        "retracted-turn-keeps-the-mark",
        "revival-frees-a-locked-page",
        "speculative-tail-orphaned",
        "split-keeps-one-lock",
        "state-of-the-rejected-leaked",
        "state-published-twice",
        "tail-freed-from-inside-a-page",
        "third-lock-not-counted",
        "tombstone-matched",
        "abort-brings-lengths-back",
        "verified-in-flight",
        "window-freed-twice-around-the-cursor",
        "window-lock-released-too-far",
    )
)
"""Defects that traffic shows after many runs only, two to ninety processor seconds: `kvspec bugs` replays them too."""


@pytest.mark.parametrize(
    "bug", one_in(2, [bug for bug in BUGS.values() if bug.traffic and bug.name not in RARE]), ids=named
)
def test_replayed_traffic_finds_every_defect_and_blames_its_rule(bug: Bug) -> None:
    shown = replay(bug, runs=100, seed=2).shown
    assert shown is not None
    assert rule_of(shown) in bug.rules


def test_replayed_traffic_finds_no_defect_in_the_reference() -> None:
    replayed = replay(REFERENCE, runs=8, seed=2)
    assert replayed.shown is None
    assert replayed.requests > 150


def test_the_shortest_vector_of_a_defect_is_short() -> None:
    bug = BUGS["publish-frees-the-shared-page"]
    shown = shorten(bug, min(find_by_vectors(bug, VECTORS), key=lambda one: one.operations))
    assert shown is not None and shown.events <= 12


STUCK = Run(
    SMALL,
    SchedulerConfig(overlap=True, retract_interval=1),
    [GenerateReq(f"r{number}", [number] * 3, [7] * 6) for number in range(3)],
)


def test_a_scheduler_that_goes_round_in_circles_breaks_live_1() -> None:
    operations, finding = carry_out(Manager, BUGS["endless-prefill-retract-loop"].scheduler, STUCK)
    assert "LIVE-1" in str(finding)
    assert len(operations) < 4 * patience(STUCK.config, STUCK.mode)
    shown = shortest_loop(BUGS["endless-prefill-retract-loop"], STUCK)
    assert shown is not None and "round and round" in str(shown.finding) and len(shown.operations) < 40


def test_a_scheduler_that_gets_on_is_not_stuck() -> None:
    assert carry_out(Manager, Scheduler, STUCK)[1] is None
    assert shortest_loop(REFERENCE, STUCK) is None


def printed(show: Any, *arguments: Any) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    show(console, *arguments)
    return console.export_text()


def test_the_table_has_a_row_for_each_defect() -> None:
    found = examine(BUGS["stale-row-index"], VECTORS, Budget(60), seed=1)
    missed = Specimen(BUGS["endless-prefill-retract-loop"], [], None, replay(REFERENCE, 1, 0), None, Counter())
    text = printed(show_table, [found, missed])
    assert "stale-row-index" in text and "n/a" in text and "not found" in text
    assert "1 of 2 defects are found by every search that applies, 1 by the memory checker alone." in text
    assert "MEM-TAKE" in text
    assert not missed.is_found


@pytest.mark.parametrize(("name", "rules"), MEMORY_CHECKER_ALONE.items())
def test_the_memory_checker_alone_finds_defects_of_memory(name: str, rules: set[str]) -> None:
    assert find_by_memory_model(BUGS[name], VECTORS).keys() == rules


def test_the_memory_checker_alone_finds_nothing_in_the_reference() -> None:
    assert not find_by_memory_model(REFERENCE, VECTORS)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_memory_checker_alone_finds_nothing_in_walks_of_the_reference(seed: int) -> None:
    draw = RandomDraw(seed)
    config = memory(draw)
    model = Model(config)
    done: list[Operation[Any]] = []
    for op in proposals(model.state, draw, 150):
        done.append(unanswered(op))
        with suppress(Refusal):
            model.step(op)
    assert findings(Manager, config, done) == []


def test_the_description_has_every_step_and_the_models_state() -> None:
    bug = BUGS["publish-frees-the-shared-page"]
    shown = shorten(bug, min(find_by_vectors(bug, VECTORS), key=lambda one: one.operations))
    assert shown is not None
    finding = shown.finding
    assert [moment.step for moment in finding.trace.moments] == [
        step for step, _ in enumerate(shown.counterexample.operations, start=1)
    ]
    assert any("belong" in fact and "the prefix store, since line" in fact for fact in finding.known)
    text = " ".join(printed(describe_bug, bug, finding).split())
    assert RULES[shown.rule].statement in text
    assert all(moment.says in text for moment in finding.trace.moments)


def test_a_synthetic_defect_says_that_it_is_one() -> None:
    described, synthetic = BUGS["retract-tail-orphaned"], BUGS["slots-counted-on"]
    assert SYNTHETIC in printed(describe_bug, synthetic, None)
    assert SYNTHETIC not in printed(describe_bug, described, None)
    text = printed(
        show_table,
        [Specimen(bug, [], None, replay(REFERENCE, 1, 0), None, Counter()) for bug in (described, synthetic)],
    )
    assert "slots-counted-on *" in text and "retract-tail-orphaned *" not in text
    assert f"* synthetic: {SYNTHETIC}." in text


def test_a_defect_that_was_not_found_has_no_finding() -> None:
    assert "It was not found." in printed(describe_bug, BUGS["stale-row-index"], None)


def test_a_manager_without_a_defect_is_the_reference() -> None:
    assert REFERENCE.factory is Manager and REFERENCE.is_of_scheduler


def test_a_scenario_is_reported_at_once_and_nothing_is_fuzzed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finders, "fuzz", None)
    assert run_command(["bugs", "retract-tail-orphaned"]) == 0
    out = capsys.readouterr().out
    assert (
        out.startswith("retract-tail-orphaned: ")
        and "TAIL-1 is broken at tail_freed_after_retract_p1:22, match_prefix\n" in out
    )
    assert re.search(r"Found by \d+ vectors?: .*tail_freed_after_retract_p1", " ".join(out.split()))
    assert "Bug gallery" not in out
    assert run_command(["bugs", "retract-tail-orphaned", "--seconds", "1"]) == 2


def test_a_defect_that_nothing_shows_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finders, "find_by_vectors", lambda *_: [])
    assert run_command(["bugs", "retract-tail-orphaned"]) == 1
    assert "It was not found." in capsys.readouterr().out


def test_fuzzing_a_defect_ends_after_so_many_operations(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bugs", "stale-row-index", "--fuzz", "--operations", "50000"]) == 0
    out = capsys.readouterr().out
    assert "Bug gallery" in out and "ROW-4 is broken" in out
