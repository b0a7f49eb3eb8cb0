"""KV events as hooks emit them: the names and contents that a router computes from them, without an engine."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvattach.hooks import Hooks, chained
from kvattach.sglang.routers import Routers as SglangRouters
from kvattach.sglang.view import HOST, KV
from kvattach.vllm.residency import Group, Run
from kvattach.vllm.routers import Routers as VllmRouters
from kvlab.drives import CheckedTrace
from kvspec.memory.events import Announce, Drop

FULL, WINDOW = Group(0, 4, 0, False, 4), Group(1, 8, 9, False, 8)


class BlockStored(msgspec.Struct):
    """As vLLM and SGLang have it."""

    block_hashes: list[Any]
    token_ids: list[Any]
    parent_block_hash: Any = None
    block_size: int = 4
    medium: Any = "GPU"
    lora_id: int | None = None
    lora_name: str | None = None
    extra_keys: list[Any] | None = None
    group_idx: int = 0


class BlockRemoved(msgspec.Struct):
    """The same."""

    block_hashes: list[Any]
    medium: Any = "GPU"
    group_idx: int = 0


class AllBlocksCleared(msgspec.Struct):
    """The same."""


class Attached:
    """The hooks of a scheduler."""

    def __init__(self) -> None:
        self.hooks, self.groups, self.emitted = Hooks(CheckedTrace()), [FULL, WINDOW], list[Announce]()

    def emit(self, *events: Any) -> None:
        self.emitted += events


def vllm() -> tuple[Callable[..., list[Announce]], VllmRouters]:
    """Publishes a batch of vLLM, and returns the hooks' events of it."""
    attached = Attached()
    routers, publisher = VllmRouters(attached), SimpleNamespace(publish=lambda batch: None)
    pool = SimpleNamespace(enable_kv_cache_events=True)
    scheduler = SimpleNamespace(kv_event_publisher=publisher, kv_cache_manager=SimpleNamespace(block_pool=pool))
    routers.start(scheduler, {"GPU": "kv", "CPU": "host"})

    def publish(*events: Any) -> list[Announce]:
        attached.emitted.clear()
        publisher.publish(SimpleNamespace(events=[*events]))
        assert attached.hooks.problem is None
        return list(attached.emitted)

    return publish, routers


