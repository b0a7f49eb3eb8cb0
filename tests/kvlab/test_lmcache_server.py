"""The stand-in for LMCache's server: what a lookup finds, what a transfer copies, and what is evicted."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvlab.device import Stream
from kvlab.vllm.lmcache_server import MODULE, Server, Shared
from kvlab.vllm.workload import Workload


class Answer:
    """The engine's answers, in short."""

    done: Any = None

    def query(self) -> bool:
        return self.done is not None

    def set_result(self, result: Any) -> None:
        self.done = (result,)


class Copies(Server):
    """Notes the copies."""

    def transfer(self, key: Any, kind: str, group: int, first: int, blocks: list[int], pages: list[int]) -> None:
        super().transfer(key, kind, group, first, blocks, pages)
        noted.append((kind, group, blocks))


noted: list[tuple[str, int, list[int]]] = []


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    module: Any = ModuleType(MODULE)
    module.all_null_chunk_masks = lambda rows, _, sizes, chunks: [
        [not any(row[at * size : (at + 1) * size]) for at in range(chunks)]
        for row, size in zip(rows, sizes, strict=True)
    ]
    monkeypatch.setitem(sys.modules, MODULE, module)
    Stream.all.clear()
    Shared.known.clear()
    noted.clear()
    yield lambda chunk=8, host=20, **more: Copies(Workload(host=host, **more), chunk, Answer)


def asked(server: Server, name: str, *args: Any) -> Any:
    answer = server.sent(name, args)
    answer.wait()
    return answer.done[0]


def key(tokens: int, start: int = 0, salt: str = "", name: str = "r") -> Any:
    return SimpleNamespace(
        model_name="m", cache_salt=salt, token_ids=tuple(range(tokens)), start=start, end=tokens, request_id=name
    )


def handle() -> bytes:
    return Shared().ipc_handle()


def stored(server: Server, of: Any, *blocks: list[int]) -> None:
    asked(server, "store", of, 0, list(blocks), handle())
    Stream.all[-1].synchronize()


def found(server: Server, of: Any) -> int:
    asked(server, "lookup", of, 1)
    hits = None
    while hits is None:
        hits = asked(server, "query_prefetch_status", of.request_id)
    return int(hits)


def test_a_hit_needs_the_whole_prefix_of_full_attention_and_the_last_chunk_of_a_window(
    made: Callable[..., Server],
) -> None:
    server = made(groups=(("full", 4, 0), ("window", 4, 8)))
    stored(server, key(16), [1, 2, 3, 4], [0, 0, 7, 8])
    assert noted == [("store", 0, [1, 2]), ("store", 0, [3, 4]), ("store", 1, [7, 8])]
    assert [found(server, key(tokens)) for tokens in (8, 16, 23)] == [0, 2, 2]
    assert found(server, key(16, salt="b")) == 0


def test_a_state_s_object_is_the_last_block_of_its_chunk(made: Callable[..., Server]) -> None:
    server = made(groups=(("full", 4, 0), ("state", 4, 0)))
    stored(server, key(16), [1, 2, 3, 4], [5, 6, 0, 7])
    assert noted[2:] == [("store", 1, [6]), ("store", 1, [7])]
    noted.clear()
    assert asked(server, "retrieve", key(16), 0, [[11, 12, 13, 14], [0, 0, 0, 17]], handle(), 4)[1]
    assert noted == [("load", 0, [12]), ("load", 0, [13, 14]), ("load", 1, [17])]


def test_a_chunk_is_found_once_its_copy_is_done_and_not_evicted_while_it_is_locked(
    made: Callable[..., Server],
) -> None:
    server = made(host=4)
    asked(server, "store", key(8), 0, [[1, 2]], handle())
    assert found(server, key(8)) == 0
    Stream.all[-1].synchronize()
    assert found(server, key(8)) == 1
    stored(server, key(8, salt="b"), [3, 4])
    stored(server, key(8, salt="c"), [5, 6])
    assert [found(server, key(8, salt=salt, name=salt)) for salt in ("", "b", "c")] == [1, 0, 1]
    asked(server, "free_lookup_locks", key(8, name=""), 1)
    asked(server, "free_lookup_locks", key(8), 1)
    stored(server, key(8, salt="d"), [7, 8])
    assert found(server, key(8)) == 0


def test_a_load_of_a_chunk_that_is_gone_fails(made: Callable[..., Server]) -> None:
    assert not asked(made(), "retrieve", key(8), 0, [[1, 2]], handle())[1]


def test_a_store_with_too_few_blocks_stores_nothing(made: Callable[..., Server]) -> None:
    server = made()
    assert not asked(server, "store", key(16), 0, [[1, 2, 3]], handle())[1]
    assert noted == []
