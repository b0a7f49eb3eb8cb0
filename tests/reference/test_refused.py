"""The content of refusals: the figures and names of what is wrong, word for word."""

from collections.abc import Callable

import pytest

from kvref import Manager
from kvspec.events import Config, Refusal


@pytest.fixture
def manager() -> Manager:
    """Two requests whose launch is in flight, one that has matched, and one that has not."""
    manager = Manager(Config(page_size=4, num_pages=8, num_rows=3, max_context_len=16))
    for req in ("a", "b", "matched", "waits"):
        manager.submit(req, [1, 2, 3, 4, 5])
        if req != "waits":
            manager.match_prefix(req)
    manager.extend([("a", 5), ("b", 5)])
    manager.launch(7, ["a", "b"])
    return manager


@pytest.mark.parametrize(
    ("rule", "reason", "ask"),
    [
        ("OP-1", "2 requests hold memory: this is not idle", lambda it: it.report("idle")),
        ("OP-1", "seq_len 6 of matched is not in 1..5", lambda it: it.extend([("matched", 6)])),
        ("OP-1", "waits has not matched its prefix", lambda it: it.extend([("waits", 5)])),
        ("OP-1", "the batch is empty", lambda it: it.extend([])),
        ("OP-1", "request waits is not running", lambda it: it.decode(["a", "waits"])),
        ("OP-1", "launch 7 is in flight", lambda it: it.launch(7, ["a"])),
        ("CHUNK-1", "a token too few or too many for: b, waits", lambda it: it.complete(7, {"a": 6, "waits": 6})),
        ("CHUNK-1", "chunked is True, but a has 5 of 5 tokens", lambda it: it.cache_unfinished("a", chunked=True)),
    ],
)
def test_a_refusal_says_what_is_wrong(
    manager: Manager, rule: str, reason: str, ask: Callable[[Manager], object]
) -> None:
    with pytest.raises(Refusal) as caught:
        ask(manager)
    assert (caught.value.refused.rule, caught.value.refused.reason) == (rule, reason)


@pytest.mark.parametrize("amounts", [(-1, 1, 1), (1, -1, 1), (1, 1, -1), (0, 0, 0)])
def test_an_eviction_asks_for_something_and_for_less_than_nothing_of_no_pool(
    manager: Manager, amounts: tuple[int, int, int]
) -> None:
    with pytest.raises(Refusal, match="are nothing to evict"):
        manager.evict(*amounts)


def test_what_was_matched_and_evicted_since_is_matched_again() -> None:
    manager = Manager(Config(page_size=2, num_pages=8, num_rows=3, max_context_len=16))
    for req in ("first", "second"):
        manager.submit(req, [1, 2, 3])
        manager.match_prefix(req)
        if req == "first":
            manager.extend([(req, 3)])
            manager.launch(1, [req])
            manager.complete(1, {req: 4})
            manager.finish(req)
    manager.evict(1)
    with pytest.raises(Refusal, match="what second matched has been evicted: match again") as caught:
        manager.extend([("second", 3)])
    assert caught.value.refused.rule == "STORE-5"


def test_who_has_grown_past_the_context_cannot_prefill_all_of_it() -> None:
    manager = Manager(Config(page_size=4, num_pages=8, num_rows=3, max_context_len=4))
    manager.submit("r", [1, 2, 3, 4])
    manager.match_prefix("r")
    manager.extend([("r", 4)])
    manager.launch(1, ["r"])
    manager.complete(1, {"r": 5})
    manager.retract("r")
    manager.match_prefix("r")
    with pytest.raises(Refusal, match="r would grow to 5, past 4") as caught:
        manager.extend([("r", 5)])
    assert caught.value.refused.rule == "LEN-1"


def test_shortage_is_reported_by_pool() -> None:
    manager = Manager(Config(4, 4, 2, 64, sliding_window=3, num_window_pages=3))
    for req in ("a", "b", "c"):
        manager.submit(req, [*range(8)])
        manager.match_prefix(req)
    with pytest.raises(Refusal) as caught:
        manager.extend([("a", 8), ("b", 8), ("c", 8)])
    refused = caught.value.refused
    assert refused.reason == "missing: 2 of 6 pages, 3 window pages, 1 rows, 0 state slots"
    assert (refused.pages_short, refused.rows_short, refused.window_short) == (2, 1, 3)
