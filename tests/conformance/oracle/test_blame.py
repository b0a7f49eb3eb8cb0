"""Which rule a wrong answer is blamed on: the one that is broken, not one that holds."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from kvconform.gallery.finders import rule_of
from kvconform.gallery.mutants.bug import Engine
from kvconform.oracle import Model
from kvconform.vectors.runner import try_out
from kvref.manager.prefill import Prefill
from kvref.request import KvRecord, Run, SessionSlot
from kvref.session_cache import SessionCache
from kvspec.events import (
    Abort,
    CacheUnfinished,
    CloseSession,
    Complete,
    Config,
    Decode,
    Done,
    Evict,
    ExtendAnswer,
    Finish,
    HolderView,
    Launch,
    MatchAnswer,
    MatchPrefix,
    OpenSession,
    Operation,
    Preempt,
    PublishAnswer,
    Refusal,
    Refused,
    ReleaseAnswer,
    Report,
    Retract,
    Snapshot,
    SnapshotAnswer,
    Submit,
    Verify,
)
from kvspec.events import Extend as Prefilled
from kvspec.lengths import Lengths
from kvspec.rules import RULES, Violation

SMALL = Config(page_size=4, num_pages=16, num_rows=2, max_context_len=64)
Operations = list[Operation[Any]]


def runs(req: str, tokens: Sequence[int], session: str | None = None, launch: int = 1, sampled: int = 7) -> Operations:
    """A request is prefilled, and has sampled one token."""
    return [
        Submit(req, list(tokens), session),
        MatchPrefix(req),
        Prefilled([(req, len(tokens))]),
        Launch(launch, [req]),
        Complete(launch, {req: sampled}),
    ]


FIRST_TURN: Operations = [OpenSession("s"), *runs("t1", range(6), "s"), CacheUnfinished("t1"), Finish("t1")]
"""A slot keeps 6 committed positions, the first page of them the store's."""
SECOND_TURN = Submit("t2", [*range(6), 7, 8, 9, 10], "s")


def model_after(before: Operations, last: Operation[Any], config: Config = SMALL) -> Model:
    """The model after some operations, which it answers itself, and after the last one, whose answer is checked."""
    model = Model(config)
    for op in before:
        try:
            model.step(op)
        except Refusal as refusal:
            op.refused = refusal.refused
    model.step(last)
    return model


def looked(before: Operations) -> SnapshotAnswer:
    """The whole state after some operations."""
    look = Snapshot()
    model_after([replace(op) for op in before], look)
    assert look.obs is not None
    return look.obs


def blamed(before: Operations, last: Operation[Any], config: Config = SMALL) -> str:
    """The rule that the answer to the last operation breaks."""
    with pytest.raises(Violation) as caught:
        model_after([replace(op) for op in before], last, config)
    return caught.value.rule.id


def in_the_end(factory: type[Engine], operations: Operations, config: Config = SMALL) -> tuple[str, Operation[Any]]:
    """The rule that an implementation breaks in some operations, and the one that shows it."""
    shown = try_out(operations, config, factory)
    assert shown is not None and shown.finding.op is not None
    return rule_of(shown), shown.finding.op


# Lengths of a snapshot

WRONG_LENGTHS = {
    "committed past allocated": ({"committed_len": 9}, "LEN-1"),
    "protected past committed": ({"protected_len": 8}, "LEN-1"),
    "a part of a page protected": ({"protected_len": 3}, "LEN-2"),
    "less protected than is locked": ({"protected_len": 0}, "STORE-2"),
    "fewer committed": ({"committed_len": 5}, "LEN-1"),
    "more committed": ({"committed_len": 7, "allocated_len": 8}, "DATA-1"),
    "more allocated": ({"allocated_len": 7}, "LEN-1"),
}
OF_A_SLOT = WRONG_LENGTHS | {
    "fewer committed": ({"committed_len": 5}, "SESS-2"),
    "more allocated": ({"allocated_len": 9}, "LEN-1"),
}


@pytest.mark.parametrize(("lengths", "rule"), WRONG_LENGTHS.values(), ids=WRONG_LENGTHS)
def test_a_wrong_length_of_a_request(lengths: dict[str, int], rule: str) -> None:
    before = [*runs("r", range(6)), CacheUnfinished("r")]
    right = looked(before).requests or {}
    assert (right["r"].protected_len, right["r"].committed_len, right["r"].allocated_len) == (4, 6, 6)
    assert blamed(before, Snapshot(obs=SnapshotAnswer(requests={"r": replace(right["r"], **lengths)}))) == rule


