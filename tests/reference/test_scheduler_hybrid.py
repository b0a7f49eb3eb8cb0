"""The promises of the scheduler with hybrid pools: windows that slide, states that are taken early."""

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import msgspec
import pytest

from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig, window_pages_alone
from kvspec.events import (
    Config,
    Decode,
    Evict,
    Extend,
    Finish,
    FreeState,
    Preempt,
    Retract,
    SwaEvict,
    TakeState,
)
from kvspec.pages import expand
from tests.marks import one_in
from tests.reference.scheduling import MODES, PLAIN, ROOMY, Watched, outputs_of, request, run, sampled, traffic

HYBRID = {
    "window within a page": {"sliding_window": 3, "num_window_pages": 30},
    "scarce window of pages": {"sliding_window": 9, "num_window_pages": 10},
    "states": {"num_states": 7},
    "states for one": {"num_states": 3},
    "windows, no prefix cache": {"sliding_window": 9, "num_window_pages": 10, "prefix_cache": False},
    "states, no prefix cache": {"num_states": 3, "prefix_cache": False},
}


@pytest.mark.slow
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
    assert not (state.window_of or state.state_owner or state.store.pages)


LONGER_THAN_THE_WINDOW_POOL = [*product((1, 4), (1, 5, 8), (0, 3), (False, True), (None, "s"), (True, False))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page_size", "window", "drafts", "overlap", "session", "cached"), one_in(3, LONGER_THAN_THE_WINDOW_POOL)
)
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
    assert watched.model.state.reached["window evicted"]
    memory = msgspec.structs.replace(memory, num_window_pages=needed - 1)
    _, scheduler = run(memory, [one, again], config)
    reason = f"{needed} window pages are more than all {needed - 1}"
    assert scheduler.rejected == {"long": reason, "again": reason}


@pytest.mark.slow
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
    assert watched.model.state.reached["tombstone left"]


@pytest.mark.slow
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
    assert watched.model.state.reached["state published"]
    assert watched.model.state.reached["state evicted"]


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
