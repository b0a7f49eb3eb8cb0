"""Recurrent states: who has which slot, what the store takes over, where a match and a turn go on (MAMBA-1 to 5)."""

import pytest
from msgspec.structs import replace

from kvref import Manager
from kvref.eviction_queue import MAX_STALE
from kvref.mamba_radix_cache import MambaRadixCache
from kvref.request import KvRecord, Request
from kvref.state_pool import StatePool, resumable_len, rewind, source_of_state
from kvref.tree_node import TreeNode
from kvspec.events import Config, Refusal
from kvspec.lengths import Lengths
from kvspec.pages import expand
from kvspec.tokens import Tokens

CONFIG = Config(page_size=2, num_pages=32, num_rows=4, max_context_len=64, num_states=7)


def a_record(states: StatePool) -> KvRecord:
    kv = KvRecord(0, Lengths(0, 9, 9), TreeNode([], [], None))
    states.alloc_extend_states(kv, Request("r", Tokens(2, [1]), None))
    return kv


def test_the_states_at_the_last_two_borders_are_kept() -> None:
    states = StatePool(3, tracking_states=2)
    kv = a_record(states)
    start = 0
    for end, borders in ((1, []), (3, [2]), (4, [2, 4]), (5, [2, 4]), (9, [4, 8])):
        states.track(kv, start, end, page_size=2)
        assert sorted(kv.tracked) == borders
        assert set(kv.tracked.values()) <= set(kv.states[1:])
        assert len(set(kv.tracked.values())) == len(borders)
        start = end


def test_a_turn_resumes_where_a_state_is() -> None:
    states = StatePool(3, tracking_states=2)
    kv = a_record(states)
    states.track(kv, 0, 4, page_size=2)
    states.track(kv, 4, 9, page_size=2)
    kv.state_len = 9
    assert resumable_len(kv, 9) == 9
    assert resumable_len(kv, 8) == 8
    assert resumable_len(kv, 7) == 4
    assert resumable_len(kv, 3) == 0
    kv.cache_protected_len, kv.last_node.mamba_value = 2, 1
    assert resumable_len(kv, 3) == 2, "the store has kept the state at the end of what is locked"
    rewind(kv, 7)
    assert list(kv.tracked) == [4]
    assert source_of_state(kv, 4) == kv.tracked[4], "the current state is past it"
    assert source_of_state(kv, 9) == kv.states[0]
    assert source_of_state(kv, 2) == 1, "the store's"


def sums(manager: Manager) -> int:
    report = manager.report()
    figures = (
        report.states_available,
        report.states_evictable,
        report.states_protected,
        report.states_sessions,
        report.states_requests,
    )
    return sum(figure or 0 for figure in figures)


def begin(manager: Manager, req: str, tokens: list[int], session: str | None = None) -> int:
    """Submit and match a request; returns how much was matched."""
    manager.submit(req, [*tokens], session)
    return manager.match_prefix(req).prefix_len or 0


def prefill(manager: Manager, req: str) -> None:
    manager.extend([(req, len(manager.requests[req].tokens))])
    manager.launch(0, [req])
    manager.complete(0, {req: 50})
    assert sums(manager) == CONFIG.num_states


def test_a_request_has_a_state_before_its_row_and_three_with_it() -> None:
    manager = Manager(CONFIG)
    begin(manager, "r", [1, 2, 3])
    early = manager.take_state("r").state
    assert (manager.report().states_requests, manager.report().rows_requests) == (1, 0)
    with pytest.raises(Refusal, match="already"):
        manager.take_state("r")
    given = expand((manager.extend([("r", 3)]).states or {})["r"])
    assert early not in given
    assert (len(given), manager.report().states_requests) == (2, 3)


def test_a_state_taken_early_goes_back_with_or_without_the_request() -> None:
    manager = Manager(CONFIG)
    begin(manager, "r", [1, 2, 3])
    state = manager.take_state("r").state
    assert manager.free_state("r").state == state
    with pytest.raises(Refusal, match="no state slot"):
        manager.free_state("r")
    state = manager.take_state("r").state
    assert manager.abort("r").states_freed == [state]
    assert manager.report("idle").states_available == 7


def test_what_is_missing_is_refused_whole() -> None:
    manager = Manager(CONFIG)
    for req in "abc":
        begin(manager, req, [1, 2, 3])
    with pytest.raises(Refusal) as refusal:
        manager.extend([(req, 3) for req in "abc"])
    assert refusal.value.refused.states_short == 2
    assert (manager.report().states_available, manager.report().rows_available) == (7, 4)
    with pytest.raises(Refusal, match="drafts"):
        manager.decode(["a"], 2)


def test_the_store_takes_the_tracking_slot_and_the_holder_a_fresh_one() -> None:
    manager = Manager(CONFIG)
    begin(manager, "r", [1, 2, 3, 4, 5])
    prefill(manager, "r")
    kv = manager.holders["r"]
    tracking = kv.tracked[4]
    answer = manager.cache_unfinished("r")
    assert answer.state_cached == tracking
    assert answer.state_taken in kv.states
    assert (len(kv.states), kv.tracked) == (3, {})
    assert manager.report().states_protected == 1
    assert begin(manager, "other", [1, 2, 3, 4, 5]) == 4
    assert begin(manager, "shorter", [1, 2, 3]) == 0, "the page is cached, the state after it is not"


