"""Streaming sessions: what a slot keeps, lends, and loses (20476, 20070, 22213, 22862)."""

import pytest
from msgspec.structs import replace

from kvref import Manager
from kvspec.events import Config, FirstTurnChunks, Refusal
from kvspec.pages import expand
from kvspec.tokens import Element

CONFIG = Config(page_size=4, num_pages=16, num_rows=4, max_context_len=64)
PROMPT = [1, 2, 3, 4, 5, 6]


def prefill(manager: Manager, req: str) -> None:
    """Match, extend to the last token, and sample the next."""
    manager.match_prefix(req)
    manager.extend([(req, len(manager.requests[req].tokens))])
    manager.launch(0, [req])
    manager.complete(0, {req: 50})


def decode(manager: Manager, req: str, steps: int) -> None:
    for step in range(steps):
        manager.decode([req])
        manager.launch(1, [req])
        manager.complete(1, {req: 51 + step})


@pytest.fixture
def manager() -> Manager:
    """A session with one finished turn: 6 tokens of prompt and 5 sampled ones, the last of them not decoded."""
    manager = Manager(CONFIG)
    manager.open_session("s")
    manager.submit("t1", [*PROMPT], "s")
    prefill(manager, "t1")
    manager.cache_unfinished("t1")
    decode(manager, "t1", 4)
    manager.finish("t1")
    return manager


HISTORY = [*PROMPT, 50, 51, 52, 53, 54]


def test_a_turn_goes_on_where_the_last_one_ended(manager: Manager) -> None:
    held = manager.snapshot()
    manager.submit("t2", [*HISTORY, 7], "s")
    match = manager.match_prefix("t2")
    assert (match.prefix_len, match.protected_len, match.freed) == (10, 4, [])
    assert manager.snapshot().rows == held.rows
    assert manager.report().session_held == 0, "a lent slot is counted by the request that borrowed it"
    assert manager.report().uncached == 8


def test_restoring_a_session_is_repeatable(manager: Manager) -> None:
    manager.submit("t2", [*HISTORY, 7], "s")
    first = manager.match_prefix("t2")
    once = manager.snapshot()
    for _ in range(3):
        assert manager.match_prefix("t2") == first
        assert manager.snapshot() == once
    prefill(manager, "t2")
    manager.finish("t2")
    manager.close_session("s")
    assert manager.report().protected == 0, "a second match has taken a lock that is never released"


def test_a_retried_turn_frees_the_page_that_it_would_orphan(manager: Manager) -> None:
    """Retracted with a launch in flight, it has committed all its tokens, but must compute the last one again."""
    manager.submit("t2", [*HISTORY, 7], "s")
    prefill(manager, "t2")
    manager.decode(["t2"])
    manager.launch(2, ["t2"])
    assert manager.retract("t2").freed == []
    manager.complete(2, {})
    slot = manager.session_cache.slots["s"]
    assert slot.kv is not None
    assert slot.kv.lengths == (4, 13, 13)
    last_page = manager.pool.req_to_token[slot.kv.req_pool_idx][-1]
    match = manager.match_prefix("t2")
    assert (match.prefix_len, match.freed) == (12, [last_page])


def test_a_retried_turn_does_not_write_what_a_launch_in_flight_reads(manager: Manager) -> None:
    manager.submit("t2", [*HISTORY, 7], "s")
    prefill(manager, "t2")
    manager.decode(["t2"])
    manager.launch(2, ["t2"])
    manager.retract("t2")
    manager.match_prefix("t2")
    with pytest.raises(Refusal) as caught:
        manager.extend([("t2", 13)])
    assert caught.value.refused.rule == "RACE-1"
    manager.complete(2, {})
    manager.extend([("t2", 13)])


