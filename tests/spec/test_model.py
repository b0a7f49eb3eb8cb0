"""The model checks answers: walks of right answers never break a rule, and wrong ones never pass unseen."""

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kvcheck import Checker
from kvconform.fuzzing.swarm import memory
from kvconform.oracle import Model, NotedState
from kvconform.oracle.pools import pool_of
from kvconform.protocol import ANSWERS
from kvspec import events
from kvspec.events import Config, HolderView, Operation, Refusal, Refused, TurnsCountAs
from kvspec.invariants import check
from kvspec.model import OPERATIONS, looking
from kvspec.model.answer import PoolName
from kvspec.pages import Runs, expand
from kvspec.rules import RULES, Violation
from tests.walk import SEEDS, RandomDraw, proposals

STEPS = 150


def fingerprint(state: NotedState) -> dict[str, object]:
    """Everything that is state; the counters of checks are not, nor the notes on refusals."""
    plain = {
        name: value
        for name, value in vars(state).items()
        if name not in ("checked", "unchecked", "unreported", "reached", "batch_refused")
    }
    plain["store"] = (state.store.pages, state.store.parents, state.store.children, state.store.pins)
    plain["requests"] = {req: (request.tokens.elements(), *request[1:]) for req, request in state.requests.items()}
    plain["sessions"] = {name: (session.history.elements(), *session[1:]) for name, session in state.sessions.items()}
    if state.memory is not None:
        assert isinstance(state.memory.checker, Checker)
        plain["memory"] = state.memory.pending, state.memory.checker.state.event
    return copy.deepcopy(plain)


def copied(model: Model) -> Model:
    other = Model(model.state.config)
    other.state = model.state.copy()
    return other


def walk(seed: int, *, checker: type[Checker] | None = None) -> Iterator[tuple[Model, Operation[Any]]]:
    """A model, and the next operation to carry out on it; the caller carries it out on a copy first if it likes."""
    draw = RandomDraw(seed)
    model = Model(memory(draw), checker=checker)
    for op in proposals(model.state, draw, STEPS):
        yield model, op
        try:
            model.step(op)
        except Refusal:
            continue


