"""The promises of the scheduler. It runs on the reference, and the model checks every operation and answer."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from kvref.scheduler import MAX_RECEIVED_PER_ROW, MIN_WAITING, NotObserved, Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvref.scheduler.req import GenerateReq
from kvspec.events import (
    A,
    Abort,
    CloseSession,
    Complete,
    Config,
    Decode,
    Evict,
    EvictAnswer,
    Extend,
    Figures,
    Finish,
    Launch,
    MatchAnswer,
    MatchPrefix,
    OpenSession,
    Operation,
    Preempt,
    Refusal,
    Report,
    Retract,
    Submit,
)
from kvspec.rules import Violation
from tests.marks import one_in
from tests.reference.scheduling import MODES, ROOMY, Watched, outputs_of, request, run, sampled, traffic


@pytest.mark.slow
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("config", one_in(3, MODES), ids=map(repr, MODES))
def test_every_request_ends_and_nothing_is_held_at_the_end(config: SchedulerConfig, page_size: int) -> None:
    memory = Config(page_size, 160 // page_size, 4, 10_000, prefix_cache=page_size != 16)
    watched, scheduler = run(memory, traffic(60, page_size, page_size), config)
    assert scheduler.finished + len(scheduler.aborted) + len(scheduler.rejected) == 60
    assert scheduler.finished == len(watched.all(Finish))
    if not config.abort_interval:
        assert not scheduler.aborted
        for finished in watched.all(Finish):
            assert sampled(watched)[finished.req] == outputs_of(60, page_size)[finished.req]
    assert watched.most_mid_prefill == 1


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_a_prefill_keeps_its_budget(overlap: bool) -> None:
    config = SchedulerConfig(max_prefill_tokens=20, chunked_prefill_size=12, overlap=overlap)
    watched, _ = run(ROOMY, traffic(80, 1, 4), config)
    reached: dict[str, int] = {}
    fullest = 0
    for op in watched.done:
        if isinstance(op, MatchPrefix) and op.obs is not None and op.obs.prefix_len is not None:
            reached[op.req] = op.obs.prefix_len
        elif isinstance(op, Extend) and op.refused is None:
            counts = [seq_len - reached[req] for req, seq_len in op.reqs]
            assert max(counts) <= 12
            assert sum(counts) <= 20
            fullest = max(fullest, sum(counts))
            reached.update(op.reqs)
    assert fullest == 20


def test_a_request_that_is_not_admitted_matches_again() -> None:
    """The first chunk of `b` shares a batch with the last of `a`; `c` has to wait, matched, and its slot lent."""
    first = request("first", 8, 2, session="s", last_turn=False)
    turn = GenerateReq("c", [*first.tokens, *first.outputs, *range(9)], range(70, 72), "s")
    config = SchedulerConfig(max_prefill_tokens=20, chunked_prefill_size=16, mixed_chunk=True)
    watched, _ = run(ROOMY, [first, request("a", 24, 9), request("b", 40, 2), turn], config)
    matches = [op.obs.prefix_len for op in watched.all(MatchPrefix) if op.req == "c"]
    assert len(matches) > 1
    assert len(set(matches)) == 1
    assert watched.model.state.reached["lend repeated"] >= 1
    assert watched.model.state.reached["last chunk beside a first chunk"] >= 1


def test_with_overlap_a_launch_is_handed_over_before_the_one_before_it_completes() -> None:
    memory = msgspec.structs.replace(ROOMY, num_rows=3)
    watched, _ = run(memory, traffic(40, 2, 4), SchedulerConfig(overlap=True))
    assert watched.model.state.reached["launch overlapped"] > 40
    assert watched.model.state.reached["row withheld"]
    in_flight = 0
    for op in watched.done:
        in_flight += isinstance(op, Launch) - isinstance(op, Complete)
        assert in_flight <= 2


def test_without_overlap_a_launch_completes_before_the_next() -> None:
    watched, _ = run(ROOMY, traffic(40, 2, 4))
    assert not watched.model.state.reached["launch overlapped"]


def test_with_mixed_chunk_prefill_and_decode_share_a_launch() -> None:
    watched, _ = run(ROOMY, traffic(40, 3, 4), SchedulerConfig(max_prefill_tokens=9, mixed_chunk=True))
    batches = [op.reqs for op in watched.all(Launch)]
    extended = [{req for req, _ in op.reqs} for op in watched.all(Extend)]
    decoded = [set(op.reqs) for op in watched.all(Decode)]
    assert any(one | other == set(batch) for batch in batches for one in extended for other in decoded)


def test_speculative_decoding_drops_what_is_past_the_end() -> None:
    watched, scheduler = run(ROOMY, traffic(60, 4, 4), SchedulerConfig(drafts=3))
    assert scheduler.finished == 60
    assert watched.model.state.reached["overshoot"]
    assert watched.model.state.reached["tail freed"]
    assert {op.n for op in watched.all(Decode)} == {4}


def test_under_pressure_pages_are_evicted_then_sessions_preempted_then_the_last_request_retracted() -> None:
    """Ten pages: a cached one, an idle session's two, and three requests that grow to five pages each."""
    memory = Config(page_size=4, num_pages=10, num_rows=8, max_context_len=100)
    early = [request("old", 4, 1), request("turn", 6, 2, session="s", last_turn=False)]
    grow = [request(name, 5, 15) for name in ("a", "b", "c")]
    late = request("late", 20, 1)
    last = GenerateReq("end", [*early[1].tokens, *early[1].outputs, 5], [6], "s")
    # Nothing is kept for growth, so all three are admitted.
    config = SchedulerConfig(schedule_conservativeness=0)
    watched, _ = run(memory, [*early, *grow, late, last], config)
    first: dict[type[Operation[Any]], int] = {}
    for place, op in enumerate(watched.done):
        if op.refused is None:
            first.setdefault(type(op), place)
    assert first[Evict] < first[Preempt] < first[Retract]
    assert next(op.req for op in watched.all(Retract)) == "c"
    assert "a" not in [op.req for op in watched.all(Retract)]


