"""The SGLang servers whose memory the hooks know, the pool that a server has on the host, and the end of its loop."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvattach.hooks import Hooks
from kvattach.sglang.live import _Live, cache_of, host_pool, not_hooked, watch_loops
from kvattach.sglang.release import Release
from kvspec.memory.events import Failed
from tests.kvattach.lagging import Events

PYTHON, RUST = type("UnifiedTreeCore", (), {}), type("RustUnifiedTreeCore", (), {"collect_path_info": None})
RELEASE: Any = SimpleNamespace(trees=["SimpleNamespace"], sessions=True, windows=True, pairs=False, drafts=True)
WITHOUT_PATHS = type("RustUnifiedTreeCore", (), {})
"""That of 0.5.19 to 0.5.21."""


def scheduler(core: type, *, windows: bool = False, **arguments: object) -> Any:
    tree = SimpleNamespace(tree_core=core(), supports_swa=lambda: windows, supports_mamba=lambda: False)
    return SimpleNamespace(server_args=SimpleNamespace(**arguments), tree_cache=tree, on_idle=None)


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (scheduler(RUST), ""),
        (scheduler(PYTHON, enable_hierarchical_cache=True), ""),
        (scheduler(RUST, enable_hierarchical_cache=True), "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND=python is hooked"),
        (scheduler(WITHOUT_PATHS), ""),
        (scheduler(RUST, windows=True), ""),
        (scheduler(WITHOUT_PATHS, windows=True), "does not show their nodes"),
        (scheduler(PYTHON, windows=True), ""),
        (scheduler(PYTHON, windows=True, enable_hierarchical_cache=True), "windows or states, and a host cache"),
        (scheduler(PYTHON, windows=True, disaggregation_mode="decode"), "and is one of two halves"),
        (scheduler(WITHOUT_PATHS, enable_hierarchical_cache=True), "it has a host cache, and the core"),
        (scheduler(PYTHON, disaggregation_mode="prefill"), "hooked from 0.5.23 on"),
        (scheduler(RUST, speculative_algorithm="NGRAM"), ""),
        (scheduler(PYTHON, speculative_algorithm="NGRAM", enable_hierarchical_cache=True), ""),
        (scheduler(PYTHON, speculative_algorithm="EAGLE"), "(--speculative-algorithm EAGLE), of which those of NGRAM"),
        (scheduler(PYTHON, windows=True, speculative_algorithm="NGRAM"), "it has drafts, and windows or states"),
        (SimpleNamespace(server_args=None, tree_cache=None), "its scheduler has no on_idle"),
    ],
)
def test_a_server_that_is_not_hooked_says_why(server: Any, reason: str) -> None:
    assert bool(not_hooked(server, RELEASE)) == bool(reason)
    assert reason in not_hooked(server, RELEASE)


def test_sessions_around_a_tree_are_not_taken_for_it() -> None:
    plain = scheduler(PYTHON, enable_streaming_session=True)
    sessions = type("StreamingSession", (SimpleNamespace,), {})(inner=plain.tree_cache)
    older = SimpleNamespace(server_args=plain.server_args, tree_cache=sessions, on_idle=None)
    assert cache_of(older) is cache_of(plain) is plain.tree_cache
    assert not_hooked(older, RELEASE) == ""


def test_a_server_is_hooked_if_its_release_s_hooks_know_its_tree_and_its_sessions() -> None:
    server = scheduler(PYTHON, enable_streaming_session=True)
    assert not_hooked(server, RELEASE) == ""
    other: Any = SimpleNamespace(trees=["UnifiedRadixCache"], sessions=True, windows=True, pairs=False)
    assert not_hooked(server, other) == "its tree is a SimpleNamespace; hooked in this release: UnifiedRadixCache"
    older: Any = SimpleNamespace(trees=["SimpleNamespace"], sessions=None, windows=False, pairs=False, drafts=None)
    assert "--enable-streaming-session" in not_hooked(server, older)
    assert not_hooked(scheduler(PYTHON), older) == ""
    assert "hooked from 0.5.20 on" in not_hooked(scheduler(PYTHON, windows=True), older)
    assert "from 0.5.21 on" in not_hooked(scheduler(PYTHON, speculative_algorithm="NGRAM"), older)


@pytest.mark.parametrize(
    ("files", "hooked"),
    [
        (["hiradix_cache.py"], ["HiRadixCache", "RadixCache"]),
        (["hiradix_cache.py", "pool_host/group.py"], ["HiRadixCache", "RadixCache", "UnifiedRadixCache"]),
        (["pool_host/group.py"], ["UnifiedRadixCache"]),
    ],
    ids=["until 0.5.18", "0.5.19 and 0.5.20", "from 0.5.21 on"],
)
def test_the_trees_of_a_release_follow_from_its_modules(files: list[str], hooked: list[str], tmp_path: Path) -> None:
    for name in files:
        module = tmp_path / "srt" / "mem_cache" / name
        module.parent.mkdir(parents=True, exist_ok=True)
        module.touch()
    release = object.__new__(Release)
    release.root = tmp_path
    assert release.trees == hooked


@pytest.mark.parametrize(("library", "hooked"), [("mooncake", True), ("nixl", False)])
def test_a_server_of_a_pair_is_hooked_if_it_transfers_with_mooncake(library: str, hooked: bool) -> None:
    server = scheduler(RUST, disaggregation_mode="decode")
    server.transfer_backend = SimpleNamespace(value=library)
    release: Any = SimpleNamespace(trees=["SimpleNamespace"], sessions=True, windows=True, pairs=True)
    assert (not_hooked(server, release) == "") == hooked
    assert hooked or "another library than Mooncake" in not_hooked(server, release)
    release.drafts, server.server_args.speculative_algorithm = True, "NGRAM"
    assert not hooked or not_hooked(server, release) == "it has drafts, and is one of two halves"


class Steps:
    """Writes down which calls a server makes for a pass, with their numbers and tensors."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.hooks = Hooks(Events())

    def reads_rows(self, _: Any, stops: list[int]) -> None:
        self.calls.append(("reads_rows", stops))

    def launch(self, _: Any, starts: list[int], stops: list[int], __: Any) -> None:
        self.calls.append(("launch", starts, stops))

    def reads_drafts(self, _: Any, drafts: int, starts: Any) -> None:
        self.calls.append(("reads_drafts", drafts, starts))

    def verify(self, _: Any, drafts: int, starts: Any, accepted: Any) -> None:
        self.calls.append(("verify", drafts, starts, accepted))