def test_the_tail_is_freed_from_the_next_page_border_on(manager: Manager) -> None:
    """Drafts that were not accepted leave pages behind; the page that a kept token shares with them stays."""
    manager.submit("t2", [*HISTORY], "s")
    prefill(manager, "t2")
    manager.decode(["t2"], 8)
    manager.launch(2, ["t2"])
    manager.complete(2, {})
    manager.verify("t2", 2, [60, 61])
    assert manager.finish("t2").freed == []
    slot = manager.session_cache.slots["s"]
    assert slot.kv is not None
    assert slot.kv.lengths == (4, 13, 19)
    table = list(manager.pool.req_to_token[slot.kv.req_pool_idx])
    manager.submit("t3", [*HISTORY, 50, 60, 61, 8], "s")
    match = manager.match_prefix("t3")
    assert match.prefix_len == 13
    assert expand(match.freed or ()) == table[4:]
    assert slot.kv.lengths == (4, 13, 13)


def test_a_turn_must_begin_with_the_history(manager: Manager) -> None:
    shorter, other, shifted = HISTORY[:-1], [*HISTORY[:-1], 9], [9, *HISTORY]
    by_key: list[Element] = ["k", *HISTORY]
    for tokens in (shorter, other, shifted, by_key):
        with pytest.raises(Refusal) as caught:
            manager.submit("t2", [*tokens], "s")
        assert caught.value.refused.rule == "SESS-6"


@pytest.mark.parametrize(("first_turn_chunks", "published"), [("private", 0), ("published", 8)])
def test_of_a_first_turn_the_last_chunk_is_published_and_the_others_only_where_that_is_declared(
    first_turn_chunks: FirstTurnChunks, published: int
) -> None:
    manager = Manager(replace(CONFIG, first_turn_chunks=first_turn_chunks))
    manager.open_session("s")
    manager.submit("t1", [*range(12)], "s")
    manager.match_prefix("t1")
    manager.extend([("t1", 8)])
    manager.launch(0, ["t1"])
    manager.complete(0, {})
    assert manager.cache_unfinished("t1", chunked=True).protected_len == published
    manager.extend([("t1", 12)])
    manager.launch(0, ["t1"])
    manager.complete(0, {"t1": 50})
    assert manager.cache_unfinished("t1").protected_len == 12
    manager.finish("t1")
    manager.submit("t2", [*range(12), 50, 51, 52, 53, 54], "s")
    prefill(manager, "t2")
    assert manager.cache_unfinished("t2").protected_len == 12


def test_closing_waits_for_the_turn_in_flight(manager: Manager) -> None:
    manager.submit("t2", [*HISTORY, 7], "s")
    prefill(manager, "t2")
    held = manager.snapshot()
    assert manager.close_session("s").freed == []
    assert manager.snapshot() == held
    assert manager.finish("t2").freed != []
    assert manager.report("idle").rows_sessions == 0
    with pytest.raises(Refusal):
        manager.close_session("s")


def test_an_aborted_turn_that_ran_wipes_the_kv_and_keeps_the_tokens(manager: Manager) -> None:
    manager.submit("t2", [*HISTORY, 7], "s")
    prefill(manager, "t2")
    manager.abort("t2")
    report = manager.report("idle")
    assert (report.session_held, report.protected, report.rows_sessions) == (0, 0, 0)
    manager.submit("t3", [*HISTORY, 8], "s")
    assert manager.match_prefix("t3").prefix_len == 4


def test_an_aborted_turn_that_never_ran_leaves_the_slot_as_it_was(manager: Manager) -> None:
    before = manager.snapshot()
    manager.submit("t2", [*HISTORY, 7], "s")
    manager.match_prefix("t2")
    assert manager.abort("t2").freed == []
    assert manager.snapshot() == before
    assert manager.report("idle").session_held == 8


def test_a_preempted_session_keeps_its_tokens_and_no_memory(manager: Manager) -> None:
    manager.preempt("s")
    assert manager.report("idle").session_held == 0
    with pytest.raises(Refusal):
        manager.preempt("s")
    manager.submit("t2", [*HISTORY, 8], "s")
    assert manager.match_prefix("t2").prefix_len == 4


def test_a_lent_slot_cannot_be_preempted(manager: Manager) -> None:
    manager.submit("t2", [*HISTORY, 8], "s")
    manager.match_prefix("t2")
    with pytest.raises(Refusal):
        manager.preempt("s")