@pytest.mark.parametrize(("lengths", "rule"), OF_A_SLOT.values(), ids=OF_A_SLOT)
def test_a_wrong_length_of_a_slot(lengths: dict[str, int], rule: str) -> None:
    right = looked(FIRST_TURN).sessions or {}
    assert blamed(FIRST_TURN, Snapshot(obs=SnapshotAnswer(sessions={"s": replace(right["s"], **lengths)}))) == rule


@pytest.mark.parametrize(
    ("lengths", "rule"),
    [({"allocated_len": 8}, "TAIL-1"), ({"committed_len": 5}, "SESS-2"), ({"protected_len": 0}, "STORE-2")],
)
def test_a_wrong_length_of_a_turn_that_has_matched(lengths: dict[str, int], rule: str) -> None:
    before = [*FIRST_TURN, SECOND_TURN, MatchPrefix("t2")]
    right = looked(before).requests or {}
    assert blamed(before, Snapshot(obs=SnapshotAnswer(requests={"t2": replace(right["t2"], **lengths)}))) == rule


class _CommitsOtherwise(Engine):
    by = 1

    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        done = super().verify(req, accepted, tokens)
        self.running[req].kv.kv_committed_len += self.by
        return done


class _CommitsFewer(_CommitsOtherwise):
    by = -1


@pytest.mark.parametrize("factory", [_CommitsOtherwise, _CommitsFewer])
def test_a_verify_that_commits_another_number_is_blamed_itself(factory: type[Engine]) -> None:
    step: Operations = [Decode(["r"], 3), Launch(2, ["r"]), Complete(2), Verify("r", 2, [8, 9])]
    assert in_the_end(factory, [*runs("r", range(6)), *step])[0] == "SPEC-1"


def test_after_a_verify_a_slot_answers_for_its_own_lengths() -> None:
    step: Operations = [Decode(["t2"], 3), Launch(2, ["t2"]), Complete(2), Verify("t2", 2, [8, 9]), Finish("t2")]
    turn = [OpenSession("s"), *runs("t2", range(6), "s"), *step]
    right = looked(turn).sessions or {}
    more = replace(right["s"], committed_len=9, allocated_len=12)
    assert blamed(turn, Snapshot(obs=SnapshotAnswer(sessions={"s": more}))) == "DATA-1"


# Protected lengths that a match reports


@pytest.mark.parametrize(("protected_len", "rule"), [(2, "LEN-2"), (0, "STORE-4")])
def test_a_match_that_protects_another_length(protected_len: int, rule: str) -> None:
    before = [*runs("r", range(6)), Finish("r"), Submit("q", [*range(6)])]
    assert blamed(before, MatchPrefix("q", obs=MatchAnswer(4, protected_len, []))) == rule


@pytest.mark.parametrize(("protected_len", "rule"), [(6, "LEN-2"), (0, "STORE-2")])
def test_a_resume_that_protects_another_length(protected_len: int, rule: str) -> None:
    assert blamed([*FIRST_TURN, SECOND_TURN], MatchPrefix("t2", obs=MatchAnswer(6, protected_len, []))) == rule


def test_why_a_match_is_the_longest_is_said_for_shorter_ones_as_well() -> None:
    assert "a longer match" in RULES["STORE-4"].reason and "a shorter one" in RULES["STORE-4"].reason


# The end of a turn publishes nothing


class _PublishesAtTheEnd(Engine):
    class session_class(SessionCache):  # noqa: N801
        def save(self, slot: SessionSlot, run: Run) -> None:
            super().save(slot, run)
            self.inner.cache_finished_req(run.kv, run.tokens, run.kv.kv_committed_len)


SESSION: Operations = [OpenSession("s"), *runs("t1", range(6), "s")]
KNOWN: Operations = [*runs("r", range(6), launch=9), Finish("r")]


@pytest.mark.parametrize("end", [Finish("t1"), Retract("t1")])
def test_the_end_of_a_turn_that_publishes(end: Operation[Any]) -> None:
    assert in_the_end(_PublishesAtTheEnd, [*SESSION, end])[0] == "SESS-6"