def test_the_only_running_request_is_never_retracted() -> None:
    memory = Config(page_size=1, num_pages=30, num_rows=4, max_context_len=100)
    config = SchedulerConfig(retract_interval=1, schedule_conservativeness=0)
    requests = [request(f"r{number}", 5, 20) for number in range(6)]
    watched, scheduler = run(memory, requests, config)
    assert scheduler.finished == 6
    running: set[str] = set()
    for op in watched.done:
        if op.refused is not None:
            continue
        if isinstance(op, Extend):
            running.update(req for req, _ in op.reqs)
        elif isinstance(op, Retract):
            assert len(running) > 1
            running.remove(op.req)
        elif isinstance(op, Finish):
            running.remove(op.req)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_forced_retracts_let_decodes_run_in_between(overlap: bool) -> None:
    watched, scheduler = run(ROOMY, traffic(40, 5, 4), SchedulerConfig(retract_interval=1, overlap=overlap))
    assert scheduler.finished == 40
    retracts = [place for place, op in enumerate(watched.done) if isinstance(op, Retract)]
    assert len(retracts) > 20
    kinds = [type(op) for op in watched.done]
    assert all(Decode in kinds[here:there] for here, there in pairwise(retracts))


@pytest.mark.slow
def test_aborts_come_at_every_moment() -> None:
    config = SchedulerConfig(max_prefill_tokens=9, chunked_prefill_size=7, abort_interval=2)
    watched, scheduler = run(ROOMY, traffic(120, 6, 4), config)
    state: dict[str, str] = {}
    moments: Counter[str] = Counter()
    for op in watched.done:
        if isinstance(op, Abort):
            moments[state[op.req] if op.refused is None else "refused"] += 1
            state[op.req] = "gone"
        elif isinstance(op, Submit):
            state[op.req] = "waits"
        elif isinstance(op, Extend) and op.refused is None:
            state.update({req: "prefill" for req, _ in op.reqs})
        elif isinstance(op, Decode) and op.refused is None:
            state.update(dict.fromkeys(op.reqs, "decodes"))
    assert moments.keys() == {"waits", "prefill", "decodes", "refused"}
    assert scheduler.finished + len(scheduler.aborted) == 120


@pytest.mark.slow
def test_sessions_that_their_clients_close_are_opened_anew_for_the_next_turn() -> None:
    watched, scheduler = run(ROOMY, traffic(80, 7, 4), SchedulerConfig(close_interval=2))
    assert scheduler.finished == 80
    assert watched.model.state.reached["deferred close done"]
    assert watched.model.state.reached["idle session closed"]
    opened = Counter(op.session for op in watched.all(OpenSession))
    assert max(opened.values()) > 1
    assert opened == Counter(op.session for op in watched.all(CloseSession))


def test_a_turn_is_submitted_when_the_turn_before_it_has_ended_and_the_session_closed_after_the_last() -> None:
    watched, _ = run(ROOMY, traffic(60, 8, 4))
    session_of = {one.name: one.session for one in traffic(60, 8, 4) if one.session}
    turns: dict[str, list[str]] = {}
    in_flight: dict[str | None, str] = {}
    for op in watched.done:
        if isinstance(op, Submit) and op.session:
            assert op.session not in in_flight
            in_flight[op.session] = op.req
            turns.setdefault(op.session, []).append(op.req)
        elif isinstance(op, Finish) and op.req in session_of:
            del in_flight[session_of[op.req]]
        elif isinstance(op, CloseSession):
            assert len(turns[op.session]) == list(session_of.values()).count(op.session)
    assert [req for reqs in turns.values() for req in reqs] == sorted(
        session_of, key=lambda req: ([*turns].index(session_of[req] or ""), int(req[1:]))
    )


