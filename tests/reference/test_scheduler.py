"""What the scheduler promises. It runs on the reference, and the model judges every operation and answer."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import msgspec
import pytest

from kvconform.checked import Checked
from kvref.manager import Manager
from kvref.policy import SchedulerConfig, window_pages_alone
from kvref.scheduler import MAX_RECEIVED_PER_ROW, MIN_WAITING, NotObserved, Scheduler
from kvref.scheduler_req import GenerateReq
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
    FreeState,
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
    SwaEvict,
    TakeState,
    Verify,
)
from kvspec.model import Model
from kvspec.pages import expand
from kvspec.rules import Violation
from kvspec.tokens import Element

PLAIN = SchedulerConfig()
ROOMY = Config(page_size=4, num_pages=1000, num_rows=8, max_context_len=4000)


class Watched:
    """The reference under the eye of the model; remembers what was done."""

    def __init__(self, memory: Config) -> None:
        self.model = Model(memory)
        self.done: list[Operation[Any]] = []
        self.most_mid_prefill = 0
        self._checked = Checked(Manager(memory), self.model, record=self.done.append, snapshot_every=50)

    def __call__(self, op: Operation[A], /) -> A:
        answer = self._checked(op)
        self.most_mid_prefill = max(self.most_mid_prefill, len(self.model.state.mid_prefill))
        return answer

    def all(self, kind: type[Operation[Any]]) -> list[Any]:
        """The operations of one kind that were carried out."""
        return [op for op in self.done if isinstance(op, kind) and op.refused is None]


def run(memory: Config, requests: Iterable[GenerateReq], config: SchedulerConfig = PLAIN) -> tuple[Watched, Scheduler]:
    """Run requests to their end; nothing may be held then."""
    watched = Watched(memory)
    scheduler = Scheduler(watched, memory, requests, config)
    for _ in range(20_000):
        if not scheduler.cycle():
            break
    else:
        pytest.fail("this never ends")
    watched(Report("idle"))
    state = watched.model.state
    assert not (state.requests or state.sessions or state.flights or state.rows or state.store.pins)
    return watched, scheduler


def request(name: str, prompt_len: int, output_len: int, **more: Any) -> GenerateReq:
    """A request whose tokens nobody shares."""
    first = 1_000_000 * (1 + sum(ord(char) * 131**place for place, char in enumerate(name)))
    return GenerateReq(
        name, [*range(first, first + prompt_len)], range(first + 500_000, first + 500_000 + output_len), **more
    )


def traffic(count: int, seed: int, page_size: int) -> Iterator[GenerateReq]:
    """Plain requests of three families that share prefixes, and the turns of six sessions, mixed."""
    draw = random.Random(seed)
    owner = [draw.choice([None, None, *range(6)]) for _ in range(count)]
    histories: dict[int, list[Element]] = {}
    for index in range(count):
        first = index << 24
        outputs = range(first + (1 << 20), first + (1 << 20) + draw.randint(1, 12))
        session = owner[index]
        tokens: list[Element]
        if session is None:
            family = draw.randint(0, 2)
            tokens = [f"{family}.{page}" for page in range(draw.randint(0, 4))]
            tokens += range(first, first + draw.randint(1, 3 * page_size))
            yield GenerateReq(f"r{index}", tokens, outputs)
            continue
        tokens = list(histories.get(session) or [f"0.{page}" for page in range(draw.randint(0, 3))])
        tokens += range(first, first + draw.randint(0 if session in histories else 1, 2 * page_size))
        histories[session] = [*tokens, *outputs]
        yield GenerateReq(f"r{index}", tokens, outputs, f"s{session}", session not in owner[index + 1 :])


MODES = [
    SchedulerConfig(
        max_prefill_tokens=budget,
        chunked_prefill_size=chunk,
        overlap=overlap,
        mixed_chunk=mixed_chunk,
        drafts=drafts,
        **dict.fromkeys(("retract_interval", "abort_interval", "close_interval"), interval),
    )
    for overlap, mixed_chunk, drafts, (budget, chunk), interval in product(
        (False, True), (False, True), (0, 3), ((40, 13), (17, 17)), (0, 3)
    )
]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("config", MODES, ids=repr)
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


HYBRID = {
    "window within a page": {"sliding_window": 3, "num_window_pages": 30},
    "scarce window of pages": {"sliding_window": 9, "num_window_pages": 10},
    "states": {"num_states": 7},
    "states for one": {"num_states": 3},
    "windows, no prefix cache": {"sliding_window": 9, "num_window_pages": 10, "prefix_cache": False},
    "states, no prefix cache": {"num_states": 3, "prefix_cache": False},
}


@pytest.mark.parametrize("pools", HYBRID.values(), ids=HYBRID)
@pytest.mark.parametrize("config", MODES[::3], ids=repr)
def test_with_hybrid_pools_every_request_ends_too(config: SchedulerConfig, pools: dict[str, Any]) -> None:
    memory = msgspec.structs.replace(Config(4, 40, 4, 10_000), **pools)
    if memory.num_states:
        config = replace(config, drafts=0)
    watched, scheduler = run(memory, traffic(40, 4, 4), config)
    assert scheduler.finished + len(scheduler.aborted) + len(scheduler.rejected) == 40
    if not config.abort_interval:
        for finished in watched.all(Finish):
            assert sampled(watched)[finished.req] == outputs_of(40, 4)[finished.req]
    state = watched.model.state
    watched(Evict(40))
    assert not (state.window_of or state.state_owner or state.store.entries)


LONGER_THAN_THE_WINDOW_POOL = [*product((1, 4), (1, 5, 8), (0, 3), (False, True), (None, "s"), (True, False))]


@pytest.mark.parametrize(("page_size", "window", "drafts", "overlap", "session", "cached"), LONGER_THAN_THE_WINDOW_POOL)
def test_a_request_longer_than_the_window_pool_runs_in_just_the_pages_that_it_needs(
    page_size: int, window: int, drafts: int, overlap: bool, session: str | None, cached: bool
) -> None:
    memory = Config(page_size, 200, 4, 10_000, cached, sliding_window=window, num_window_pages=1)
    needed = window_pages_alone(drafts, memory)
    one = request("long", 61, 60, session=session)
    again = request("long", 61, 60)._replace(name="again")
    config = SchedulerConfig(drafts=drafts, overlap=overlap, chunked_prefill_size=100)
    memory = msgspec.structs.replace(memory, num_window_pages=needed)
    watched, scheduler = run(memory, [one, again], config)
    assert (scheduler.finished, scheduler.rejected) == (2, {})
    assert watched.model.reached["window evicted"]
    memory = msgspec.structs.replace(memory, num_window_pages=needed - 1)
    _, scheduler = run(memory, [one, again], config)
    reason = f"{needed} window pages are more than all {needed - 1}"
    assert scheduler.rejected == {"long": reason, "again": reason}


def test_windows_slide_once_that_is_worth_it_and_give_back_all_when_short() -> None:
    memory = Config(4, 200, 4, 1000, sliding_window=32, num_window_pages=200)
    watched, _ = run(memory, [request("r", 8, 200)])
    freed = [len(expand(op.obs.window_freed)) for op in watched.all(SwaEvict)]
    assert freed == [0] + [2] * 20, "first it learns what is protected; then a quarter of the window at a time"
    # Two windows of nine pages, a page that is cut, and two locked pages each; hardly anything may be left behind.
    memory = msgspec.structs.replace(memory, sliding_window=36, num_window_pages=26)
    watched, scheduler = run(memory, [request("a", 8, 150), request("b", 9, 150)])
    assert scheduler.finished == 2
    assert any(op.refused and op.refused.window_short for op in watched.done)
    assert not watched.all(Retract), "what was left behind sufficed"


def test_the_window_of_a_request_that_was_retracted_begins_anew() -> None:
    memory = Config(1, 200, 4, 1000, False, sliding_window=5, num_window_pages=30)
    config = SchedulerConfig(retract_interval=5)
    watched, scheduler = run(memory, [request("a", 60, 30), request("b", 60, 30)], config)
    assert scheduler.finished == 2
    assert watched.all(Retract)


def test_the_window_slides_between_the_chunks_of_a_turn_which_publishes_none() -> None:
    memory = Config(4, 200, 4, 1000, sliding_window=4, num_window_pages=200)
    config = SchedulerConfig(chunked_prefill_size=12)
    watched, _ = run(memory, [request("t", 60, 1, session="s")], config)
    assert [op.obs.evicted_len for op in watched.all(SwaEvict)] == [8, 20, 32, 44]


def test_a_shortage_of_windows_is_answered_in_the_window_pool() -> None:
    memory = Config(4, 400, 8, 1000, sliding_window=12, num_window_pages=12)
    grow = [request(name, 5, 40) for name in ("a", "b", "c", "d")]
    watched, scheduler = run(memory, [request("old", 4, 1), *grow], SchedulerConfig(schedule_conservativeness=0))
    assert scheduler.finished == 5
    evicted = watched.all(Evict)
    assert evicted
    assert all(op.n == 0 and op.window for op in evicted)
    assert watched.all(Retract)
    assert watched.model.reached["tombstone left"]


def test_a_state_that_is_taken_early_goes_with_the_row_or_back() -> None:
    memory = msgspec.structs.replace(ROOMY, num_states=11)
    config = SchedulerConfig(max_prefill_tokens=40, chunked_prefill_size=13)
    watched, _ = run(memory, traffic(200, 11, 4), config)
    early: set[str] = set()
    ended: Counter[str] = Counter()
    for op in watched.done:
        match op:
            case TakeState(req, refused=None):
                early.add(req)
            case FreeState(req):
                early.remove(req)
                ended["back"] += 1
            case Extend(reqs, refused=None):
                ended["row"] += len(early.intersection(req for req, _ in reqs))
                early.difference_update(req for req, _ in reqs)
                assert not early, "who is not admitted has given it back before"
    assert ended["back"]
    assert ended["row"]


def test_states_bound_how_many_run_and_idle_sessions_give_theirs_up() -> None:
    memory = msgspec.structs.replace(ROOMY, num_states=7)
    watched, scheduler = run(memory, traffic(80, 12, 4))
    assert scheduler.finished == 80
    assert max(len(op.reqs) for op in watched.all(Decode)) == 2
    assert watched.all(Preempt)
    assert watched.model.reached["state published"]
    assert watched.model.reached["state evicted"]


@pytest.mark.parametrize(
    ("memory", "config", "reason"),
    [
        (msgspec.structs.replace(ROOMY, num_states=9), SchedulerConfig(drafts=1), "cannot take drafts back"),
        (msgspec.structs.replace(ROOMY, num_states=2), PLAIN, "2 state slots are fewer than the 3"),
    ],
)
def test_what_could_never_run_is_refused_at_once(memory: Config, config: SchedulerConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Scheduler(Watched(memory), memory, [], config)


def outputs_of(count: int, page_size: int) -> dict[str, list[int]]:
    return {one.name: list(one.outputs) for one in traffic(count, page_size, page_size)}


def sampled(watched: Watched) -> dict[str, list[int]]:
    """The tokens that each request got."""
    tokens: dict[str, list[int]] = {}
    for op in watched.done:
        if isinstance(op, Complete):
            for req, token in op.tokens.items():
                tokens.setdefault(req, []).append(token)
        elif isinstance(op, Verify):
            tokens.setdefault(op.req, []).extend(op.tokens)
    return tokens


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
    assert watched.model.reached["lend repeated"] >= 1
    assert watched.model.reached["last chunk beside a first chunk"] >= 1


def test_with_overlap_a_launch_is_handed_over_before_the_one_before_it_completes() -> None:
    memory = msgspec.structs.replace(ROOMY, num_rows=3)
    watched, _ = run(memory, traffic(40, 2, 4), SchedulerConfig(overlap=True))
    assert watched.model.reached["launch overlapped"] > 40
    assert watched.model.reached["row withheld"]
    in_flight = 0
    for op in watched.done:
        in_flight += isinstance(op, Launch) - isinstance(op, Complete)
        assert in_flight <= 2


def test_without_overlap_a_launch_completes_before_the_next() -> None:
    watched, _ = run(ROOMY, traffic(40, 2, 4))
    assert not watched.model.reached["launch overlapped"]


def test_with_mixed_chunk_prefill_and_decode_share_a_launch() -> None:
    watched, _ = run(ROOMY, traffic(40, 3, 4), SchedulerConfig(max_prefill_tokens=9, mixed_chunk=True))
    batches = [op.reqs for op in watched.all(Launch)]
    extended = [{req for req, _ in op.reqs} for op in watched.all(Extend)]
    decoded = [set(op.reqs) for op in watched.all(Decode)]
    assert any(one | other == set(batch) for batch in batches for one in extended for other in decoded)


def test_speculative_decoding_drops_what_is_past_the_end() -> None:
    watched, scheduler = run(ROOMY, traffic(60, 4, 4), SchedulerConfig(drafts=3))
    assert scheduler.finished == 60
    assert watched.model.reached["overshoot"]
    assert watched.model.reached["tail freed"]
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


@pytest.mark.parametrize("overlap", [False, True])
def test_forced_retracts_let_decodes_run_in_between(overlap: bool) -> None:
    watched, scheduler = run(ROOMY, traffic(40, 5, 4), SchedulerConfig(retract_interval=1, overlap=overlap))
    assert scheduler.finished == 40
    retracts = [place for place, op in enumerate(watched.done) if isinstance(op, Retract)]
    assert len(retracts) > 20
    kinds = [type(op) for op in watched.done]
    assert all(Decode in kinds[here:there] for here, there in pairwise(retracts))


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


def test_sessions_that_their_clients_close_are_opened_anew_for_the_next_turn() -> None:
    watched, scheduler = run(ROOMY, traffic(80, 7, 4), SchedulerConfig(close_interval=2))
    assert scheduler.finished == 80
    assert watched.model.reached["deferred close done"]
    assert watched.model.reached["idle session closed"]
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


@pytest.mark.parametrize("seed", range(12))
def test_memory_that_a_waiting_turn_was_lent_is_taken_back_when_nothing_else_is_left(seed: int) -> None:
    """Two rows and hardly more pages than the largest request: whoever goes on needs all that the others hold."""
    memory = Config(page_size=2, num_pages=40, num_rows=3, max_context_len=1000)
    config = SchedulerConfig(max_prefill_tokens=7, chunked_prefill_size=5, schedule_conservativeness=0)
    _, scheduler = run(memory, traffic(60, seed, 2), config)
    assert scheduler.finished + len(scheduler.rejected) == 60


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


def test_an_engine_that_tells_no_figures_is_asked_by_trying() -> None:
    memory = Config(page_size=4, num_pages=40, num_rows=4, max_context_len=1000)
    watched = Watched(memory)

    def step(op: Operation[A], /) -> A:
        answer = watched(op)
        return Figures() if isinstance(op, Report) else answer  # type: ignore[return-value]

    scheduler = Scheduler(step, memory, traffic(60, 9, 4))
    scheduler.run()
    assert scheduler.finished + len(scheduler.rejected) == 60
    assert any(isinstance(op, Extend) and op.refused for op in watched.done)


def test_an_engine_that_does_not_tell_the_length_of_a_match_cannot_be_scheduled() -> None:
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
