"""State slots: which one keeps which page border, and what becomes of it. The rest is held against the model."""

import pytest

from kvcuda.device_manager import DeviceManager
from kvcuda.forward import ForwardBatch
from kvcuda.records import KvRecord, Tracked
from kvspec.events import Config, Refusal


def running(manager: DeviceManager, req: str, tokens: list[int], session: str | None = None) -> KvRecord:
    """Prefill a request; it samples token 9."""
    manager.submit(req, list(tokens), session)
    answer = manager.match_prefix(req)
    manager.extend([(req, len(tokens))])
    manager.launch(1, [req])
    manager.complete(1, {req: 9})
    assert answer.states_freed is not None
    return manager.holders[req]


def decode(manager: DeviceManager, req: str, steps: int) -> None:
    for _ in range(steps):
        manager.decode([req])
        manager.launch(1, [req])
        manager.complete(1, {req: 9})


def test_last_two_borders_are_kept_in_turn() -> None:
    manager = DeviceManager(Config(2, 20, 2, 20, num_states=6))
    kv = running(manager, "a", [1, 2, 3])
    assert (kv.state, kv.tracked) == (1, [Tracked(3), Tracked(2, 2)])
    decode(manager, "a", 1)
    assert kv.tracked == [Tracked(2, 2), Tracked(3, 4)]
    decode(manager, "a", 2)
    assert kv.tracked == [Tracked(3, 4), Tracked(2, 6)]


def test_store_takes_the_slot_that_has_kept_the_border() -> None:
    manager = DeviceManager(Config(2, 20, 2, 20, num_states=6))
    kv = running(manager, "a", [1, 2, 3, 4, 5])
    answer = manager.cache_unfinished("a")
    assert (answer.protected_len, answer.state_cached, answer.state_taken) == (4, 2, 4)
    assert kv.tracked == [Tracked(4), Tracked(3)]
    decode(manager, "a", 2)
    assert kv.tracked == [Tracked(3), Tracked(4, 6)]
    last = manager.finish("a")
    assert (last.state_cached, last.states_freed) == (4, [1, 3])
    manager.submit("b", [1, 2, 3, 4, 5, 9, 9, 9])
    assert manager.match_prefix("b").prefix_len == 6
    evicted = manager.evict_pages(0, states=1)
    assert (evicted.pages, evicted.states) == (0, [2])
    assert manager.match_prefix("b").prefix_len == 6
    assert manager.evict_pages(1) == (1, 0, [4])
    assert manager.match_prefix("b").prefix_len == 0


def test_state_is_published_only_where_a_slot_is_free() -> None:
    manager = DeviceManager(Config(2, 20, 2, 20, num_states=3))
    kv = running(manager, "a", [1, 2, 3, 4, 5])
    answer = manager.cache_unfinished("a")
    assert (answer.protected_len, answer.state_cached, answer.state_taken) == (4, None, None)
    assert Tracked(2, 4) in kv.tracked
    assert manager.finish("a").state_cached == 2


def test_turn_resumes_at_the_last_border_whose_state_is_kept() -> None:
    """Retracted at 6 positions, it may keep 5: the working state is past that, a tracking slot at 4."""
    manager = DeviceManager(Config(2, 20, 2, 20, num_states=6))
    manager.open_session("s")
    kv = running(manager, "a", [1, 2, 3, 4, 5], "s")
    manager.decode(["a"])
    manager.launch(1, ["a"])
    assert kv.tracked == [Tracked(2, 4), Tracked(3, 6)]
    manager.retract("a")
    answer = manager.match_prefix("a")
    assert (answer.prefix_len, answer.protected_len, answer.states_freed) == (4, 0, [])
    assert kv.tracked == [Tracked(3), Tracked(2, 4)]
    assert manager.match_prefix("a").prefix_len == 4
    manager.complete(1, {})
    assert manager.extend([("a", 6)]).states == {}