def test_without_a_free_slot_the_prefix_is_published_without_its_state() -> None:
    manager = Manager(CONFIG)
    for req in "ab":
        begin(manager, req, [ord(req), 2, 3])
        prefill(manager, req)
    begin(manager, "c", [1, 2])
    manager.take_state("c")
    answer = manager.cache_unfinished("a")
    assert (answer.protected_len, answer.state_cached, answer.state_taken) == (2, None, None)
    manager.free_state("c")
    assert manager.cache_unfinished("a").state_cached is not None, "the next publish makes up for it"


def test_at_the_end_the_store_takes_one_and_the_others_go_back() -> None:
    manager = Manager(CONFIG)
    begin(manager, "r", [1, 2, 3])
    prefill(manager, "r")
    answer = manager.finish("r")
    assert answer.state_cached is not None
    assert len(expand(answer.states_freed or ())) == 2
    assert (manager.report("idle").states_available, manager.report().states_evictable) == (6, 1)


def test_a_state_goes_alone_or_with_its_page_but_not_from_who_went_on_from_it() -> None:
    manager = Manager(CONFIG)
    for req in "ab":
        begin(manager, req, [ord(req), 2, 3])
        prefill(manager, req)
        manager.finish(req)
    assert begin(manager, "c", [ord("b"), 2, 9]) == 2
    manager.extend([("c", 3)])
    answer = manager.evict(0, states=9)
    assert (len(expand(answer.states_evicted or ())), answer.evicted) == (1, [])
    assert manager.report().states_protected == 1
    manager.retract("c")
    answer = manager.evict(9)
    assert (len(expand(answer.states_evicted or ())), len(expand(answer.evicted))) == (1, 2)
    assert manager.report("idle").states_available == 7


def test_a_split_node_keeps_its_state_at_its_end() -> None:
    manager = Manager(CONFIG)
    begin(manager, "r", [1, 2, 3, 4, 5])
    prefill(manager, "r")
    manager.finish("r")
    assert begin(manager, "parts", [1, 2, 9, 9, 9]) == 0
    assert begin(manager, "same", [1, 2, 3, 4, 9]) == 4


def test_a_session_keeps_its_states_over_turns_and_gives_them_back() -> None:
    manager = Manager(CONFIG)
    manager.open_session("s")
    begin(manager, "t1", [1, 2, 3], "s")
    prefill(manager, "t1")
    assert manager.finish("t1").states_freed == []
    assert manager.report("idle").states_sessions == 3
    assert begin(manager, "t2", [1, 2, 3, 50, 9], "s") == 3
    assert manager.report().states_requests == 3
    manager.abort("t2")
    assert len(expand(manager.close_session("s").states_freed or ())) == 3
    assert manager.report("idle").states_available == 7


def test_a_turn_that_was_retracted_past_its_last_token_goes_back_to_a_border() -> None:
    manager = Manager(CONFIG)
    manager.open_session("s")
    begin(manager, "t", [1, 2, 3, 4, 5, 6, 7, 8], "s")
    for launch, end in enumerate((5, 8)):
        manager.extend([("t", end)])
        manager.launch(launch, ["t"])
    manager.retract("t")
    assert manager.match_prefix("t").prefix_len == 4, "the current state is at 8, and only the kept one at 4 is of use"
    kv = manager.holders["t"]
    assert list(kv.tracked) == [4] and source_of_state(kv, 4) == kv.tracked[4]


def test_a_window_and_states_at_once_are_no_configuration() -> None:
    with pytest.raises(ValueError, match="at once"):
        Manager(Config(2, 8, 2, 16, sliding_window=2, num_window_pages=4, num_states=4))


def test_evicted_states_do_not_stay_among_the_candidates() -> None:
    manager = Manager(CONFIG)
    for number in range(2 * MAX_STALE):
        begin(manager, "r", [number, 2, 3])
        prefill(manager, "r")
        manager.finish("r")
        manager.evict(1)
    tree = manager.tree_cache
    assert isinstance(tree, MambaRadixCache)
    assert len(tree._states._heap) <= MAX_STALE + 2


def test_a_state_that_the_store_has_is_not_taken_again() -> None:
    manager = Manager(CONFIG)
    for req in "ab":
        begin(manager, req, [1, 2, 3])
    for req in "ab":
        prefill(manager, req)
    assert manager.cache_unfinished("a").state_cached is not None
    answer = manager.finish("b")
    assert answer.state_cached is None
    assert len(expand(answer.states_freed or ())) == 3


def test_a_state_slot_is_taken_where_no_page_is_free() -> None:
    manager = Manager(replace(CONFIG, num_pages=1))
    begin(manager, "first", [1])
    manager.extend([("first", 1)])
    begin(manager, "waits", [2])
    assert manager.take_state("waits").state not in manager.holders["first"].states


def test_states_are_evicted_until_so_many_are_free_and_no_more() -> None:
    manager = Manager(CONFIG)
    for req in "abc":
        begin(manager, req, [ord(req), 2, 3])
        prefill(manager, req)
        manager.finish(req)
    manager.tree_cache.evict(0)
    assert manager.report().states_evictable == 3
    for left in (2, 1, 0):
        assert len(expand(manager.evict(0, states=1).states_evicted or ())) == 1
        assert manager.report().states_evictable == left
