"""The SGLang servers whose memory the hooks know, the pool that a server has on the host, and the end of its loop."""

from types import SimpleNamespace
from typing import Any

import pytest

from kvattach.hooks import Hooks
from kvattach.sglang.live import host_pool, not_hooked, watch_loops
from kvspec.memory.events import Failed
from tests.kvattach.lagging import Events

PYTHON, RUST = type("UnifiedTreeCore", (), {}), type("RustUnifiedTreeCore", (), {"collect_path_info": None})
RELEASE: Any = SimpleNamespace(cache_class=SimpleNamespace, sessions=True, pairs=False)
WITHOUT_PATHS = type("RustUnifiedTreeCore", (), {})
"""That of 0.5.21."""


def scheduler(core: type, **arguments: object) -> Any:
    return SimpleNamespace(server_args=SimpleNamespace(**arguments), tree_cache=SimpleNamespace(tree_core=core()))


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (scheduler(RUST), ""),
        (scheduler(PYTHON, enable_hierarchical_cache=True), ""),
        (scheduler(RUST, enable_hierarchical_cache=True), "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python is hooked"),
        (scheduler(WITHOUT_PATHS), "the core of its tree is in Rust"),
        (scheduler(PYTHON, disaggregation_mode="prefill"), "hooked from 0.5.23 on"),
        (scheduler(PYTHON, speculative_algorithm="EAGLE"), "--speculative-algorithm"),
    ],
)
def test_a_server_that_is_not_hooked_says_why(server: Any, reason: str) -> None:
    assert bool(not_hooked(server, RELEASE)) == bool(reason)
    assert reason in not_hooked(server, RELEASE)


def test_a_server_is_hooked_if_its_release_s_hooks_know_its_tree_and_its_sessions() -> None:
    server = scheduler(PYTHON, enable_streaming_session=True)
    assert not_hooked(server, RELEASE) == ""
    other: Any = SimpleNamespace(cache_class=dict, sessions=True, pairs=False)
    assert not_hooked(server, other) == "its tree is a SimpleNamespace, and in this release dict alone is hooked"
    older: Any = SimpleNamespace(cache_class=SimpleNamespace, sessions=None, pairs=False)
    assert "--enable-streaming-session" in not_hooked(server, older)


@pytest.mark.parametrize(("library", "hooked"), [("mooncake", True), ("nixl", False)])
def test_a_server_of_a_pair_is_hooked_if_it_transfers_with_mooncake(library: str, hooked: bool) -> None:
    server = scheduler(RUST, disaggregation_mode="decode")
    server.transfer_backend = SimpleNamespace(value=library)
    release: Any = SimpleNamespace(cache_class=SimpleNamespace, sessions=True, pairs=True)
    assert (not_hooked(server, release) == "") == hooked
    assert hooked or "another library than Mooncake" in not_hooked(server, release)


def test_the_pool_of_pages_on_the_host_is_found_in_newer_and_older_releases() -> None:
    pool = object()
    group = SimpleNamespace(anchor_entry=SimpleNamespace(host_pool=pool))
    assert host_pool(SimpleNamespace(host_pool_group=group)) is pool
    assert host_pool(SimpleNamespace(token_to_kv_pool_host=pool)) is pool
    assert host_pool(SimpleNamespace(host_pool_group=None)) is None


def test_an_error_that_ends_the_scheduler_is_an_event() -> None:
    class Scheduler:
        def event_loop_overlap(self) -> None:
            raise ValueError("it has a slot already")

    trace = Events()
    watch_loops(Hooks(trace), Scheduler)
    with pytest.raises(ValueError, match="a slot"):
        Scheduler().event_loop_overlap()
    words = "event_loop_overlap: ValueError: it has a slot already"
    assert trace.all == [Failed("assertion", words, at="event_loop_overlap")]