def test_the_end_of_a_turn_that_publishes_what_the_store_has() -> None:
    """Both run before one of them publishes: the other has duplicates, and frees them."""
    both: Operations = [OpenSession("s"), *runs("t1", range(6), "s"), *runs("r", range(6), launch=2), Finish("r")]
    rule, op = in_the_end(_PublishesAtTheEnd, [*both, Finish("t1")])
    assert rule == "SESS-6" and isinstance(op, Finish)


def test_the_late_end_of_a_session_that_publishes() -> None:
    late: Operations = [*SESSION, CloseSession("s")]
    rule, op = in_the_end(_PublishesAtTheEnd, [*late, Finish("t1")])
    assert rule == "SESS-6" and isinstance(op, Finish)
    assert blamed(late, Finish("t1", obs=ReleaseAnswer([]))) == "SESS-4"
    assert blamed(late, Finish("t1", obs=ReleaseAnswer([1]))) == "PAGE-1"
    assert blamed([*KNOWN, *late], Finish("t1", obs=ReleaseAnswer([2, 1]))) == "PAGE-1"


def test_an_abort_that_loses_a_part_of_what_it_lets_go() -> None:
    """A turn's memory stays where it should be wiped (SESS-5), or a page of it belongs to no holder (PAGE-1)."""
    assert blamed(SESSION, Abort("t1", obs=ReleaseAnswer([]))) == "SESS-5"
    assert blamed(SESSION, Abort("t1", obs=ReleaseAnswer([1]))) == "PAGE-1"


def test_a_slot_that_counts_what_was_never_launched() -> None:
    """Of 6 tokens of a retracted turn 4 were launched."""
    chunks: Operations = [OpenSession("s"), Submit("t1", [*range(6)], "s"), MatchPrefix("t1"), Prefilled([("t1", 4)])]
    before: Operations = [*chunks, Launch(1, ["t1"]), Complete(1), Prefilled([("t1", 6)]), Retract("t1")]

    def counting(committed: int) -> Snapshot:
        return Snapshot(obs=SnapshotAnswer(sessions={"s": HolderView(0, 0, committed, 8)}))

    assert blamed(before, counting(6)) == "LAUNCH-1"
    assert blamed(before, counting(7)) == "DATA-1"


def test_a_close_that_waits_frees_no_page_of_its_turn_nor_of_others() -> None:
    before = [*KNOWN, *SESSION]
    assert blamed(before, CloseSession("s", obs=ReleaseAnswer([2]))) == "SESS-4"
    assert blamed(before, CloseSession("s", obs=ReleaseAnswer([1]))) == "PAGE-1"
    assert blamed(before, CloseSession("s", obs=ReleaseAnswer([9]))) == "PAGE-1"


# Rows

CLOSING: Operations = [*FIRST_TURN, SECOND_TURN, CloseSession("s")]


@pytest.mark.parametrize(("free_rows", "rule"), [([0, 1], "SESS-4"), ([1], "ROW-1"), (None, "SESS-4")])
def test_a_closing_slot_that_is_gone_was_let_go_or_lost(free_rows: list[int] | None, rule: str) -> None:
    assert blamed(CLOSING, Snapshot(obs=SnapshotAnswer(sessions={}, free_rows=free_rows))) == rule


class _LosesTheRowsOfARefusedBatch(Engine):
    names_them = False

    def _alloc_rows(self, batch: list[Prefill]) -> list[int]:
        try:
            return super()._alloc_rows(batch)
        except Refusal:
            for prefill in batch:
                if prefill.row is None and self.pool.available:
                    kv = KvRecord(self.pool._take_free_row(), Lengths(0, 0, 0), self.tree_cache.root)
                    if self.names_them:
                        self.holders[prefill.request.name] = kv
            raise


class _NamesTheRowsOfARefusedBatch(_LosesTheRowsOfARefusedBatch):
    names_them = True


THREE: Operations = [op for name in "abc" for op in (Submit(name, [1, 2]), MatchPrefix(name))]
TOO_MANY: Operations = [*THREE, Prefilled([("a", 2), ("b", 2), ("c", 2)])]
AGAIN: Operations = [
    *runs("a", [1, 2]),
    Retract("a"),
    MatchPrefix("a"),
    *THREE[2:],
    Prefilled([("a", 3), ("b", 2), ("c", 2)]),
]
"""One of them has run before."""


