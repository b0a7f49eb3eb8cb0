"""Every way out frees everything exactly once: the figures add up to the pool at every step (994, ACC-1)."""

from collections.abc import Callable

import pytest

from kvref import Manager
from kvspec.events import Config
from kvspec.pages import expand

CONFIG = Config(page_size=4, num_pages=16, num_rows=4, max_context_len=64)


def check_sums(manager: Manager) -> None:
    figures = manager.report()
    tokens = (figures.available, figures.evictable, figures.protected, figures.session_held, figures.uncached)
    rows = (figures.rows_available, figures.rows_requests, figures.rows_sessions, figures.rows_withheld)
    assert sum(filter(None, tokens)) == CONFIG.num_pages * CONFIG.page_size
    assert sum(filter(None, rows)) == CONFIG.num_rows


def run(manager: Manager, session: str | None = None) -> None:
    """A request of 6 tokens that has published one page, sampled a token, and is over-allocated for drafts."""
    manager.submit("r", [1, 2, 3, 4, 5, 6], session)
    manager.match_prefix("r")
    manager.extend([("r", 6)])
    manager.launch(0, ["r"])
    manager.complete(0, {"r": 7})
    manager.cache_unfinished("r")
    manager.decode(["r"], 8)
    manager.launch(1, ["r"])
    manager.complete(1, {})
    manager.verify("r", 1, [8])
    check_sums(manager)


def test_finish_publishes_whole_pages_and_frees_the_rest() -> None:
    manager = Manager(CONFIG)
    run(manager)
    assert len(expand(manager.finish("r").freed or ())) == 3
    check_sums(manager)
    report = manager.report("idle")
    assert (report.evictable, report.protected, report.available) == (4, 0, 60)


@pytest.mark.parametrize("leave", [Manager.retract, Manager.abort])
def test_retract_and_abort_free_what_is_private_and_unlock(leave: Callable[[Manager, str], object]) -> None:
    manager = Manager(CONFIG)
    run(manager)
    leave(manager, "r")
    check_sums(manager)
    report = manager.report("idle")
    assert (report.evictable, report.protected, report.available) == (4, 0, 60)


@pytest.mark.parametrize("leave", [Manager.close_session, Manager.preempt])
def test_close_and_preempt_free_the_slot_and_unlock(leave: Callable[[Manager, str], object]) -> None:
    manager = Manager(CONFIG)
    manager.open_session("s")
    run(manager, "s")
    manager.finish("r")
    check_sums(manager)
    assert manager.report("idle").session_held == 12
    leave(manager, "s")
    check_sums(manager)
    report = manager.report("idle")
    assert (report.evictable, report.protected, report.available) == (4, 0, 60)


def test_without_a_prefix_cache_nothing_stays() -> None:
    manager = Manager(Config(4, 16, 4, 64, prefix_cache=False))
    run(manager)
    manager.finish("r")
    report = manager.report("idle")
    assert (report.evictable, report.protected, report.available) == (0, 0, 64)


def test_a_duplicate_is_freed_and_the_shared_page_stays() -> None:
    manager = Manager(CONFIG)
    for req in ("a", "b"):
        manager.submit(req, [1, 2, 3, 4, 5, 6])
        manager.match_prefix(req)
    manager.extend([("a", 6), ("b", 6)])
    manager.launch(0, ["a", "b"])
    manager.complete(0, {"a": 7, "b": 7})
    own = {req: manager.pool.req_to_token[kv.req_pool_idx][0] for req, kv in manager.holders.items()}
    assert manager.cache_unfinished("a").freed == []
    assert manager.cache_unfinished("b").freed == [own["b"]]
    assert manager.pool.req_to_token[manager.holders["b"].req_pool_idx][0] == own["a"]
    manager.finish("a")
    assert manager.evict(9).evicted == [], "b has locked it"
    check_sums(manager)


def test_a_row_that_a_launch_still_reads_is_withheld_at_finish() -> None:
    manager = Manager(CONFIG)
    run(manager)
    manager.decode(["r"])
    manager.launch(2, ["r"])
    manager.finish("r")
    assert manager.report("idle").rows_withheld == 1
    check_sums(manager)
    manager.complete(2, {})
    assert manager.report("idle").rows_withheld == 0
    check_sums(manager)


@pytest.mark.parametrize("accepted", [2, 3, 4])
def test_what_was_accepted_past_a_stop_is_published_under_tokens_that_no_prompt_has(accepted: int) -> None:
    manager = Manager(Config(1, 16, 4, 64, overshoot="published"))
    for req in ("first", "second"):
        manager.submit(req, [5])
        manager.match_prefix(req)
        manager.extend([(req, 1)])
        manager.launch(0, [req])
        manager.complete(0, {req: 7})
        manager.decode([req], 4)
        manager.launch(1, [req])
        manager.complete(1, {})
        manager.verify(req, accepted, [8])
        manager.finish(req)
    assert manager.report("idle").evictable == 3 + 2 * (accepted - 2), "5, 7, 8 are kept once"
    for token in (0, 1, 2):
        manager.submit(f"after {token}", [5, 7, 8, token, token, 9])
        assert manager.match_prefix(f"after {token}").prefix_len == 3
