"""Window sides: taken with their pages or not at all, freed once, at any position of the cursor (SWA-1 to SWA-3)."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref import Manager
from kvref.window_pool import SWAAllocator
from kvspec.events import Config, Refusal
from kvspec.pages import expand

CONFIG = Config(page_size=2, num_pages=16, num_rows=4, max_context_len=64, sliding_window=4, num_window_pages=8)


@pytest.mark.slow
@given(random=st.randoms(use_true_random=False), steps=st.integers(1, 40))
def test_sides_are_behind_pages_in_use_and_partition_their_pool(random: Random, steps: int) -> None:
    allocator = SWAAllocator(8, page_size=2, num_window_pages=5)
    in_use: list[int] = []
    for _ in range(steps):
        some = random.sample(in_use, random.randint(0, len(in_use)))
        match random.randrange(3):
            case 0 if room := min(allocator.available, allocator.window.available):
                in_use += allocator.alloc(random.randint(1, room))
            case 1:
                allocator.free(some)
                in_use = [page for page in in_use if page not in some]
            case 2:
                allocator.free_window(some)
                assert not allocator.window_of.keys() & set(some)
        assert allocator.window_of.keys() <= set(in_use)
        assert sorted([*allocator.window.free_pages(), *allocator.window_of.values()]) == [1, 2, 3, 4, 5]
        assert sorted([*allocator.free_pages(), *in_use]) == list(range(1, 9))


@pytest.mark.parametrize(("num_pages", "num_window_pages"), [(4, 3), (3, 4)])
def test_what_one_pool_lacks_is_taken_from_neither(num_pages: int, num_window_pages: int) -> None:
    allocator = SWAAllocator(num_pages, 2, num_window_pages)
    with pytest.raises(ValueError, match="are free"):
        allocator.alloc(4)
    assert (allocator.available, allocator.window.available) == (num_pages, num_window_pages)
    assert allocator.window_of == {}


def run(manager: Manager, req: str, tokens: list[int], steps: int = 0, session: str | None = None) -> None:
    """Prefill a request, publish its prompt, and decode some steps."""
    manager.submit(req, [*tokens], session)
    manager.match_prefix(req)
    manager.extend([(req, len(tokens))])
    for step in range(steps + 1):
        if step:
            manager.decode([req])
        manager.launch(step, [req])
        manager.complete(step, {req: 100 + step})
        if step == 0:
            manager.cache_unfinished(req)


def window_sum(manager: Manager) -> int:
    """All window pages, counted by the figures."""
    report = manager.report()
    figures = (
        report.window_available,
        report.window_evictable,
        report.window_protected,
        report.window_session_held,
        report.window_uncached,
    )
    return sum(figure or 0 for figure in figures) // manager.config.page_size


def test_the_cursor_leaves_the_window_before_the_next_step_whole() -> None:
    manager = Manager(CONFIG)
    run(manager, "r", [1, 2, 3], steps=7)
    assert manager.report().window_uncached == 8
    answer = manager.swa_evict("r")
    assert (answer.evicted_len, len(expand(answer.window_freed or ()))) == (6, 2)
    assert manager.report().window_uncached == 4
    assert manager.swa_evict("r").window_freed == [], "nothing more was left behind"
    assert window_sum(manager) == 8


@pytest.mark.parametrize("leave", [Manager.finish, Manager.retract, Manager.abort])
def test_every_way_out_frees_the_sides_behind_the_cursor_once(leave: object) -> None:
    manager = Manager(CONFIG)
    run(manager, "r", [1, 2, 3], steps=7)
    manager.swa_evict("r")
    leave(manager, "r")  # type: ignore[operator]
    assert window_sum(manager) == 8
    manager.evict(16)
    assert manager.snapshot().window_sides == {}
    assert manager.report("idle").window_available == 16


def test_a_publish_past_the_cursor_leaves_tombstones_which_cannot_be_matched() -> None:
    manager = Manager(CONFIG)
    run(manager, "r", [1, 2, 3], steps=7)
    manager.swa_evict("r")
    manager.finish("r")
    assert (manager.report().evictable, manager.report().window_evictable) == (10, 6)
    manager.submit("long", [1, 2, 3, 100, 101, 102, 103, 104, 105, 106, 9])
    assert manager.match_prefix("long").prefix_len == 10, "two live pages at the end"
    manager.submit("short", [1, 2, 3, 100, 101, 102, 9])
    assert manager.match_prefix("short").prefix_len == 2, "two tombstones at the end"


def test_a_tombstone_is_revived_by_the_side_of_a_duplicate_and_keeps_its_page() -> None:
    manager = Manager(CONFIG)
    run(manager, "a", [1, 2, 3, 4, 5])
    manager.finish("a")
    store_pages = manager.snapshot().store_pages
    manager.evict(0, window=8)
    assert manager.report().window_evictable == 0
    manager.submit("b", [1, 2, 3, 4, 5])
    assert manager.match_prefix("b").prefix_len == 0
    manager.extend([("b", 5)])
    manager.launch(0, ["b"])
    manager.complete(0, {"b": 6})
    answer = manager.cache_unfinished("b")
    assert len(expand(answer.freed or ())) == 2
    assert answer.window_freed == [], "the sides of the duplicates have moved"
    assert manager.snapshot().store_pages == store_pages
    assert (manager.report().window_protected, window_sum(manager)) == (4, 8)


def test_room_is_refused_by_what_either_pool_lacks() -> None:
    manager = Manager(CONFIG)
    manager.submit("r", [*range(40)])
    manager.match_prefix("r")
    with pytest.raises(Refusal) as refusal:
        manager.extend([("r", 40)])
    assert (refusal.value.refused.pages_short, refusal.value.refused.window_short) == (4, 12)
    assert manager.report().window_available == 16


def test_a_session_keeps_its_cursor_over_turns_and_resumes_before_no_lost_window() -> None:
    manager = Manager(CONFIG)
    manager.open_session("s")
    run(manager, "t1", [1, 2, 3], steps=7, session="s")
    manager.swa_evict("t1")
    manager.finish("t1")
    assert manager.report().window_session_held == 4
    history = manager.session_cache.slots["s"].history.elements()
    manager.submit("t2", [*history, 9], "s")
    assert manager.match_prefix("t2").prefix_len == 10
    view = (manager.snapshot().requests or {})["t2"]
    assert (view.swa_evicted_len, manager.report().window_uncached) == (6, 4)
    manager.abort("t2")
    manager.close_session("s")
    assert window_sum(manager) == 8
    assert manager.report("idle").window_session_held == 0
