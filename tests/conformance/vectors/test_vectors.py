"""Every embedded vector is well made, and the reference conforms to it."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvconform.features import lacks, needs, needs_of_config, under, vector_under
from kvconform.fuzzing.style import Chance
from kvconform.fuzzing.swarm import swarm
from kvconform.fuzzing.walks import Walker
from kvconform.oracle import CHOICES, Model
from kvconform.proxy import OracleProxy, RuleBroken
from kvconform.traces.codec import read_vector
from kvconform.traces.expect import Expect
from kvconform.vectors.files import vector_files
from kvconform.vectors.runner import Evidence, run_vector, unchecked_rules
from kvref import Manager
from kvspec.events import (
    Complete,
    Config,
    Evict,
    Extend,
    Figures,
    Finish,
    Launch,
    MatchPrefix,
    OpenSession,
    Refused,
    Report,
    Snapshot,
    SnapshotAnswer,
    Submit,
)
from kvspec.rules import Violation
from tests.conformance.vectors.late import UntilTheCompletionAfter, UntilTheNextCompletion
from tests.conformance.vectors.lazy import Lazy, NeverGivesBack
from tests.conformance.vectors.rowless import KeepsPages, Rowless
from tests.conformance.vectors.sampling import ReportsAnother, ReportsOneLess, Samples
from tests.conformance.vectors.silent import CommitsOneMore, OnlyHolders, OnlyLengths, OnlyPages, Silent
from tests.marks import one_in

pytestmark = pytest.mark.slow

PATHS = vector_files()
SMALL = Config(page_size=4, num_pages=8, num_rows=2, max_context_len=32)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_reference_conforms_to(path: Path) -> None:
    vector = read_vector(path)
    outcome = run_vector(vector, Manager)
    assert outcome.finding is None
    assert outcome.operations == len(vector.steps)


@pytest.mark.parametrize("path", one_in(2, PATHS), ids=lambda path: path.stem)
@pytest.mark.parametrize("engine", [Lazy, NeverGivesBack, UntilTheCompletionAfter])
def test_vectors_are_not_stricter_than_the_rules(path: Path, engine: type[Manager]) -> None:
    assert run_vector(read_vector(path), engine).finding is None


def test_a_row_that_is_withheld_with_nothing_in_flight_is_lost() -> None:
    findings = [run_vector(read_vector(path), UntilTheNextCompletion).finding for path in PATHS]
    found = [finding for finding in findings if finding is not None]
    assert len(found) > 20
    assert {finding.rule.id for finding in found if isinstance(finding, RuleBroken)} == {"ROW-1"}


def rows_let_go() -> Model:
    """Row 0 was read by the first of two launches, and let go after it; the other is in flight."""
    model = Model(msgspec.structs.replace(SMALL, num_rows=3))
    for op in (Submit("r", [1]), Submit("q", [2]), MatchPrefix("r"), MatchPrefix("q"), Extend([("r", 1), ("q", 1)])):
        model.step(op)
    for step in (Launch(1, ["r"]), Launch(2, ["q"]), Complete(1, {"r": 5}), Finish("r"), Submit("w", [3])):
        model.step(step)
    model.step(MatchPrefix("w"))
    return model


@pytest.mark.parametrize(
    ("available", "withheld", "rule"),
    [(2, 0, None), (1, 1, None), (1, None, None), (None, 1, None), (1, 0, "ACC-1"), (0, 2, "ACC-1"), (2, 1, "ACC-1")],
)
def test_figures_may_count_a_row_as_withheld_while_a_launch_is_in_flight(
    available: int | None, withheld: int | None, rule: str | None
) -> None:
    reported = Report(obs=Figures(rows_available=available, rows_withheld=withheld))
    model = rows_let_go()
    if rule is None:
        model.step(reported)
        assert model.state.chosen["row withheld longer"] == (withheld == 1 or available == 1)
        return
    with pytest.raises(Violation, match=rule):
        model.step(reported)


@pytest.mark.parametrize(
    ("free", "withheld", "rule"),
    [
        ([0, 2], [], None),
        ([2], [0], None),
        ([2], None, None),
        (None, [0], None),
        ([2], [], "ROW-1"),
        ([0], [2], "ROW-1"),
    ],
)
def test_a_snapshot_may_show_a_row_as_withheld_while_a_launch_is_in_flight(
    free: list[Any] | None, withheld: list[Any] | None, rule: str | None
) -> None:
    reported = Snapshot(obs=SnapshotAnswer(free_rows=free, withheld_rows=withheld))
    model = rows_let_go()
    if rule is not None:
        with pytest.raises(Violation, match=rule):
            model.step(reported)
        return
    model.step(reported)
    again = Snapshot(obs=SnapshotAnswer(free_rows=[2], withheld_rows=[0]))
    if free == [2] or withheld == [0]:
        model.step(again)
        model.step(Complete(2, {"q": 5}))
    with pytest.raises(Violation, match="ROW-1: the withheld rows differ"):
        model.step(again)


@pytest.mark.parametrize(
    ("refused", "allowed"),
    [
        (Refused("no row", "CAP-1", rows_short=1), True),
        (Refused("no row", "CAP-1"), True),
        (Refused("no row", "CAP-1", rows_short=2), False),
        (Refused("no page", "CAP-1", pages_short=1), False),
        (Refused("no", "BATCH-1"), False),
    ],
)
def test_an_extend_may_lack_a_row_that_is_withheld_longer(refused: Refused, allowed: bool) -> None:
    model = rows_let_go()
    model.step(Submit("v", [4]))
    model.step(MatchPrefix("v"))
    both = Extend([("w", 1), ("v", 1)], refused=refused)
    if allowed:
        model.step(both)
        model.step(Complete(2, {"q": 5}))
    with pytest.raises(Violation, match=r"CAP-1|BATCH-1"):
        model.step(both)


def test_an_implementation_that_reports_nothing_conforms_only_where_refusals_are_all_there_is_to_check() -> None:
    vectors = [read_vector(path) for path in PATHS]
    outcomes = [
        (one, run_vector(one, Silent)) for one in vectors if not any(isinstance(s.op, Evict) for s in one.steps)
    ]
    assert all(outcome.finding is None for _, outcome in outcomes), "a value that is not reported is not checked"
    assert {one.name for one, outcome in outcomes if not unchecked_rules(one, outcome)} == {
        "batch_with_a_request_at_both_ends",
        "page_key_amid_the_history",
        "chunk_after_a_retracted_chunk",
        "chunk_sampling",
        "context_limit",
        "context_limit_after_retract",
        "context_limit_with_a_step_ahead",
        "discipline_without_memory",
        "four_pages_in_one_step",
        "history_grows_with_each_turn",
        "last_chunk_beside_first_chunk",
        "launch_number_in_flight",
        "launch_of_an_earlier_run",
        "launches_complete_in_order",
        "no_state_to_take",
        "resumed_row_read_by_the_newest",
        "resumed_row_read_by_the_oldest",
        "resumed_row_still_read",
        "row_capacity_miss",
        "session_discipline",
        "state_takes_no_speculative_step",
        "steps_complete_before_they_are_verified",
        "stopped_with_a_step_behind",
        "two_launches_of_a_run_that_ended",
        "what_is_no_batch",
    }


@pytest.mark.parametrize(
    ("engine", "checked", "unchecked"),
    [
        (OnlyHolders, {"ROW-1"}, {"LEN-1", "ROW-2", "PAGE-1", "PAGE-3"}),
        (OnlyLengths, {"ROW-1", "LEN-1"}, {"ROW-2", "PAGE-1", "PAGE-3"}),
        (OnlyPages, {"PAGE-1", "STORE-1"}, {"LEN-1", "PAGE-3"}),
        (Manager, {"ROW-1", "LEN-1", "ROW-2", "PAGE-1", "PAGE-3"}, set()),
    ],
)
def test_what_a_snapshot_leaves_out_is_unchecked(engine: type[Manager], checked: set[str], unchecked: set[str]) -> None:
    for path in PATHS[::16]:
        assert run_vector(read_vector(path), engine).finding is None
    model = a_request_that_runs()
    model.state.checked.clear()
    model.step(Snapshot(obs=shown_by(engine)))
    assert checked <= model.state.checked.keys()
    assert model.state.unchecked.keys() & {"ROW-2", "LEN-1", "PAGE-1", "PAGE-3"} == unchecked


def a_request_that_runs() -> Model:
    model = Model(SMALL)
    for op in (Submit("r", [1, 2, 3, 4, 5]), MatchPrefix("r"), Extend([("r", 5)])):
        model.step(op)
    return model


def shown_by(engine: type[Manager]) -> SnapshotAnswer:
    """The parts of the same answers that an implementation reports."""
    manager = engine(SMALL)
    manager.submit("r", [1, 2, 3, 4, 5])
    manager.match_prefix("r")
    manager.extend([("r", 5)])
    return manager.snapshot()


def test_a_reported_length_is_checked_where_no_row_is_reported() -> None:
    with pytest.raises(Violation, match="LEN-1: committed_len of request r"):
        a_request_that_runs().step(Snapshot(obs=shown_by(CommitsOneMore)))


def test_an_engine_without_rows_conforms_to_all_that_needs_none_and_the_report_names_unchecked_rules() -> None:
    paths = PATHS[::3]
    ran = [vector for path in paths if not needs(vector := vector_under(Rowless, read_vector(path))) & lacks(Rowless)]
    outcomes = [(vector, run_vector(vector, Rowless)) for vector in ran]
    assert [vector.name for vector, outcome in outcomes if outcome.finding is not None] == []
    assert len(ran) > 0.5 * len(paths)
    silent = {rule for vector, outcome in outcomes for rule in unchecked_rules(vector, outcome)}
    assert silent == {"ROW-2", "PAGE-3", "RACE-1"}
    assert "rowless" in lacks(Manager) & needs_of_config(under(Rowless, SMALL)), "nor is who has rows made without"


class TokenPages(Manager):
    """An engine whose pages are single tokens."""

    lacks = frozenset({"larger_pages"})

    def __init__(self, config: Config) -> None:
        assert config.page_size == 1
        super().__init__(config)


def test_an_engine_whose_pages_are_single_tokens_is_made_with_no_others() -> None:
    ran = [vector for path in PATHS[::3] if not needs(vector := read_vector(path)) & lacks(TokenPages)]
    assert {vector.header.config.page_size for vector in ran} == {1}
    drawn = [swarm(Chance(seed), lacks(TokenPages)).config for seed in range(60)]
    assert {config.page_size for config in drawn} == {1} and any(config.num_states for config in drawn)
    assert {swarm(Chance(seed)).config.page_size for seed in range(60)} > {1, 2, 64}


def test_walks_find_nothing_in_an_engine_without_rows_and_what_it_forgets_all_the_same() -> None:
    assert not list((walker := Walker(Rowless, lacks(Rowless), seed=1)).findings(0.4))
    assert walker.operations > 0
    (shown, _), *_ = Walker(KeepsPages, lacks(KeepsPages), seed=1).findings(0.4)
    assert isinstance(shown.finding, RuleBroken) and shown.finding.rule.id == "PAGE-1"


def test_an_engine_that_samples_itself_is_checked_by_its_own_tokens() -> None:
    chosen = Counter[str]()
    for path in PATHS[1::8]:
        outcome = run_vector(read_vector(path), Samples)
        assert outcome.finding is None, path.stem
        chosen += outcome.evidence.reached
    assert chosen["tokens sampled by the engine"]
    assert not list((walker := Walker(Samples, lacks(Samples), seed=1)).findings(0.4))
    assert walker.evidence.checked["SESS-6"], "what a session's next turn has to begin with is known"


@pytest.mark.parametrize(
    ("engine", "rule"), [(Samples, None), (ReportsOneLess, "CHUNK-1"), (ReportsAnother, "SESS-6"), (Manager, None)]
)
def test_an_engine_that_reports_other_tokens_than_it_appends_is_found(engine: type[Manager], rule: str | None) -> None:
    proxy = OracleProxy(engine(SMALL), Model(SMALL))
    done = Complete(1, {"t": 4})

    def conversation() -> None:
        proxy(OpenSession("s"))
        proxy(Submit("t", [1, 2, 3], "s"))
        proxy(MatchPrefix("t"))
        proxy(Extend([("t", 3)]))
        proxy(Launch(1, ["t"]))
        proxy(done)
        proxy(Finish("t"))
        proxy(Submit("u", [1, 2, 3, done.sampled["t"], 5], "s"))

    if rule is None:
        conversation()
        return
    with pytest.raises(RuleBroken, match=rule):
        conversation()


def test_of_the_reference_nothing_is_left_unchecked() -> None:
    assert not any(unchecked_rules(vector, run_vector(vector, Manager)) for vector in map(read_vector, PATHS))


def reached_by(engine: type[Manager]) -> Counter[str]:
    """The verdict of all vectors together on an implementation."""
    return Evidence.together(run_vector(read_vector(path), engine).evidence for path in PATHS).reached


def test_the_lazy_implementation_makes_every_choice_that_is_open() -> None:
    """But for one, which it is too lazy for and the reference makes, and those that only engines make."""
    eager = {"first turn published early"}
    of_engines = {"tokens sampled by the engine", "refused by an estimate", "window left when publishing"}
    lazy, reference = reached_by(NeverGivesBack), reached_by(Manager)
    assert {choice for choice in CHOICES if lazy[choice]} == set(CHOICES) - eager - of_engines
    assert {choice for choice in CHOICES if reference[choice]} >= eager


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_vector_expects_something_and_names_its_origin(path: Path) -> None:
    vector = read_vector(path)
    assert vector.header.source
    assert sum(step.expect not in (None, Expect()) for step in vector.steps) >= 2