def test_turn_resumes_at_the_border_whose_state_the_store_has() -> None:
    """Its own tracking slot for that border has become the store's, and the store cannot evict it meanwhile."""
    manager = DeviceManager(Config(2, 20, 2, 20, num_states=6))
    manager.open_session("s")
    running(manager, "a", [1, 2, 3, 4, 5], "s")
    assert manager.cache_unfinished("a").state_cached == 2
    manager.decode(["a"])
    manager.launch(1, ["a"])
    manager.retract("a")
    assert manager.evict_pages(9, states=9) == (0, 0, [])
    answer = manager.match_prefix("a")
    assert (answer.prefix_len, answer.protected_len, answer.states_freed) == (4, 4, [])


def states_begun_from(manager: DeviceManager, req: str, tokens: list[int]) -> tuple[list[int], list[int]]:
    """The slots that a fresh prefill's launch begins from and computes in."""
    batches: list[ForwardBatch] = []
    manager.submit(req, list(tokens))
    manager.match_prefix(req)
    manager.extend([(req, len(tokens))])
    manager.launch(1, [req], batches.append)
    manager.complete(1, {req: 9})
    states = batches[0].states
    assert states is not None
    return states.sources.tolist(), states.slots.tolist()


def test_row_that_comes_back_has_no_state() -> None:
    """Another request's state was in the slot, at the very length that the next one resumes from."""
    manager = DeviceManager(Config(2, 20, 1, 20, num_states=6))
    running(manager, "a", [1, 2, 3])
    cached = manager.finish("a").state_cached
    running(manager, "b", [7, 7])
    manager.abort("b")
    sources, slots = states_begun_from(manager, "c", [1, 2, 4])
    assert sources == [cached]
    assert slots != sources


def test_state_of_a_longer_prefix_is_not_begun_from() -> None:
    """The holder's own slot keeps the border that it resumes from; what its last node keeps is another border's."""
    manager = DeviceManager(Config(2, 20, 2, 20, num_states=6))
    kv = running(manager, "a", [1, 2, 3, 4, 5])
    manager.cache_unfinished("a")
    decode(manager, "a", 1)
    assert manager.holdings.kept_state(kv, 6) == kv.kept_at(6) != kv.last_node.state
    assert manager.holdings.kept_state(kv, 4) == kv.last_node.state


def test_early_slot_becomes_the_one_that_is_computed_in() -> None:
    manager = DeviceManager(Config(2, 20, 2, 20, num_states=6))
    manager.submit("a", [1, 2, 3])
    manager.match_prefix("a")
    assert manager.take_state("a").state == 1
    assert manager.free_state("a").state == 1
    assert manager.take_state("a").state == 2
    assert manager.match_prefix("a").states_freed == []
    assert manager.extend([("a", 3)]).states == {"a": [3, 4]}
    assert manager.holders["a"].states == [2, 3, 4]
    assert manager.abort("a").states_freed == [2, 3, 4]


def test_speculative_step_is_refused() -> None:
    manager = DeviceManager(Config(2, 20, 2, 20, num_states=6))
    running(manager, "a", [1, 2, 3])
    with pytest.raises(Refusal, match="speculative"):
        manager.decode(["a"], 2)
    decode(manager, "a", 1)


def test_batch_that_lacks_states_changes_nothing() -> None:
    manager = DeviceManager(Config(2, 20, 3, 20, num_states=5))
    running(manager, "a", [1, 2, 3])
    manager.submit("b", [4])
    manager.match_prefix("b")
    manager.take_state("b")
    with pytest.raises(Refusal) as refusal:
        manager.extend([("b", 1)])
    refused = refusal.value.refused
    assert (refused.rule, refused.pages_short, refused.rows_short, refused.states_short) == ("CAP-1", 0, 0, 1)
    assert (manager.states.available, manager.rows.available, manager.memory.available) == (1, 2, 18)
    manager.finish("a")
    assert manager.extend([("b", 1)]).states is not None