def labels(*tokens: int, group: Group = FULL, **more: Any) -> list[str]:
    """The labels that the hooks give the pages of a request with these tokens."""
    run = Run("r", SimpleNamespace(_all_token_ids=list(tokens), mm_features=(), **more), [FULL, WINDOW])
    return [run.label(group, page) for page in range(len(tokens) // group.size)]


def test_a_batch_of_vllm_is_its_events_and_then_all_names_of_each_pool() -> None:
    publish, _ = vllm()
    first, *rest = publish(BlockStored([1, 2], [*range(8)]), AllBlocksCleared(), BlockRemoved([2], "CPU", 1))
    assert (first.batch, first.tier, first.stored, first.parent) == (
        0,
        "GPU",
        ["0000000000000001.0", "0000000000000002.0"],
        None,
    )
    assert rest[0].cleared and rest[0].tier is None
    assert (rest[1].tier, rest[1].removed) == ("CPU", ["0000000000000002.1"])
    assert [(one.tier, one.pool) for one in rest[2:]] == [("GPU", "kv"), ("CPU", "host")]
    assert publish()[0].batch == 1


def test_the_content_that_vllm_announces_is_that_of_the_requests_own_tokens() -> None:
    publish, _ = vllm()
    tokens = [*range(16)]
    assert publish(BlockStored([1, 2], tokens[:8]))[0].labels == labels(*tokens[:8])
    assert publish(BlockStored([3], tokens[8:12], 2))[0].labels == labels(*tokens)[2:3], "behind its parent"
    assert publish(BlockStored([b"\xff" * 32], tokens[12:], 3))[0].stored == [f"{'ff' * 8}.0"]
    assert publish(BlockStored([9], tokens[:8], block_size=8, group_idx=1))[0].labels == labels(
        *tokens[:8], group=WINDOW
    )
    assert publish(BlockStored([4], tokens[:4], 99))[0].labels is None, "a parent that was never announced"
    assert publish(BlockStored([5], []))[0].labels is None
    assert publish(BlockStored([6], tokens[:8]))[0].labels == [], "tokens of a block that was skipped"


def test_adapters_and_salts_are_part_of_the_content_that_vllm_announces() -> None:
    publish, routers = vllm()
    lora = SimpleNamespace(adapter_id=7, lora_path="/a/1")
    routers.comes(SimpleNamespace(lora_request=lora))
    tokens = [*range(8)]
    for extra, salt in ((["a"], None), (["a", "a"], "a"), (["a", "s"], "s")):
        event = BlockStored([1], tokens[:4], lora_id=7, lora_name="a", extra_keys=[extra])
        assert publish(event)[0].labels == labels(*tokens[:4], lora_request=lora, cache_salt=salt)
    later = BlockStored([2], tokens[4:], 1, lora_id=7, lora_name="a", extra_keys=[["a"]])
    assert publish(later)[0].labels == labels(*tokens, lora_request=lora, cache_salt="s")[1:]
    assert publish(BlockStored([3], tokens[:4], extra_keys=[[("image", 0)]]))[0].labels is None
    routers.comes(SimpleNamespace(prompt_embeds=object()))
    assert publish(BlockStored([4], tokens[:4]))[0].labels is None


def test_a_parent_is_reported_where_blocks_keep_theirs() -> None:
    publish, _ = vllm()
    emitted = publish(
        BlockStored([2], [1] * 4, 1),
        BlockStored([2], [1] * 4, 1, medium="CPU"),
        BlockStored([2], [1] * 8, 1, block_size=8, group_idx=1),
    )
    assert [one.parent for one in emitted[:3]] == ["0000000000000001.0", None, None]


def test_the_images_of_a_server_that_runs_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvattach.vllm.routers.REMEMBERED", 2)
    publish, routers = vllm()
    for name in ("first", "second", "third"):
        routers.comes(SimpleNamespace(mm_features=[SimpleNamespace(identifier=name)]))
    of_images = [publish(BlockStored([1], [1] * 4, extra_keys=[[name]]))[0].labels for name in ("first", "third")]
    assert of_images[0] is not None and of_images[1] is None


def test_blocks_of_several_groups_are_not_compared_where_events_name_no_group() -> None:
    class BlockRemoved(msgspec.Struct):
        """As older releases have it."""

        block_hashes: list[Any]
        medium: Any = "GPU"

    publish, _ = vllm()
    assert publish(BlockRemoved([1])) == [Announce(batch=0, at="publish")]
    assert publish(BlockRemoved([1])) == [Announce(batch=1, at="publish")]


class Cache:
    """A tree of SGLang: `take_events` gives up what `queue` has."""

    tree_core = SimpleNamespace(kv_events=SimpleNamespace(enabled=True))

    def __init__(self) -> None:
        self.queue, self.ongoing_write_through = list[Any](), dict[int, Any]()

    def insert(self, params: Any) -> None: ...

    def take_events(self) -> list[Any]:
        events, self.queue = self.queue, []
        return events


class Trace(CheckedTrace):
    """Keeps announcements."""

    def __init__(self) -> None:
        super().__init__()
        self.emitted = list[Any]()

    def emit(self, *events: Any) -> None:
        self.emitted += events


def test_sglang_announces_pages_by_their_content() -> None:
    trace, cache, release = Trace(), Cache(), SimpleNamespace(unified=True, cache_class=Cache)
    hooks, watched = Hooks(trace), [cache]
    routers = SglangRouters(release, hooks, lambda: watched[0], lambda: "")  # type: ignore[arg-type]
    routers.start({KV: None, HOST: None})

    def take(*events: Any) -> list[Any]:
        hooks.emit(Drop(KV, [1]))
        trace.emitted.clear()
        cache.queue += events
        cache.take_events()
        assert hooks.problem is None
        return list(trace.emitted)

    try:
        one = chained("", (1, 2))
        two = chained(one, (3, 4))
        emitted = take(BlockStored([-5, 6], [1, 2, 3, 4], block_size=2), BlockRemoved([6, 7]), AllBlocksCleared())
        assert [emitted[0].stored, emitted[0].batch, emitted[1].removed, emitted[2].cleared] == [
            [one, two],
            0,
            [two, "7"],
            True,
        ]
        assert [(one.tier, one.pool) for one in emitted[3:]] == [("GPU", KV), ("CPU_PINNED", HOST)]
        pairs = BlockStored([8], [(5, 6), (6, 7)], 6, 2, SimpleNamespace(value="CPU_PINNED"))
        emitted = take(pairs)
        assert (emitted[0].tier, emitted[0].stored, emitted[0].parent) == ("CPU_PINNED", [chained(two, (5, 6))], two)
        cache.ongoing_write_through[1] = None
        assert [one.tier for one in take()] == ["GPU"], (
            "a page that is being written has a name, and is announced later"
        )
        Cache().take_events()
        assert len(trace.emitted) == 1, "another tree"
        cache.insert(SimpleNamespace(key=SimpleNamespace(extra_key="adapter")))
        assert take(BlockRemoved([6])) == [], "names do not say whose content it is"
        routers.start({KV: None, HOST: None})
        assert take(BlockRemoved([6])) == [], "a flush does not say it either"
        watched[0] = cache = Cache()
        routers.start({KV: None, HOST: None})
        assert [one.removed for one in take(BlockRemoved([6]))] == [["6"], [], []], "another server"
    finally:
        hooks.detach()