def stripped(op: Operation[Any]) -> Any:
    return msgspec.structs.replace(op, obs=None, refused=None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_the_step_checks_suffice_for_every_rule(seed: int) -> None:
    for model, _ in walk(seed, checker=Checker):
        check(model.state)


@pytest.mark.slow
def test_walks_get_somewhere() -> None:
    reached: Counter[str] = Counter()
    checked: Counter[str] = Counter()
    carried_out = set()
    for seed in range(4 * len(SEEDS)):
        model = None
        for model, op in walk(seed):  # noqa: B007
            carried_out.add(type(op))
        assert model is not None
        reached += model.state.reached
        checked += model.state.checked
    assert carried_out == set(OPERATIONS) - {events.Snapshot}
    for happening in (
        "tail freed",
        "partial page kept",
        "lend repeated",
        "duplicate dropped",
        "row withheld",
        "close deferred",
        "deferred close done",
        "eviction stopped at a lock",
        "last chunk beside a first chunk",
        "overshoot",
        "session kept out of the store",
        "slot given up",
    ):
        assert reached[happening], happening
    assert checked.keys() <= RULES.keys()


@pytest.mark.slow
def test_cap_1_a_refused_operation_changes_nothing() -> None:
    refusals = 0
    for model, op in (place for seed in SEEDS for place in walk(seed)):
        before = fingerprint(model.state)
        trial = copied(model)
        assert fingerprint(trial.state) == before
        try:
            trial.step(stripped(op))
        except Refusal as refusal:
            refusals += 1
            assert fingerprint(trial.state) == before, op
            reported = stripped(op)
            reported.refused = refusal.refused
            trial.step(reported)
            assert fingerprint(trial.state) == before, op
        assert fingerprint(model.state) == before, "a copy is not independent"
    assert refusals > 4 * len(SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_op_1_a_legal_operation_must_not_be_refused_and_an_illegal_one_must(seed: int) -> None:
    for model, op in walk(seed):
        done = stripped(op)
        try:
            copied(model).step(done)
        except Refusal as refusal:
            done.obs = msgspec.convert({"evicted": []} if isinstance(op, events.Evict) else {}, ANSWERS[type(op)])
            with pytest.raises(Violation) as violation:
                copied(model).step(done)
            assert violation.value.rule.id == refusal.refused.rule
            continue
        refused = stripped(op)
        refused.refused = Refused("no", "CAP-1", 1)
        with pytest.raises(Violation, match="CAP-1"):
            copied(model).step(refused)
        refused.refused = Refused("no", "OP-1")
        late = isinstance(op, events.OpenSession) and op.session in model.state.closed_late
        rule = "SPEC-1" if isinstance(op, events.Verify) else "SESS-4" if late else "OP-1"
        with pytest.raises(Violation, match=rf"\b{rule}\b"):
            copied(model).step(refused)


def wrong_answers(op: Operation[Any], config: Config) -> Iterator[Any]:
    """Answers that differ from the right one in one number."""
    right = msgspec.to_builtins(op.obs)
    for name, value in right.items():
        for changed in _changes(name, value, config):
            wrong = copy.deepcopy(right)
            wrong[name] = changed
            yield msgspec.convert(wrong, type(op.obs), strict=False)


def _changes(name: str, value: Any, config: Config) -> Iterator[Any]:
    if isinstance(value, int):
        yield from (value + 1, value - 1, value + config.page_size)
    elif isinstance(value, list):
        pages = expand(value)
        yield from (pages[:-1],) if pages else ()
        yield from ([*pages, pages[0]],) if pages else ()
        yield from ([*pages, page] for page in range(1, config.num_pages + 1) if page not in pages)
    elif name in ("rows", "pages", "window_pages", "states", "window_sides", "requests", "sessions"):
        for key, part in value.items():
            if isinstance(part, dict):
                for field in part:
                    if isinstance(part[field], int):
                        yield {**value, key: {**part, field: part[field] + 1}}
            else:
                yield from ({**value, key: changed} for changed in _changes("", part, config))
            yield {other: kept for other, kept in value.items() if other != key}


_PLAIN = (events.Extend, events.Decode, events.Evict, events.Finish, events.Retract)
LEFT_OPEN: dict[bool, tuple[type[Operation[Any]], ...]] = {
    False: _PLAIN,
    True: (*_PLAIN, events.CacheUnfinished, events.SwaEvict, events.TakeState),
}
"""The operations where the specification leaves a choice, without and with a hybrid pool."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_every_wrong_answer_is_rejected_or_harmless(seed: int) -> None:
    """An accepted answer is one that the specification leaves open, and leads to a state in which all rules hold."""
    rejected = 0
    for model, op in walk(seed):
        right = stripped(op)
        try:
            copied(model).step(right)
        except Refusal:
            continue
        for wrong in wrong_answers(right, model.state.config):
            trial, reported = copied(model), stripped(op)
            reported.obs = wrong
            try:
                trial.step(reported)
            except Violation:
                rejected += 1
                continue
            check(trial.state)
            put_off = isinstance(op, events.CacheUnfinished) and trial.lengths_of(op.req) == model.lengths_of(op.req)
            assert put_off or isinstance(op, LEFT_OPEN[model.state.config.hybrid]), (op, wrong)
    assert rejected > 20


def test_steps_are_counted_and_the_answer_is_filled_in() -> None:
    model = Model(Config(2, 4, 1, 8))
    op = events.Report("idle")
    model.step(op)
    assert model.steps == 1
    assert op.obs is not None and (op.obs.available, op.obs.rows_available) == (8, 1)


def test_unobserved_pages_are_not_checked_and_never_clash() -> None:
    model = Model(Config(2, 4, 2, 8))
    for op in (
        events.Submit("a", [1, 2, 3]),
        events.MatchPrefix("a", obs=events.MatchAnswer(prefix_len=0)),
        events.Extend([("a", 3)], obs=events.ExtendAnswer()),
        events.Launch(1, ["a"]),
        events.Complete(1, {"a": 4}),
        events.Finish("a", obs=events.ReleaseAnswer()),
        events.Report("idle", obs=events.Figures(available=6, evictable=2)),
    ):
        model.step(op)
    check(model.state)
    assert model.state.unchecked["PAGE-1"] >= 2 and model.state.unchecked["ROW-1"] == 1


def test_rows_that_only_a_snapshot_reports_are_not_compared_with_invented_ones() -> None:
    model = Model(Config(4, 8, 2, 16))
    for op in (
        events.Submit("a", [1, 2, 3]),
        events.MatchPrefix("a"),
        events.Extend([("a", 3)], obs=events.ExtendAnswer(pages={"a": [1]})),
        events.Snapshot(obs=events.SnapshotAnswer(rows={1: [(4, 3)]})),
    ):
        model.step(op)


def test_rows_that_were_reported_are_checked_beside_invented_ones() -> None:
    model = Model(Config(4, 8, 2, 16))
    for op in (
        events.Submit("a", [1, 2, 3]),
        events.Submit("b", [1, 2, 3]),
        events.MatchPrefix("a"),
        events.MatchPrefix("b"),
        events.Extend([("a", 3)], obs=events.ExtendAnswer(pages={"a": [1]})),
        events.Extend([("b", 3)], obs=events.ExtendAnswer({"b": 0}, {"b": [2]})),
    ):
        model.step(op)
    model.step(events.Snapshot(obs=events.SnapshotAnswer(rows={1: [(4, 3)], 0: [(8, 3)]})))
    with pytest.raises(Violation, match="PAGE-3: position 2 of row 0"):
        model.step(events.Snapshot(obs=events.SnapshotAnswer(rows={1: [(4, 3)], 0: [(8, 2), 12]})))


def test_lengths_of_who_holds_something_and_figures_as_the_specification_counts_them() -> None:
    model = idle_session()
    assert model.lengths_of("s") == (0, 6, 6)
    model.step(events.OpenSession("empty"))
    model.step(events.Submit("r", [1]))
    assert [model.lengths_of(name) for name in ("empty", "r", "stranger")] == [None, None, None]
    model.step(events.MatchPrefix("r"))
    model.step(events.Extend([("r", 1)]))
    assert model.lengths_of("r") == (0, 1, 1)
    assert looking.figures(model.state) == events.Figures(
        available=20,
        evictable=0,
        protected=0,
        session_held=8,
        uncached=4,
        rows_available=0,
        rows_requests=1,
        rows_sessions=1,
        rows_withheld=0,
    )


def test_data_1_what_is_published_holds_its_tokens() -> None:
    """No sequence of operations leads here; the check is a second line of defence, so the state is broken by hand."""
    model = Model(Config(2, 8, 1, 16))
    for op in (
        events.Submit("a", [1, 2, 3, 4]),
        events.MatchPrefix("a"),
        events.Extend([("a", 4)]),
        events.Launch(1, ["a"]),
        events.Complete(1, {"a": 5}),
    ):
        model.step(op)
    model.state.written[1] = 2
    with pytest.raises(Violation) as violation:
        model.step(events.CacheUnfinished("a"))
    assert str(violation.value) == "DATA-1: page 2 is published, but does not hold its tokens"
    assert (violation.value.expected, violation.value.observed) == ("4 positions written", 2)


def test_chunk_1_a_request_that_left_takes_no_token_from_those_launched_with_it() -> None:
    model = Model(Config(4, 8, 2, 16))
    for op in (
        events.Submit("a", [1, 2]),
        events.Submit("b", [3]),
        events.MatchPrefix("a"),
        events.MatchPrefix("b"),
        events.Extend([("a", 2), ("b", 1)]),
        events.Launch(1, ["a", "b"]),
        events.Abort("a"),
        events.Complete(1, {"b": 7}),
    ):
        model.step(op)
    assert model.state.requests["b"].tokens.elements() == [3, 7]


def test_len_1_a_request_whose_tokens_have_outgrown_the_context_runs_no_more() -> None:
    model = Model(Config(2, 8, 2, 4))
    for op in (
        events.Submit("a", [1, 2, 3, 4]),
        events.MatchPrefix("a"),
        events.Extend([("a", 4)]),
        events.Launch(1, ["a"]),
        events.Complete(1, {"a": 5}),
        events.Retract("a"),
        events.MatchPrefix("a"),
    ):
        model.step(op)
    with pytest.raises(Refusal) as refusal:
        model.step(events.Extend([("a", 5)]))
    assert refusal.value.refused == Refused("seq_len 5 of a exceeds the context of 4", "LEN-1")


def test_page_1_is_checked_wherever_pages_were_given() -> None:
    model = Model(Config(2, 8, 2, 8))
    for op in (
        events.Submit("a", [1, 2]),
        events.Submit("b", [1]),
        events.MatchPrefix("a"),
        events.MatchPrefix("b"),
        events.Extend([("a", 1)]),
        events.Launch(1, ["a"]),
    ):
        model.step(op)
    checked = model.state.checked["PAGE-1"]
    model.step(events.Extend([("b", 1), ("a", 2)], obs=events.ExtendAnswer({"a": 0, "b": 1}, {"b": [3], "a": []})))
    assert model.state.checked["PAGE-1"] == checked + 1


def test_after_an_overshoot_there_is_no_token_to_decode() -> None:
    model = Model(Config(4, 8, 2, 16))
    for op in (
        events.Submit("a", [1, 2]),
        events.MatchPrefix("a"),
        events.Extend([("a", 2)]),
        events.Launch(1, ["a"]),
        events.Complete(1, {"a": 3}),
        events.Decode(["a"], 3),
        events.Launch(2, ["a"]),
        events.Complete(2),
        events.Verify("a", 2, [4]),
    ):
        model.step(op)
    with pytest.raises(Refusal, match="position 4 of a has no token to decode") as refusal:
        model.step(events.Decode(["a"]))
    assert refusal.value.refused == Refused("position 4 of a has no token to decode", "OP-1")


def test_an_empty_list_of_pages_says_the_same_as_none() -> None:
    model = Model(Config(4, 8, 2, 16))
    for op in (
        events.Submit("a", [1, 2]),
        events.MatchPrefix("a"),
        events.Extend([("a", 2)]),
        events.Launch(1, ["a"]),
        events.Complete(1, {"a": 3}),
        events.Decode(["a"], obs=events.DecodeAnswer({"a": []})),
    ):
        model.step(op)
    model.step(events.Launch(2, ["a"]))
    model.step(events.Complete(2, {"a": 3}))
    with pytest.raises(Violation, match="PAGE-2: the number of pages given to a is wrong"):
        model.step(events.Decode(["a"], obs=events.DecodeAnswer({"a": [5]})))


def idle_session() -> Model:
    """Pages of 4; a slot with 6 committed and allocated positions in pages 1 and 2."""
    model = Model(Config(4, 8, 2, 32))
    for op in (
        events.OpenSession("s"),
        events.Submit("t", [1, 2, 3, 4, 5, 6], "s"),
        events.MatchPrefix("t"),
        events.Extend([("t", 6)]),
        events.Launch(1, ["t"]),
        events.Complete(1, {"t": 7}),
        events.Finish("t"),
    ):
        model.step(op)
    return model


def idle_and_lent_sessions() -> Model:
    """Pages of 4: session s is idle as above, and the slot of session u, with 5 positions, is lent to request w."""
    model = idle_session()
    for op in (
        events.OpenSession("u"),
        events.Submit("v", [1, 2, 3, 4, 5], "u"),
        events.MatchPrefix("v"),
        events.Extend([("v", 5)]),
        events.Launch(2, ["v"]),
        events.Complete(2, {"v": 6}),
        events.Finish("v"),
        events.Submit("w", [1, 2, 3, 4, 5, 6, 7], "u"),
        events.MatchPrefix("w"),
    ):
        model.step(op)
    return model


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"session_held": 16}, "SESS-3"),
        ({"session_held": 16, "rows_sessions": 2}, "SESS-3"),
        ({"session_held": 16, "rows_sessions": 2, "uncached": 0}, "SESS-3"),
        ({"session_held": 12}, "ACC-1"),
        ({"session_held": 0}, "ACC-1"),
        ({"session_held": 16, "uncached": 0}, "ACC-1"),
    ],
)
def test_sess_3_a_lent_slot_that_is_counted_twice_is_distinguished_from_a_wrong_count(
    changes: dict[str, int], rule: str
) -> None:
    model = idle_and_lent_sessions()
    right = looking.figures(model.state)
    assert (right.session_held, right.uncached, right.rows_sessions) == (8, 8, 1)
    with pytest.raises(Violation) as violation:
        model.step(events.Report(obs=msgspec.structs.replace(right, **changes)))
    assert violation.value.rule.id == rule


@pytest.mark.parametrize(
    ("count", "listed"), [(1, "1"), (8, "1, 2, 3, 4, 5, 6, 7, 8"), (9, "1, 2, 3, 4, 5, 6, 7, 8, ..."), (10, ", 8, ...")]
)
def test_a_finding_lists_eight_pages_at_most(count: int, listed: str) -> None:
    model = Model(Config(1, 12, 1, 16, prefix_cache=False))
    model.step(events.Submit("a", [1] * count))
    model.step(events.MatchPrefix("a"))
    model.step(events.Extend([("a", count)]))
    with pytest.raises(Violation) as violation:
        model.step(events.Abort("a", obs=events.ReleaseAnswer([])))
    assert f"{listed} were not freed" in violation.value.what


@pytest.mark.parametrize(("allocated", "allowed"), [(6, True), (8, True), (5, True), (9, False), (4, False)])
def test_a_slot_may_forget_slots_only_inside_a_page_that_it_keeps(allocated: int, allowed: bool) -> None:
    view = events.HolderView(row=0, protected_len=0, committed_len=6, allocated_len=allocated)
    reported = events.Snapshot(obs=events.SnapshotAnswer(sessions={"s": view}))
    if allowed:
        idle_session().step(reported)
        return
    with pytest.raises(Violation, match="LEN-1: allocated_len of session s"):
        idle_session().step(reported)


@pytest.mark.parametrize(("slots", "allowed"), [(6, True), (8, True), (9, False), (4, False)])
def test_a_row_has_the_positions_of_its_pages(slots: int, allowed: bool) -> None:
    reported = events.Snapshot(obs=events.SnapshotAnswer(rows={0: [(4, slots)]}))
    if allowed:
        idle_session().step(reported)
        return
    with pytest.raises(Violation, match="PAGE-3: the number of positions of row 0"):
        idle_session().step(reported)


def test_data_1_a_page_that_comes_back_to_its_holder_holds_nothing_before_its_launch() -> None:
    model = Model(Config(1, 8, 2, 32))
    for op in (
        events.OpenSession("s"),
        events.Submit("t", [1, 2], "s"),
        events.MatchPrefix("t"),
        events.Extend([("t", 2)]),
        events.Launch(1, ["t"]),
        events.Complete(1, {"t": 3}),
        events.Decode(["t"]),
        events.Launch(2, ["t"]),
        events.Retract("t"),
        events.Complete(2),
        events.MatchPrefix("t"),
    ):
        model.step(op)
    again = events.Extend([("t", 3)])
    model.step(again)
    assert again.obs is not None and again.obs.pages == {"t": [3]}, "the page that the match has just freed"
    assert model.state.written == {1: 2}
    model.step(events.Launch(3, ["t"]))
    assert model.state.written == {1: 3}


@pytest.mark.parametrize(("closing", "rule"), [(True, "SESS-4"), (False, "ROW-1")])
def test_a_slot_that_is_gone_was_released_too_early_where_its_session_is_closing(closing: bool, rule: str) -> None:
    model = idle_session()
    model.step(events.Submit("u", [*range(1, 8), 9], "s"))
    if closing:
        model.step(events.CloseSession("s"))
    with pytest.raises(Violation, match=f"{rule}: session s should hold a row"):
        model.step(events.Snapshot(obs=events.SnapshotAnswer(sessions={})))


def speculating(*more: events.Event) -> Model:
    """P = 4: request a has 6 tokens and a seventh that is to be decoded; a step of three positions is in flight."""
    model = Model(events.Config(page_size=4, num_pages=16, num_rows=2, max_context_len=64))
    begin: list[events.Event] = [
        events.Submit("a", [0, 1, 2, 3, 4, 5]),
        events.MatchPrefix("a"),
        events.Extend([("a", 6)]),
        events.Launch(1, ["a"]),
        events.Complete(1, {"a": 9}),
        events.Decode(["a"], 3),
        events.Launch(2, ["a"]),
    ]
    for op in (*begin, *more):
        model.step(op)
        check(model.state)
    return model


def test_spec_2_a_step_ahead_has_room_past_both_and_written_follows_the_verify() -> None:
    model = speculating(events.Decode(["a"], 4), events.Launch(3, ["a"]), events.Complete(2))
    (record,) = model.state.records
    assert model.lengths_of("a") == (0, 6, 13) and model.state.written[record] == 13
    model.step(events.Verify("a", 1, [7]))
    assert model.lengths_of("a") == (0, 7, 13) and model.state.written[record] == 11
    model.step(events.Complete(3))
    model.step(events.Verify("a", 4, [7, 7, 7, 7]))
    assert model.lengths_of("a") == (0, 11, 13) and model.state.written[record] == 11
    assert model.state.checked["SPEC-2"] == 1 and not model.state.speculating


@pytest.mark.parametrize("rule", ["SPEC-1", None])
def test_spec_2_who_speculates_step_by_step_may_refuse_the_step_ahead(rule: str | None) -> None:
    refused = events.Decode(["a"], 4, refused=events.Refused("one at a time", rule))
    model = speculating(refused)
    assert model.lengths_of("a") == (0, 6, 9)
    with pytest.raises(Violation, match="OP-1: the operation was refused"):
        speculating(events.Decode(["a"], 4, refused=events.Refused("not now", "OP-1")))


def test_spec_2_room_past_the_committed_positions_only_is_too_little() -> None:
    with pytest.raises(Violation, match="SPEC-2: the number of pages given to a is wrong"):
        speculating(events.Decode(["a"], 4, obs=events.DecodeAnswer({})))


def test_spec_2_a_request_that_stops_drops_the_step_behind() -> None:
    stopped = (
        events.Decode(["a"], 4),
        events.Launch(3, ["a"]),
        events.Complete(2),
        events.Verify("a", 3, [7]),
        events.Complete(3),
    )
    model = speculating(*stopped)
    for late in (events.Verify("a", 1, [8]), events.Decode(["a"]), events.Decode(["a"], 4)):
        with pytest.raises(Refusal):
            model.step(late)
    model.step(events.Finish("a"))
    check(model.state)
    assert not model.state.records


MEMORY = events.Config(page_size=4, num_pages=16, num_rows=3, max_context_len=64)


def found_on(*ops: events.Event, config: events.Config = MEMORY) -> Violation:
    """The rule that the last of some operations breaks; the others conform."""
    model = Model(config)
    *before, last = copy.deepcopy(ops)
    for op in before:
        model.step(op)
        check(model.state)
    with pytest.raises(Violation) as violation:
        model.step(last)
    return violation.value


def prefilled(req: str, tokens: list[int], launch: int, session: str | None = None) -> list[events.Event]:
    return [
        events.Submit(req, [*tokens], session),
        events.MatchPrefix(req),
        events.Extend([(req, len(tokens))]),
        events.Launch(launch, [req]),
        events.Complete(launch, {req: 50}),
    ]


TURN = [events.OpenSession("s"), *prefilled("t", [0, 1, 2, 3, 4], 1, "s")]


def test_blame_a_close_that_is_lost_on_abort_is_sess_4() -> None:
    lost = [*TURN, events.CloseSession("s"), events.Abort("t")]
    again = events.OpenSession("s", refused=Refused("session s is open already", "OP-1"))
    assert found_on(*lost, again).rule.id == "SESS-4"
    late = events.CloseSession("s", obs=events.ReleaseAnswer([]))
    assert found_on(*lost, late).rule.id == "SESS-4"
    twice = events.OpenSession("s", obs=events.Done())
    assert found_on(*lost, events.OpenSession("s"), twice).rule.id == "OP-1", "it is another session by then"
    model = Model(events.Config(page_size=4, num_pages=16, num_rows=3, max_context_len=64))
    with pytest.raises(Violation, match="OP-1"):
        model.step(events.OpenSession("s", refused=Refused("no", "OP-1")))


def test_blame_an_abort_that_wipes_a_session_is_sess_5() -> None:
    waiting = [*TURN, events.Finish("t"), events.Submit("u", [0, 1, 2, 3, 4, 50, 6], "s")]
    assert found_on(*waiting, events.Abort("u", obs=events.ReleaseAnswer([1, 2]))).rule.id == "SESS-5"
    matched = [*waiting, events.MatchPrefix("u")]
    assert found_on(*matched, events.Abort("u", obs=events.ReleaseAnswer([2]))).rule.id == "SESS-5"
    other = [*prefilled("r", [9] * 5, 2), *waiting]
    assert found_on(*other, events.Abort("u", obs=events.ReleaseAnswer([1]))).rule.id == "TAIL-2", "a page of r"


def test_blame_a_page_less_published_is_store_5() -> None:
    finish = events.Finish("r", obs=events.ReleaseAnswer([2, 3]))
    assert found_on(*prefilled("r", [0, 1, 2, 3, 4, 5, 6, 7, 8], 1), finish).rule.id == "STORE-5"


def test_blame_committed_past_allocated_is_len_1() -> None:
    def seen(committed: int, allocated: int) -> events.Snapshot:
        return events.Snapshot(obs=events.SnapshotAnswer(requests={"r": events.HolderView(0, 0, committed, allocated)}))

    ops = prefilled("r", [0, 1, 2, 3, 4], 1)
    assert found_on(*ops, seen(6, 5)).rule.id == "LEN-1"
    assert found_on(*ops, seen(6, 6)).rule.id == "DATA-1"


@pytest.mark.parametrize(
    ("requests", "sessions", "rule"),
    [({"waits"}, set(), "ROW-3"), ({"left"}, set(), "ROW-4"), (set(), {"s"}, "ROW-4")],
)
def test_blame_a_row_too_many(requests: set[str], sessions: set[str], rule: str) -> None:
    row = HolderView(1)
    obs = events.SnapshotAnswer(requests=dict.fromkeys(requests, row), sessions=dict.fromkeys(sessions, row))
    left = [*prefilled("left", [7, 7], 1), events.Finish("left")]
    found = found_on(events.OpenSession("s"), events.Submit("waits", [0, 1]), *left, events.Snapshot(obs=obs))
    assert (found.rule.id, found.observed) == (rule, row)


@pytest.mark.parametrize(("ahead", "rule"), [(False, "LEN-1"), (True, "SPEC-2")])
def test_blame_the_lengths_of_who_speculates_ahead_is_spec_2(ahead: bool, rule: str) -> None:
    step: list[events.Event] = [events.Decode(["r"], 2), events.Launch(2, ["r"])]
    more: list[events.Event] = [events.Decode(["r"], 2)] if ahead else []
    seen = events.Snapshot(obs=events.SnapshotAnswer(requests={"r": HolderView(0, 0, 4)}))
    assert found_on(*prefilled("r", [0, 1, 2, 3, 4], 1), *step, *more, seen).rule.id == rule


def test_a_window_that_is_left_while_publishing_is_counted_each_time() -> None:
    model = Model(events.Config(4, 16, 4, 64, sliding_window=4, num_window_pages=16))
    for launch, req in enumerate("ab"):
        for op in prefilled(req, [launch] * 13, launch):
            model.step(op)
        obs = events.PublishAnswer(12, [], evicted_len=8)
        model.step(events.CacheUnfinished(req, obs=obs))
        assert model.state.chosen["window left when publishing"] == launch + 1


def test_blame_a_mark_that_stays_with_its_session_is_sess_1() -> None:
    gone = [*TURN, events.Retract("t"), events.Abort("t")]
    for rule in ("SESS-1", None):
        again = events.Submit("t", [0, 1], "s", refused=Refused("a turn is in flight", rule))
        assert found_on(*gone, again).rule.id == "SESS-1"


def test_blame_a_release_of_who_has_left_names_the_page() -> None:
    left = [*prefilled("r", [0, 1, 2, 3, 4], 1), events.Abort("r"), *prefilled("q", [7, 7, 7, 7, 7], 2)]
    twice = found_on(*left, events.Finish("r", obs=events.ReleaseAnswer([1, 2])))
    assert twice.rule.id == "PAGE-1" and "page 1 was freed, but it still holds committed positions" in twice.what
    free = found_on(*left[:6], events.Finish("r", obs=events.ReleaseAnswer([1, 2])))
    assert free.rule.id == "PAGE-1" and "there is no request r; page 1 was freed, but it is free already" in free.what


def test_blame_a_withheld_row_that_counts_as_free_is_race_1() -> None:
    withheld = [*prefilled("r", [0, 1, 2, 3, 4], 1)[:-1], events.Retract("r")]
    for available, others, rule in ((3, 0, "RACE-1"), (2, 0, "ACC-1"), (None, 0, "ACC-1"), (1, 2, "ACC-1")):
        seen = events.Report("busy", obs=events.Figures(rows_available=available, rows_withheld=others))
        assert found_on(*withheld, seen).rule.id == rule, available


@pytest.mark.parametrize("turns_count_as", ["sessions", "requests"])
@pytest.mark.parametrize(
    ("reported_too", "rows_too", "own", "rule"),
    [
        (8, 1, 8, "SESS-3"),
        (8, 0, 8, "SESS-3"),
        (8, None, 8, "SESS-3"),
        (8, 1, None, "SESS-3"),
        (8, 0, None, "ACC-1"),
        (8, None, None, "ACC-1"),
        (4, 1, 8, "ACC-1"),
    ],
)
def test_blame_a_turn_that_counts_twice_is_sess_3(
    turns_count_as: TurnsCountAs, reported_too: int, rows_too: int | None, own: int | None, rule: str
) -> None:
    """`too` is counted by who has not to count it; `own` is the figure of who has."""
    turn = [*TURN, events.Finish("t"), *prefilled("u", [0, 1, 2, 3, 4, 50, 6], 2, "s")]
    figures = events.Figures(rows_requests=rows_too, rows_sessions=1, uncached=reported_too, session_held=own)
    if turns_count_as == "requests":
        figures = events.Figures(rows_requests=1, rows_sessions=rows_too, uncached=own, session_held=reported_too)
    config = msgspec.structs.replace(MEMORY, turns_count_as=turns_count_as)
    assert found_on(*turn, events.Report("busy", obs=figures), config=config).rule.id == rule


def test_a_chunk_may_wait_whole_for_a_later_publication_and_not_by_half() -> None:
    chunk: list[events.Event] = [
        events.Submit("r", list(range(13))),
        events.MatchPrefix("r"),
        events.Extend([("r", 9)]),
        events.Launch(1, ["r"]),
        events.Complete(1),
    ]
    later: list[events.Event] = [
        events.CacheUnfinished("r", chunked=True, obs=events.PublishAnswer(0, [])),
        events.Extend([("r", 13)]),
        events.Launch(2, ["r"]),
        events.Complete(2, {"r": 7}),
    ]
    model = Model(events.Config(page_size=4, num_pages=16, num_rows=3, max_context_len=64))
    for op in copy.deepcopy([*chunk, *later, events.CacheUnfinished("r")]):
        model.step(op)
        check(model.state)
    assert model.lengths_of("r") == (12, 13, 13) and model.state.chosen["chunk not published"] == 1
    half = events.CacheUnfinished("r", chunked=True, obs=events.PublishAnswer(4, []))
    assert found_on(*chunk, half).rule.id == "STORE-5"
    last = events.CacheUnfinished("r", obs=events.PublishAnswer(0, []))
    assert found_on(*chunk, *later, last).rule.id == "STORE-5"


@pytest.mark.parametrize(("turns_count_as", "rule"), [("sessions", "SESS-3"), ("requests", "ACC-1")])
def test_blame_a_first_turn_that_counts_twice(turns_count_as: TurnsCountAs, rule: str) -> None:
    """Its pages are not lent by its session, but where its session counts them."""
    config = msgspec.structs.replace(MEMORY, turns_count_as=turns_count_as)
    seen = events.Report("busy", obs=events.Figures(uncached=8, session_held=8))
    assert found_on(*TURN, seen, config=config).rule.id == rule


def test_each_figure_that_is_not_reported_is_unchecked_once() -> None:
    model = Model(MEMORY)
    whole = msgspec.structs.asdict(looking.figures(model.state))
    for name in ("available", "protected", "rows_withheld"):
        before = model.state.unchecked["ACC-1"]
        model.step(events.Report("busy", obs=events.Figures(**(whole | {name: None}))))
        assert model.state.unchecked["ACC-1"] == before + 1


def test_tokens_past_a_stop_belong_to_no_other_request() -> None:
    """Two equal requests keep 8 of 12 committed positions, and publish three pages each: two are the same."""
    model = Model(msgspec.structs.replace(MEMORY, overshoot="published"))
    for launch, req in ((1, "a"), (3, "b")):
        for op in (
            *prefilled(req, [0, 1, 2, 3, 4, 5], launch),
            events.Decode([req], 7),
            events.Launch(launch + 1, [req]),
            events.Complete(launch + 1, {}),
            events.Verify(req, 6, [1]),
            events.Finish(req),
        ):
            model.step(op)
    assert len(model.state.store.pages) == 4


def test_steps_and_refusals_are_counted_each_once() -> None:
    model = Model(MEMORY)
    for op in (events.Submit("a", [1]), events.Submit("a", [1], refused=Refused("a is there", "OP-1"))):
        before = model.state.checked["OP-1"]
        model.step(op)
        assert model.state.checked["OP-1"] == before + 1
    assert model.steps == 2


def test_blame_a_chunk_of_a_later_turn_that_is_published_is_sess_6() -> None:
    turn = [*TURN, events.Finish("t"), *prefilled("u", [0, 1, 2, 3, 4, 50, 6, 7, 8], 2, "s")]
    assert found_on(*turn, events.CacheUnfinished("u", obs=events.PublishAnswer(8, []))).rule.id == "SESS-6"
    plain = prefilled("r", [9] * 9, 1)
    assert found_on(*plain, events.CacheUnfinished("r", obs=events.PublishAnswer(4, []))).rule.id == "STORE-5"


def test_len_3_is_blamed_only_for_less_than_what_is_protected() -> None:
    turn = [*prefilled("t", [*range(9)], 1, "s"), events.CacheUnfinished("t"), events.Finish("t")]
    later = [events.OpenSession("s"), *turn, events.Submit("u", [*range(9), 50, 6], "s")]
    for prefix_len, rule in ((4, "LEN-3"), (8, "SESS-2")):
        answer = events.MatchAnswer(prefix_len, 8, [])
        assert found_on(*later, events.MatchPrefix("u", obs=answer)).rule.id == rule, prefix_len


@pytest.mark.parametrize(
    ("left", "tokens", "words"),
    [
        (False, {"a": 50, "b": 50}, "a token came for b, which this launch did not sample for"),
        (True, {"a": 50}, "a token came for a request that left, which this launch did not sample for"),
    ],
)
def test_a_token_for_whom_a_launch_sampled_nothing_is_named(left: bool, tokens: dict[str, int], words: str) -> None:
    ops = [*prefilled("b", [3, 4], 1), *prefilled("a", [1, 2], 2)[:-1], *[events.Abort("a")] * left]
    assert found_on(*ops, events.Complete(2, tokens, obs=events.CompleteAnswer())).what.endswith(f": {words}")


def test_sess_3_is_checked_where_a_session_has_lent_something() -> None:
    turn = [*TURN, events.Finish("t"), *prefilled("u", [0, 1, 2, 3, 4, 50, 6], 2, "s")]
    for ops, checked in ((prefilled("r", [9] * 5, 1), 0), (TURN, 0), (turn, 1)):
        model = Model(MEMORY)
        for op in copy.deepcopy([*ops, events.Report("busy")]):
            model.step(op)
        assert model.state.checked["SESS-3"] == checked


@pytest.mark.parametrize(("turns_count_as", "counted"), [("sessions", 1), ("requests", 0)])
def test_that_a_turn_counts_as_its_sessions_is_noted(turns_count_as: TurnsCountAs, counted: int) -> None:
    model = Model(msgspec.structs.replace(MEMORY, turns_count_as=turns_count_as))
    for op in copy.deepcopy([*prefilled("r", [9] * 5, 2), events.Report("busy"), *TURN, events.Report("busy")]):
        model.step(op)
    assert model.state.chosen["turn counted as its session's"] == counted


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ({"a": [1], "b": [1]}, "page 1 was given to b, but it was given out already"),
        ({"a": [16], "b": [16]}, "page 16 was given to b, but it was given out already"),
        ({"a": [17], "b": [1]}, "page 17 was given to a, but it does not exist"),
        ({"a": [1], "b": [0]}, "page 0 was given to b, but it does not exist"),
        ({"a": [17], "b": [17]}, "page 17 was given to a, but it does not exist"),
    ],
)
def test_a_page_that_may_not_be_given_is_named_with_the_reason(pages: dict[str, Runs], words: str) -> None:
    waiting = [op for req in "ab" for op in (events.Submit(req, [1, 2]), events.MatchPrefix(req))]
    extend = events.Extend([("a", 2), ("b", 2)], obs=events.ExtendAnswer({"a": 0, "b": 1}, pages))
    assert found_on(*waiting, extend).what == words


def test_who_has_no_rows_is_never_short_of_one() -> None:
    model = Model(Config(2, 8, 0, 16))
    for op in [*prefilled("a", [1, 2, 3], 1), *prefilled("b", [4, 5], 2), events.Decode(["a", "b"])]:
        model.step(op)
    with pytest.raises(Refusal, match=r"8 pages are needed, \d are free") as raised:
        for op in (events.Submit("c", list(range(16))), events.MatchPrefix("c"), events.Extend([("c", 16)])):
            model.step(op)
    assert raised.value.refused.rows_short == 0


@pytest.mark.parametrize("short", ["pages_short", "rows_short", "window_short", "states_short", None])
def test_what_is_refused_for_room_where_there_is_room_is_cap_1(short: str | None) -> None:
    refused = Refused("no", "OP-1", **({short: 1} if short else {}))
    extend = events.Extend([("r", 2)], refused=refused)
    assert found_on(events.Submit("r", [1, 2]), events.MatchPrefix("r"), extend).rule.id == (
        "CAP-1" if short else "OP-1"
    )


@pytest.mark.parametrize(
    ("states", "window", "short", "words"),
    [
        (0, 0, (1, 0, 0, 0), "9 pages and 1 rows are needed, 8 and 3 are free"),
        (2, 0, (1, 0, 0, 1), "9 pages and 1 rows are needed, 8 and 3 are free; 3 state slots are needed, 2 are free"),
        (0, 6, (1, 0, 3, 0), "9 pages and 1 rows are needed, 8 and 3 are free; 6 window pages are free"),
    ],
)
def test_a_refusal_for_room_says_what_is_needed_and_what_is_free(
    states: int, window: int, short: tuple[int, int, int, int], words: str
) -> None:
    config = Config(2, 8, 3, 64, num_states=states, sliding_window=2 * bool(window), num_window_pages=window)
    model = Model(config)
    for op in (events.Submit("r", list(range(18))), events.MatchPrefix("r")):
        model.step(op)
    with pytest.raises(Refusal, match=f"{words}$") as raised:
        model.step(events.Extend([("r", 18)]))
    assert raised.value.refused == Refused(words, "CAP-1", *short)


@pytest.mark.parametrize(
    ("pages", "expected", "observed"),
    [
        ([(1, 6), 9], "no others", "also [9]"),
        ([1, 2, 3], "also [(4, 3)]", "no others"),
        ([0, (1, 5)], "also [6]", "also [0]"),
    ],
)
def test_a_wrong_set_is_reported_by_its_missing_and_extra_members(pages: Runs, expected: str, observed: str) -> None:
    model = Model(Config(2, 6, 2, 16))
    with pytest.raises(Violation) as raised:
        model.step(events.Snapshot(obs=events.SnapshotAnswer(free_pages=pages)))
    assert (raised.value.expected, raised.value.observed) == (expected, observed)


@pytest.mark.parametrize(
    ("pages", "rule", "words"),
    [
        ([1, 1], "PAGE-1", "page 1 was evicted twice"),
        ([3, 1], "STORE-3", "page 3 was evicted, but it is a holder's private page"),
        ([9], "STORE-3", "page 9 was evicted, but it is free"),
        ([16], "STORE-3", "page 16 was evicted, but it is free"),
        ([17], "STORE-3", "page 17 was evicted, but it does not exist"),
        ([0], "STORE-3", "page 0 was evicted, but it does not exist"),
    ],
)
def test_of_an_eviction_of_what_is_not_the_stores_the_page_is_named(pages: list[int], rule: str, words: str) -> None:
    ops = [*prefilled("a", [0, 1, 2, 3, 4], 1), events.Finish("a"), *prefilled("b", [7, 7, 7, 7, 7], 2)]
    found = found_on(*ops, events.Evict(1, obs=events.EvictAnswer([*pages])))
    assert (found.rule.id, found.what, found.observed) == (rule, words, pages)


def test_how_much_is_missing_is_asked_only_where_something_is() -> None:
    model = Model(MEMORY)
    for rule in ("OP-1", None):
        refused = Refused("not running", rule, pages_short=1, rows_short=2)
        model.step(events.Decode(["stranger"], refused=refused))


def test_the_numbers_of_a_pool_run_from_one_to_its_size() -> None:
    windows, states = Config(2, 5, 3, 64, sliding_window=2, num_window_pages=4), Config(2, 5, 3, 64, num_states=6)
    cases: list[tuple[Config, PoolName, int]] = [(windows, "pages", 5), (windows, "window", 4), (states, "states", 6)]
    for config, name, last in cases:
        state = Model(config).state
        pool = pool_of(state, name)
        assert pool is not None
        used = [number for number in range(-1, last + 3) if pool.use(state, number)[1] != "does not exist"]
        assert used == list(range(1, last + 1))


@pytest.mark.parametrize("seq_len", [0, 4, 6])
def test_a_prefill_to_where_there_is_nothing_is_refused_with_what_would_be(seq_len: int) -> None:
    model = Model(MEMORY)
    chunk: list[events.Event] = [
        events.Submit("r", [1, 2, 3, 4, 5]),
        events.MatchPrefix("r"),
        events.Extend([("r", 4)]),
    ]
    for op in (*chunk, events.Launch(1, ["r"]), events.Complete(1)):
        model.step(op)
    with pytest.raises(Refusal, match=rf"seq_len {seq_len} of r is not in 5\.\.5$"):
        model.step(events.Extend([("r", seq_len)]))


def test_the_last_row_and_the_last_page_are_given_and_those_behind_are_not() -> None:
    for row, page, rule in ((2, 5, None), (3, 5, "ROW-1"), (-1, 5, "ROW-1"), (2, 6, "PAGE-1")):
        model = Model(Config(2, 5, 3, 64))
        for op in (events.Submit("r", [1]), events.MatchPrefix("r")):
            model.step(op)
        extend = events.Extend([("r", 1)], obs=events.ExtendAnswer({"r": row}, {"r": [page]}))
        if rule is None:
            model.step(extend)
        else:
            with pytest.raises(Violation) as raised:
                model.step(extend)
            assert raised.value.rule.id == rule
            assert raised.value.expected == ("a free page" if rule == "PAGE-1" else "0..2")


def test_a_chunk_within_a_page_has_nothing_to_put_off() -> None:
    model = Model(MEMORY)
    ops: list[events.Event] = [events.Submit("r", list(range(13))), events.MatchPrefix("r")]
    for launch, end, protected in ((1, 4, 4), (2, 7, 4), (3, 8, 8)):
        ops += [
            events.Extend([("r", end)]),
            events.Launch(launch, ["r"]),
            events.Complete(launch),
            events.CacheUnfinished("r", chunked=True, obs=events.PublishAnswer(protected, [])),
        ]
    for op in ops:
        model.step(op)
    assert model.lengths_of("r") == (8, 8, 8) and model.state.chosen["chunk not published"] == 0


def test_a_set_of_pages_is_reported_as_runs_and_singly_in_any_order() -> None:
    model = Model(Config(2, 8, 2, 16))
    model.step(events.Snapshot(obs=events.SnapshotAnswer(free_pages=[(3, 6), 2, 1])))
    with pytest.raises(Violation, match="PAGE-1: the free pages: some are there twice") as raised:
        model.step(events.Snapshot(obs=events.SnapshotAnswer(free_pages=[(3, 6), 2, (1, 2)])))
    assert raised.value.observed == [(1, 2), 2, (3, 6)]


@pytest.mark.parametrize("overshoot", ["freed", "published"])
def test_pages_past_a_stop_are_published_where_that_is_declared_and_only_there(overshoot: events.Overshoot) -> None:
    """Of 12 committed positions in pages 1..4 the request keeps 8: page 3 has none of them."""
    freed: dict[events.Overshoot, list[int]] = {"freed": [3, 4], "published": [4]}
    for answered in freed.values():
        model = Model(Config(4, 16, 4, 64, overshoot=overshoot), checker=Checker)
        for op in (
            events.Submit("a", [0, 1, 2, 3, 4, 5]),
            events.MatchPrefix("a"),
            events.Extend([("a", 6)]),
            events.Launch(1, ["a"]),
            events.Complete(1, {"a": 900}),
            events.Decode(["a"], 7),
            events.Launch(2, ["a"]),
            events.Complete(2, {}),
            events.Verify("a", 6, [1]),
        ):
            model.step(op)
        finish = events.Finish("a", obs=events.ReleaseAnswer(answered))
        if answered == freed[overshoot]:
            model.step(finish)
            assert len(model.state.store.pages) == 4 - len(answered)
            check(model.state)
        else:
            with pytest.raises(Violation):
                model.step(finish)