@pytest.mark.parametrize("operations", [TOO_MANY, AGAIN])
@pytest.mark.parametrize("factory", [_LosesTheRowsOfARefusedBatch, _NamesTheRowsOfARefusedBatch])
def test_rows_of_a_refused_batch(factory: type[Engine], operations: Operations) -> None:
    rule, op = in_the_end(factory, operations)
    assert rule == "ROW-3" and isinstance(op, Snapshot), "at the first look after the batch"


def test_rows_of_a_refused_batch_are_missing_in_what_follows() -> None:
    again = replace(TOO_MANY[-1], refused=Refused(rule="CAP-1", rows_short=3))
    report = Report()
    model_after(TOO_MANY, report)
    assert report.obs is not None
    fewer = replace(report.obs, rows_available=0)
    assert blamed(TOO_MANY, again) == blamed(TOO_MANY, Report(obs=fewer)) == "ROW-3"
    assert blamed(TOO_MANY, replace(again, refused=Refused(rule="CAP-1", rows_short=0, pages_short=1))) == "CAP-1"
    for look in (Snapshot(), Report()):
        assert blamed([*TOO_MANY, look], again) == "CAP-1", "the rows were all there since"
        assert blamed([*TOO_MANY, look], Report(obs=fewer)) == "ACC-1"
        assert blamed([*TOO_MANY, look], Snapshot(obs=SnapshotAnswer(free_rows=[1]))) == "ROW-1"
    assert blamed(TOO_MANY, Snapshot(obs=SnapshotAnswer(free_rows=[1]))) == "ROW-3"
    assert blamed(TOO_MANY, Snapshot(obs=SnapshotAnswer(free_rows=[0, 1, 2]))) == "ROW-1"


GONE: Operations = [*runs("r", range(6)), Finish("r")]
REPORTS_A_ROW = {
    "of one that is gone, free by now": (
        GONE,
        {"requests": {"r": HolderView(0, 0, 1, 1)}, "free_rows": [0, 1]},
        "ROW-4",
    ),
    "of one that is gone, without a holder": (
        GONE,
        {"requests": {"r": HolderView(0, 0, 1, 1)}, "free_rows": [1]},
        "ROW-1",
    ),
    "of one that is gone, free or not": (GONE, {"requests": {"r": HolderView(0, 0, 1, 1)}}, "ROW-4"),
    "of a slot, free by now": (
        [*FIRST_TURN, Preempt("s")],
        {"sessions": {"s": HolderView(0, 0, 1, 1)}, "free_rows": [0, 1]},
        "ROW-4",
    ),
    "of a slot, without a holder": (
        [*FIRST_TURN, Preempt("s")],
        {"sessions": {"s": HolderView(0, 0, 1, 1)}, "free_rows": [1]},
        "ROW-1",
    ),
}


@pytest.mark.parametrize(("before", "answer", "rule"), REPORTS_A_ROW.values(), ids=REPORTS_A_ROW)
def test_a_row_too_many(before: Operations, answer: dict[str, Any], rule: str) -> None:
    assert blamed(before, Snapshot(obs=SnapshotAnswer(**answer))) == rule


def test_an_old_row_that_is_another_requests_by_now() -> None:
    before: Operations = [*runs("a", [1, 2]), Retract("a"), *runs("b", [3, 4], launch=2), MatchPrefix("a")]
    kept = looked(before)
    assert kept.requests is not None
    stale = {**kept.requests, "a": HolderView(0, 0, 3, 3)}
    assert blamed(before, Snapshot(obs=SnapshotAnswer(requests=stale))) == "ROW-4"
    assert blamed(before, Prefilled([("a", 3)], obs=ExtendAnswer(rows={"a": 0}, pages={"a": [2]}))) == "ROW-4"
    others: Operations = [*before, Submit("c", [5]), MatchPrefix("c")]
    assert blamed(others, Prefilled([("c", 1)], obs=ExtendAnswer(rows={"c": 0}, pages={"c": [2]}))) == "ROW-1"


# Refusals, and what goes to the store


class _SamplesInTheMiddle(Engine):
    def launch(self, launch: int, reqs: list[str]) -> Done:
        done = super().launch(launch, reqs)
        self.launches[-1].sampled.update({req: self.running[req] for req in reqs if self.running[req].mid_prefill})
        return done