@pytest.mark.parametrize(("drafts", "extends"), [(0, False), (4, False), (4, True)], ids=["plain", "drafts", "prompt"])
def test_a_pass_verifies_drafts_if_its_worker_has_them_and_it_computes_no_prompt(drafts: int, extends: bool) -> None:
    steps: Any = Steps()
    live = _Live(None, steps)
    worker = SimpleNamespace(speculative_num_draft_tokens=drafts) if drafts else SimpleNamespace()
    lengths, accepted = SimpleNamespace(tolist=lambda: [8, 9]), object()
    mode = SimpleNamespace(is_extend=lambda: extends)
    batch = SimpleNamespace(reqs=[1, 2], forward_mode=mode, seq_lens=lengths, seq_lens_cpu=lengths, prefix_lens=[0, 4])
    firsts = live.launches(worker, batch)
    # The scheduler gives a batch other lengths for its next pass.
    batch.seq_lens = object()
    live.launched(firsts, SimpleNamespace(accept_lens=accepted), worker, batch)
    if drafts and not extends:
        assert steps.calls == [("reads_drafts", 4, lengths), ("verify", 4, lengths, accepted)]
    else:
        assert steps.calls == [("reads_rows", [8, 9]), ("launch", [0, 4] if extends else [7, 8], [8, 9])]


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