def test_a_request_that_can_never_fit_is_rejected_with_its_reason() -> None:
    memory = Config(page_size=4, num_pages=10, num_rows=2, max_context_len=100)
    requests = [
        request("fits", 30, 10),
        request("grows", 30, 11),
        request("turn", 5, 2, session="s", last_turn=False),
        request("long", 120, 1, session="s"),
    ]
    watched, scheduler = run(memory, requests)
    assert scheduler.finished == 2
    assert scheduler.rejected == {
        "grows": "11 pages are more than all 10",
        "long": "121 positions exceed the context of 100",
    }
    assert [op.session for op in watched.all(CloseSession)] == ["s"]


def test_idle_sessions_that_pin_all_rows_are_preempted_least_recently_used_first() -> None:
    memory = msgspec.structs.replace(ROOMY, num_rows=2)
    opening = [request(f"{name}1", 5, 2, session=name, last_turn=False) for name in ("s", "t", "u", "v")]
    closing = [GenerateReq(f"{one.name}end", [*one.tokens, *one.outputs, 3], [4], one.session) for one in opening]
    # One prompt fills a batch: `u1` comes while `s` and `t` hold both rows, and before a further turn of theirs.
    watched, scheduler = run(memory, opening + closing, SchedulerConfig(max_prefill_tokens=5))
    assert scheduler.finished == 8
    assert [op.session for op in watched.all(Preempt)][:2] == ["s", "t"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_memory_that_a_waiting_turn_was_lent_is_taken_back_when_nothing_else_is_left(seed: int) -> None:
    """Two rows and few more pages than the largest request: one that goes on needs all memory of the others."""
    memory = Config(page_size=2, num_pages=40, num_rows=3, max_context_len=1000)
    config = SchedulerConfig(max_prefill_tokens=7, chunked_prefill_size=5, schedule_conservativeness=0)
    _, scheduler = run(memory, traffic(60, seed, 2), config)
    assert scheduler.finished + len(scheduler.rejected) == 60


@pytest.mark.slow
def test_requests_are_drawn_only_while_few_wait() -> None:
    drawn = 0

    def endless() -> Iterator[GenerateReq]:
        nonlocal drawn
        while True:
            drawn += 1
            yield request(f"r{drawn}", 6, 3)

    scheduler = Scheduler(Watched(ROOMY), ROOMY, endless())
    for _ in range(50):
        scheduler.cycle()
        assert drawn <= scheduler.finished + min(MIN_WAITING + ROOMY.num_rows, MAX_RECEIVED_PER_ROW * ROOMY.num_rows)
    assert scheduler.finished > MIN_WAITING


def test_without_figures_room_is_found_by_trying() -> None:
    memory = Config(page_size=4, num_pages=40, num_rows=4, max_context_len=1000)
    watched = Watched(memory)

    def step(op: Operation[A], /) -> A:
        answer = watched(op)
        return Figures() if isinstance(op, Report) else answer  # type: ignore[return-value]

    scheduler = Scheduler(step, memory, traffic(60, 9, 4))
    scheduler.run()
    assert scheduler.finished + len(scheduler.rejected) == 60
    assert any(isinstance(op, Extend) and op.refused for op in watched.done)


def test_an_engine_that_omits_the_length_of_a_match_cannot_be_scheduled() -> None:
    watched = Watched(ROOMY)

    def step(op: Operation[A], /) -> A:
        answer = watched(op)
        return MatchAnswer() if isinstance(op, MatchPrefix) else answer  # type: ignore[return-value]

    with pytest.raises(NotObserved, match="prefix_len"):
        Scheduler(step, ROOMY, [request("r", 5, 2)]).run()


@pytest.mark.parametrize("kind", [Extend, Decode])
def test_an_engine_without_room_for_anything_ends_in_live_1(kind: type[Operation[Any]]) -> None:
    watched = Watched(ROOMY)

    def step(op: Operation[A], /) -> A:
        if isinstance(op, kind):
            raise Refusal("CAP-1", "leaked", pages_short=1)
        return EvictAnswer([]) if isinstance(op, Evict) else watched(op)  # type: ignore[return-value]

    with pytest.raises(Violation, match="LIVE-1"):
        Scheduler(step, ROOMY, [request("r", 5, 2)]).run()


def test_a_refusal_for_another_reason_than_room_is_passed_on() -> None:
    watched = Watched(ROOMY)

    def step(op: Operation[A], /) -> A:
        if isinstance(op, Decode):
            raise Refusal("OP-1", "out of order")
        return watched(op)

    with pytest.raises(Refusal, match="out of order"):
        Scheduler(step, ROOMY, [request("r", 5, 2)]).run()