def test_a_middle_chunk_that_is_sampled() -> None:
    chunk: Operations = [Submit("r", [*range(9)]), MatchPrefix("r"), Prefilled([("r", 4)]), Launch(1, ["r"])]
    assert in_the_end(_SamplesInTheMiddle, [*chunk, Complete(1)])[0] == "CHUNK-1"


@pytest.mark.parametrize(("named", "rule"), [("CHUNK-1", "CHUNK-1"), (None, "OP-1"), ("BATCH-1", "OP-1")])
def test_a_completion_that_is_refused(named: str | None, rule: str) -> None:
    before = runs("r", range(6))
    assert blamed(before[:-1], replace(before[-1], refused=Refused("no", named))) == rule


@pytest.mark.parametrize(("named", "rule"), [("BATCH-1", "BATCH-1"), ("BATCH-2", "BATCH-2"), ("CHUNK-1", "OP-1")])
def test_a_batch_that_is_refused(named: str, rule: str) -> None:
    """The last chunk of one request goes with the first one of another."""
    first: Operations = [Submit("a", [*range(6)]), MatchPrefix("a"), Prefilled([("a", 4)]), Launch(1, ["a"])]
    before: Operations = [*first, Complete(1), Submit("b", [*range(1, 7)]), MatchPrefix("b")]
    assert blamed(before, Prefilled([("a", 6), ("b", 4)], refused=Refused("no", named))) == rule


def test_a_finish_that_frees_what_it_should_publish() -> None:
    before = runs("r", range(6))
    with pytest.raises(Violation, match=r"^STORE-5: page 1 was freed, but it is no duplicate$"):
        model_after([replace(op) for op in before], Finish("r", obs=ReleaseAnswer([1, 2])))
    wrong = CacheUnfinished("r", obs=PublishAnswer(4, [1]))
    with pytest.raises(Violation, match=r"^STORE-5: page 1 was freed, but it is no duplicate$"):
        model_after([replace(op) for op in before], wrong)
    shared: Operations = [*before, *runs("q", range(6), launch=2), Finish("q")]
    with pytest.raises(Violation, match=r"^STORE-5: page 3 was freed, but it belongs to the prefix store$"):
        model_after([replace(op) for op in shared], CacheUnfinished("r", obs=PublishAnswer(4, [3])))
    assert blamed(shared, CacheUnfinished("r", obs=PublishAnswer(4, [1, 9]))) == "PAGE-1"


def test_a_prefill_that_is_refused_for_a_race_that_is_none() -> None:
    before: Operations = [Submit("r", [0] * 6), MatchPrefix("r")]
    assert blamed(before, Prefilled([("r", 6)], refused=Refused("it is read", "RACE-1"))) == "RACE-1"


def test_a_publication_without_a_store() -> None:
    """Nothing is published, of a session's first turn neither: that is no matter of sessions."""
    without = replace(SMALL, prefix_cache=False)
    before: Operations = [OpenSession("s"), *runs("r", range(6), "s")]
    wrong = CacheUnfinished("r", obs=PublishAnswer(4, []))
    assert blamed(before, wrong, without) == "STORE-5"


@pytest.mark.parametrize(
    ("pages", "window", "allowed"), [(0, 0, True), (3, 4, True), (3, 0, False), (0, 4, False), (3, 5, False)]
)
def test_a_refusal_says_all_that_was_missing_or_nothing(pages: int, window: int, *, allowed: bool) -> None:
    small = replace(SMALL, num_pages=2, sliding_window=4, num_window_pages=1)
    before: Operations = [Submit("r", [0] * 18), MatchPrefix("r")]
    refused = Refused("no room", "CAP-1", pages_short=pages, window_short=window)
    last = Prefilled([("r", 18)], refused=refused)
    if allowed:
        model_after(before, last, small)
    else:
        assert blamed(before, last, small) == "CAP-1"


def test_a_side_that_should_move_to_the_store_is_freed() -> None:
    """The window side of a duplicate goes to the tombstone of the store, and is not given back with the duplicate."""
    small = replace(SMALL, sliding_window=4, num_window_pages=8)
    cached: Operations = [*runs("a", range(9)), Finish("a"), Evict(0, window=2), *runs("b", range(9), launch=2)]
    wrong = CacheUnfinished("b", obs=PublishAnswer(8, [3, 4], window_freed=[1]))
    assert blamed(cached, wrong, small) == "SWA-6"
